"""Tests of perspective views of panoramas: they show what a pinhole camera there would, and are trained on."""

import collections
import dataclasses

import pytest
import torch

from tests.support.panoramas import rays_of, room_capture
from tsplat import ArgumentError
from tsplat.config import Capacities
from tsplat.scene import Gaussians, View
from tsplat.training import Config, Trainer, evaluate, perspective_views, view_gradients, view_passes
from tsplat.training.perspective_views import compares_perspective, is_whole, perspective_camera, perspective_view


@pytest.fixture(scope="module")
def capture():
    return room_capture(12, 48, n_points=200)


def directions(camera):
    """An image whose colors are the directions of its pixels, world frame. [H, W, 3] uint8"""
    return ((1 + rays_of(camera)) * 127.5).round().to(torch.uint8)


@pytest.fixture(scope="module")
def panoramas():
    cameras = [view.camera for view in room_capture(4, 96, n_points=2, held_out=0).train]
    return [View(directions(camera), camera) for camera in cameras]


def part_of(view, columns, rows):
    """A part of a panorama: some of its columns and rows."""
    camera = view.camera
    K = camera.K.clone()
    K[:2, 2] -= torch.tensor([columns.start, rows.start])
    width, height = columns.stop - columns.start, rows.stop - rows.start
    part = dataclasses.replace(camera, K=K, width=width, height=height)
    return View(view.image[rows, columns].contiguous(), part)


def test_perspective_views_are_what_pinhole_cameras_there_would_show(panoramas):
    forwards = []
    for step in range(12):
        view = panoramas[step % 4]
        found = perspective_view(view, step)
        assert found.camera.model == "pinhole" and found.mask is None and found.width == round(96 / torch.pi)
        torch.testing.assert_close(found.camera.position, view.camera.position, atol=1e-5, rtol=0)
        errors = (found.image.float() - directions(found.camera).float()).abs()
        assert errors.mean() < 0.6 and errors.quantile(0.98) <= 2  # at a pole, the panorama has too few rows
        forwards.append(view.camera.viewmat[:3, :3] @ found.camera.viewmat[2, :3])
    # They look up and down and to all sides.
    assert (torch.stack(forwards).amax(0) > 0.6).all() and (torch.stack(forwards).amin(0) < -0.6).all()


def test_directions_are_even_on_the_sphere(capture):
    camera = dataclasses.replace(capture.train[0].camera, viewmat=torch.eye(4))
    forwards = torch.stack([perspective_camera(camera, step).viewmat[2, :3] for step in range(400)])
    assert forwards.mean(0).abs().max() < 0.02
    torch.testing.assert_close(forwards.T @ forwards / 400, torch.eye(3) / 3, atol=0.02, rtol=0)


def test_parts_of_panoramas_are_masked_out_where_they_show_nothing(panoramas):
    whole = panoramas[0]
    assert is_whole(whole.camera)
    part = part_of(whole, slice(30, 80), slice(10, 40))
    assert not is_whole(part.camera)
    for step in range(4):
        found = perspective_view(part, step)
        assert 0.3 < found.mask.float().mean() < 1
        assert found.mask[found.height // 2, found.width // 2]  # it looks at what there is
        errors = (found.image.float() - directions(found.camera).float()).abs()[found.mask]
        assert errors.mean() < 0.6 and errors.max() < 8


def test_masks_of_panoramas_are_those_of_perspective_views(panoramas):
    view = panoramas[0]
    mask = torch.ones(48, 96, dtype=torch.bool)
    mask[32:] = False  # 30 degrees under the horizon
    masked = dataclasses.replace(view, mask=mask)
    for step in range(6):
        found = perspective_view(masked, step)
        side, viewmat = found.width, found.camera.viewmat @ view.camera.viewmat.inverse()
        x = (torch.arange(side) + 0.5) / (side / 2) - 1
        rays = torch.stack([x.expand(side, side), x[:, None].expand(side, side), torch.ones(side, side)], -1)
        down = torch.nn.functional.normalize(rays, dim=-1) @ viewmat[:3, :3][:, 1]
        assert found.mask[down < 0.46].all() and not found.mask[down > 0.54].any()


def test_a_share_of_the_steps_compares_perspective_views(capture):
    camera = capture.train[0].camera
    for share in (0.0, 0.25, 0.5, 1.0):
        assert sum(compares_perspective(camera, step, share) for step in range(100)) == 100 * share
    turning = dataclasses.replace(camera, viewmat_end=camera.viewmat)
    pinhole = dataclasses.replace(camera, model="pinhole")
    assert not compares_perspective(turning, 1, 1.0) and not compares_perspective(pinhole, 1, 1.0)
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ArgumentError, match="perspective_share: expected a number from 0 to 1"):
            Config(perspective_share=share)


def test_steps_compare_perspective_views(capture):
    start = Gaussians.from_points(capture.points, capture.colors)
    view = capture.train[0]
    for share in (0.0, 1.0):
        trainer = Trainer(start, [view], Config(steps=1, strategy=None, perspective_share=share))
        compared = trainer._views[0] if share == 0 else perspective_view(trainer._views[0], 0)
        assert trainer.advance().psnr == pytest.approx(evaluate(start, [compared]).psnr, abs=1e-3)


@pytest.mark.triton
def test_steps_sample_a_perspective_view_once(capture, monkeypatch):
    calls = collections.Counter()
    for name in ("perspective_view", "perspective_camera"):
        function = getattr(view_gradients, name)

        def counted(*args, name=name, function=function):
            calls[name] += 1
            return function(*args)

        monkeypatch.setattr(view_gradients, name, counted)
    monkeypatch.setattr(perspective_views, "perspective_camera", None)  # it is known
    monkeypatch.setattr(view_passes, "capacities_for", lambda needed, varies: Capacities(*[1 << 16] * 4))
    start = Gaussians.from_points(capture.points, capture.colors, 0)
    config = Config(steps=4, strategy=None, perspective_share=1.0, backend="triton")
    trainer = Trainer(start, capture.train[:1], config)
    for step in range(4):
        trainer.advance()
        assert calls["perspective_view"] == calls["perspective_camera"] == step + 1


def test_poses_of_panoramas_are_learned_from_perspective_views(capture):
    start = Gaussians.from_points(capture.points, capture.colors)
    config = Config(steps=3, strategy=None, perspective_share=1.0, pose_refinement=True, pose_rate=1e-3)
    trainer = Trainer(start, capture.train[:1], config)
    trainer.advance()
    assert trainer._parameters.params["motions"].abs().max() > 1e-4
