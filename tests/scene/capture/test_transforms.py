"""transforms.json in the forms it is found in, against the capture it was written from and the same one from COLMAP."""

import dataclasses
import json
import math

import pytest
import torch
from PIL import Image

from tests.support.captures import frame, lens, write_colmap, write_image, write_transforms
from tests.support.paths import SCENES
from tsplat import ArgumentError, UnsupportedError
from tsplat.scene import FileError, procedural_capture, read_colmap, read_transforms

LEGO = SCENES / "lego_400"
POINTS = torch.tensor([[0.0, 0, 0], [0.3, -0.2, 0.1], [-0.4, 0.1, 0.2]])


@pytest.fixture(scope="module")
def views():
    capture = procedural_capture(40, 30, n_train=7, n_test=2, n_points=40, supersampling=1)
    renamed = [dataclasses.replace(v, name=f"{v.name}.png") for v in (*capture.train, *capture.test)]
    return sorted(renamed, key=lambda view: view.name)


def content(views, **values):
    return {**lens(views[0]), "frames": [frame(view) for view in views], **values}


def rewrite(folder, **values):
    """The same file with other values; None takes a key out."""
    path = folder / "transforms.json"
    old = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in {**old, **values}.items() if v is not None}))


def assert_equal_views(ones, others):
    assert len(ones) == len(others)
    for one, other in zip(ones, others):
        assert torch.equal(one.image, other.image)
        torch.testing.assert_close(one.viewmat, other.viewmat, atol=2e-6, rtol=0)
        torch.testing.assert_close(one.K, other.K)


@pytest.mark.parametrize("downscale", [1, 2])
def test_the_same_scene_as_from_colmap(tmp_path, views, downscale):
    json_capture = read_transforms(write_transforms(tmp_path / "json", views), downscale)
    assert [view.name for view in json_capture.test] == ["images/test_000.png", "images/train_006.png"]
    colmap = read_colmap(write_colmap(tmp_path / "colmap", views, POINTS), downscale)
    assert_equal_views(json_capture.train, colmap.train)
    assert_equal_views(json_capture.test, colmap.test)
    if downscale == 1:
        assert_equal_views([*json_capture.test, *json_capture.train], [views[0], views[8], *views[1:8]])


def test_the_field_of_view_stands_for_the_focal_length(tmp_path, views):
    write_transforms(tmp_path, views)
    K = views[0].K
    angle = 2 * math.atan(20 / float(K[0, 0]))
    rewrite(tmp_path, camera_angle_x=angle, fl_x=None, fl_y=None, cx=None, cy=None, w=None, h=None)
    assert_equal_views(read_transforms(tmp_path).train, views[1:8])
    rewrite(tmp_path, camera_angle_y=2 * math.atan(15 / 50))
    assert read_transforms(tmp_path).train[0].K[1, 1].item() == pytest.approx(50)


def test_a_frame_has_its_own_lens_where_it_says_so(tmp_path, views):
    own = dict(fl_x=90.0, fl_y=95.0, cx=19.0, cy=16.0)
    frames = [frame(view, **(own if i in (2, 5) else {})) for i, view in enumerate(views)]
    capture = read_transforms(write_transforms(tmp_path, views, frames=frames))
    expected = torch.tensor([[90.0, 0, 19], [0, 95, 16], [0, 0, 1]])
    assert torch.equal(capture.train[1].K, expected)
    assert torch.equal(capture.train[4].K, expected)
    torch.testing.assert_close(capture.train[0].K, views[1].K)
    assert [view.camera_id for view in capture.train] == [0, 1, 0, 0, 1, 0, 0]


def test_pictures_smaller_than_the_file_says_keep_the_geometry(tmp_path, views):
    doubled = {key: 2 * value for key, value in lens(views[0]).items()}
    assert_equal_views(read_transforms(write_transforms(tmp_path, views, **doubled)).train, views[1:8])


def test_folders_of_smaller_pictures(tmp_path, views):
    write_transforms(tmp_path, views)
    for view in views:
        write_image(tmp_path / "images_2" / view.name, torch.full((15, 20, 3), 77, dtype=torch.uint8))
    capture = read_transforms(tmp_path, downscale=2)
    assert all((view.image == 77).all() for view in (*capture.train, *capture.test))
    torch.testing.assert_close(capture.train[0].K, views[1].K * torch.tensor([[0.5], [0.5], [1]]))


def write_blender(folder, views, held_out="test", alpha=128):
    """Suffixes left out, and a lens by its angle, as Blender's script does it."""
    angle = 2 * math.atan(0.5 * views[0].width / float(views[0].K[0, 0]))
    parts = {"train": views[3:], held_out: views[:3]}
    for name, part in parts.items():
        frames = []
        for view in part:
            color = torch.cat([view.image, torch.full((30, 40, 1), alpha, dtype=torch.uint8)], -1)
            path = folder / name / view.name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(color.numpy()).save(path)
            frames.append(frame(view, file_path=f"./{name}/{path.stem}"))
        (folder / f"transforms_{name}.json").write_text(json.dumps({"camera_angle_x": angle, "frames": frames}))
    return folder


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_split_files_and_transparent_pictures(tmp_path, views, held_out):
    capture = read_transforms(write_blender(tmp_path, views, held_out))
    assert [view.name for view in capture.test] == [f"{held_out}/{view.name}" for view in views[:3]]
    assert [view.name for view in capture.train] == [f"train/{view.name}" for view in views[3:]]
    assert capture.background == (1.0, 1.0, 1.0)
    a = 128 / 255
    for read, view in zip(capture.train, views[3:]):
        expected = view.image.float() * a + 255 * (1 - a)
        assert (read.image.float() - expected).abs().max() <= 0.501
        torch.testing.assert_close(read.viewmat, view.viewmat, atol=2e-6, rtol=0)
        torch.testing.assert_close(read.K, view.K)
    other = read_transforms(tmp_path, background=(0.0, 0.5, 0.0))
    assert other.background == (0.0, 0.5, 0.0)
    expected = views[3].image.float() * a + torch.tensor([0, 127.5, 0]) * (1 - a)
    assert (other.train[0].image.float() - expected).abs().max() <= 0.501
    assert capture.points.shape == (20_000, 3)
    assert capture.points.abs().max() <= 1.3
    torch.testing.assert_close(capture.points.std(0), torch.full((3,), 2.6 / math.sqrt(12)), atol=0.02, rtol=0)


def test_opaque_pictures_have_nothing_behind_them(tmp_path, views):
    assert read_transforms(write_transforms(tmp_path, views)).background == (0.0, 0.0, 0.0)


def test_random_points_are_repeatable_and_around_what_is_seen(tmp_path, views):
    write_transforms(tmp_path, views)
    one, same, other = (read_transforms(tmp_path, n_random=500, seed=seed).points for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    # The table's middle, with what stands on it, is in the box.
    assert (one.amin(0) < -1).all()
    assert (one.amax(0)[[0, 2]] > 1).all()
    assert one.shape == (500, 3)


def test_held_out_pictures_by_name(tmp_path, views):
    write_transforms(tmp_path, views, test_filenames=["images/train_002.png", "./images/train_004.png"])
    capture = read_transforms(tmp_path)
    assert [view.name for view in capture.test] == ["images/train_002.png", "images/train_004.png"]
    assert len(capture.train) == 7


def test_masks(tmp_path, views):
    mask = torch.zeros(30, 40, 3, dtype=torch.uint8)
    mask[:10] = 255
    write_image(tmp_path / "masks" / "a.png", mask)
    frames = [frame(view, **({"mask_path": "masks/a.png"} if i == 1 else {})) for i, view in enumerate(views)]
    capture = read_transforms(write_transforms(tmp_path, views, frames=frames))
    assert torch.equal(capture.train[0].mask, mask[..., 0] > 0)
    assert capture.train[1].mask is None
    (tmp_path / "masks" / "a.png").unlink()
    with pytest.raises(FileError, match=r"masks/a\.png: no such file"):
        read_transforms(tmp_path)


ASCII = "ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\nproperty float y\nproperty float z\n"
ASCII += "property uint8 red\nproperty uint8 green\nproperty uint8 blue\nend_header\n"
ASCII += "1 2 3 255 0 51\n4 5 6 0 255 0\n-1e0 -2 -3.5 0 0 255\n"


def binary(order, kind, color):
    from numpy import array

    rows = [((1, 2, 3), (255, 0, 51)), ((4, 5, 6), (0, 255, 0)), ((-1, -2, -3.5), (0, 0, 255))]
    header = f"ply\nformat binary_{'little' if order == '<' else 'big'}_endian 1.0\nelement vertex 3\n"
    header += "".join(f"property {kind} {name}\n" for name in ("x", "y", "z"))
    header += "".join(f"property {color} {name}\n" for name in ("red", "green", "blue"))
    scale = 255 if color == "float" else 1
    body = b""
    for place, shade in rows:
        body += array(place, f"{order}f{8 if kind == 'double' else 4}").tobytes()
        body += (
            array(shade, "u1" if color == "uchar" else f"{order}f4")
            .__truediv__(scale)
            .astype("u1" if color == "uchar" else f"{order}f4")
            .tobytes()
        )
    return (header + "element face 1\nproperty list uchar int vertex_indices\nend_header\n").encode() + body + b"\3abc"


@pytest.mark.parametrize(
    "ply",
    [ASCII.encode(), binary("<", "float", "uchar"), binary(">", "double", "uchar"), binary("<", "double", "float")],
    ids=["text", "little", "big", "float colors"],
)
def test_points_of_the_file(tmp_path, views, ply):
    write_transforms(tmp_path, views, ply_file_path="sparse_pc.ply")
    (tmp_path / "sparse_pc.ply").write_bytes(ply)
    capture = read_transforms(tmp_path)
    assert capture.points.tolist() == [[1, 2, 3], [4, 5, 6], [-1, -2, -3.5]]
    torch.testing.assert_close(capture.colors, torch.tensor([[1, 0, 0.2], [0, 1, 0], [0, 0, 1]]))


@pytest.mark.parametrize(
    ("ply", "words"),
    [
        (None, "No such file"),
        (b"hello", "not a PLY"),
        (ASCII[:-21].encode(), "cut short"),
        (ASCII.replace("4 5 6 0", "4 five 6 0").encode(), "is not 6 numbers"),
        (ASCII.replace("4 5 6 0", "4 5").encode(), "is not 6 numbers"),
        (binary("<", "float", "uchar")[:-24], "cut short"),
        (ASCII.replace("float z", "float w").encode(), "x, y and z"),
        (ASCII.replace("ascii", "morse").encode(), "morse"),
        (ASCII.replace("vertex 3", "vertex 1").encode(), "two points"),
        (ASCII.replace("vertex 3", f"vertex {10**17}").encode(), "cut short"),
        (ASCII.replace("end_header", "").encode(), "header"),
    ],
)
def test_files_of_points_that_cannot_be_read(tmp_path, views, ply, words):
    write_transforms(tmp_path, views, ply_file_path="points.ply")
    if ply is not None:
        (tmp_path / "points.ply").write_bytes(ply)
    with pytest.raises(FileError, match=rf"points\.ply: .*{words}"):
        read_transforms(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ('{"frames": [', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("\x00\xff", "not JSON"),
        ("[]", "expected an object"),
        ("{}", "list of frames"),
        ('{"frames": []}', "list of frames"),
        ('{"frames": [3]}', "list of frames"),
    ],
)
def test_files_that_are_no_transforms(tmp_path, text, words):
    (tmp_path / "transforms.json").write_text(text, encoding="latin-1")
    with pytest.raises(FileError, match=rf"transforms\.json: .*{words}"):
        read_transforms(tmp_path)


NO_NUMBER = float("nan")
EVERYTHING = [f"images/{name}.png" for name in (*(f"train_00{i}" for i in range(7)), "test_000", "test_001")]


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        (dict(fl_x="wide"), FileError, r"transforms\.json: frame 0: fl_x: .*'wide'"),
        (dict(fl_x=NO_NUMBER), FileError, "fl_x: .*nan"),
        (dict(fl_x=0), FileError, "fl_x and fl_y: .*positive"),
        (dict(fl_x=None), FileError, "no focal length"),
        (dict(fl_x=None, camera_angle_x=4), FileError, "camera_angle_x: .*pi"),
        (dict(cx=True), FileError, "cx: .*True"),
        (dict(k1=[0.1]), FileError, "k1"),
        (dict(w=0), FileError, "w and h"),
        (dict(w=30, h=40), FileError, r"test_00\d\.png: is 40x30.*30x40"),
        (dict(camera_model="OPENCV_FISHEYE"), UnsupportedError, "OPENCV_FISHEYE"),
        (dict(is_fisheye=True), UnsupportedError, "fisheye"),
        (dict(k3=0.1), UnsupportedError, "k3"),
        (dict(rolling_shutter=[0, 0.01, 0, 0]), UnsupportedError, "rolling_shutter"),
        (dict(ply_file_path=3), FileError, "ply_file_path"),
        (dict(test_filenames=EVERYTHING), ArgumentError, "0 to fit"),
    ],
)
def test_values_that_cannot_be_used(tmp_path, views, values, error, words):
    write_transforms(tmp_path, views)
    rewrite(tmp_path, **values)
    with pytest.raises(error, match=words):
        read_transforms(tmp_path)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (dict(file_path=None), "frame 3: file_path: .*None"),
        (dict(file_path="a\0b"), "frame 3: file_path"),
        (dict(file_path="images/lost.png"), r"images/lost\.png: no such file"),
        (dict(transform_matrix=None), "frame 3: transform_matrix"),
        (dict(transform_matrix=[[1, 2], [3]]), "frame 3: transform_matrix"),
        (dict(transform_matrix=torch.eye(3).tolist()), "frame 3: transform_matrix"),
        (dict(transform_matrix=(NO_NUMBER * torch.eye(4)).tolist()), "frame 3: transform_matrix"),
        (dict(transform_matrix=(2 * torch.eye(4)).tolist()), "frame 3: transform_matrix: .*no rotation"),
        (dict(transform_matrix=(-torch.eye(4)).tolist()), "frame 3: transform_matrix: .*no rotation"),
    ],
)
def test_frames_that_cannot_be_used(tmp_path, views, values, words):
    frames = [{**frame(view), **(values if i == 3 else {})} for i, view in enumerate(views)]
    write_transforms(tmp_path, views, frames=frames)
    with pytest.raises(FileError, match=words):
        read_transforms(tmp_path)


def test_missing_files_are_named(tmp_path, views):
    with pytest.raises(FileError, match=r"neither transforms\.json nor transforms_train\.json"):
        read_transforms(tmp_path)
    with pytest.raises(FileError, match=r"a\.json: No such file"):
        read_transforms(tmp_path / "a.json")
    write_transforms(tmp_path, views)
    (tmp_path / "images" / "train_001.png").write_bytes(b"no picture")
    with pytest.raises(FileError, match=r"train_001\.png: cannot be read as a picture"):
        read_transforms(tmp_path)
    rewrite(tmp_path, frames=[frame(views[0])])
    with pytest.raises(ArgumentError, match="two pictures"):
        read_transforms(tmp_path)


@pytest.mark.skipif(not LEGO.is_dir(), reason="the shared scenes are not beside this checkout")
def test_silhouettes_of_a_real_scene_meet_in_its_middle():
    capture = read_transforms(LEGO, downscale=4)
    assert (len(capture.train), len(capture.test), capture.background) == (100, 25, (1.0, 1.0, 1.0))
    assert (capture.train[0].width, capture.train[0].height) == (100, 100)
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(100_000, 3, generator=generator) * 2.6 - 1.3
    within = torch.ones(len(points), dtype=torch.bool)
    for view in capture.train[::4]:
        camera = points @ view.viewmat[:3, :3].T + view.viewmat[:3, 3]
        x, y = ((camera @ view.K.T)[:, :2] / camera[:, 2:]).floor().long().unbind(-1)
        inside = (camera[:, 2] > 0) & (x >= 0) & (x < 100) & (y >= 0) & (y < 100)
        within &= inside & (view.pixels.amin(-1)[y.clamp(0, 99), x.clamp(0, 99)] < 0.98)
    # A bulldozer about 1.3 wide, 2.3 long and 1.5 high, z up; with wrong poses next to nothing would be left.
    size = points[within].amax(0) - points[within].amin(0)
    torch.testing.assert_close(size, torch.tensor([1.3, 2.3, 1.54]), atol=0.15, rtol=0)
    for view in capture.test[::5]:
        camera = points[within] @ view.viewmat[:3, :3].T + view.viewmat[:3, 3]
        x, y = ((camera @ view.K.T)[:, :2] / camera[:, 2:]).floor().long().unbind(-1)
        assert (view.pixels.amin(-1)[y, x] < 0.98).float().mean() > 0.95
