"""SOG datasets, made by hand."""

import io
import json
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from tsplat import UnsupportedError
from tsplat.scene import FileError, read_model


def webp(values):
    """[H, W, 4] uint8 as a lossless picture."""
    file = io.BytesIO()
    Image.fromarray(values, "RGBA").save(file, "WEBP", lossless=True, exact=True)
    return file.getvalue()


def sog(count=30, bands=2, **changes):
    """Files of a random SOG of 5 x 8 pixels, and the arrays that are in it."""
    rng = np.random.default_rng(0)
    size = (bands + 1) ** 2 - 1
    names = ("means_l", "means_u", "scales", "sh0", "quats", "shN_labels")
    arrays = {name: rng.integers(0, 256, (5, 8, 4), dtype=np.uint8) for name in names}
    arrays["quats"][..., 3] = rng.integers(252, 256, (5, 8))
    arrays["shN_labels"][..., 0] %= 100
    arrays["shN_labels"][..., 1] = 0
    arrays["shN_centroids"] = rng.integers(0, 256, (2, 64 * size, 4), dtype=np.uint8)
    books = {name: np.sort(rng.normal(size=256)).tolist() for name in ("scales", "sh0", "shN")}
    meta = {
        "version": 2,
        "count": count,
        "means": {"mins": [-1, -2, -3], "maxs": [1, 2, 4], "files": ["means_l.webp", "means_u.webp"]},
        "quats": {"files": ["quats.webp"]},
        **{name: {"codebook": books[name], "files": [f"{name}.webp"]} for name in ("scales", "sh0")},
        "shN": {
            **{"count": 100, "bands": bands, "codebook": books["shN"]},
            "files": ["shN_centroids.webp", "shN_labels.webp"],
        },
        **changes,
    }
    files = {f"{name}.webp": webp(array) for name, array in arrays.items()}
    return {**files, "meta.json": json.dumps(meta).encode()}, arrays, books


def write_folder(path, files):
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


def write_zip(path, files, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_sog_against_arithmetic_by_hand(tmp_path):
    files, arrays, books = sog(model="antialiased")
    found = read_model(write_folder(tmp_path / "folder", files))
    assert (len(found), found.sh_degree, found.antialiased) == (30, 2, True)
    flat = {name: array.reshape(-1, 4) for name, array in arrays.items() if name != "shN_centroids"}
    for i in (0, 13, 29):
        for axis, (low, high) in enumerate([(-1, 1), (-2, 2), (-3, 4)]):
            word = int(flat["means_l"][i, axis]) + 256 * int(flat["means_u"][i, axis])
            logarithm = low + (high - low) * word / 65535
            wanted = np.sign(logarithm) * (np.exp(abs(logarithm)) - 1)
            assert float(found.means[i, axis]) == pytest.approx(wanted, rel=1e-4, abs=1e-5)
            assert float(found.log_scales[i, axis]) == pytest.approx(books["scales"][flat["scales"][i, axis]])
            assert float(found.sh0[i, 0, axis]) == pytest.approx(books["sh0"][flat["sh0"][i, axis]])
        assert float(found.opacities[i]) == pytest.approx(flat["sh0"][i, 3] / 255, abs=2e-6)
        largest = int(flat["quats"][i, 3]) - 252
        others = [(int(x) / 255 * 2 - 1) / 2**0.5 for x in flat["quats"][i, :3]]
        quat = found.quats[i].tolist()
        assert quat[:largest] + quat[largest + 1 :] == pytest.approx(others, abs=1e-6)
        label = int(flat["shN_labels"][i, 0])
        for k in range(8):
            pixel = arrays["shN_centroids"][label // 64, label % 64 * 8 + k]
            assert found.shN[i, k].tolist() == pytest.approx([books["shN"][x] for x in pixel[:3]])
    for path in (tmp_path / "folder" / "meta.json", write_zip(tmp_path / "a.sog", files)):
        again = read_model(path)
        assert all(torch.equal(x, y) for x, y in zip(found.tensors().values(), again.tensors().values()))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (dict(version=None), UnsupportedError, "before version 2"),
        (dict(version=3), UnsupportedError, "version 3"),
        (dict(model="2dgs"), UnsupportedError, "2DGS"),
        (dict(count=41), FileError, "40 pixels for 41"),
        (dict(count="41"), FileError, "count as a whole number"),
        (dict(means=None), FileError, "files as 2 names"),
        (dict(means={"files": ["means_l.webp", "means_u.webp"], "mins": [1, 2], "maxs": [1, 2, 3]}), FileError, "mins"),
        (dict(sh0={"files": ["sh0.webp"], "codebook": [1.0, 2.0]}), FileError, "codebook as at least"),
        (dict(sh0={"files": ["sh0.webp"], "codebook": [10**400] * 256}), FileError, "fit a float"),
        (dict(quats={"files": ["../quats.webp"]}), FileError, "plain names"),
        (dict(quats={"files": ["scales.webp"]}), FileError, "no valid tag"),
        (dict(quats={"files": ["meta.json"]}), FileError, "not a picture"),
        (dict(shN={"bands": 7, "files": ["shN_centroids.webp", "shN_labels.webp"]}), FileError, "bands"),
        (dict(shN={"bands": 1, "files": ["shN_centroids.webp", "shN_labels.webp"]}), FileError, "pixels wide"),
    ],
)
def test_damaged_sog(tmp_path, changes, error, words):
    files, _, _ = sog(**changes)
    with pytest.raises(error, match=words) as caught:
        read_model(write_zip(tmp_path / "a.sog", files))
    assert "a.sog" in str(caught.value)


def test_labels_beyond_the_palette(tmp_path):
    files, _, _ = sog()
    meta = json.loads(files["meta.json"])
    meta["shN"]["count"] = 50
    files["meta.json"] = json.dumps(meta).encode()
    with pytest.raises(FileError, match=r"a label is .* of a palette of 50"):
        read_model(write_zip(tmp_path / "a.sog", files))


def test_a_picture_far_larger_than_the_gaussians_is_not_decoded(tmp_path):
    files, _, _ = sog(bands=1)
    files["scales.webp"] = webp(np.zeros((8000, 8000, 4), np.uint8))
    assert len(files["scales.webp"]) < 100_000
    with pytest.raises(FileError, match=r"scales\.webp is 8000 x 8000 for 30"):
        read_model(write_zip(tmp_path / "a.sog", files))


def test_sog_without_some_of_its_files(tmp_path):
    files, _, _ = sog()
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
