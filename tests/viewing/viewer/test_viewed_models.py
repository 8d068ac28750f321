"""What the viewer opens: model files, runs and scene folders, and how it frames them."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.support.captures import write_colmap, write_scene
from tests.support.training_scenes import make_checkpoint, make_gaussians, make_views
from tsplat import ArgumentError
from tsplat.scene import look_at, write_ply
from tsplat.support.files import write_json
from tsplat.training import write_checkpoint
from tsplat.viewing.start_views import CORE
from tsplat.viewing.trajectories import describe_cameras
from tsplat.viewing.viewer import open_viewed

CPU = torch.device("cpu")


def opened(path, notes=None, **options):
    return open_viewed(path, CPU, warn=[].append if notes is None else notes.append, **options)


def test_model_file_is_framed_as_a_whole(tmp_path):
    gaussians = make_gaussians()
    write_ply(tmp_path / "model.ply", gaussians)
    model = opened(tmp_path / "model.ply")
    assert (model.name, model.cameras, model.views) == ("model.ply", [], {})
    assert torch.equal(model.gaussians.means, gaussians.means)
    assert (model.fov, model.up) == (50.0, [0.0, -1.0, 0.0])
    # The camera is outside of the model and looks at its middle.
    assert np.linalg.norm(model.eye) > 2
    assert np.linalg.norm(model.target) < 0.5


def test_up_direction_is_chosen(tmp_path):
    write_ply(tmp_path / "model.ply", make_gaussians())
    assert opened(tmp_path / "model.ply", up=(0.0, 0.0, 1.0)).up == [0.0, 0.0, 1.0]
    with pytest.raises(ArgumentError, match="up: expected a finite direction"):
        opened(tmp_path / "model.ply", up=(0.0, 0.0, 0.0))


def test_invalid_gaussians_are_left_out(tmp_path):
    gaussians = make_gaussians()
    means = gaussians.means.clone()
    means[3] = torch.nan
    write_ply(tmp_path / "model.ply", dataclasses.replace(gaussians, means=means))
    notes = []
    assert len(opened(tmp_path / "model.ply", notes).gaussians) == 59
    assert notes == [f"{tmp_path / 'model.ply'}: left out 1 of 60 Gaussians that have invalid values"]


def test_model_of_which_nothing_is_visible(tmp_path):
    gaussians = make_gaussians()
    write_ply(tmp_path / "model.ply", gaussians.map(lambda tensor: tensor[:0]))
    model = opened(tmp_path / "model.ply")
    assert len(model.gaussians) == 0
    assert model.eye != model.target


def test_run_is_seen_from_its_cameras(tmp_path):
    gaussians = make_gaussians()
    views = make_views(gaussians, 8)
    write_checkpoint(tmp_path / "checkpoints", make_checkpoint())
    write_json(tmp_path / "cameras.json", describe_cameras(views[1:], views[:1]))
    write_json(tmp_path / "config.json", {"background": [1.0, 0.5, 0.0]})
    model = opened(tmp_path)
    assert len(model.cameras) == 8
    assert model.background == (1.0, 0.5, 0.0)
    # Its first photograph, which is of 4:3; y points down.
    first = model.cameras[0]
    assert model.fov == pytest.approx(math.degrees(2 * math.atan(first.height / (2 * first.K[1, 1]))), abs=1e-4)
    assert model.aspect == pytest.approx(first.width / first.height)
    assert torch.allclose(look_at(model.eye, model.target, model.up), first.viewmat, atol=1e-4)
    # A narrower window shows seven tenths of its width or, if it is a little narrower, all of its height.
    for width, wider in ((first.width // 2, 2 * CORE), (0.9 * first.width, 1)):
        eye, fov = model.framing_for(width, first.height)
        assert eye == model.eye
        slope = wider * math.tan(math.radians(model.fov) / 2)
        assert math.tan(math.radians(fov) / 2) == pytest.approx(slope, rel=1e-3)


def test_capture_is_shown_by_its_points_with_its_photographs(tmp_path):
    gaussians = make_gaussians()
    views = make_views(gaussians, 8)
    folder = write_colmap(tmp_path / "scene", views, gaussians.means[:20])
    model = opened(folder)
    assert model.name == "scene (scene)"
    assert torch.allclose(model.gaussians.means, gaussians.means[:20], atol=1e-6)
    assert {camera.name for camera in model.cameras} == set(model.views)
    assert len(model.views) == 8
    image = next(view for view in views if model.cameras[0].name.startswith(view.name)).image
    assert torch.equal(model.views[model.cameras[0].name].image, image)


def test_run_in_the_folder_of_its_scene_is_shown_by_its_model(tmp_path):
    scene = write_scene(tmp_path / "scene")
    assert len(opened(scene).gaussians) == 5
    write_checkpoint(scene / "checkpoints", make_checkpoint(n=7))
    model = opened(scene)
    assert (model.name, len(model.gaussians)) == ("scene", 7)
