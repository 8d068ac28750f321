"""Tests of COLMAP scenes: text models written by hand, and binary models by pycolmap."""

import dataclasses
import math
import re
import shutil
import struct
import sys

import pytest
import torch

from tests.support.captures import POINTS, sample_views, write_colmap, write_image, write_scene
from tests.support.panoramas import room_capture
from tests.support.paths import SCENES
from tsplat import ArgumentError
from tsplat.errors import ShapeError
from tsplat.scene import FileError, MissingExtraError, read_capture, read_colmap
from tsplat.scene.cameras import panorama_intrinsics, project_points

pytest.importorskip("pycolmap")

BANANA = SCENES / "banana"


def test_every_eighth_image_by_name_is_held_out(tmp_path):
    capture = read_colmap(write_scene(tmp_path))
    assert [view.name for view in capture.test] == ["00.png", "08.png"]
    assert [view.name for view in capture.train] == [f"{i:02d}.png" for i in (1, 2, 3, 4, 5, 6, 7, 9)]


def test_cameras_images_and_points_are_read(tmp_path):
    capture = read_colmap(write_scene(tmp_path))
    view = capture.train[2]  # 03.png is image 9
    expected = torch.eye(4)
    expected[:3, 3] = torch.tensor([-4.5, 0, 2])
    assert torch.equal(view.camera.viewmat, expected)
    assert torch.equal(view.camera.K, torch.tensor([[50, 0, 21], [0, 52, 14.5], [0, 0, 1]]))
    assert view.image[20, 30].tolist() == [9, 30, 20]
    assert (view.width, view.height) == (43, 30)
    order = capture.points[:, 0].argsort()
    assert capture.points[order].tolist() == [[i, 0.5, 3] for i in range(5)]
    torch.testing.assert_close(capture.colors[order[3]], torch.tensor([1.0, 3 / 255, 0.2]))


def test_rotations_are_world_to_camera(tmp_path):
    # A rotation by 90 degrees about y: the camera looks along -x.
    half = math.sqrt(0.5)
    capture = read_colmap(write_scene(tmp_path, pose=f"{half} 0 {half} 0"))
    point = capture.train[0].camera.viewmat[:3, :3] @ torch.tensor([-3.0, 0, 0])
    torch.testing.assert_close(point, torch.tensor([0.0, 0, 3]))


def test_text_and_binary_models_are_equivalent(tmp_path):
    import pycolmap

    text = read_colmap(write_scene(tmp_path))
    sparse = tmp_path / "sparse" / "0"
    pycolmap.Reconstruction(str(sparse)).write_binary(str(sparse))
    for path in sparse.glob("*.txt"):
        path.unlink()
    binary = read_colmap(tmp_path)
    assert torch.equal(binary.points.sort(0).values, text.points.sort(0).values)
    for a, b in zip(binary.train, text.train):
        assert torch.equal(a.camera.viewmat, b.camera.viewmat)
        assert torch.equal(a.camera.K, b.camera.K)


def test_simple_pinhole_has_one_focal_length(tmp_path):
    capture = read_colmap(write_scene(tmp_path, camera="1 SIMPLE_PINHOLE 43 30 50 21 14.5"))
    assert torch.equal(capture.train[0].camera.K, torch.tensor([[50, 0, 21], [0, 50, 14.5], [0, 0, 1]]))


def test_panoramas_are_read_as_they_are(tmp_path):
    capture = room_capture(4, 48, n_points=60)
    views = [*capture.train, *capture.test]
    camera, points = "EQUIRECTANGULAR 48 24 48 24", capture.points[:60]
    undistorted = read_colmap(write_colmap(tmp_path, views, points, camera=camera))
    native = read_colmap(tmp_path, cameras="native")
    assert not any("undistort" in note for note in undistorted.notes)
    originals = {view.name: view for view in views}
    for read in (*undistorted.train, *undistorted.test, *native.train, *native.test):
        original = originals[read.name]
        assert (read.camera.model, read.mask, read.camera.distortion) == ("equirectangular", None, None)
        assert torch.equal(read.image, original.image)
        torch.testing.assert_close(read.camera.K, original.camera.K)
        assert len(read.sparse) == 60  # a panorama shows all of its points
        u, v, distances, inside = project_points(original.camera, points)
        assert inside.all()
        torch.testing.assert_close(read.sparse, torch.stack([u, v, distances], -1), atol=1e-4, rtol=1e-5)
    small = read_colmap(tmp_path, downscale=2)
    torch.testing.assert_close(small.train[0].camera.K, panorama_intrinsics(24, 12))


@pytest.mark.parametrize("suffix", [".bin", ".txt"])
def test_images_of_rigs_have_the_poses_of_their_cameras(tmp_path, suffix):
    """Several cameras of a frame, in folders of their own, with the files of rigs and frames that COLMAP writes."""
    import pycolmap

    model, expected = pycolmap.Reconstruction(), {}
    rig = pycolmap.Rig(rig_id=1)
    turns = [math.radians(angle) for angle in (0, 90, -90)]
    sensors = []
    for i, turn in enumerate(turns):
        camera = pycolmap.Camera(model="PINHOLE", width=43, height=30, params=[50.0 + i, 52, 21, 14.5], camera_id=i + 1)
        model.add_camera(camera)
        rotation = pycolmap.Rotation3d([0, math.sin(turn / 2), 0, math.cos(turn / 2)])
        sensors.append(pycolmap.Rigid3d(rotation, [0.2 * i, 0.1, 0]))
        if i == 0:
            rig.add_ref_sensor(camera.sensor_id)
            sensors[0] = pycolmap.Rigid3d()
        else:
            rig.add_sensor(camera.sensor_id, sensors[i])
    model.add_rig(rig)
    for j in range(4):
        frame = pycolmap.Frame(rig_id=1, frame_id=j + 1)
        images = []
        for i in range(3):
            image = pycolmap.Image(name=f"camera{i}/{j}.png", camera_id=i + 1, image_id=3 * j + i + 1)
            image.frame_id = frame.frame_id
            frame.add_data_id(image.data_id)
            images.append(image)
        half = 0.1 * j
        rotation = pycolmap.Rotation3d([math.sin(half), 0, 0, math.cos(half)])
        frame.rig_from_world = pycolmap.Rigid3d(rotation, [0.5 * j, 0.2, 1])
        model.add_frame(frame)
        for i, image in enumerate(images):
            model.add_image(image)
            pose = torch.from_numpy((sensors[i] * frame.rig_from_world).matrix())
            expected[image.name] = pose, 50.0 + i
            write_image(tmp_path / "images" / image.name, torch.full((30, 43, 3), 40 * i + j, dtype=torch.uint8))
        model.register_frame(frame.frame_id)
    for i in range(5):
        model.add_point3D([i, 0.5, 3], pycolmap.Track(), [255, i, 51])
    sparse = tmp_path / "sparse" / "0"
    sparse.mkdir(parents=True)
    (model.write_binary if suffix == ".bin" else model.write_text)(sparse)
    assert {path.name for path in sparse.iterdir()} >= {f"{name}{suffix}" for name in ("rigs", "frames", "images")}

    capture = read_colmap(tmp_path, test_every=0)
    assert sorted(view.name for view in capture.train) == sorted(expected) and not capture.notes
    for view in capture.train:
        pose, focal = expected[view.name]
        torch.testing.assert_close(view.camera.viewmat[:3].double(), pose, rtol=0, atol=1e-6)
        camera, frame = int(view.name[6]), int(view.name[8])
        assert (view.camera.K[0, 0], view.camera_id) == (focal, camera)
        assert view.image.unique().tolist() == [40 * camera + frame]


def test_downscale_scales_intrinsics_per_axis(tmp_path):
    full = read_colmap(write_scene(tmp_path))
    small = read_colmap(tmp_path, downscale=4)
    view = small.train[0]
    assert (view.width, view.height) == (11, 8)  # 10.75 x 7.5, rounded
    expected = full.train[0].camera.K * torch.tensor([[11 / 43], [8 / 30], [1]])
    torch.testing.assert_close(view.camera.K, expected)
    # Pixel i of the downscaled ramp covers full-size columns from 43 i / 11 on.
    centers = (torch.arange(11) + 0.5) * 43 / 11 - 0.5
    assert (view.image[3, :, 1] - centers).abs().max() <= 0.51


def test_intrinsics_are_scaled_to_smaller_images(tmp_path):
    capture = read_colmap(write_scene(tmp_path, camera="1 PINHOLE 172 120 200 208 84 58"))
    torch.testing.assert_close(capture.train[0].camera.K, torch.tensor([[50, 0, 21], [0, 52, 14.5], [0, 0, 1]]))


@pytest.mark.parametrize(
    ("scene", "error", "words"),
    [
        (dict(camera="1 EQUIRECTANGULAR 43 30 0 30"), FileError, "camera 1: focal lengths: .* 0 and"),
        (dict(camera="1 EQUIRECTANGULAR 43 30 nan 30"), FileError, "camera 1: expected finite"),
        (dict(camera="1 EQUIRECTANGULAR 43 30 30 30"), FileError, "camera 1: panorama: .* 360 degrees .* found 516"),
        (dict(camera="1 EQUIRECTANGULAR 43 30 43 20"), FileError, "latitudes from -90 to 90 .* found -90 to 180"),
        (
            dict(camera="1 DIVISION 43 30 50 52 21 14 1e6"),
            FileError,
            "distortion: expected parameters of a lens, found D",
        ),
        (dict(camera="1 FOV 43 30 50 52 21 14 nan"), FileError, r"cameras\.txt: camera 1: expected finite"),
        (dict(camera="1 FULL_OPENCV 43 30 0 52 21 14" + 8 * " 0"), FileError, "camera 1: focal lengths"),
        (dict(camera="1 FOV 43 30 5 5 2 1 0\n1 FOV 43 30 5 5 2 1 0"), FileError, "different ids, found 1 twice"),
        (dict(camera="1 PINHOLE 43 30 nan 52 21 14"), FileError, r"cameras\.txt: camera 1: expected finite"),
        (dict(camera="1 PINHOLE 43 30 -50 52 21 14"), FileError, "camera 1: focal lengths: .*found -50 and 52"),
        (dict(pose="nan nan nan nan"), FileError, r"images\.txt: image 1: expected a quaternion"),
        (dict(size=(30, 43)), FileError, r"43×30, found 30×43"),
        (dict(n=1), ArgumentError, "two images"),
    ],
)
def test_invalid_scene_is_rejected(tmp_path, scene, error, words):
    write_scene(tmp_path, **scene)
    with pytest.raises(error, match=words):
        read_colmap(tmp_path)


def test_nan_pose_is_rejected(tmp_path):
    import pycolmap

    sparse = write_scene(tmp_path) / "sparse" / "0"
    pycolmap.Reconstruction(str(sparse)).write_binary(str(sparse))
    # images.bin: count; id, rotation and translation of each image.
    content = (sparse / "images.bin").read_bytes()
    for start, size, words in ((12, 32, "quaternion"), (44, 24, "translation")):
        (sparse / "images.bin").write_bytes(content[:start] + b"\xff" * size + content[start + size :])
        with pytest.raises(FileError, match=rf"images\.bin: image 1: expected a {words}.*nan"):
            read_colmap(tmp_path)


@pytest.mark.parametrize("missing", ["images", "sparse", "sparse/0", "sparse/0/cameras.txt"])
def test_missing_file_is_named(tmp_path, missing):
    write_scene(tmp_path)
    (tmp_path / missing).rename(tmp_path / "elsewhere")
    with pytest.raises(FileError, match=missing.removesuffix("/cameras.txt")):
        read_colmap(tmp_path)


@pytest.mark.parametrize("name", ["cameras", "images", "points3D"])
def test_truncated_model_is_rejected(tmp_path, name):
    import pycolmap

    sparse = write_scene(tmp_path) / "sparse" / "0"
    pycolmap.Reconstruction(str(sparse)).write_binary(str(sparse))
    path = sparse / f"{name}.bin"
    path.write_bytes(path.read_bytes()[:8])
    with pytest.raises(ArgumentError):
        read_colmap(tmp_path)


@pytest.mark.parametrize("downscale", [0, -1, 1.5])
def test_invalid_downscale_is_rejected(tmp_path, downscale):
    with pytest.raises(ArgumentError, match="downscale"):
        read_colmap(tmp_path, downscale)


@pytest.mark.parametrize("camera", ["SIMPLE_RADIAL 43 30 50 21 14.5 0.1", "FOV 43 30 50 50 21 14.5 0.1"])
@pytest.mark.parametrize("module", ["pycolmap", "PIL"])
def test_missing_extra_is_named(tmp_path, monkeypatch, module, camera):
    # Only distorted images need pycolmap.
    write_scene(tmp_path, camera=f"1 {camera}")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tsplat\[train\]'"):
        read_colmap(tmp_path)


@pytest.mark.skipif(not BANANA.is_dir(), reason="needs the test scenes")
def test_points_of_a_real_scene_project_to_pixels_of_their_color():
    capture = read_colmap(BANANA, downscale=4)
    assert (len(capture.train), len(capture.test), len(capture.points)) == (13, 2, 8150)
    view = capture.test[0]
    assert (view.width, view.height) == (200, 133)
    camera = capture.points @ view.camera.viewmat[:3, :3].T + view.camera.viewmat[:3, 3]
    pixels = (camera @ view.camera.K.T)[:, :2] / camera[:, 2:]
    x, y = pixels.floor().long().unbind(-1)
    inside = (camera[:, 2] > 0) & (x >= 0) & (x < 200) & (y >= 0) & (y < 133)
    assert inside.float().mean() > 0.5
    yellow = inside & (capture.colors[:, 0] - capture.colors[:, 2] > 0.3)
    found = view.pixels[y[yellow], x[yellow]]
    assert (found[:, 0] - found[:, 2] > 0.2).float().mean() > 0.9
    assert (view.pixels[..., 0] - view.pixels[..., 2] > 0.2).float().mean() < 0.2


@pytest.mark.parametrize("name", ["../images/00.png", "/00.png"])
def test_names_outside_of_the_folder_of_images_are_errors(tmp_path, name):
    folder = write_scene(tmp_path / "scene", n=4)
    (folder / "masks").mkdir()
    path = folder / "sparse" / "0" / "images.txt"
    path.write_text(path.read_text().replace("00.png", name))
    with pytest.raises(FileError, match=r"images\.txt: image 1: expected a path inside the folder of images"):
        read_colmap(folder)


def test_points_have_the_same_ids_in_all_views(tmp_path):
    folder = write_colmap(tmp_path, sample_views(), POINTS)
    lines = [line.split() for line in (folder / "sparse" / "0" / "points3D.txt").read_text().splitlines()]
    positions = {int(words[0]): [float(word) for word in words[1:4]] for words in lines if words[0] != "#"}
    capture = read_colmap(folder)
    seen = 0
    for view in (*capture.train, *capture.test):
        x, y, z = view.sparse.double().unbind(-1)
        rays = torch.stack([x, y, torch.ones_like(x)]) * z
        local = (view.camera.K.double().inverse() @ rays).T
        world = (local - view.camera.viewmat[:3, 3].double()) @ view.camera.viewmat[:3, :3].double()
        expected = torch.tensor([positions[i] for i in view.sparse_ids.tolist()], dtype=torch.float64).view(-1, 3)
        torch.testing.assert_close(world, expected, rtol=0, atol=1e-4)
        seen += len(world)
    assert seen > 20
    with pytest.raises(ShapeError, match=r"sparse_ids: expected an id of each point"):
        dataclasses.replace(view, sparse_ids=torch.zeros(1, dtype=torch.int64))


def test_names_of_no_file_are_errors(tmp_path):
    folder = write_scene(tmp_path, n=4)
    path = folder / "sparse" / "0" / "images.txt"
    path.write_text(path.read_text().replace("00.png", "0" * 300 + ".png"))
    with pytest.raises(FileError, match=r"images\.txt: expected names of files, found '0000"):
        read_colmap(folder)


def test_images_listed_twice_are_errors(tmp_path):
    path = write_scene(tmp_path, n=4) / "sparse" / "0" / "images.txt"
    text = path.read_text()
    for name, found in (("01.png", "'01.png' twice"), ("./01.png", r"'\./01.png' and '01.png'")):
        path.write_text(text.replace("00.png", name))
        with pytest.raises(FileError, match=rf"images\.txt: expected images of different names, found {found}"):
            read_colmap(tmp_path)


@pytest.mark.parametrize("suffix", [".txt", ".bin"])
def test_image_ids_listed_twice_are_errors(tmp_path, suffix):
    path = write_scene(tmp_path, n=4) / "sparse" / "0" / f"images{suffix}"
    if suffix == ".bin":
        path.write_bytes(struct.pack("<Q", 2) + b"".join(binary_image(7, name) for name in ("00.png", "01.png")))
        for name in ("cameras", "points3D"):
            path.with_name(f"{name}.bin").write_bytes(struct.pack("<Q", 0))
    else:
        path.write_text(re.sub(r"^1 ", "2 ", path.read_text(), flags=re.MULTILINE))
    with pytest.raises(FileError, match=rf"images\{suffix}: expected images of different ids, found [27] twice"):
        read_colmap(tmp_path)


def binary_image(image_id, name):
    """A registered image of camera 1 without observations, as in images.bin."""
    return struct.pack("<I7dI", image_id, 1, 0, 0, 0, 0, 0, 0, 1) + name.encode() + b"\0" + struct.pack("<Q", 0)


@pytest.mark.parametrize("layout", ["flat", "beside", "in the model"])
def test_images_outside_of_a_folder_of_images_are_read(tmp_path, layout):
    """RealityCapture writes all files into one folder; images may also be beside ``sparse/``, or beside its files."""
    expected = read_colmap(write_scene(tmp_path / "expected"))
    folder = write_scene(tmp_path / "scene")
    model = folder / "sparse" / "0"
    for path in (folder / "images").iterdir():
        path.rename((model if layout == "in the model" else folder) / path.name)
    (folder / "images").rmdir()
    if layout == "flat":
        for path in model.iterdir():
            path.rename(folder / path.name)
        shutil.rmtree(folder / "sparse")
    write_scene(tmp_path / "scene_2")  # no downscaled images of the scene
    for downscale in (1, 2):
        capture = read_capture(folder, downscale=downscale)
        assert capture.notes == expected.notes and len(capture.test) == 2 and len(capture.points) == 5
        if downscale == 1:
            assert all(torch.equal(a.image, b.image) for a, b in zip(capture.train, expected.train))
            assert capture.train[0].camera.name == expected.train[0].camera.name


def test_model_without_images_is_refused(tmp_path):
    folder = write_scene(tmp_path)
    shutil.rmtree(folder / "images")
    with pytest.raises(FileError, match=r"images: no such folder, and none of the 10 images of .* is in "):
        read_colmap(folder)


@pytest.mark.parametrize("suffix", [".txt", ".bin"])
@pytest.mark.parametrize("points", ["none", "one", "no file"])
def test_points_are_drawn_where_the_model_has_none(tmp_path, points, suffix):
    model = write_scene(tmp_path, points=1 if points == "one" else 0) / "sparse" / "0"
    if suffix == ".bin":
        import pycolmap

        pycolmap.Reconstruction(str(model)).write_binary(str(model))
        for path in model.glob("*.txt"):
            path.unlink()
    if points == "no file":
        (model / f"points3D{suffix}").unlink()
    capture = read_capture(tmp_path)
    n = 1 if points == "one" else 0
    assert capture.notes == (f"{model}: its model has {n} points; training starts from 20000 random points",)
    # Cameras are on a line of 4.5 units along x, and look along z.
    low, high = capture.points.min(0).values, capture.points.max(0).values
    assert len(capture.points) == len(capture.colors) == 20_000
    assert high[0] - low[0] > 3.9 and high[2] - low[2] > 3.9
    assert not torch.equal(capture.points, read_capture(tmp_path, seed=1).points)
    assert len(read_colmap(tmp_path, n_random=50).points) == 50


@pytest.mark.parametrize("place", ["sparse/0", "."])
def test_points_of_a_ply_beside_the_model_are_read(tmp_path, place):
    write_scene(tmp_path, points=0)
    header = "ply\nformat ascii 1.0\nelement vertex 2\n" + "".join(f"property float {c}\n" for c in "xyz")
    (tmp_path / place / "points3D.ply").write_text(header + "end_header\n1 2 3\n4 5 6\n")
    capture = read_colmap(tmp_path)
    assert capture.points.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert "its model has 0 points; training starts from the points3D.ply of " in capture.notes[-1]


def test_points_of_the_other_format_are_read(tmp_path):
    import pycolmap

    sparse = write_scene(tmp_path) / "sparse" / "0"
    pycolmap.Reconstruction(str(sparse)).write_binary(str(sparse))
    for name in ("cameras.txt", "images.txt", "points3D.bin"):
        (sparse / name).unlink()
    assert len(read_colmap(tmp_path).points) == 5
