"""Tests of PlayCanvas's compressed PLY, against values encoded and decoded by hand."""

import dataclasses
import math
import struct

import numpy as np
import pytest
import torch

from tests.support.model_files import assert_same_rotations, compressed_ply_bytes, random_gaussians
from tsplat import ArgumentError, UnsupportedError
from tsplat.scene import FileError, read_ply, write_compressed_ply
from tsplat.scene.formats.compressed_ply import CHUNK, LARGEST, encode_means, position_error
from tsplat.scene.morton import morton_order

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


def test_read_accepts_an_element_sh_without_properties(tmp_path):
    content = compressed_ply_bytes(np.random.default_rng(0), COUNT, 0)
    (tmp_path / "a.ply").write_bytes(content.replace(b"end_header", b"element sh 300\nend_header"))
    assert read_ply(tmp_path / "a.ply").sh_degree == 0


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_round_trip_is_within_quantization(tmp_path, degree):
    gaussians = random_gaussians(COUNT, degree=degree, antialiased=degree == 1)
    write_compressed_ply(tmp_path / "a.ply", gaussians)
    found = read_ply(tmp_path / "a.ply")
    assert (len(found), found.sh_degree, found.antialiased) == (COUNT, degree, degree == 1)
    order = torch.cdist(found.means, gaussians.means).argmin(1)
    assert order.unique().numel() == COUNT
    expected = gaussians.map(lambda tensor: tensor[order])
    chunk_ids = torch.arange(COUNT) // 256
    levels = torch.tensor([2047.0, 1023, 2047])

    def steps(values, levels):
        """The distances between levels in each chunk."""
        chunks = [values[chunk_ids == chunk] for chunk in range(2)]
        return torch.stack([chunk.amax(0) - chunk.amin(0) for chunk in chunks])[chunk_ids] / levels

    for name in ("means", "log_scales"):
        values = getattr(expected, name)
        error = (getattr(found, name) - values).abs()
        assert (error <= 0.5 * steps(values, levels) + 1e-5).all(), name
    error = (found.sh0 - expected.sh0).abs()[:, 0]
    assert (error <= 0.5 * steps(expected.sh0[:, 0], 255) + 1e-5).all()
    assert ((found.opacities - expected.opacities).abs() <= 0.5 / 255 + 1e-5).all()
    assert_same_rotations(found, expected, 2 * math.sqrt(2) / 1023)
    assert ((found.shN - expected.shN).abs() <= 1 / 32 + 1e-5).all()


def test_write_encodes_one_gaussian(tmp_path):
    gaussians = random_gaussians(2, degree=1)
    gaussians.means[:] = torch.tensor([[0.0, 5, 2], [1, 5, 0]])
    gaussians.log_scales[:] = torch.tensor([[-1.0, 30, -3], [-2, 30, -3]])
    gaussians.quats[:] = torch.tensor([[0.0, -2, 0, 0], [1, 0, 0, 1]])
    gaussians.opacity_logits[:] = torch.tensor([-math.inf, 0])
    gaussians.sh0[:] = torch.tensor([[[0.0, 1, 0]], [[1, 0, 0]]])
    gaussians.shN[:] = torch.arange(18.0).view(2, 3, 3) - 5
    write_compressed_ply(tmp_path / "a.ply", gaussians)
    header, _, body = (tmp_path / "a.ply").read_bytes().partition(b"end_header\n")
    lines = header.decode().split("\n")
    names = [line.split()[-1] for line in lines if line.startswith("property")]
    assert names[:7] == ["min_x", "min_y", "min_z", "max_x", "max_y", "max_z", "min_scale_x"]
    elements = [line for line in lines if line.startswith("element")]
    assert elements == ["element chunk 1", "element vertex 2", "element sh 2"]
    assert len(body) == 4 * 18 + 16 * 2 + 9 * 2
    white = 0.5 + 0.28209479177387814
    bounds = [0, 5, 0, 1, 5, 2, -2, 20, -3, -1, 20, -3, 0.5, 0.5, 0.5, white, white, 0.5]
    assert struct.unpack_from("<18f", body) == pytest.approx(bounds)
    words = struct.unpack_from("<8I", body, 72)
    # The positions are exact, so that their order is kept.
    first, second = words[:4], words[4:]
    half = 512  # 0 in ten bits, rounded up
    assert first == (
        2047,  # the lowest x, the only y, the highest z
        1 << 30 | half << 20 | half << 10 | half,
        2047 << 21,
        0x00FF0000,
    )
    assert second[0] == 2047 << 21
    assert second[1] >> 30 == 0
    assert second[1] & 1023 == 1023
    assert second[2] == 0
    assert second[3] == 0xFF000080
    # Channel by channel; values beyond -4 and 4 are clamped. All are midway between two bytes, and rounded by turns.
    rest = body[72 + 32 :]
    values = gaussians.shN.mT.tolist()
    expected = [
        int((values[i][c][k] / 8 + 0.5) * 256) - (i + k) % 2 for i in range(2) for c in range(3) for k in range(3)
    ]
    assert list(rest) == [min(max(byte, 0), 255) for byte in expected]


def test_coefficients_of_zero_stay_zero_on_average(tmp_path):
    gaussians = random_gaussians(COUNT, degree=3)
    gaussians.shN.zero_()
    write_compressed_ply(tmp_path / "a.ply", gaussians)
    found = read_ply(tmp_path / "a.ply").shN
    assert (found.abs() == 1 / 64).all()
    assert found.mean(0).abs().max() == 0


def test_models_without_gaussians_are_written(tmp_path):
    write_compressed_ply(tmp_path / "a.ply", random_gaussians(3, degree=2).map(lambda tensor: tensor[:0]))
    found = read_ply(tmp_path / "a.ply")
    assert (len(found), found.sh_degree) == (0, 2)


def test_write_rejects_what_the_format_cannot_represent(tmp_path):
    gaussians = random_gaussians(4)
    gaussians.quats[2, 0] = torch.nan
    with pytest.raises(ArgumentError, match=r"1 of 4.*valid"):
        write_compressed_ply(tmp_path / "a.ply", gaussians)
    with pytest.raises(UnsupportedError, match="sh_degree: expected at most 3"):
        write_compressed_ply(tmp_path / "a.ply", random_gaussians(4, degree=4))
    assert not list(tmp_path.iterdir())


def test_chunks_are_small_boxes(tmp_path):
    """Steps of positions are parts of the box of a chunk, which a Morton curve makes up to 3 times as large here."""
    points = torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0))
    points /= points.norm(dim=-1, keepdim=True)
    gaussians = random_gaussians(20_000)
    gaussians = dataclasses.replace(gaussians, means=points)
    write_compressed_ply(tmp_path / "a.ply", gaussians)
    order, (bounds, _) = encode_means(points.numpy())
    assert np.array_equal(np.sort(order), np.arange(20_000))
    largest = (np.diff(bounds.reshape(-1, 2, 3), axis=1) / LARGEST).max()
    chunks = points[morton_order(points)].split(CHUNK)
    morton = max(float((np.ptp(chunk.numpy(), 0) / LARGEST).max()) for chunk in chunks)
    assert largest < 0.5 * morton
    errors = (read_ply(tmp_path / "a.ply").means - points[torch.from_numpy(order)]).abs().max()
    assert 0.9 * position_error(points.numpy()) < errors < 1.001 * position_error(points.numpy())
