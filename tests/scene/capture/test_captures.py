"""What a view and a capture hold, masks, pictures made smaller in advance, and captures in a frame of their own."""

import dataclasses

import pytest
import torch
from PIL import Image

from tests.support.captures import write_colmap, write_image, write_transforms
from tsplat import ArgumentError, ShapeError
from tsplat.scene import (
    Capture,
    FileError,
    View,
    look_at,
    normalize_capture,
    orbit,
    procedural_capture,
    read_capture,
    read_colmap,
)

POINTS = torch.tensor([[0.0, 0, 0], [0.3, -0.2, 0.1], [-0.4, 0.1, 0.2]])


@pytest.fixture(scope="module")
def capture():
    return procedural_capture(40, 30, n_train=7, n_test=2, n_points=40, supersampling=1)


def named(capture):
    """Its views by name, with suffixes that pictures have."""
    views = (*capture.train, *capture.test)
    return sorted((dataclasses.replace(v, name=f"{v.name}.png") for v in views), key=lambda view: view.name)


def pixels_of(points, view):
    camera = points.double() @ view.viewmat[:3, :3].double().T + view.viewmat[:3, 3].double()
    return (camera @ view.K.double().T)[:, :2] / camera[:, 2:], camera[:, 2]


IMAGE = torch.zeros(4, 6, 3, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (dict(mask=torch.ones(4, 6)), r"mask: expected bool \[4, 6\]"),
        (dict(mask=torch.ones(6, 4, dtype=torch.bool)), r"mask: .*\[6, 4\]"),
        (dict(sparse=torch.zeros(5, 2)), r"sparse: expected \[P, 3\]"),
        (dict(camera_id=-1), "camera_id"),
    ],
)
def test_values_of_a_view_that_do_not_fit(values, words):
    with pytest.raises(ArgumentError, match=words):
        View("a", IMAGE, torch.eye(4), torch.eye(3), **values)


def test_the_world_of_a_capture_is_a_matrix():
    with pytest.raises(ShapeError, match="world"):
        Capture((), (), POINTS, POINTS, world=torch.eye(3))
    assert torch.equal(Capture((), (), POINTS, POINTS).world, torch.eye(4, dtype=torch.float64))


def test_nothing_is_lost_on_the_way_to_a_device():
    view = View("a", IMAGE, torch.eye(4), torch.eye(3), torch.ones(4, 6, dtype=torch.bool), torch.zeros(5, 3), 3)
    assert vars(view.to("cpu")) == vars(view)
    bare = View("a", IMAGE, torch.eye(4), torch.eye(3))
    assert vars(bare.to("cpu")) == vars(bare)
    capture = Capture((view,), (bare,), POINTS, POINTS, (1.0, 0.5, 0.0), 2 * torch.eye(4, dtype=torch.float64))
    moved = capture.to("cpu")
    assert moved.world is capture.world
    assert moved.background == capture.background
    assert moved.train[0].mask is view.mask


def test_a_colmap_view_knows_its_points_and_its_camera(tmp_path, capture):
    views = named(capture)
    read = read_colmap(write_colmap(tmp_path, views, POINTS), downscale=2)
    view = read.train[0]
    assert (view.width, view.height) == (20, 15)
    pixels, depths = pixels_of(POINTS, view)
    torch.testing.assert_close(view.sparse, torch.cat([pixels, depths[:, None]], -1).float())
    assert sorted(v.camera_id for v in (*read.train, *read.test)) == list(range(9))


def test_points_outside_the_picture_are_no_sparse_depths(tmp_path, capture):
    view = named(capture)[0]
    eye = -view.viewmat[:3, :3].T @ view.viewmat[:3, 3]
    behind, beside = 2 * eye, eye + view.viewmat[2, :3] + 5 * view.viewmat[0, :3]
    points = torch.stack([POINTS[0], behind, beside])
    read = read_colmap(write_colmap(tmp_path, [view, named(capture)[1]], points))
    assert len(read.test[0].sparse) == 1
    torch.testing.assert_close(
        read.test[0].sparse[0, :2].double(), pixels_of(points[:1], view)[0][0], atol=1e-4, rtol=0
    )


def test_masks_by_either_name_and_shrunk_with_their_picture(tmp_path, capture):
    views = named(capture)
    write_colmap(tmp_path, views, POINTS)
    mask = Image.new("L", (40, 30), 255)
    mask.paste(0, (0, 0, 8, 30))
    (tmp_path / "masks").mkdir()
    mask.save(tmp_path / "masks" / views[1].name)
    mask.save(tmp_path / "masks" / f"{views[2].name}.png")
    expected = torch.ones(30, 40, dtype=torch.bool)
    expected[:, :8] = False
    full = read_colmap(tmp_path)
    assert torch.equal(full.train[0].mask, expected)
    assert torch.equal(full.train[1].mask, expected)
    assert full.train[2].mask is None
    assert torch.equal(full.train[0].image, views[1].image)
    assert torch.equal(read_colmap(tmp_path, downscale=2).train[0].mask, expected[::2, ::2])
    mask.resize((20, 15)).save(tmp_path / "masks" / views[1].name)
    assert torch.equal(read_colmap(tmp_path).train[0].mask, expected)
    mask.resize((20, 20)).save(tmp_path / "masks" / views[1].name)
    with pytest.raises(FileError, match=r"test_001.png: is 20x20, but its picture 40x30"):
        read_colmap(tmp_path)


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_pictures_made_smaller_in_advance_are_taken_as_they_are(tmp_path, capture, suffix):
    views = named(capture)
    write_colmap(tmp_path, views, POINTS)
    for i, view in enumerate(views):
        path = tmp_path / "images_4" / view.name
        write_image(path, torch.full((8, 10, 3), 20 * i, dtype=torch.uint8))
        path.rename(path.with_suffix(suffix))
    read = read_colmap(tmp_path, downscale=4)
    assert [int(v.image.float().mean()) for v in read.train] == [20 * i for i in range(9) if i % 8]
    torch.testing.assert_close(read.train[0].K, views[1].K * torch.tensor([[10 / 40], [8 / 30], [1]]))
    # For another number they are made from the full pictures.
    assert (read_colmap(tmp_path, downscale=2).train[0].image.float().std()) > 1
    (tmp_path / "images_4" / views[3].name).with_suffix(suffix).unlink()
    with pytest.raises(FileError, match=r"images_4/train_001\.png"):
        read_colmap(tmp_path, downscale=4)


def test_all_missing_pictures_are_counted_before_any_is_read(tmp_path, capture):
    views = named(capture)
    write_colmap(tmp_path, views, POINTS)
    for view in views[3:]:
        (tmp_path / "images" / view.name).unlink()
    with pytest.raises(FileError, match=rf"{views[3].name}: no such file and 5 more pictures of 9"):
        read_colmap(tmp_path)


def test_progress_is_told_picture_by_picture(tmp_path, capture):
    told = []
    read_colmap(write_colmap(tmp_path, named(capture), POINTS), on_progress=lambda *numbers: told.append(numbers))
    assert told == [(i, 9) for i in range(1, 10)]


def test_transparent_pictures_of_colmap_lie_on_the_background(tmp_path, capture):
    write_colmap(tmp_path, named(capture)[:2], POINTS)
    picture = Image.new("RGBA", (40, 30), (200, 100, 0, 0))
    picture.putpixel((5, 6), (200, 100, 0, 255))
    picture.save(tmp_path / "images" / named(capture)[0].name)
    read = read_colmap(tmp_path, background=(0.2, 0.4, 1.0))
    assert read.background == (0.2, 0.4, 1.0)
    assert read.test[0].image[0, 0].tolist() == [51, 102, 255]
    assert read.test[0].image[6, 5].tolist() == [200, 100, 0]
    assert read_colmap(tmp_path).test[0].image[0, 0].tolist() == [0, 0, 0]


def test_a_folder_is_read_by_what_is_in_it(tmp_path, capture):
    views = named(capture)
    colmap = read_capture(write_colmap(tmp_path / "a", views, POINTS), downscale=2, test_every=3)
    assert len(colmap.points) == 3
    assert len(colmap.test) == 3
    json = read_capture(write_transforms(tmp_path / "b", views), downscale=2, test_every=3, seed=5)
    assert len(json.points) == 20_000
    again = read_capture(tmp_path / "b" / "transforms.json", seed=6)
    assert not torch.equal(json.points, again.points)
    for one, other in zip(colmap.train, json.train):
        assert torch.equal(one.image, other.image)
    (tmp_path / "c").mkdir()
    with pytest.raises(FileError, match=r"c: no cameras found; looked for sparse/0/.*transforms\.json.*tsplat prepare"):
        read_capture(tmp_path / "c")
    with pytest.raises(FileError, match="d: no such folder"):
        read_capture(tmp_path / "d")


def test_normalizing_keeps_projections_and_says_how_to_go_back(tmp_path, capture):
    views = named(capture)
    # Not upright, far from the origin, and large.
    turn = look_at((0.0, 0, 0), (1.0, 2.0, -0.5), (0.3, 0.1, 1.0))
    shift = torch.eye(4)
    shift[:3, 3] = torch.tensor([30.0, -12.0, 5.0])
    to_file = shift @ turn
    moved = [dataclasses.replace(v, viewmat=v.viewmat @ torch.linalg.inv(to_file)) for v in views]
    points = POINTS @ to_file[:3, :3].T + to_file[:3, 3]
    write_colmap(tmp_path, moved, points)
    before, after = read_capture(tmp_path), read_capture(tmp_path, normalize=True)
    _, change = normalize_capture(before)
    assert torch.equal(after.world, change)
    centers, ups = [], []
    scale = float(torch.linalg.det(change[:3, :3])) ** (1 / 3)
    for old, new in zip((*before.train, *before.test), (*after.train, *after.test)):
        (old_pixels, old_depths), (new_pixels, new_depths) = pixels_of(before.points, old), pixels_of(after.points, new)
        # fp32 of coordinates around 30 is where 2e-6 of the depth comes from.
        assert (old_pixels - new_pixels).abs().max() < 1e-3
        torch.testing.assert_close(new_depths, scale * old_depths, rtol=1e-5, atol=0)
        torch.testing.assert_close(new.sparse, old.sparse * torch.tensor([1, 1, scale]))
        assert torch.equal(new.image, old.image)
        rotation = new.viewmat[:3, :3]
        torch.testing.assert_close(rotation @ rotation.T, torch.eye(3), atol=1e-5, rtol=0)
        centers.append(-rotation.T @ new.viewmat[:3, 3])
        ups.append(-rotation[1])
    centers = torch.stack(centers)
    torch.testing.assert_close(centers.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(centers.norm(dim=-1).max(), torch.tensor(1.0))
    up = torch.stack(ups).mean(0)
    torch.testing.assert_close(up / up.norm(), torch.tensor([0.0, -1, 0]), atol=1e-4, rtol=0)
    back = torch.linalg.inv(after.world)
    torch.testing.assert_close((after.points.double() @ back[:3, :3].T + back[:3, 3]).float(), before.points)


def test_normalizing_keeps_projections_exactly_in_double_precision(capture):
    doubled = tuple(dataclasses.replace(v, viewmat=v.viewmat.double(), K=v.K.double()) for v in capture.train)
    start = dataclasses.replace(capture, train=doubled, test=(), points=capture.points.double())
    end, _ = normalize_capture(start)
    twice, change = normalize_capture(end)
    torch.testing.assert_close(change, torch.eye(4, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(twice.world, change @ end.world)
    for old, new in zip(start.train, end.train):
        assert (pixels_of(start.points, old)[0] - pixels_of(end.points, new)[0]).abs().max() < 1e-5


@pytest.mark.parametrize("up", [(0.0, -1.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)])
def test_any_up_becomes_minus_y(up):
    viewmats = orbit((1.0, 2.0, 3.0), 2.0, [0, 90, 180, 270], [20.0] * 4, up)
    views = tuple(View(str(i), IMAGE, viewmat, torch.eye(3)) for i, viewmat in enumerate(viewmats))
    result, _ = normalize_capture(Capture(views, (), POINTS, POINTS))
    mean = -torch.stack([view.viewmat[1, :3] for view in result.train]).mean(0)
    torch.testing.assert_close(mean / mean.norm(), torch.tensor([0.0, -1, 0]), atol=1e-5, rtol=0)


def test_cameras_in_one_place_have_no_size():
    views = tuple(View(str(i), IMAGE, torch.eye(4), torch.eye(3)) for i in range(3))
    with pytest.raises(ArgumentError, match="3 cameras are in one place"):
        normalize_capture(Capture(views, (), POINTS, POINTS))
