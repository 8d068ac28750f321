"""Tests of writing SOG."""

import io
import json
import math
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.model_files import assert_same_tensors, random_gaussians
from tests.support.round_trips import check_round_trip, file_order
from tsplat import ArgumentError, UnsupportedError
from tsplat.scene import Camera, FileError, MissingExtraError, intrinsics, read_model, read_sog, write_sog
from tsplat.viewing import render

IMAGES = {"means_l.webp", "means_u.webp", "scales.webp", "quats.webp", "sh0.webp"}
SH_IMAGES = {"shN_centroids.webp", "shN_labels.webp"}


@pytest.mark.parametrize("count", [0, 1, 2, 255, 256, 257])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_round_trip_is_within_quantization(tmp_path, count, degree):
    gaussians = random_gaussians(count, degree, antialiased=count % 2 == 0)
    write_sog(tmp_path / "a.sog", gaussians)
    check_round_trip("sog", gaussians, read_sog(tmp_path / "a.sog"))


def test_round_trip_of_many_gaussians(tmp_path):
    gaussians = random_gaussians(10_000, degree=3)
    write_sog(tmp_path / "a.sog", gaussians)
    check_round_trip("sog", gaussians, read_sog(tmp_path / "a.sog"))


def test_files_hold_what_the_format_describes(tmp_path):
    gaussians = random_gaussians(3, degree=1)
    gaussians.means[:] = torch.tensor([[-1.0, 2, 0], [0, 2, 1], [3, 2, 9]])  # in Morton order
    gaussians.log_scales[:] = torch.tensor([[-1.0, -2, -1], [-3, -3, -3], [-torch.inf, 0, torch.inf]])
    gaussians.quats[:] = torch.tensor([[0.0, -2, 0, 0], [1, 0, 0, 0.99], [3, 0, 0, 0]])
    gaussians.opacity_logits[:] = torch.tensor([-torch.inf, 0, torch.inf])
    gaussians.shN[:] = gaussians.shN[[1, 0, 1]]
    write_sog(tmp_path / "a", gaussians)
    meta = json.loads((tmp_path / "a" / "meta.json").read_text())
    pixels = {}
    for name in IMAGES | SH_IMAGES:
        with Image.open(tmp_path / "a" / name) as image:
            assert image.format == "WEBP"
            pixels[name.removesuffix(".webp")] = np.asarray(image.convert("RGBA"))
    flat = {name: values.reshape(-1, 4)[:3].astype(int) for name, values in pixels.items()}
    assert (meta["version"], meta["count"], "model" in meta) == (2, 3, False)
    lows, highs = [-math.log(2), math.log(3), 0], [math.log(4), math.log(3), math.log(10)]
    assert meta["means"]["mins"] == pytest.approx(lows)
    assert meta["means"]["maxs"] == pytest.approx(highs)
    words = flat["means_u"][:, :3] << 8 | flat["means_l"][:, :3]
    middle = [round(65535 / 3), 0, round(65535 * math.log(2, 10))]
    assert words.tolist() == [[0, 0, 0], middle, [65535, 0, 65535]]
    assert meta["scales"]["codebook"][:6] == [-20, -3, -2, -1, 0, 20]
    assert {len(meta[name]["codebook"]) for name in ("scales", "sh0", "shN")} == {256}
    assert flat["scales"][:, :3].tolist() == [[3, 2, 3], [1, 1, 1], [0, 4, 5]]
    assert flat["quats"].tolist() == [[128, 128, 128, 253], [128, 128, 254, 252], [128, 128, 128, 252]]
    assert flat["sh0"][:, 3].tolist() == [0, 128, 255]
    assert np.array(meta["sh0"]["codebook"])[flat["sh0"][:, :3]] == pytest.approx(gaussians.sh0[:, 0].numpy())
    assert (meta["shN"]["count"], meta["shN"]["bands"]) == (2, 1)
    assert flat["shN_labels"][:, :2].tolist() == [[0, 0], [1, 0], [0, 0]]
    assert pixels["shN_centroids"].shape == (1, 64 * 3, 4)
    palette = np.array(meta["shN"]["codebook"])[pixels["shN_centroids"][0, :6, :3]]
    assert palette.reshape(2, 3, 3) == pytest.approx(gaussians.shN[:2].numpy())


@pytest.mark.parametrize("degree", [0, 2])
def test_archive_and_folder_hold_the_same_files(tmp_path, degree):
    gaussians = random_gaussians(30, degree, antialiased=True)
    folder = tmp_path / "new" / "b"
    write_sog(tmp_path / "a.sog", gaussians)
    write_sog(folder / "meta.json", gaussians)
    with zipfile.ZipFile(tmp_path / "a.sog") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert set(files) == IMAGES | {"meta.json"} | (SH_IMAGES if degree else set())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert json.loads(files["meta.json"])["model"] == "antialiased"
    assert_same_tensors(read_sog(tmp_path / "a.sog"), read_model(folder))


def test_existing_folders_are_replaced(tmp_path):
    folder = tmp_path / "a.sog"
    folder.mkdir()
    for degree in (1, 0):
        gaussians = random_gaussians(30, degree)
        write_sog(folder, gaussians)
        check_round_trip("sog", gaussians, read_model(folder))


def test_failure_leaves_the_old_model(tmp_path, monkeypatch):
    write_sog(tmp_path / "a", random_gaussians(30))
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    monkeypatch.setattr("tsplat.scene.formats.image_sets.atomic_write", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_sog(tmp_path / "a", random_gaussians(31))
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


def test_many_rows_of_coefficients_are_clustered(tmp_path):
    gaussians = random_gaussians(17_000, degree=1)
    write_sog(tmp_path / "a.sog", gaussians)
    found = read_sog(tmp_path / "a.sog")
    with zipfile.ZipFile(tmp_path / "a.sog") as archive:
        count = json.loads(archive.read("meta.json"))["shN"]["count"]
        labels = np.asarray(Image.open(io.BytesIO(archive.read("shN_labels.webp")))).astype(int)
    assert 10_000 < count <= 1 << 14
    assert (labels[..., 1] * 256 + labels[..., 0]).max() == count - 1
    check_round_trip("sog", gaussians, found)
    error = (found.shN - gaussians.shN[file_order("sog", gaussians)]).square().mean().sqrt()
    assert error < 0.2 * gaussians.shN.square().mean().sqrt()


@pytest.mark.slow
def test_files_are_the_same_in_every_run(tmp_path):
    gaussians = random_gaussians(17_000, degree=1).map(lambda tensor: tensor.double().requires_grad_())
    for name in ("a.sog", "b.sog"):
        write_sog(tmp_path / name, gaussians)
    assert (tmp_path / "a.sog").read_bytes() == (tmp_path / "b.sog").read_bytes()


def test_write_rejects_what_the_format_cannot_represent(tmp_path):
    with pytest.raises(UnsupportedError, match="sh_degree: expected at most 3 for SOG, found 4"):
        write_sog(tmp_path / "a.sog", random_gaussians(4, degree=4))
    gaussians = random_gaussians(4)
    gaussians.means[2, 0] = torch.inf
    for name in ("a.sog", "a"):
        with pytest.raises(ArgumentError, match=r"1 of 4.*valid"):
            write_sog(tmp_path / name, gaussians)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match="file: cannot write there"):
        write_sog(tmp_path / "file", random_gaussians(4))


def test_missing_pillow_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tsplat\[train\]'"):
        write_sog(tmp_path / "a.sog", random_gaussians(4))


def test_outliers_that_nobody_sees_cost_no_quality(tmp_path):
    """Half of the Gaussians are tiny or transparent, with scales and colors far from those of the others."""
    n, generator = 1200, torch.Generator().manual_seed(0)
    gaussians = random_gaussians(n, degree=0)
    gaussians.means[:] = torch.randn(n, 3, generator=generator)
    gaussians.log_scales[:] = -2 + 0.3 * torch.randn(n, 3, generator=generator)
    gaussians.opacity_logits[:] = torch.randn(n, generator=generator)
    gaussians.sh0[:] = torch.rand(n, 1, 3, generator=generator) - 0.5
    gaussians.log_scales[: n // 4] = -20 + 16 * torch.rand(n // 4, 3, generator=generator)
    gaussians.opacity_logits[n // 4 : n // 2] = -10
    gaussians.sh0[n // 4 : n // 2] *= 1e5 * torch.rand(n // 4, 1, 3, generator=generator)
    viewmat = torch.eye(4)
    viewmat[2, 3] = 6
    camera = Camera(viewmat, intrinsics(96, 72, 50.0), 96, 72)
    write_sog(tmp_path / "a.sog", gaussians)
    images = [render(each, camera).clamp(0, 1) for each in (gaussians, read_sog(tmp_path / "a.sog"))]
    assert -10 * math.log10(float((images[0] - images[1]).square().mean())) > 40
