"""Rendering models larger than memory: the image of the model in memory, from ranges, and in slabs by depth."""

import pytest
import torch

from tests.support.model_files import random_gaussians
from tsplat import UnsupportedError
from tsplat.scene import Camera, intrinsics, look_at, model_rows, read_ply, write_ply
from tsplat.scene.formats.ply import open_ply_rows
from tsplat.viewing import render_frames, slabs

CAMERAS = [Camera(look_at((0, 0, z), (0, 0, 0)), intrinsics(40, 30, fov=50), 40, 30) for z in (-4.0, 0.5)]


@pytest.fixture
def ply(tmp_path, monkeypatch):
    """A PLY of 200 Gaussians, one of them invalid, that is read in many ranges."""
    gaussians = random_gaussians(200, 1)
    gaussians.log_scales.clamp_(-4, -1)
    gaussians.opacity_logits.clamp_(-2, 2)
    gaussians.means[3] = torch.nan
    write_ply(tmp_path / "a.ply", gaussians)
    monkeypatch.setattr(model_rows, "CHUNK", 30)
    return tmp_path / "a.ply"


def frames(ply, **options):
    with open_ply_rows(ply) as rows:
        return list(
            slabs.render_large_frames(rows, CAMERAS, ply.parent, device=torch.device("cpu"), backend="torch", **options)
        )


def expected(ply, **options):
    gaussians = read_ply(ply)
    valid = gaussians.map(lambda tensor: tensor[gaussians.valid])
    return list(render_frames(valid, CAMERAS, backend="torch", **options))


def test_seen_gaussians_give_the_same_image(ply):
    """Also of depths, and for maps; a camera inside of the model does not see all."""
    maps = []
    for options in ({"background": (0.2, 0.4, 0.6)}, {"show": "alpha", "on_map": lambda i, values: maps.append(i)}):
        for found, image in zip(frames(ply, **options), expected(ply, **options), strict=True):
            assert torch.allclose(found, image, atol=1e-6)
            assert image.std() > 0.01
    assert maps == [0, 1, 0, 1]
    with open_ply_rows(ply) as rows:
        ids, depths = slabs._visible_rows(rows, CAMERAS[1], torch.device("cpu"), "torch")
    assert 0 < len(ids) < 190 and 3 not in ids and (depths > 0).all()


def test_slabs_give_nearly_the_same_image(ply, monkeypatch):
    monkeypatch.setattr(slabs, "SLAB", 17)
    for found, image in zip(
        frames(ply, background=(0.2, 0.4, 0.6)), expected(ply, background=(0.2, 0.4, 0.6)), strict=True
    ):
        assert (found - image).abs().max() < 1e-3
    assert [path.name for path in ply.parent.iterdir()] == ["a.ply"]


def test_surfels(ply, monkeypatch):
    gaussians = read_ply(ply)
    write_ply(ply, gaussians.map(lambda tensor: tensor[gaussians.valid]).as_surfels())
    for slab, tolerance in ((1 << 20, 1e-6), (17, 1e-3)):
        monkeypatch.setattr(slabs, "SLAB", slab)
        for found, image in zip(frames(ply), expected(ply), strict=True):
            assert (found - image).abs().max() < tolerance


def test_slabs_show_colors_only(ply, monkeypatch):
    monkeypatch.setattr(slabs, "SLAB", 17)
    with pytest.raises(UnsupportedError, match=r"more than 17 Gaussians of a model larger than memory, found 'depth'"):
        frames(ply, show="depth")
    with pytest.raises(UnsupportedError, match="without maps"):
        frames(ply, on_map=lambda i, values: None)
