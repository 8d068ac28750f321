"""The synthetic town of the benchmark of blocks, and the distances to borders that it measures by."""

import json

import pytest
import torch

from benchmarks import town as tracer
from benchmarks.blocks import border_distances
from benchmarks.town import make_town, render_town, town_cameras, write_town
from tests.support.captures import project
from tsplat.scene import BlockPlan, read_capture
from tsplat.scene.capture.block_plans import Block


def test_points_of_pixels_lie_where_the_pixels_are():
    town = make_town(2)
    for camera in town_cameras(town, 3, 12, 9):
        image, points = render_town(town, camera, 1)
        pixels, depths = project(points.view(-1, 3), camera.viewmat, camera.K)
        y, x = torch.meshgrid(torch.arange(9) + 0.5, torch.arange(12) + 0.5, indexing="ij")
        hit = points.view(-1, 3).isfinite().all(-1)
        assert hit.any() and (depths[hit] > 0).all()
        torch.testing.assert_close(pixels[hit], torch.stack([x, y], -1).view(-1, 2)[hit].double(), atol=1e-2, rtol=0)
        assert (points[..., 1].view(-1)[hit] < 1e-4).all()  # on the ground or above it
        assert ((image >= 0) & (image <= 1)).all() and image.std() > 0.05


def test_town_is_a_scene(tmp_path):
    town = make_town(2)
    cameras = town_cameras(town, 4, 12, 9)
    write_town(tmp_path / "scene", town, cameras, 40)
    capture = read_capture(tmp_path / "scene", test_every=2)
    assert (len(capture.train), len(capture.test)) == (2, 2) and 30 <= len(capture.points) <= 40
    torch.testing.assert_close(capture.test[1].camera.viewmat, cameras[2].viewmat, atol=1e-5, rtol=0)
    assert len(json.loads((tmp_path / "scene" / "transforms.json").read_text())["frames"]) == 4


def test_distances_to_borders():
    inf = float("inf")
    boxes = (((-inf, -inf), (1.0, inf)), ((1.0, -inf), (inf, 2.0)), ((1.0, 2.0), (inf, inf)))
    blocks = tuple(Block(low, high, (), 0) for low, high in boxes)
    plan = BlockPlan("", ((1.0, 0, 0), (0, 0, 1.0), (0, -1.0, 0)), ((-5.0, -5.0), (5.0, 5.0)), 0.2, blocks)
    points = torch.tensor([[-2.0, 7, 0], [1.5, 0, 1.9], [4.0, 0, 2.5], [9.0, -3, -9]])
    assert border_distances(plan, points).tolist() == pytest.approx([3.0, 0.1, 0.5, 8.0], abs=1e-6)


def test_what_no_ray_reaches_is_not_traced(monkeypatch):
    town = make_town(6)
    camera = town_cameras(town, 36, 40, 30)[7]
    found, reached, shares = render_town(town, camera), tracer._reached, []

    def everything(town, *rays):
        shares.append(len(reached(town, *rays)[0]) / len(town.boxes))
        return range(len(town.boxes)), range(len(town.spheres))

    monkeypatch.setattr(tracer, "_reached", everything)
    expected = render_town(town, camera)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert 0.1 < max(shares) < 0.7
