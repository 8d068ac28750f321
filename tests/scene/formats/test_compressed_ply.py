"""Tests of PlayCanvas's compressed PLY, against values decoded by hand."""

import math
import struct

import numpy as np
import pytest

from tests.support.model_files import compressed_ply_bytes
from tsplat.scene import FileError, read_ply

COUNT = 300
INDEX = 260
"""The Gaussian that is compared; it is in the second chunk."""


def between(word, bounds, axis):
    """Decodes one of the 11, 10 and 11 bit fields of a word; bounds are (low, high) per axis."""
    fraction = [(word >> 21) / 2047, (word >> 11 & 1023) / 1023, (word & 2047) / 2047][axis]
    low, high = bounds[2 * axis : 2 * axis + 2]
    return low + (high - low) * fraction


@pytest.mark.parametrize("colors", [True, False])
@pytest.mark.parametrize("degree", [0, 1, 3])
def test_read_decodes_every_value(tmp_path, degree, colors):
    content = compressed_ply_bytes(np.random.default_rng(0), COUNT, degree, colors)
    (tmp_path / "a.ply").write_bytes(content.replace(b"\nelement", b"\ncomment SplatRenderMode: mip\nelement", 1))
    found = read_ply(tmp_path / "a.ply")
    assert (len(found), found.sh_degree, found.antialiased) == (COUNT, degree, True)
    body = content.partition(b"end_header\n")[2]
    width = 18 if colors else 12
    bounds = struct.unpack_from(f"<{width}f", body, width * 4)
    position, rotation, scale, color = struct.unpack_from("<4I", body, 2 * width * 4 + 16 * INDEX)
    means, log_scales = ([between(w, bounds[i:], a) for a in range(3)] for w, i in ((position, 0), (scale, 6)))
    assert found.means[INDEX].tolist() == pytest.approx(means, rel=1e-5)
    assert found.log_scales[INDEX].tolist() == pytest.approx(log_scales, rel=1e-5)
    smallest = [((rotation >> shift & 1023) / 1023 - 0.5) * math.sqrt(2) for shift in (20, 10, 0)]
    largest = rotation >> 30
    quat = found.quats[INDEX].tolist()
    assert quat[largest] == pytest.approx(math.sqrt(max(1 - sum(x * x for x in smallest), 0)), abs=1e-6)
    assert quat[:largest] + quat[largest + 1 :] == pytest.approx(smallest, abs=1e-6)
    assert float(found.opacities[INDEX]) == pytest.approx((color & 255) / 255, abs=2e-6)
    channels = [(color >> shift & 255) / 255 for shift in (24, 16, 8)]
    if colors:
        channels = [bounds[12 + 2 * c] + (bounds[13 + 2 * c] - bounds[12 + 2 * c]) * x for c, x in enumerate(channels)]
    assert (0.5 + 0.28209479177387814 * found.sh0[INDEX, 0]).tolist() == pytest.approx(channels, abs=1e-5)
    size = (degree + 1) ** 2 - 1
    rest = body[2 * width * 4 + 16 * COUNT :][3 * size * INDEX :][: 3 * size]
    for k in range(size):
        for channel in range(3):
            byte = rest[channel * size + k]
            assert float(found.shN[INDEX, k, channel]) == pytest.approx(byte / 32 - 4, abs=1 / 32 + 1e-6)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"element vertex 300", b"element vertex 200", "expected 1 chunks for 200 Gaussians, found 2"),
        (b"element chunk", b"element chank", "element 'chunk' lacks min_x"),
        (b"max_scale_z", b"max_scale_w", "lacks max_scale_z"),
        (b"end_header", b"element sh 300\nproperty uchar f_rest_0\nend_header", "'sh': .*found 1 properties"),
    ],
)
def test_inconsistent_elements_are_rejected(tmp_path, old, new, words):
    content = compressed_ply_bytes(np.random.default_rng(0), COUNT, 0)
    (tmp_path / "a.ply").write_bytes(content.replace(old, new))
    with pytest.raises(FileError, match=words):
        read_ply(tmp_path / "a.ply")
