"""Tests of transforms.json in its variants, against the views it was written from and the same scene from COLMAP."""

import itertools
import json
import math

import pytest
import torch
from PIL import Image

from tests.support.captures import (
    POINTS,
    frame,
    intrinsics_keys,
    sample_views,
    write_colmap,
    write_image,
    write_transforms,
)
from tests.support.panoramas import room_capture, write_panoramas
from tests.support.paths import SCENES
from tsplat import ArgumentError, UnsupportedError
from tsplat.scene import FileError, read_colmap, read_transforms
from tsplat.scene.cameras import panorama_intrinsics

LEGO = SCENES / "lego_400"


@pytest.fixture(scope="module")
def views():
    return sample_views()


def rewrite(folder, **values):
    """Replaces keys of transforms.json; None removes a key."""
    path = folder / "transforms.json"
    old = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in {**old, **values}.items() if v is not None}))


def assert_equal_views(ones, others):
    assert len(ones) == len(others)
    for one, other in zip(ones, others):
        assert torch.equal(one.image, other.image)
        torch.testing.assert_close(one.camera.viewmat, other.camera.viewmat, atol=2e-6, rtol=0)
        torch.testing.assert_close(one.camera.K, other.camera.K)


@pytest.mark.parametrize("downscale", [1, 2])
def test_capture_equals_that_of_colmap(tmp_path, views, downscale):
    transforms = read_transforms(write_transforms(tmp_path / "json", views), downscale)
    assert [view.name for view in transforms.test] == ["images/test_000.png", "images/train_006.png"]
    colmap = read_colmap(write_colmap(tmp_path / "colmap", views, POINTS), downscale)
    assert_equal_views(transforms.train, colmap.train)
    assert_equal_views(transforms.test, colmap.test)
    if downscale == 1:
        assert_equal_views([*transforms.test, *transforms.train], [views[0], views[8], *views[1:8]])


def test_camera_angles_replace_focal_lengths(tmp_path, views):
    write_transforms(tmp_path, views)
    K = views[0].camera.K
    angle = 2 * math.atan(20 / float(K[0, 0]))
    rewrite(tmp_path, camera_angle_x=angle, fl_x=None, fl_y=None, cx=None, cy=None, w=None, h=None)
    assert_equal_views(read_transforms(tmp_path).train, views[1:8])
    rewrite(tmp_path, camera_angle_y=2 * math.atan(15 / 50))
    assert read_transforms(tmp_path).train[0].camera.K[1, 1].item() == pytest.approx(50)


def test_frames_can_have_their_own_intrinsics(tmp_path, views):
    own = dict(fl_x=90.0, fl_y=95.0, cx=19.0, cy=16.0)
    frames = [frame(view, **(own if i in (2, 5) else {})) for i, view in enumerate(views)]
    capture = read_transforms(write_transforms(tmp_path, views, frames=frames))
    expected = torch.tensor([[90.0, 0, 19], [0, 95, 16], [0, 0, 1]])
    assert torch.equal(capture.train[1].camera.K, expected)
    assert torch.equal(capture.train[4].camera.K, expected)
    torch.testing.assert_close(capture.train[0].camera.K, views[1].camera.K)
    assert [view.camera_id for view in capture.train] == [0, 1, 0, 0, 1, 0, 0]


def test_intrinsics_are_scaled_to_smaller_images(tmp_path, views):
    doubled = {key: 2 * value for key, value in intrinsics_keys(views[0]).items()}
    assert_equal_views(read_transforms(write_transforms(tmp_path, views, **doubled)).train, views[1:8])


PANORAMA = panorama_intrinsics(64, 32).double()


@pytest.mark.parametrize(
    ("values", "K"),
    [
        ({}, PANORAMA),
        (dict(w=128, h=64, cx=64, cy=32), PANORAMA),
        (dict(fl_x=32.0, fl_y=32.0), PANORAMA),  # nerfstudio's, pixels per half a turn
        (dict(fl_x=32.0), PANORAMA),
        (dict(fl_x=10.18592, fl_y=10.18592, cx=32, cy=16), PANORAMA),  # pixels per radian
        (dict(fl_x=64.0, fl_y=48.0, cy=20.0), [[64 / math.pi, 0, 32], [0, 48 / math.pi, 20], [0, 0, 1]]),
        (dict(camera_angle_x=0.6), PANORAMA),  # of a perspective camera
    ],
)
def test_panoramas_are_read_as_they_are(tmp_path, values, K):
    room = room_capture(4, 64)
    capture = read_transforms(write_panoramas(tmp_path, room, **values), cameras="undistorted")
    originals = {f"images/{view.name}": view for view in (*room.train, *room.test)}
    for view in (*capture.train, *capture.test):
        assert (view.camera.model, view.mask) == ("equirectangular", None)
        assert torch.equal(view.image, originals[view.name].image)
        torch.testing.assert_close(view.camera.viewmat, originals[view.name].camera.viewmat, atol=2e-6, rtol=0)
        torch.testing.assert_close(view.camera.K.double(), torch.as_tensor(K, dtype=torch.float64), atol=1e-5, rtol=0)
    # Random points are on all sides of the cameras.
    low, high = capture.points.amin(0), capture.points.amax(0)
    positions = torch.stack([view.camera.position.float() for view in capture.train])
    assert (low < positions.amin(0) - 1).all()
    assert (high > positions.amax(0) + 1).all()


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        (dict(fl_x=20.0), FileError, "frame 0: panorama: expected at most 360 degrees .* found 576; .* 32 and 32, "),
        (dict(fl_x=32.0, fl_y=16.0), FileError, "latitudes from -90 to 90 degrees, found -180 to 180"),
        (dict(cy=10.0), FileError, "found -56.25 to 123.75"),
        (dict(fl_x="wide"), FileError, "fl_x: .*'wide'"),
        (dict(fl_x=0), FileError, "focal lengths"),
        (dict(k1=0.1), UnsupportedError, "frame 0: k1: expected 0, as an EQUIRECTANGULAR camera"),
        (dict(w=0, h=0), FileError, "w and h"),
        (dict(rolling_shutter=[0, 0.01, 0, 0]), UnsupportedError, "rolling_shutter"),
    ],
)
def test_invalid_panorama_is_rejected(tmp_path, values, error, words):
    write_panoramas(tmp_path, room_capture(2, 64, held_out=0), **values)
    with pytest.raises(error, match=words):
        read_transforms(tmp_path)


def test_folder_of_downscaled_images_is_used(tmp_path, views):
    write_transforms(tmp_path, views)
    for view in views:
        write_image(tmp_path / "images_2" / view.name, torch.full((15, 20, 3), 77, dtype=torch.uint8))
    capture = read_transforms(tmp_path, downscale=2)
    assert all((view.image == 77).all() for view in (*capture.train, *capture.test))
    torch.testing.assert_close(capture.train[0].camera.K, views[1].camera.K * torch.tensor([[0.5], [0.5], [1]]))


def write_blender(folder, views, held_out="test", alpha=128):
    """Writes the layout of the synthetic NeRF scenes: one file per split, names without suffix, camera_angle_x."""
    angle = 2 * math.atan(0.5 * views[0].width / float(views[0].camera.K[0, 0]))
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
def test_split_files_and_transparent_images(tmp_path, views, held_out):
    capture = read_transforms(write_blender(tmp_path, views, held_out))
    assert [view.name for view in capture.test] == [f"{held_out}/{view.name}" for view in views[:3]]
    assert [view.name for view in capture.train] == [f"train/{view.name}" for view in views[3:]]
    assert capture.background == (1.0, 1.0, 1.0)
    a = 128 / 255
    for read, view in zip(capture.train, views[3:]):
        expected = view.image.float() * a + 255 * (1 - a)
        assert (read.image.float() - expected).abs().max() <= 0.501
        torch.testing.assert_close(read.camera.viewmat, view.camera.viewmat, atol=2e-6, rtol=0)
        torch.testing.assert_close(read.camera.K, view.camera.K)
    other = read_transforms(tmp_path, background=(0.0, 0.5, 0.0))
    assert other.background == (0.0, 0.5, 0.0)
    expected = views[3].image.float() * a + torch.tensor([0, 127.5, 0]) * (1 - a)
    assert (other.train[0].image.float() - expected).abs().max() <= 0.501
    assert capture.points.shape == (20_000, 3)
    assert capture.points.abs().max() <= 1.3
    torch.testing.assert_close(capture.points.std(0), torch.full((3,), 2.6 / math.sqrt(12)), atol=0.02, rtol=0)


def test_background_of_opaque_images_is_black(tmp_path, views):
    assert read_transforms(write_transforms(tmp_path, views)).background == (0.0, 0.0, 0.0)


def test_random_points_are_reproducible_and_cover_the_scene(tmp_path, views):
    write_transforms(tmp_path, views)
    one, same, other = (read_transforms(tmp_path, n_random=500, seed=seed).points for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    # The box contains the center of the table and the objects on it.
    assert (one.amin(0) < -1).all()
    assert (one.amax(0)[[0, 2]] > 1).all()
    assert one.shape == (500, 3)


def test_held_out_images_by_name(tmp_path, views):
    write_transforms(tmp_path, views, test_filenames=["images/train_002.png", "./images/train_004.png"])
    capture = read_transforms(tmp_path)
    assert [view.name for view in capture.test] == ["images/train_002.png", "images/train_004.png"]
    assert len(capture.train) == 7


def split_names(capture):
    return [
        [view.name.removeprefix("images/").removesuffix(".png") for view in part]
        for part in (capture.train, capture.test)
    ]


def test_views_of_both_val_and_test_filenames_are_held_out(tmp_path, views):
    paths = [f"images/{view.name}" for view in views]
    write_transforms(
        tmp_path, views, train_filenames=paths[:4], val_filenames=paths[4:6], test_filenames=[*paths[6:8], paths[0]]
    )
    capture = read_transforms(tmp_path)
    stems = [view.name.removesuffix(".png") for view in views]
    assert split_names(capture) == [stems[1:4], [stems[0], *stems[4:8]]]
    path = tmp_path / "transforms.json"
    assert capture.notes[:2] == (
        f"{path}: 1 of 9 images are in train_filenames, but held out (first: {paths[0]})",
        f"{path}: 1 of 9 images are in no list of file names (first: {paths[8]})",
    )


def test_images_that_train_filenames_lacks_are_held_out(tmp_path, views):
    write_transforms(
        tmp_path, views, train_filenames=[f"images/{view.name}".removesuffix(".png") for view in views[2:]]
    )
    train, test = split_names(read_transforms(tmp_path))
    assert (len(train), test) == (7, ["test_000", "test_001"])


def test_names_that_match_no_image_are_noted(tmp_path, views):
    write_transforms(tmp_path, views, test_filenames=["images/train_002.png", "b.png", "a.png"])
    capture = read_transforms(tmp_path)
    assert split_names(capture)[1] == ["train_002"]
    path = tmp_path / "transforms.json"
    assert capture.notes[0] == f"{path}: test_filenames: 2 of 3 names match no image (first: a.png)"
    rewrite(tmp_path, test_filenames=["a.png"])
    assert f"{path}: its lists of file names leave no image to hold out" in read_transforms(tmp_path).notes


def test_repeated_frames_are_skipped_with_a_note(tmp_path, views):
    frames = [frame(view) for view in views]
    again = {**frames[0], "file_path": "./images/../images/test_000"}
    write_transforms(tmp_path, views, frames=[*frames, again])
    capture = read_transforms(tmp_path)
    assert sorted(itertools.chain(*split_names(capture))) == [view.name.removesuffix(".png") for view in views]
    path = tmp_path / "transforms.json"
    assert capture.notes[0] == (f"skipped 1 of 10 frames that repeat the image of another (first: {path}: frame 9)")


def test_images_are_found_by_ignoring_case_with_a_note(tmp_path, views):
    frames = [{**frame(view), "file_path": f"images\\{view.name.upper()}"} for view in views]
    write_transforms(tmp_path, views, frames=frames, test_filenames=["images/TRAIN_002.PNG"])
    capture = read_transforms(tmp_path)
    assert split_names(capture)[1] == ["train_002"]
    first = tmp_path / "images" / views[0].name.upper()
    assert capture.notes[0] == f"found 9 of 9 images by ignoring upper and lower case (first: {first})"


def test_absolute_paths_of_windows_are_refused_by_name(tmp_path, views):
    frames = [{**frame(view), "file_path": f"C:\\data\\{view.name}"} for view in views]
    write_transforms(tmp_path, views, frames=frames)
    with pytest.raises(FileError, match=r"frame 0: file_path: .*'C:.*data.*' of a Windows machine; make the paths rel"):
        read_transforms(tmp_path)


def test_null_is_as_good_as_no_value(tmp_path, views):
    path = write_transforms(tmp_path, views, k1=None, camera_model=None) / "transforms.json"
    assert '"k1": null' in path.read_text()
    assert_equal_views(read_transforms(tmp_path).train, views[1:8])


def test_fields_of_view_in_degrees_replace_focal_lengths(tmp_path, views):
    write_transforms(tmp_path, views)
    x_fov = math.degrees(2 * math.atan(20 / float(views[0].camera.K[0, 0])))
    rewrite(tmp_path, x_fov=x_fov, fl_x=None, fl_y=None)
    assert_equal_views(read_transforms(tmp_path).train, views[1:8])
    rewrite(tmp_path, y_fov=math.degrees(2 * math.atan(15 / 50)))
    assert read_transforms(tmp_path).train[0].camera.K[1, 1].item() == pytest.approx(50)


def test_mask_path(tmp_path, views):
    mask = torch.zeros(30, 40, 3, dtype=torch.uint8)
    mask[:10] = 255
    write_image(tmp_path / "masks" / "a.png", mask)
    frames = [frame(view, **({"mask_path": "masks/a.png"} if i == 1 else {})) for i, view in enumerate(views)]
    capture = read_transforms(write_transforms(tmp_path, views, frames=frames))
    assert torch.equal(capture.train[0].mask, mask[..., 0] > 0)
    assert capture.train[1].mask is None
    name = frames[1]["file_path"]
    for path in (name, f"../{tmp_path.name}/{name}", str((tmp_path / name).absolute())):
        frames[1]["mask_path"] = path
        rewrite(tmp_path, frames=frames)
        with pytest.raises(FileError, match="mask_path: expected an image of the valid pixels, found the photograph"):
            read_transforms(tmp_path)
    frames[1]["mask_path"] = "masks/a.png"
    rewrite(tmp_path, frames=frames)
    (tmp_path / "masks" / "a.png").unlink()
    with pytest.raises(FileError, match=r"masks/a\.png: no such file"):
        read_transforms(tmp_path)


def test_points_of_ply_file_path_are_read(tmp_path, views):
    write_transforms(tmp_path, views, ply_file_path="sparse_pc.ply")
    (tmp_path / "sparse_pc.ply").write_text(
        "ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
        "1 2 3\n4 5 6\n"
    )
    capture = read_transforms(tmp_path)
    assert capture.points.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert capture.colors.tolist() == [[0.5] * 3] * 2
    with open(tmp_path / "sparse_pc.ply", "r+") as file:
        content = file.read().replace("vertex 2", "vertex 3")
        file.seek(0)
        file.write(content + "nan 8 9\n")
    note = f"{tmp_path / 'sparse_pc.ply'}: skipped 1 of 3 points whose position is not finite"
    assert read_transforms(tmp_path).notes == (note,)
    (tmp_path / "sparse_pc.ply").unlink()
    with pytest.raises(FileError, match=r"sparse_pc\.ply: No such file"):
        read_transforms(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not readable as JSON"),
        ('{"frames": [', "not readable as JSON"),
        ("[" * 100_000, "not readable as JSON"),
        ("\x00\xff", "not readable as JSON"),
        ("[]", "expected an object"),
        ("{}", "list of frames"),
        ('{"frames": []}', "list of frames"),
        ('{"frames": [3]}', "list of frames"),
    ],
)
def test_invalid_json_is_rejected(tmp_path, text, words):
    (tmp_path / "transforms.json").write_text(text, encoding="latin-1")
    with pytest.raises(FileError, match=rf"transforms\.json: .*{words}"):
        read_transforms(tmp_path)


NAN = float("nan")
EVERYTHING = [f"images/{name}.png" for name in (*(f"train_00{i}" for i in range(7)), "test_000", "test_001")]


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        (dict(fl_x="wide"), FileError, r"transforms\.json: frame 0: fl_x: .*'wide'"),
        (dict(fl_x=NAN), FileError, "fl_x: .*nan"),
        (dict(fl_x=0), FileError, "fl_x and fl_y: .*positive"),
        (dict(fl_x=None), FileError, "no focal length"),
        (dict(fl_x=None, camera_angle_x=4), FileError, "camera_angle_x: .*pi"),
        (dict(fl_x=None, x_fov=180), FileError, "x_fov: expected degrees between 0 and 180"),
        (dict(cx=True), FileError, "cx: .*True"),
        (dict(k1=[0.1]), FileError, "k1"),
        (dict(w=0), FileError, "w and h"),
        (dict(w=30, h=40), FileError, r"test_00\d\.png: .*its camera, 30×40, found 40×30"),
        (dict(camera_model="THIN_PRISM_FISHEYE"), UnsupportedError, "found THIN_PRISM_FISHEYE"),
        (dict(is_fisheye=True, p1=0.1), UnsupportedError, "p1 is not implemented for fisheye"),
        (dict(is_fisheye=True, fl_x=None, camera_angle_x=1), FileError, "expected fl_x in"),
        (dict(k4=0.1), UnsupportedError, "k4 is not implemented for pinhole cameras; only .*p2, k3 is"),
        (dict(rolling_shutter=[0, 0.01, 0, 0]), UnsupportedError, "rolling_shutter"),
        (dict(ply_file_path=3), FileError, "ply_file_path"),
        (dict(ply_file_path="zero"), FileError, r"transforms\.json: ply_file_path: .* 'zero', a pipe"),
        (dict(test_filenames=EVERYTHING), ArgumentError, "found 0 training images"),
    ],
)
def test_invalid_value_is_rejected(tmp_path, views, values, error, words):
    write_transforms(tmp_path, views)
    (tmp_path / "zero").symlink_to("/dev/zero")
    rewrite(tmp_path, **values)
    with pytest.raises(error, match=words):
        read_transforms(tmp_path)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (dict(file_path=None), "frame 3: file_path: .*None"),
        (dict(file_path="a\0b"), "frame 3: file_path"),
        (dict(mask_path="zero"), r"transforms\.json: frame 3: mask_path: expected a regular file"),
        (dict(transform_matrix=None), "frame 3: transform_matrix"),
        (dict(transform_matrix=[[1, 2], [3]]), "frame 3: transform_matrix"),
        (dict(transform_matrix=torch.eye(3).tolist()), "frame 3: transform_matrix"),
        (dict(transform_matrix=(NAN * torch.eye(4)).tolist()), "frame 3: transform_matrix"),
        (dict(transform_matrix=(2 * torch.eye(4)).tolist()), "frame 3: transform_matrix: expected a rotation"),
        (dict(transform_matrix=(-torch.eye(4)).tolist()), "frame 3: transform_matrix: expected a rotation"),
    ],
)
def test_invalid_frame_is_rejected(tmp_path, views, values, words):
    frames = [{**frame(view), **(values if i == 3 else {})} for i, view in enumerate(views)]
    write_transforms(tmp_path, views, frames=frames)
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(FileError, match=words):
        read_transforms(tmp_path)


def test_missing_and_invalid_files_are_named(tmp_path, views):
    with pytest.raises(FileError, match=r"expected transforms\.json or transforms_train\.json, found neither"):
        read_transforms(tmp_path)
    with pytest.raises(FileError, match=r"a\.json: No such file"):
        read_transforms(tmp_path / "a.json")
    write_transforms(tmp_path, views)
    (tmp_path / "images" / "train_001.png").write_bytes(b"not an image")
    with pytest.raises(FileError, match=r"train_001\.png: cannot be read as an image"):
        read_transforms(tmp_path)
    rewrite(tmp_path, frames=[frame(views[0])])
    with pytest.raises(ArgumentError, match="two images"):
        read_transforms(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not LEGO.is_dir(), reason="needs the test scenes")
def test_silhouettes_of_a_real_scene_intersect_in_its_shape():
    capture = read_transforms(LEGO, downscale=4)
    assert (len(capture.train), len(capture.test), capture.background) == (100, 25, (1.0, 1.0, 1.0))
    assert (capture.train[0].width, capture.train[0].height) == (100, 100)
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(100_000, 3, generator=generator) * 2.6 - 1.3
    in_all = torch.ones(len(points), dtype=torch.bool)
    for view in capture.train[::4]:
        camera = points @ view.camera.viewmat[:3, :3].T + view.camera.viewmat[:3, 3]
        x, y = ((camera @ view.camera.K.T)[:, :2] / camera[:, 2:]).floor().long().unbind(-1)
        inside = (camera[:, 2] > 0) & (x >= 0) & (x < 100) & (y >= 0) & (y < 100)
        in_all &= inside & (view.pixels.amin(-1)[y.clamp(0, 99), x.clamp(0, 99)] < 0.98)
    # A bulldozer about 1.3 wide, 2.3 long and 1.5 high, z up. With wrong poses, almost no points would remain.
    size = points[in_all].amax(0) - points[in_all].amin(0)
    torch.testing.assert_close(size, torch.tensor([1.3, 2.3, 1.54]), atol=0.15, rtol=0)
    for view in capture.test[::5]:
        camera = points[in_all] @ view.camera.viewmat[:3, :3].T + view.camera.viewmat[:3, 3]
        x, y = ((camera @ view.camera.K.T)[:, :2] / camera[:, 2:]).floor().long().unbind(-1)
        assert (view.pixels.amin(-1)[y, x] < 0.98).float().mean() > 0.95
