"""Tests of normalizing captures."""

import dataclasses

import pytest
import torch

from tests.support.captures import POINTS, changed, project, sample_views, write_colmap
from tsplat import ArgumentError
from tsplat.scene import Camera, Capture, View, look_at, normalize_capture, orbit, procedural_capture, read_capture


def make_view(viewmat):
    return View(torch.zeros(4, 6, 3, dtype=torch.uint8), Camera(viewmat, torch.eye(3), 6, 4))


def test_normalized_capture_keeps_projections_and_is_invertible(tmp_path):
    pytest.importorskip("pycolmap")
    # Not upright, far from the origin, and large.
    rotation = look_at((0.0, 0, 0), (1.0, 2.0, -0.5), (0.3, 0.1, 1.0))
    translation = torch.eye(4)
    translation[:3, 3] = torch.tensor([30.0, -12.0, 5.0])
    to_file = translation @ rotation
    views = [changed(v, viewmat=v.camera.viewmat @ torch.linalg.inv(to_file)) for v in sample_views()]
    write_colmap(tmp_path, views, POINTS @ to_file[:3, :3].T + to_file[:3, 3])
    before, after = read_capture(tmp_path), read_capture(tmp_path, normalize=True)
    _, transform = normalize_capture(before)
    torch.testing.assert_close(after.world, transform, rtol=1e-6, atol=1e-6)  # of the files, in double precision
    centers, ups = [], []
    scale = float(torch.linalg.det(transform[:3, :3])) ** (1 / 3)
    for old, new in zip((*before.train, *before.test), (*after.train, *after.test)):
        old_pixels, old_depths = project(before.points, old.camera.viewmat, old.camera.K)
        new_pixels, new_depths = project(after.points, new.camera.viewmat, new.camera.K)
        # fp32 coordinates around 30 have errors of 2e-6 relative to the depth.
        assert (old_pixels - new_pixels).abs().max() < 1e-3
        torch.testing.assert_close(new_depths, scale * old_depths, rtol=1e-5, atol=0)
        torch.testing.assert_close(new.sparse, old.sparse * torch.tensor([1, 1, scale]))
        assert torch.equal(new.image, old.image)
        rotation = new.camera.viewmat[:3, :3]
        torch.testing.assert_close(rotation @ rotation.T, torch.eye(3), atol=1e-5, rtol=0)
        centers.append(-rotation.T @ new.camera.viewmat[:3, 3])
        ups.append(-rotation[1])
    centers = torch.stack(centers)
    torch.testing.assert_close(centers.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(centers.norm(dim=-1).max(), torch.tensor(1.0))
    up = torch.stack(ups).mean(0)
    torch.testing.assert_close(up / up.norm(), torch.tensor([0.0, -1, 0]), atol=1e-4, rtol=0)
    inverse = torch.linalg.inv(after.world)
    torch.testing.assert_close((after.points.double() @ inverse[:3, :3].T + inverse[:3, 3]).float(), before.points)


def test_projections_are_exact_in_double_precision_and_world_accumulates():
    capture = procedural_capture(40, 30, n_train=7, n_test=2, n_points=40, supersampling=1)
    doubled = tuple(changed(v, viewmat=v.camera.viewmat.double(), K=v.camera.K.double()) for v in capture.train)
    before = dataclasses.replace(capture, train=doubled, test=(), points=capture.points.double())
    after, _ = normalize_capture(before)
    twice, transform = normalize_capture(after)
    torch.testing.assert_close(transform, torch.eye(4, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(twice.world, transform @ after.world)
    for old, new in zip(before.train, after.train):
        old_pixels, new_pixels = (
            project(c.points, v.camera.viewmat, v.camera.K)[0] for c, v in ((before, old), (after, new))
        )
        assert (old_pixels - new_pixels).abs().max() < 1e-5


@pytest.mark.parametrize("up", [(0.0, -1.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)])
def test_up_becomes_minus_y(up):
    viewmats = orbit((1.0, 2.0, 3.0), 2.0, [0, 90, 180, 270], [20.0] * 4, up)
    views = tuple(make_view(viewmat) for viewmat in viewmats)
    result, _ = normalize_capture(Capture(views, (), POINTS, POINTS))
    mean = -torch.stack([view.camera.viewmat[1, :3] for view in result.train]).mean(0)
    torch.testing.assert_close(mean / mean.norm(), torch.tensor([0.0, -1, 0]), atol=1e-5, rtol=0)


def test_cameras_at_one_position_are_rejected():
    views = tuple(make_view(torch.eye(4)) for _ in range(3))
    with pytest.raises(ArgumentError, match="all 3 at one position"):
        normalize_capture(Capture(views, (), POINTS, POINTS))
