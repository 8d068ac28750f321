"""Plans of blocks: boxes that part the ground, views that show them, what a block is trained on, and files."""

import dataclasses
import json
import math

import pytest
import torch

from tsplat import ArgumentError
from tsplat.scene import Camera, Capture, FileError, Gaussians, View, intrinsics, look_at
from tsplat.scene.capture.block_plans import PLAN, crop_to_block, plan_blocks, read_plan, select_block, write_plan
from tsplat.scene.capture.block_plot import draw_plan
from tsplat.scene.images import read_image

WIDTH, HEIGHT = 40, 30


def view(name, eye, target):
    image = torch.zeros(HEIGHT, WIDTH, 3, dtype=torch.uint8)
    return View(image, Camera(look_at(eye, target), intrinsics(WIDTH, HEIGHT, 50), WIDTH, HEIGHT, name=name))


def town(n=600):
    """Points on a strip of the ground, 12×4, with two views of its left end, one of the middle, and two of the right,
    one of which is held out."""
    generator = torch.Generator().manual_seed(1)
    points = (torch.rand(n, 3, generator=generator) - 0.5) * torch.tensor([12, 0.4, 4])
    ends = {"a": -5, "b": -4.5, "c": 0, "d": 4.5, "e": 5}
    views = [view(name, (x, -3.0, -1.0), (x, 0.0, 0.0)) for name, x in ends.items()]
    return Capture(tuple(views[:4]), (views[4],), points, torch.rand(n, 3, generator=generator))


def moved(capture, matrix):
    """The capture in another frame, by a rigid motion [4, 4]."""
    inverse = torch.linalg.inv(matrix)

    def move(views):
        cameras = [dataclasses.replace(v.camera, viewmat=v.camera.viewmat @ inverse) for v in views]
        return tuple(v.replaced(camera=camera) for v, camera in zip(views, cameras, strict=True))

    points = capture.points @ matrix[:3, :3].T + matrix[:3, 3]
    return dataclasses.replace(capture, train=move(capture.train), test=move(capture.test), points=points)


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 9, (2, 3), (4, 1)])
def test_every_place_lies_in_one_block_and_blocks_are_balanced(blocks):
    capture = town()
    plan = plan_blocks(capture, blocks, min_share=0.01)
    n = blocks if isinstance(blocks, int) else math.prod(blocks)
    anywhere = torch.cat([capture.points, 100 * torch.randn(500, 3, generator=torch.Generator().manual_seed(2))])
    members = torch.stack([plan.contains(k, anywhere) for k in range(n)])
    assert len(plan.blocks) == n and (members.sum(0) == 1).all()
    counts = [block.n_points for block in plan.blocks]
    assert sum(counts) == len(capture.points) and max(counts) - min(counts) <= 0.02 * len(capture.points)
    for k in range(n):
        assert (plan.contains(k, anywhere, expanded=True) | ~members[k]).all()
    if blocks == (4, 1):
        # Columns follow the long side.
        assert all(math.isinf(block.low[1]) and math.isinf(block.high[1]) for block in plan.blocks)


def test_ground_is_the_plane_of_the_points_in_any_frame():
    matrix = torch.linalg.inv(look_at((3.0, 2.0, 1.0), (0.0, 0.5, -1.0), (0.3, 1.0, 0.2)))
    capture = town()
    outliers = torch.tensor([[0.0, -300.0, 0.0]]).expand(20, 3)
    capture = dataclasses.replace(capture, points=torch.cat([capture.points, outliers]), colors=torch.ones(620, 3))
    plan, other = plan_blocks(capture, 3), plan_blocks(moved(capture, matrix), 3)
    for found, frame in ((plan, torch.eye(4)), (other, matrix)):
        axes = torch.tensor(found.axes)
        torch.testing.assert_close(axes @ axes.T, torch.eye(3), atol=1e-6, rtol=0)
        up = frame[:3, :3] @ torch.tensor([0.0, -1, 0])
        right = frame[:3, :3] @ torch.tensor([1.0, 0, 0])
        assert axes[2] @ up > 0.999 and (axes[0] @ right).abs() > 0.99
    views = sorted(sorted(block.views) for block in plan.blocks)
    assert sorted(sorted(block.views) for block in other.blocks) == views


def test_views_belong_to_the_blocks_that_they_show():
    plan = plan_blocks(town(), (3, 1), margin=0.05, min_share=0.1)
    assert [set(block.views) for block in plan.blocks] == [{"a", "b"}, {"c"}, {"d", "e"}]
    # With a margin of the whole block, the view of the middle shows all three.
    assert all("c" in block.views for block in plan_blocks(town(), (3, 1), margin=1.0).blocks)


def test_hidden_points_do_not_count():
    generator = torch.Generator().manual_seed(1)
    places = 8 * torch.rand(9000, 2, generator=generator) - 4
    near, far = (torch.stack([places[:, 0], places[:, 1], torch.full((9000,), z)], 1) for z in (2.0, 40.0))
    level = view("level", (0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    behind = view("behind", (0.0, 0.0, 20.0), (0.0, 0.0, 40.0))
    capture = Capture((level, behind), (), torch.cat([near, far]), torch.ones(18_000, 3))
    plan = plan_blocks(capture, (2, 1), margin=0.0)
    views = [block.views for block in plan.blocks]
    assert sorted(views) == [("behind",), ("level",)]
    # All those in the image would be far more than the share.
    assert all(int(plan.contains(k, capture.points).sum()) == 9000 for k in range(2))


def test_fisheye_views_show_what_pinholes_of_the_same_focal_length_do_not():
    sides = torch.tensor([-3.5, -3.4, 3.4, 3.5])
    points = torch.stack([sides, torch.zeros(4), torch.full((4,), 2.0)], 1)  # 60 degrees off the axis
    fisheye = view("fisheye", (0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    K = torch.tensor([[15.0, 0, 20], [0, 15, 15], [0, 0, 1]])
    fisheye = fisheye.replaced(camera=dataclasses.replace(fisheye.camera, K=K, model="fisheye"))
    capture = Capture((fisheye,), (), points, torch.ones(4, 3))
    assert [block.views for block in plan_blocks(capture, (2, 1)).blocks] == [("fisheye",), ("fisheye",)]
    pinhole = fisheye.replaced(camera=dataclasses.replace(fisheye.camera, model="pinhole"))
    with pytest.raises(ArgumentError, match="no view shows block 0"):
        plan_blocks(dataclasses.replace(capture, train=(pinhole,)), (2, 1))


def test_views_that_show_no_point_belong_to_no_block():
    capture = town()
    sky = view("sky", (0.0, -3.0, 0.0), (0.1, -9.0, 0.0))
    plan = plan_blocks(dataclasses.replace(capture, train=(*capture.train, sky)), 2)
    assert not any("sky" in block.views for block in plan.blocks)


def test_borders_belong_to_one_block():
    plan = plan_blocks(town(), (2, 1))
    plan = dataclasses.replace(plan, axes=((1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.0, -1.0, 0.0)))
    border = torch.tensor([[plan.blocks[0].high[0], 0.0, 0.0]], dtype=torch.float64)
    assert [plan.contains(k, border).tolist() for k in range(2)] == [[False], [True]]


def test_block_is_trained_on_its_views_with_its_points_and_as_many_around():
    capture = town()
    plan = plan_blocks(capture, (3, 1), margin=0.2)
    chosen = select_block(capture, plan, 1)
    assert {v.name for v in chosen.train} == set(plan.blocks[1].views) - {"e"}
    inside = plan.contains(1, capture.points, expanded=True)
    kept = {tuple(point) for point in chosen.points.tolist()}
    assert {tuple(point) for point in capture.points[inside].tolist()} <= kept
    assert int(inside.sum()) <= len(kept) <= 2 * int(inside.sum())
    assert len(chosen.colors) == len(chosen.points) and chosen.notes[-1].startswith("block 1 of 3: ")
    (left, _), (right, _) = plan.box(1, expanded=True, bounded=True)
    assert plan.box(1)[0][0] - left == pytest.approx(0.2 * (plan.box(1)[1][0] - plan.box(1)[0][0]))
    assert right > plan.box(1)[1][0]
    assert select_block(capture, plan, 0).points[:, 0].max() < 4  # its views do not show the right end
    # A view that sees all: what is around is drawn by the seed, and no more than what is inside.
    above = view("above", (0.0, -20.0, -0.1), (0.0, 0.0, 0.0))
    capture = dataclasses.replace(capture, train=(*capture.train, above))
    plan = plan_blocks(capture, (3, 1), margin=0.0)
    draws = [select_block(capture, plan, 1, seed=seed).points for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    assert all(len(points) == 2 * plan.blocks[1].n_points for points in draws)


def test_views_that_are_missing_or_all_held_out_are_errors():
    capture = town()
    plan = plan_blocks(capture, (3, 1), margin=0.05, min_share=0.1, scene="SCENE")
    with pytest.raises(FileError, match=r"SCENE: 1 views of block 0 are not in the scene \(first: a\)"):
        select_block(dataclasses.replace(capture, train=capture.train[1:]), plan, 0)
    held_out = dataclasses.replace(capture, train=capture.train[:3], test=(capture.train[3], *capture.test))
    with pytest.raises(ArgumentError, match="all 2 views of block 2 are held out"):
        select_block(held_out, plan, 2)
    for k in (-1, 3):
        with pytest.raises(ArgumentError, match=f"block: expected 0 to 2, the blocks of the plan, found {k}"):
            select_block(capture, plan, k)


def test_blocks_keep_every_valid_gaussian_once():
    capture = town()
    plan = plan_blocks(capture, 5, min_share=0.01)
    gaussians = Gaussians.from_points(capture.points, capture.colors, 0)
    gaussians.means[7] = math.nan
    parts = [crop_to_block(gaussians, plan, k) for k in range(5)]
    found = torch.cat([part.means for part in parts])
    assert len(found) == len(capture.points) - 1 == len(found.unique(dim=0)) and found.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(blocks=0), "blocks: expected a positive int, found 0"),
        (dict(blocks=(2, -1)), "blocks: expected a positive int, found -1"),
        (dict(blocks=601), "found 601 and 600 points"),
        (dict(blocks=2, margin=-0.1), "margin: expected a number of at least 0, found -0.1"),
        (dict(blocks=2, margin=math.nan), "margin"),
        (dict(blocks=2, min_share=0), "min_share: expected a number above 0 and up to 1, found 0"),
        (dict(blocks=40), "no view shows block"),
    ],
)
def test_invalid_arguments_are_errors(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        plan_blocks(town(), **arguments)


def test_plan_is_the_same_after_writing_and_reading(tmp_path):
    plan = plan_blocks(town(), 4, scene="SCENE", min_share=0.01)
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan
    assert json.loads((tmp_path / PLAN).read_text())["blocks"][0]["low"][0] is None


def test_damaged_plans_are_errors(tmp_path):
    with pytest.raises(FileError, match=r"plan\.json: cannot be read .*; make it with tsplat blocks plan"):
        read_plan(tmp_path)
    write_plan(tmp_path, plan_blocks(town(), 2, scene="SCENE"))
    values = json.loads((tmp_path / PLAN).read_text())
    damages = [dict(version=2), dict(format="other"), dict(axes=[[1, 0, 0]]), dict(blocks=[]), dict(blocks=[{}])]
    damages += [dict(margin="wide"), dict(extent=[[0, 0]]), dict(blocks=7)]
    for damage in damages:
        (tmp_path / PLAN).write_text(json.dumps(values | damage))
        with pytest.raises(FileError, match=r"plan\.json: .*plan the blocks again"):
            read_plan(tmp_path)
    for text in ("[]", "7", "{}", "{"):
        (tmp_path / PLAN).write_text(text)
        with pytest.raises(FileError, match=r"plan\.json"):
            read_plan(tmp_path)


def test_image_shows_borders_and_points(tmp_path):
    pytest.importorskip("matplotlib")
    capture = dataclasses.replace(town(), colors=torch.tensor([[0.0, 0.0, 1.0]]).expand(600, 3))
    draw_plan(tmp_path / "plan.png", plan_blocks(capture, 3), capture)
    red, green, blue = read_image(tmp_path / "plan.png").int().unbind(-1)
    assert ((red > 150) & (green < 60) & (blue < 80)).sum() > 500
    assert ((blue > 200) & (red < 60)).sum() > 500
