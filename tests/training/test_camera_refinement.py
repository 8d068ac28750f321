"""Lenses and poses of rolling shutters that are learned with the frozen scene they were rendered from."""

import dataclasses

import pytest
import torch

from tests.support.captures import changed
from tsplat.errors import ArgumentError, UnsupportedError
from tsplat.rendering import render
from tsplat.runtime.process_group import RankGroup
from tsplat.scene import Camera, Gaussians, intrinsics, look_at
from tsplat.scene.cameras import map_poses, move_camera, rasterization_arguments
from tsplat.scene.capture.views import View
from tsplat.scene.images import to_bytes
from tsplat.training import Config, Trainer
from tsplat.training.evaluation import evaluate, fit_poses
from tsplat.training.view_corrections import Lenses, move_poses

RATES = ("means_rate", "scales_rate", "opacities_rate", "quats_rate", "sh0_rate", "shN_rate")
FROZEN = dict.fromkeys(RATES, 0.0) | {"sh_interval": 1, "strategy": None}
DISTORTION = torch.tensor([-0.12, 0.03, 0.004, -0.006])
SIDES = ((3.0, -1, 2), (-2.5, -1.5, 2), (0.5, -2, -3))


@pytest.fixture
def gaussians():
    generator = torch.Generator().manual_seed(0)
    points, colors = (torch.rand(60, 3, generator=generator) for _ in range(2))
    cloud = Gaussians.from_points(2 * points - 1, colors, sh_degree=0)
    return dataclasses.replace(cloud, opacity_logits=cloud.opacity_logits + 3)


def photograph(gaussians, camera):
    return View(to_bytes(render(gaussians, camera)), camera)


def cameras(**options):
    return [Camera(look_at(eye, (0, 0, 0)), intrinsics(48, 40, 50.0), 48, 40, **options) for eye in SIDES]


def learn(gaussians, views, steps, **options):
    trainer = Trainer(gaussians, views, Config(steps=steps, means_decay=0.1, **FROZEN | options))
    for _ in range(steps):
        trainer.advance()
    return trainer


def test_the_lens_of_all_views_is_learned(gaussians):
    views = [photograph(gaussians, camera) for camera in cameras(distortion=DISTORTION)]
    unknown = [changed(view, distortion=None) for view in views]
    trainer = learn(gaussians, unknown[:2], 80, lens_refinement=True, lens_rate=6e-3)
    changes = trainer.lens_changes
    assert changes.shape == (1, 4) and (changes[0] - DISTORTION)[2:].abs().max() < 0.003
    # The held-out view was taken by the same camera.
    before, after = (evaluate(gaussians, found).psnr for found in (unknown[2:], trainer.with_lenses(unknown[2:])))
    assert after > before + 6


@pytest.mark.long
def test_both_poses_of_a_rolling_shutter_are_learned(gaussians):
    views = []
    for camera in cameras(readout="ROLLING_TOP_TO_BOTTOM"):
        end = camera.viewmat.clone()
        end[0, 3] += 0.08
        views.append(photograph(gaussians, dataclasses.replace(camera, viewmat_end=end)))
    still = [dataclasses.replace(v, camera=dataclasses.replace(v.camera, viewmat_end=v.camera.viewmat)) for v in views]
    trainer = learn(gaussians, still, 120, pose_refinement=True, pose_rate=2e-3)
    motions = trainer.state()[0]["params/motions"]
    assert motions.shape == (3, 12)
    unit = torch.tensor([1.0, 1, 1, *[trainer.extent] * 3])
    found = [dataclasses.replace(v, camera=move_poses(v.camera, unit * m.view(2, 6))) for v, m in zip(still, motions)]
    before, after = (evaluate(gaussians, given).psnr for given in (still, found))
    assert after > before + 6


def test_poses_of_held_out_views_are_fitted_to_the_model_as_it_is(gaussians):
    error = torch.tensor([[0.01, -0.008, 0.005, 0.02, 0.01, -0.02]])
    view = photograph(gaussians, cameras()[0])
    moved = dataclasses.replace(view, camera=move_poses(view.camera, error))
    config = Config(pose_rate=2e-4)
    before = {name: tensor.clone() for name, tensor in gaussians.tensors().items()}
    (fitted,) = fit_poses(gaussians, [moved], config, 2.0, RankGroup())
    psnrs = [evaluate(gaussians, [each]).psnr for each in (moved, fitted)]
    assert psnrs[1] > psnrs[0] + 6
    assert all(torch.equal(tensor, before[name]) for name, tensor in gaussians.tensors().items())


def test_lenses_are_those_of_equal_cameras():
    first, second = cameras()[:2]
    other = dataclasses.replace(second, K=2 * second.K)
    distorted = dataclasses.replace(first, distortion=DISTORTION)
    lenses = Lenses([first, other, second, distorted])
    assert len(lenses) == 3
    changes = torch.arange(12.0).view(3, 4)
    assert torch.equal(lenses.apply(second, changes).distortion, changes[0])
    assert torch.equal(lenses.apply(other, changes).distortion, changes[1])
    assert torch.equal(lenses.apply(distorted, changes).distortion, changes[2] + DISTORTION)
    rational = dataclasses.replace(first, distortion=torch.cat([DISTORTION, DISTORTION]))
    changed = Lenses([rational]).apply(rational, changes[1:]).distortion  # k3 to k6 stay
    assert torch.equal(changed, torch.cat([changes[1] + DISTORTION, DISTORTION]))
    unseen = dataclasses.replace(first, width=47)
    assert lenses.apply(unseen, changes) is unseen


def test_2d_gaussians_are_refused(gaussians):
    views = [photograph(gaussians, camera) for camera in cameras()]
    with pytest.raises(ArgumentError, match="lens_refinement: only for 3D Gaussians"):
        Trainer(dataclasses.replace(gaussians, surfels=True), views, Config(lens_refinement=True))


def test_cameras_with_a_rolling_shutter():
    still, other = cameras()[:2]
    camera, rolling = (
        dataclasses.replace(each, viewmat_end=each.viewmat + 0.1, readout="ROLLING_LEFT_TO_RIGHT")
        for each in (still, other)
    )
    arguments = rasterization_arguments([camera, rolling])
    assert arguments["rolling_shutter"] == "ROLLING_LEFT_TO_RIGHT" and arguments["with_ut"]
    assert torch.equal(arguments["viewmats_rs"], torch.stack([camera.viewmat_end, rolling.viewmat_end]))
    assert rasterization_arguments([camera], 0)["viewmats_rs"].shape == (0, 4, 4)
    with pytest.raises(ArgumentError, match="48×40 pinhole ROLLING_LEFT_TO_RIGHT cameras as the first, found a 48×40"):
        rasterization_arguments([camera, still])
    with pytest.raises(UnsupportedError, match="rolling shutter, found a 48×40 pinhole ROLLING_LEFT_TO_RIGHT"):
        rasterization_arguments([camera], surfels=True)
    matrix = look_at((1.0, 2, 3), (0, 0, 0))
    moved = move_camera(camera, matrix)
    assert torch.equal(moved.viewmat_end, move_camera(map_poses(camera, lambda _: camera.viewmat_end), matrix).viewmat)
