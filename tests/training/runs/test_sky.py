"""The sky: Gaussians on a distant sphere, which runs train, save and resume as all others."""

import dataclasses

import pytest
import torch

from tests.training.runs.test_train import results
from tsplat import ArgumentError
from tsplat.scene import procedural_capture
from tsplat.scene.cameras import move_camera
from tsplat.strategies import LongAxisStrategy
from tsplat.training import RunConfig, resume, train
from tsplat.training.runs import train as runs
from tsplat.training.runs.initial_gaussians import SKY_RADIUS, initial_gaussians, sky_gaussians
from tsplat.training.trainer import scene_extent


@pytest.fixture(scope="module")
def capture():
    """Views before a light background, which is not told."""
    return dataclasses.replace(procedural_capture(40, 30, 6, 2, 200, seed=3), background=(0.0, 0.0, 0.0))


def test_sky_has_what_views_show_on_a_sphere(capture):
    views = [dataclasses.replace(view, image=torch.full_like(view.image, 51)) for view in capture.train[:2]]
    sky = sky_gaussians(views, capture.points, 1000, 1)
    assert 50 < len(sky) < 500
    centers = torch.stack([-view.camera.viewmat[:3, :3].T @ view.camera.viewmat[:3, 3] for view in views])
    offsets = sky.means - centers.mean(0)
    radius = offsets.norm(dim=-1)
    assert radius.max() < 1.001 * radius.min()
    assert radius.min() > 0.99 * SKY_RADIUS * scene_extent(views)
    assert torch.allclose(sky.sh0 * 0.28209479 + 0.5, torch.full_like(sky.sh0, 0.2), atol=1e-5)
    forward = torch.stack([view.camera.viewmat[2, :3] for view in views])
    assert ((offsets / radius[:, None] @ forward.T).amax(1) > 0.6).all()
    # They cover the sphere without holes: scales are near their spacing.
    spacing = torch.cdist(sky.means, sky.means).fill_diagonal_(torch.inf).amin(1)
    assert (sky.scales[:, 0] / spacing).median() == pytest.approx(0.75, abs=0.15)


@pytest.mark.parametrize("unit", [1e-6, 1e3])
def test_skies_do_not_depend_on_the_unit(capture, unit):
    matrix = torch.diag(torch.tensor([unit, unit, unit, 1.0], dtype=torch.float64))
    views = [view.replaced(camera=dataclasses.replace(view.camera, near=None)) for view in capture.train[:2]]
    moved = [view.replaced(camera=move_camera(view.camera, matrix)) for view in views]
    expected, found = sky_gaussians(views, capture.points, 500, 0), sky_gaussians(moved, unit * capture.points, 500, 0)
    torch.testing.assert_close(found.means / unit, expected.means, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found.sh0, expected.sh0, rtol=1e-3, atol=1e-3)


@pytest.mark.long
def test_runs_with_a_sky_are_better_before_it_and_resume_bit_exactly(capture, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "read_run_capture", lambda config, device, *_: capture.to(device))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    strategy = LongAxisStrategy(growth=1.2, refine_start_iter=5, refine_every=5, refine_stop_iter=40)
    config = RunConfig(steps=60, sh_degree=0, means_rate=1e-3, sh0_rate=1e-2, strategy=strategy, sky=300)
    initial = initial_gaussians(config, capture)
    assert 220 < len(initial) < 500
    whole = train(config, tmp_path / "whole")
    without = train(dataclasses.replace(config, sky=0), tmp_path / "without")
    assert whole["psnr"] > without["psnr"] + 2
    train(config, tmp_path / "cut", stop_after=33)
    resume(tmp_path / "cut")
    (expected, *figures), (found, *others) = results(tmp_path / "whole"), results(tmp_path / "cut")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert figures == others


def test_sky_must_leave_gaussians_for_points(capture):
    for sky in (1, 100, -1):
        with pytest.raises(ArgumentError, match=rf"sky: expected 0, or 2 to 99, .*found {sky}"):
            RunConfig(max_gaussians=100, sky=sky)
    found = initial_gaussians(RunConfig(max_gaussians=100, sky=40, sh_degree=0, primitive="2dgs"), capture)
    assert 60 < len(found) <= 100
    assert found.surfels
