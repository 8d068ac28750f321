"""Decimated models: against images of the original, and against removal without merging."""

import dataclasses
import functools

import pytest
import torch

from tests.support.model_files import assert_same_tensors, random_gaussians
from tests.support.training_scenes import make_gaussians, make_views
from tsplat import ArgumentError
from tsplat.errors import UnsupportedError
from tsplat.rendering import render
from tsplat.scene import decimate_gaussians, transform_gaussians
from tsplat.scene.cameras import move_camera
from tsplat.scene.editing.importance import importance

pytest.importorskip("scipy")


@pytest.fixture(autouse=True)
def _few_views(monkeypatch):
    monkeypatch.setattr("tsplat.scene.editing.decimation.N_ROUND_VIEWS", 3)


def scene():
    """Overlapping Gaussians of smooth colors, and cameras around them."""
    gaussians = make_gaussians(n=150, sh_degree=1)
    gaussians.sh0[:] = gaussians.means[:, None]
    return gaussians, [view.camera for view in make_views(gaussians, n=6)]


decimate = functools.partial(decimate_gaussians, finetune=0, backend="torch")


def error(model, original, cameras):
    with torch.no_grad():
        return sum(
            float((render(model, camera, backend="torch") - render(original, camera, backend="torch")).square().mean())
            for camera in cameras
        )


@pytest.mark.slow
def test_merging_is_closer_than_removing_and_optimizing_is_closer_still():
    gaussians, cameras = scene()
    errors, _ = importance(gaussians, cameras, backend="torch", generator=torch.Generator().manual_seed(0))
    rest = errors.argsort(descending=True)[:40]
    removed = gaussians.map(lambda tensor: tensor[rest])
    merged, optimized = (decimate(gaussians, 40, cameras, finetune=steps) for steps in (0, 60))
    assert len(merged) == len(optimized) == 40
    assert error(merged, gaussians, cameras) < 0.5 * error(removed, gaussians, cameras)
    assert error(optimized, gaussians, cameras) < 0.7 * error(merged, gaussians, cameras)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model():
    gaussians, cameras = scene()
    one, other, different = (decimate(gaussians, 40, cameras, finetune=2, seed=seed) for seed in (3, 3, 4))
    assert_same_tensors(one, other)
    assert not torch.equal(one.means, different.means)


def test_what_no_camera_sees_is_removed_first():
    gaussians, cameras = scene()
    gaussians.means[:30] += torch.tensor([0.0, 0, 500])
    assert decimate(gaussians, 120, cameras).means.abs().max() < 10


def test_models_that_are_small_enough_keep_their_valid_gaussians():
    gaussians, cameras = scene()
    gaussians.means[4] = torch.nan
    kept = decimate(gaussians, 149, cameras)
    assert torch.equal(kept.means, torch.cat([gaussians.means[:4], gaussians.means[5:]]))


@pytest.mark.parametrize("n", [1, 2])
def test_very_few_gaussians(n):
    gaussians, cameras = scene()
    found = decimate(dataclasses.replace(gaussians, antialiased=True), n, cameras[:1])
    assert len(found) == n
    assert found.valid.all()
    assert found.antialiased


def test_progress_is_told():
    gaussians, cameras = scene()
    seen = []
    decimate(gaussians, 40, cameras, finetune=3, on_progress=lambda *progress: seen.append(progress))
    assert seen[0] == ("merging", 1, 24)
    assert seen[-4:] == [("merging", 24, 24), *(("finetune", i, 3) for i in (1, 2, 3))]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (dict(n=0), "n: "),
        (dict(finetune=-1), "finetune: expected a positive int or 0, found -1"),
        (dict(cameras=[]), "cameras: expected at least one, found none"),
    ],
)
def test_invalid_arguments(arguments, problem):
    cameras = [view.camera for view in make_views(random_gaussians(), n=1)]
    with pytest.raises(ArgumentError, match=problem):
        decimate(random_gaussians(), **{"n": 5, "cameras": cameras, **arguments})


def test_2d_gaussians_are_refused():
    with pytest.raises(UnsupportedError, match="gaussians: 2D Gaussians cannot be decimated"):
        decimate(random_gaussians().as_surfels(), 5, [view.camera for view in make_views(random_gaussians(), n=1)])


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_decimation_does_not_depend_on_the_unit(unit):
    gaussians, cameras = scene()
    matrix = torch.diag(torch.tensor([unit, unit, unit, 1.0], dtype=torch.float64))
    expected = decimate(gaussians, 60, cameras)
    moved = decimate(transform_gaussians(gaussians, matrix), 60, [move_camera(camera, matrix) for camera in cameras])
    torch.testing.assert_close(moved.means / unit, expected.means, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(moved.scales / unit, expected.scales, rtol=1e-4, atol=1e-4)
