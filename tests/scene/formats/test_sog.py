"""Tests of SOG datasets, against values decoded by hand."""

import json
import struct
import zipfile

import numpy as np
import pytest

from tests.support.model_files import assert_same_tensors, sog_files, webp_bytes, write_folder, write_zip
from tsplat import UnsupportedError
from tsplat.scene import FileError, read_model, read_sog


def test_read_decodes_every_value(tmp_path):
    files, arrays, codebooks = sog_files(model="antialiased")
    found = read_model(write_folder(tmp_path / "folder", files))
    assert (len(found), found.sh_degree, found.antialiased) == (30, 2, True)
    flat = {name: array.reshape(-1, 4) for name, array in arrays.items() if name != "shN_centroids"}
    for i in (0, 13, 29):
        for axis, (low, high) in enumerate([(-1, 1), (-2, 2), (-3, 4)]):
            word = int(flat["means_l"][i, axis]) + 256 * int(flat["means_u"][i, axis])
            logarithm = low + (high - low) * word / 65535
            expected = np.sign(logarithm) * (np.exp(abs(logarithm)) - 1)
            assert float(found.means[i, axis]) == pytest.approx(expected, rel=1e-4, abs=1e-5)
            assert float(found.log_scales[i, axis]) == pytest.approx(codebooks["scales"][flat["scales"][i, axis]])
            assert float(found.sh0[i, 0, axis]) == pytest.approx(codebooks["sh0"][flat["sh0"][i, axis]])
        assert float(found.opacities[i]) == pytest.approx(flat["sh0"][i, 3] / 255, abs=2e-6)
        largest = int(flat["quats"][i, 3]) - 252
        smallest = [(int(x) / 255 * 2 - 1) / 2**0.5 for x in flat["quats"][i, :3]]
        quat = found.quats[i].tolist()
        assert quat[:largest] + quat[largest + 1 :] == pytest.approx(smallest, abs=1e-6)
        label = int(flat["shN_labels"][i, 0])
        for k in range(8):
            pixel = arrays["shN_centroids"][label // 64, label % 64 * 8 + k]
            assert found.shN[i, k].tolist() == pytest.approx([codebooks["shN"][x] for x in pixel[:3]])
    for path in (tmp_path / "folder" / "meta.json", write_zip(tmp_path / "a.sog", files)):
        assert_same_tensors(read_model(path), found)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (dict(version=None), UnsupportedError, "before version 2"),
        (dict(version=3), UnsupportedError, "found 3"),
        (dict(count=41), FileError, "expected 41 pixels.*found 40"),
        (dict(count="41"), FileError, "count to be a nonnegative integer"),
        (dict(means=None), FileError, "files to be a list of 2 file names"),
        (dict(means={"files": ["means_l.webp", "means_u.webp"], "mins": [1, 2], "maxs": [1, 2, 3]}), FileError, "mins"),
        (dict(sh0={"files": ["sh0.webp"], "codebook": [1.0, 2.0]}), FileError, "codebook to be a list of at least"),
        (dict(sh0={"files": ["sh0.webp"], "codebook": [10**400] * 256}), FileError, "range of a float"),
        (dict(quats={"files": ["../quats.webp"]}), FileError, "without a folder"),
        (dict(quats={"files": ["scales.webp"]}), FileError, "expected alpha"),
        (dict(quats={"files": ["meta.json"]}), FileError, "cannot be read as an image"),
        (dict(shN={"bands": 7, "files": ["shN_centroids.webp", "shN_labels.webp"]}), FileError, "bands"),
        (dict(shN={"bands": 1, "files": ["shN_centroids.webp", "shN_labels.webp"]}), FileError, "expected a width of"),
    ],
)
def test_invalid_metadata_or_image_is_rejected(tmp_path, changes, error, words):
    files, _, _ = sog_files(**changes)
    with pytest.raises(error, match=words) as caught:
        read_model(write_zip(tmp_path / "a.sog", files))
    assert "a.sog" in str(caught.value)


def test_palette_index_out_of_range_is_rejected(tmp_path):
    files, _, _ = sog_files()
    meta = json.loads(files["meta.json"])
    meta["shN"]["count"] = 50
    files["meta.json"] = json.dumps(meta).encode()
    with pytest.raises(FileError, match="palette indices below 50"):
        read_model(write_zip(tmp_path / "a.sog", files))


@pytest.mark.slow
def test_oversized_image_is_not_decoded(tmp_path):
    files, _, _ = sog_files(bands=1)
    files["scales.webp"] = webp_bytes(np.zeros((8000, 8000, 4), np.uint8))
    assert len(files["scales.webp"]) < 100_000
    with pytest.raises(FileError, match=r"scales\.webp has 8000×8000 pixels for 30"):
        read_model(write_zip(tmp_path / "a.sog", files))


def test_missing_and_damaged_files_are_rejected(tmp_path):
    files, _, _ = sog_files()
    del files["scales.webp"]
    with pytest.raises(FileError, match=r"no scales\.webp"):
        read_model(write_zip(tmp_path / "a.sog", files))
    with pytest.raises(FileNotFoundError, match=r"scales\.webp"):
        read_model(write_folder(tmp_path / "folder", files))
    files["meta.json"] = b"{"
    with pytest.raises(FileError, match="not JSON"):
        read_model(write_zip(tmp_path / "b.sog", files))
    with pytest.raises(FileError, match="another compression"):
        read_model(write_zip(tmp_path / "c.sog", files, zipfile.ZIP_LZMA))
    (tmp_path / "d.sog").write_bytes((tmp_path / "a.sog").read_bytes()[:-30])
    with pytest.raises(FileError, match="ZIP archive"):
        read_model(tmp_path / "d.sog")


def test_huge_image_is_rejected_without_a_warning(tmp_path):
    files = sog_files()[0]
    content = bytearray(files["scales.webp"])
    start = content.index(b"VP8L") + 9  # width - 1 and height - 1, 14 bits each
    content[start : start + 4] = struct.pack("<I", 12_999 | 12_999 << 14 | 1 << 28)
    (tmp_path / "a.sog").write_bytes(
        write_zip(tmp_path / "b.sog", {**files, "scales.webp": bytes(content)}).read_bytes()
    )
    with pytest.raises(FileError, match=r"a\.sog: scales\.webp has 13000×13000 pixels for 30 Gaussians"):
        read_sog(tmp_path / "a.sog")
