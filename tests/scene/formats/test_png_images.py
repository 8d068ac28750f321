"""gsplat's PNG images, against folders that are made and read with Pillow and NumPy."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.model_files import random_gaussians
from tsplat import ArgumentError
from tsplat.scene import FileError, read_model
from tsplat.scene.formats import png_images
from tsplat.scene.formats.png_images import read_png_images, write_png_images

SIDE = 5
CHANNELS = dict(scales=3, quats=4, opacities=1, sh0=3)
SHAPES = dict(scales=[25, 3], quats=[25, 4], opacities=[25], sh0=[25, 1, 3])


def gsplat_folder(folder, degree=2):
    """Writes a random folder in gsplat's layout. Returns the expected tensors."""
    rng = np.random.default_rng(0)
    n = SIDE**2
    meta, expected = {}, {}

    def image(name, n_channels):
        levels = rng.integers(0, 256, (SIDE, SIDE, n_channels), dtype=np.uint8)
        Image.fromarray(levels.squeeze()).save(folder / f"{name}.png")
        return levels.reshape(n, n_channels).astype(np.float64)

    def bounds(n_channels):
        low = rng.normal(size=n_channels)
        return low, low + rng.random(n_channels)

    low, high = bounds(3)
    words = image("means_l", 3) + 256 * image("means_u", 3)
    logs = low + words / 65535 * (high - low)
    expected["means"] = np.sign(logs) * (np.exp(np.abs(logs)) - 1)
    meta["means"] = dict(shape=[n, 3], dtype="float32", mins=low.tolist(), maxs=high.tolist())
    for name, n_channels in CHANNELS.items():
        low, high = bounds(n_channels)
        expected[name] = (low + image(name, n_channels) / 255 * (high - low)).reshape(SHAPES[name])
        meta[name] = dict(shape=SHAPES[name], dtype="float32", mins=low.tolist(), maxs=high.tolist())
    size = (degree + 1) ** 2 - 1
    centroids = rng.integers(0, 64, (9, 3 * size), dtype=np.uint8)
    labels = rng.integers(0, 9, n, dtype=np.uint16)
    np.savez_compressed(folder / "shN.npz", centroids=centroids, labels=labels)
    expected["shN"] = (-0.5 + centroids / 63 * 1.25)[labels].reshape(n, size, 3)
    meta["shN"] = dict(shape=[n, size, 3], dtype="float32", mins=-0.5, maxs=0.75, quantization=6)
    expected["features"] = rng.normal(size=(n, 7)).astype(np.float32)
    np.savez_compressed(folder / "features.npz", arr=expected["features"])
    meta["features"] = dict(shape=[n, 7], dtype="float32")
    (folder / "meta.json").write_text(json.dumps(meta))
    return expected


def load(path):
    with np.load(path) as arrays:
        return dict(arrays)


def random_tensors(n=36, degree=3):
    fields = random_gaussians(n, degree=degree).tensors()
    tensors = {name: fields[field] for name, field in png_images.PARAMETERS.items()}
    return tensors | {"features": torch.randn(n, 2, 3, dtype=torch.float64)}


def test_folder_of_gsplat_is_read(tmp_path):
    expected = gsplat_folder(tmp_path)
    found = read_png_images(tmp_path)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, torch.from_numpy(expected[name]).float(), rtol=1e-5, atol=1e-6, msg=name)


def test_folder_is_a_model(tmp_path):
    expected = gsplat_folder(tmp_path, degree=1)
    with pytest.warns(UserWarning, match="ignored the parameters features; only 3D Gaussians are read"):
        gaussians = read_model(tmp_path)
    assert gaussians.sh_degree == 1
    torch.testing.assert_close(gaussians.log_scales, torch.from_numpy(expected["scales"]).float())
    torch.testing.assert_close(gaussians.opacity_logits, torch.from_numpy(expected["opacities"]).float())


def test_files_have_the_layout_of_gsplat(tmp_path):
    tensors = random_tensors()
    write_png_images(tmp_path / "new", tensors)
    folder = tmp_path / "new"
    kinds = dict(means_l="RGB", means_u="RGB", opacities="L", quats="RGBA", scales="RGB", sh0="RGB")
    names = [f"{name}.png" for name in kinds] + ["features.npz", "meta.json", "shN.npz"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    for name, kind in kinds.items():
        with Image.open(folder / f"{name}.png") as image:
            assert (image.mode, image.size) == (kind, (6, 6)), name
    meta = json.loads((folder / "meta.json").read_text())
    assert meta.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert meta[name]["shape"] == list(tensor.shape)
        assert meta[name]["dtype"] == ("float64" if name == "features" else "float32")
        if name in SHAPES:
            columns = tensor.reshape(36, -1).double()
            assert meta[name]["mins"] == columns.amin(0).tolist()
            assert meta[name]["maxs"] == columns.amax(0).tolist()
    assert set(meta["features"]) == {"shape", "dtype"}
    logs = tensors["means"].double().sign() * tensors["means"].double().abs().log1p()
    assert meta["means"]["mins"] == pytest.approx(logs.amin(0).tolist())
    arrays = load(folder / "shN.npz")
    assert arrays["centroids"].shape == (36, 45)
    assert (arrays["centroids"].dtype, arrays["labels"].dtype) == (np.uint8, np.uint16)
    assert arrays["centroids"].max() == 63
    assert meta["shN"]["quantization"] == 6
    assert np.array_equal(load(folder / "features.npz")["arr"], tensors["features"].numpy())


def test_round_trip_is_within_quantization(tmp_path):
    tensors = random_tensors()
    write_png_images(tmp_path, tensors)
    found = read_png_images(tmp_path)
    assert torch.equal(found["features"], tensors["features"])
    for name in CHANNELS:
        columns = tensors[name].reshape(36, -1)
        step = (columns.amax(0) - columns.amin(0)) / 255
        assert ((found[name].reshape(36, -1) - columns).abs() <= 0.501 * step).all(), name
    logs, found_logs = (tensor.sign() * tensor.abs().log1p() for tensor in (tensors["means"], found["means"]))
    step = (logs.amax(0) - logs.amin(0)) / 65535
    assert ((found_logs - logs).abs() <= 0.501 * step + 1e-6).all()
    step = (tensors["shN"].max() - tensors["shN"].min()) / 63
    assert ((found["shN"] - tensors["shN"]).abs() <= 0.501 * step).all()


def test_coefficients_are_clustered_if_there_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(png_images, "N_CLUSTERS", 16)
    tensors = random_tensors(64, degree=1)
    patterns = torch.randn(4, 3, 3)
    tensors["shN"] = patterns[torch.arange(64) % 4]
    write_png_images(tmp_path, tensors)
    assert len(load(tmp_path / "shN.npz")["centroids"]) <= 16
    step = float(patterns.max() - patterns.min()) / 63
    assert float((read_png_images(tmp_path)["shN"] - tensors["shN"]).abs().max()) <= 0.501 * step


def test_constant_and_empty_parameters(tmp_path):
    tensors = random_tensors(9, degree=0)
    tensors["scales"][:, 1] = -3.25
    tensors["opacities"][:] = 0
    write_png_images(tmp_path, tensors)
    assert not (tmp_path / "shN.npz").exists()
    found = read_png_images(tmp_path)
    assert (found["scales"][:, 1] == -3.25).all()
    assert torch.equal(found["opacities"], tensors["opacities"])
    assert found["shN"].shape == (9, 0, 3)
    assert read_model(tmp_path, warn=str).sh_degree == 0
    # Equal coefficients of higher degrees.
    tensors["shN"] = torch.full((9, 3, 3), 0.125)
    write_png_images(tmp_path, tensors)
    assert torch.equal(read_png_images(tmp_path)["shN"], tensors["shN"])


@pytest.mark.parametrize("n", [0, 1])
def test_models_of_at_most_one_gaussian(tmp_path, n):
    tensors = {name: tensor[:n] for name, tensor in random_tensors(4).items()}
    write_png_images(tmp_path, tensors)
    found = read_png_images(tmp_path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        # 6 bits between the coefficients of one Gaussian.
        tolerance = 0.02 if name == "shN" else 1e-5
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=tolerance, msg=name)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes_are_kept(tmp_path, dtype):
    tensors = {name: tensor.to(dtype) for name, tensor in random_tensors(9).items()}
    tensors["ids"] = torch.arange(9)
    write_png_images(tmp_path, tensors)
    found = read_png_images(tmp_path)
    assert {name: tensor.dtype for name, tensor in found.items()} == {n: t.dtype for n, t in tensors.items()}
    assert torch.equal(found["features"], tensors["features"])
    assert torch.equal(found["ids"], tensors["ids"])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("means", torch.zeros(9, 2), r"means: expected \[N, 3\], found \[9, 2\]"),
        ("means", torch.zeros(8, 3), "expected a square number of Gaussians, found 8"),
        ("quats", torch.zeros(8, 4), r"quats: expected \[N, ...\] as means, here \[9, ...\], found \[8, 4\]"),
        ("scales", torch.zeros(9, 5), "scales: expected 1 to 4 channels"),
        ("shN", torch.full((9, 3, 3), math.nan), "shN: 9 of 9 Gaussians are not finite"),
        ("a/b", torch.zeros(9, 5), "'a/b' is not the name of a file"),
        ("..", torch.zeros(9, 5), "'..' is not the name of a file"),
    ],
)
def test_invalid_tensors_are_rejected_before_anything_is_written(tmp_path, name, value, message):
    with pytest.raises(ArgumentError, match=message):
        write_png_images(tmp_path / "new", random_tensors(9) | {name: value})
    assert not (tmp_path / "new").exists()


def test_quaternions_of_zeros_are_noted(tmp_path):
    tensors = random_tensors(9)
    tensors["quats"][:2] = 0
    with pytest.warns(UserWarning, match="2 quaternions of zeros are rounded to rotations"):
        write_png_images(tmp_path, tensors)


def test_failed_write_leaves_the_old_model(tmp_path, monkeypatch):
    write_png_images(tmp_path, random_tensors(9))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(path):
        raise OSError("disk full")

    monkeypatch.setattr("tsplat.scene.formats.png_images.atomic_write", fail)
    with pytest.raises(OSError, match="disk full"):
        write_png_images(tmp_path, random_tensors(16))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def edit(change):
    """Returns a function that changes ``meta.json``."""

    def damage(folder):
        meta = json.loads((folder / "meta.json").read_text())
        change(meta)
        (folder / "meta.json").write_text(json.dumps(meta))

    return damage


def save(name, **arrays):
    return lambda folder: np.savez_compressed(folder / name, **arrays)


IMAGE = Image.new("RGB", (4, 5))
LABELS = np.zeros(25, np.uint16)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "quats.png").unlink(), "cannot read quats.png"),
        (lambda folder: (folder / "shN.npz").unlink(), r"shN.npz: cannot read"),
        (lambda folder: (folder / "meta.json").write_text("{"), "meta.json is not JSON"),
        (lambda folder: (folder / "sh0.png").write_bytes(b"no image"), "sh0.png cannot be read as an image"),
        (lambda folder: IMAGE.save(folder / "sh0.png"), "sh0.png: expected 25 pixels, found 20"),
        (lambda folder: (folder / "features.npz").write_bytes(b"PK"), "features.npz: the ZIP archive is damaged"),
        (save("features.npz", other=LABELS), "features.npz: the archive has no arr.npy"),
        (save("features.npz", arr=LABELS), "features.shape to be that of 25 values"),
        (save("features.npz", arr=np.array(["a"])), "features.npz: arr: expected an array of numbers"),
        (save("shN.npz", centroids=np.zeros((9, 5)), labels=LABELS), r"expected centroids \[\?, 24\]"),
        (save("shN.npz", centroids=np.zeros((9, 24)), labels=LABELS + 9), "expected labels from 0 to 8"),
        (save("shN.npz", centroids=np.zeros((9, 24)), labels=LABELS[1:]), r"integer labels \[25\]"),
        (edit(lambda meta: meta["scales"].pop("mins")), "scales.mins to be a list of 3 numbers"),
        (edit(lambda meta: meta["shN"].update(mins="a")), "shN.mins to be a finite number"),
        (edit(lambda meta: meta["shN"].update(maxs=10**400)), "shN.maxs to be a finite number"),
        (edit(lambda meta: meta["shN"].update(quantization=0)), "shN.quantization to be 1 to 16 bits"),
        (edit(lambda meta: meta["means"].update(dtype="save")), "means.dtype to be one of float16"),
        (edit(lambda meta: meta["means"].update(shape=[5, -5])), "means.shape to be a list of nonnegative"),
        (edit(lambda meta: meta["sh0"].update(shape=[0, 1 << 60])), "sh0.shape to be that of at most"),
        (edit(lambda meta: meta["means"].update(shape=[25, 9])), "means.shape to be that of 1 to 4 channels"),
        (edit(lambda meta: meta["features"].update(shape=[5, 35])), r"one number of Gaussians, found \[5, 25\]"),
        (edit(lambda meta: meta.update({"../a": meta["features"]})), "'../a' is not the name of a file"),
    ],
)  # fmt: skip
def test_damaged_folders_are_rejected(tmp_path, damage, message):
    gsplat_folder(tmp_path)
    damage(tmp_path)
    with pytest.raises(FileError, match=message):
        read_png_images(tmp_path)


def test_model_needs_all_parameters(tmp_path):
    gsplat_folder(tmp_path)
    edit(lambda meta: meta.pop("quats"))(tmp_path)
    with pytest.raises(FileError, match="quats is missing"):
        read_model(tmp_path)


def test_damaged_bytes_are_read_or_rejected(tmp_path):
    gsplat_folder(tmp_path)
    contents = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    rng = np.random.default_rng(0)
    outcomes = set()
    for i in range(180):
        name = sorted(contents)[i % len(contents)]
        content = bytearray(contents[name])
        content[int(rng.integers(len(content)))] = int(rng.integers(256))
        (tmp_path / name).write_bytes(content[: int(rng.integers(len(content)))] if i % 3 == 0 else content)
        try:
            assert len(read_model(tmp_path, warn=str)) == 25
            outcomes.add("read")
        except FileError:
            outcomes.add(name)
        (tmp_path / name).write_bytes(contents[name])
    assert outcomes == {"read", *contents}
