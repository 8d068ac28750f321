"""Scenes made elsewhere: missing and unreadable images, rotated photographs, transparency, odd names, odd layouts."""

import json
import os
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.captures import POINTS, changed, frame, sample_views, write_colmap, write_transforms
from tsplat.scene import FileError, read_capture, read_colmap, read_transforms
from tsplat.scene.images import read_image

READERS = {"colmap": read_colmap, "transforms": read_transforms}


@pytest.fixture(scope="module")
def views():
    return sample_views()


def write(kind, folder, views):
    return write_colmap(folder, views, POINTS) if kind == "colmap" else write_transforms(folder, views)


def names(capture):
    return sorted(os.path.basename(view.name) for view in (*capture.train, *capture.test))


@pytest.mark.parametrize("kind", READERS)
def test_missing_images_are_skipped_with_a_note(tmp_path, views, kind):
    write(kind, tmp_path, views)
    for view in views[1:3]:
        (tmp_path / "images" / view.name).unlink()
    capture = READERS[kind](tmp_path)
    assert names(capture) == [views[0].name, *(view.name for view in views[3:])]
    first = tmp_path / "images" / views[1].name
    assert capture.notes[0] == f"skipped 2 of 9 images whose files are missing (first: {first})"
    with pytest.raises(FileError, match=rf"{views[1].name}: no such file, and 1 more of 9 images are missing"):
        READERS[kind](tmp_path, strict=True)


@pytest.mark.parametrize("n_black", [1, 8, 9])
@pytest.mark.parametrize("kind", READERS)
def test_images_without_valid_pixels_are_skipped_with_a_note(tmp_path, views, kind, n_black):
    frames = [{**frame(view), "mask_path": f"masks/{view.name}"} for view in views]
    write_colmap(tmp_path, views, POINTS) if kind == "colmap" else write_transforms(tmp_path, views, frames=frames)
    (tmp_path / "masks").mkdir()
    for i, view in enumerate(views):
        Image.new("L", (40, 30), 0 if i < n_black else 255).save(tmp_path / "masks" / view.name)
    first = tmp_path / "masks" / views[0].name
    if n_black >= 8:
        with pytest.raises(
            FileError, match=rf"{views[0].name}: {n_black} of 9 images have no valid pixel, and none is"
        ):
            READERS[kind](tmp_path)
        return
    capture = READERS[kind](tmp_path)
    assert names(capture) == [view.name for view in views[1:]]
    assert f"skipped 1 of 9 images without valid pixels (first: {first})" in capture.notes


def test_transparent_images_of_a_colmap_scene_are_skipped_with_a_note(tmp_path, views):
    write_colmap(tmp_path, views, POINTS)
    path = tmp_path / "images" / views[2].name
    Image.new("RGBA", (40, 30), (9, 9, 9, 0)).save(path)
    capture = read_colmap(tmp_path)
    assert names(capture) == [view.name for i, view in enumerate(views) if i != 2]
    assert capture.notes == (f"skipped 1 of 9 images without valid pixels (first: {path})",)
    assert len(names(read_colmap(tmp_path, background=(0.0, 0.0, 0.0)))) == 9


@pytest.mark.parametrize("kind", READERS)
def test_scene_of_fewer_than_two_images_is_refused(tmp_path, views, kind):
    write(kind, tmp_path, views)
    for view in views[1:]:
        (tmp_path / "images" / view.name).unlink()
    with pytest.raises(FileError, match=r"no such file, and 7 more of 9 .* at least two images, 1 can be read"):
        READERS[kind](tmp_path)


@pytest.mark.parametrize("kind", READERS)
def test_heic_images_are_skipped_with_a_note(tmp_path, views, kind):
    views = [changed(views[0], name="a.png"), *views[1:]]
    write(kind, tmp_path, views)
    path = tmp_path / "images" / "a.png"
    heic = path.with_suffix(".HEIC")
    path.unlink()
    heic.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    for file in tmp_path.rglob("*"):
        if file.suffix in (".txt", ".json"):
            file.write_text(file.read_text().replace("a.png", "a.HEIC"))
    capture = READERS[kind](tmp_path)
    assert len(names(capture)) == 8
    assert capture.notes[0].startswith(f"skipped 1 of 9 images that Pillow cannot read (first: {heic}); convert them")
    with pytest.raises(FileError, match=r"a\.HEIC: one of 1 images that Pillow cannot read; convert them to JPEG"):
        READERS[kind](tmp_path, strict=True)
    # Converted under the same name.
    Image.fromarray(views[0].image.numpy()).save(heic, "PNG")
    assert len(names(READERS[kind](tmp_path))) == 9


def rotate_file(path, orientation):
    """Stores an image as a camera does that is held sideways: upright after its EXIF orientation is applied."""
    upright = Image.open(path)
    inverse = {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270, 5: Image.Transpose.TRANSPOSE}[orientation]
    exif = Image.Exif()
    exif[0x112] = orientation
    upright.transpose(inverse).save(path, exif=exif)


@pytest.mark.parametrize("orientation", [5, 6, 8])
@pytest.mark.parametrize("kind", READERS)
def test_images_are_rotated_if_only_that_fits_their_camera(tmp_path, views, kind, orientation):
    write(kind, tmp_path, views)
    expected = READERS[kind](tmp_path, downscale=2)
    rotate_file(tmp_path / "images" / views[1].name, orientation)
    found = READERS[kind](tmp_path, downscale=2)
    assert torch.equal(found.train[0].image, expected.train[0].image)
    assert torch.equal(READERS[kind](tmp_path).train[0].image, views[1].image)


@pytest.mark.parametrize("kind", READERS)
def test_orientation_is_ignored_if_the_stored_size_fits(tmp_path, views, kind):
    write(kind, tmp_path, views)
    path = tmp_path / "images" / views[1].name
    for orientation in (3, 6):
        exif = Image.Exif()
        exif[0x112] = orientation
        Image.fromarray(views[1].image.numpy()).save(path, exif=exif)
        assert torch.equal(READERS[kind](tmp_path).train[0].image, views[1].image)


def test_square_images_are_not_rotated(tmp_path, views):
    write_transforms(tmp_path, views, w=30, h=30, cx=15, cy=15)
    square = views[0].image[:, :30].contiguous()
    exif = Image.Exif()
    exif[0x112] = 6
    for view in views:
        Image.fromarray(square.numpy()).save(tmp_path / "images" / view.name, exif=exif)
    assert torch.equal(read_transforms(tmp_path).train[0].image, square)


def test_mask_is_rotated_with_its_image(tmp_path, views):
    write_colmap(tmp_path, views, POINTS)
    rotate_file(tmp_path / "images" / views[1].name, 6)
    mask = np.zeros((30, 40), np.uint8)
    mask[:, :8] = 255
    (tmp_path / "masks").mkdir()
    for stored in (mask, np.rot90(mask)):
        Image.fromarray(stored).save(tmp_path / "masks" / views[1].name)
        assert torch.equal(read_colmap(tmp_path).train[0].mask, torch.from_numpy(mask > 0))


def test_colmap_ignores_the_orientation_too(tmp_path):
    pycolmap = pytest.importorskip("pycolmap")
    pixels = np.arange(64 * 48 * 3, dtype=np.uint32).reshape(48, 64, 3).astype(np.uint8)
    for orientation in (1, 3, 6, 8):
        exif = Image.Exif()
        exif[0x112] = orientation
        Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
        seen = pycolmap.Bitmap.read(str(tmp_path / "a.png"), True).to_array()
        assert np.array_equal(seen, read_image(tmp_path / "a.png").numpy())


@pytest.mark.parametrize("downscale", [1, 2])
def test_alpha_masks_pixels_of_a_colmap_scene(tmp_path, views, downscale):
    write_colmap(tmp_path, views, POINTS)
    alpha = np.zeros((30, 40), np.uint8)
    alpha[:, 11:] = 255
    hidden = np.where(alpha[..., None] > 0, np.uint8(200), np.uint8(0)).repeat(3, -1)
    Image.fromarray(np.dstack([hidden, alpha])).save(tmp_path / "images" / views[1].name)
    view = read_colmap(tmp_path, downscale=downscale).train[0]
    expected = torch.from_numpy(alpha[::downscale, 1::downscale] > 0) if downscale > 1 else torch.from_numpy(alpha > 0)
    assert torch.equal(view.mask, expected)
    # The transparent black does not darken the pixels at its border.
    assert (view.image[view.mask].int() - 200).abs().max() <= downscale - 1
    composited = read_colmap(tmp_path, downscale=downscale, background=(1.0, 1.0, 1.0)).train[0]
    assert composited.mask is None
    assert (composited.image[:, :5] == 255).all()


def test_opaque_alpha_needs_no_mask(tmp_path, views):
    write_colmap(tmp_path, views, POINTS)
    pixels = views[1].image.numpy()
    Image.fromarray(np.dstack([pixels, np.full((30, 40), 255, np.uint8)])).save(tmp_path / "images" / views[1].name)
    view = read_colmap(tmp_path).train[0]
    assert view.mask is None
    assert torch.equal(view.image, views[1].image)


@pytest.mark.parametrize("binary", [False, True])
def test_model_without_a_numbered_folder_is_read(tmp_path, views, binary):
    sparse = write_colmap(tmp_path, views, POINTS) / "sparse"
    if binary:
        pycolmap = pytest.importorskip("pycolmap")
        pycolmap.Reconstruction(str(sparse / "0")).write_binary(str(sparse))
    else:
        for path in (sparse / "0").iterdir():
            path.rename(sparse / path.name)
    shutil.rmtree(sparse / "0")
    assert len(read_capture(tmp_path).train) == 7


@pytest.mark.parametrize("place", ["sparse/1", "colmap/sparse/0", "colmap/sparse", "."])
def test_model_in_an_unusual_folder_is_read(tmp_path, views, place):
    files = list((write_colmap(tmp_path, views, POINTS) / "sparse" / "0").iterdir())
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    for path in files:
        path.rename(tmp_path / place / path.name)
    (tmp_path / "sparse" / "0").rmdir()
    capture = read_capture(tmp_path)
    assert (len(names(capture)), len(capture.points), capture.notes) == (9, len(POINTS), ())
    # nerfstudio leaves its COLMAP model in colmap/ beside the transforms.json it is converted to.
    write_transforms(tmp_path, views)
    assert len(read_capture(tmp_path).points) == 20_000


@pytest.mark.parametrize("binary", [False, True])
def test_models_that_are_not_read_are_noted(tmp_path, views, binary):
    sparse = write_colmap(tmp_path, views, POINTS) / "sparse"
    for name in ("1", "10"):
        shutil.copytree(sparse / "0", sparse / name)
    (sparse / "10" / "images.txt").write_text("damaged")
    if binary:
        pycolmap = pytest.importorskip("pycolmap")
        pycolmap.Reconstruction(str(sparse / "1")).write_binary(str(sparse / "1"))
    lines = (sparse / "0" / "images.txt").read_text().splitlines()
    (sparse / "0" / "images.txt").write_text("\n".join(lines[:4]))
    assert read_colmap(tmp_path).notes[0] == (
        f"read {sparse / '0'}, a model of 2 images; of 2 other models beside it, the largest is 1, of 9 images"
    )
    shutil.rmtree(sparse / "0")
    capture = read_colmap(tmp_path)
    assert len(names(capture)) == 9
    assert capture.notes[0].startswith(f"read {sparse / '1'}, a model of 9 images; of 1 other models")


def test_number_of_masks_that_are_found_is_noted(tmp_path, views):
    write_colmap(tmp_path, views, POINTS)
    (tmp_path / "masks").mkdir()
    for i, view in enumerate(views):
        Image.new("L", (40, 30), 255).save(tmp_path / "masks" / (view.name if i < 4 else f"mask_{i}.png"))
    note = f"{tmp_path / 'masks'}: 4 of 9 images have a mask; that of a.jpg is a.png or a.jpg.png"
    assert read_colmap(tmp_path).notes == (note,)


@pytest.mark.parametrize("suffix", [".txt", ".bin"])
def test_missing_images_of_a_model_are_named(tmp_path, views, suffix):
    pycolmap = pytest.importorskip("pycolmap")
    sparse = write_colmap(tmp_path, views, POINTS) / "sparse" / "0"
    if suffix == ".bin":
        pycolmap.Reconstruction(str(sparse)).write_binary(str(sparse))
        for path in sparse.glob("*.txt"):
            path.unlink()
    (sparse / f"images{suffix}").unlink()
    with pytest.raises(FileError) as error:
        read_capture(tmp_path)
    assert str(error.value) == (
        f"{sparse}: no images{suffix}; a COLMAP model needs cameras and images, both as .bin or both as .txt"
    )


def test_observations_of_absent_points_are_noted(tmp_path, views):
    write_colmap(tmp_path, views, POINTS)
    path = tmp_path / "sparse" / "0" / "points3D.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    capture = read_colmap(tmp_path)
    assert capture.notes == (f"{path.parent}: 9 of 27 observations are of points that it lacks",)
    assert all(len(view.sparse) <= 2 for view in capture.train)


def test_header_of_a_text_model_that_disagrees_is_noted(tmp_path, views):
    write_colmap(tmp_path, views, POINTS)
    path = tmp_path / "sparse" / "0" / "points3D.txt"
    path.write_text("# Number of points: 5, mean track length: 9\n" + path.read_text())
    assert read_colmap(tmp_path).notes == (f"{path}: its header says 5 points3D, it has 3; it may be cut short",)


def test_random_points_are_noted(tmp_path, views):
    capture = read_transforms(write_transforms(tmp_path, views), n_random=100)
    path = tmp_path / "transforms.json"
    assert capture.notes == (f"{path}: no ply_file_path; training starts from 100 random points",)


@pytest.mark.parametrize("kind", READERS)
def test_names_that_are_not_utf8_are_read(tmp_path, views, kind):
    folder = write(kind, tmp_path / os.fsdecode(b"sc\xe9ne"), views)
    old, new = os.fsencode(views[1].name), b"caf\xe9.png"
    os.rename(os.fsencode(folder / "images") + b"/" + old, os.fsencode(folder / "images") + b"/" + new)
    if kind == "colmap":
        path = folder / "sparse" / "0" / "images.txt"
        path.write_bytes(path.read_bytes().replace(old, new))
    else:
        path = folder / "transforms.json"
        path.write_text(path.read_text().replace(views[1].name, "caf\\udce9.png"))
    capture = READERS[kind](folder)
    assert os.fsdecode(new) in names(capture)
    assert not any("missing" in note for note in capture.notes)


@pytest.mark.parametrize("name", ["images", "zero", "images/..", "."])
def test_names_of_no_file_are_skipped(tmp_path, views, name):
    (tmp_path / "zero").symlink_to("/dev/zero")
    frames = [{**frame(view), **({"file_path": name} if i == 3 else {})} for i, view in enumerate(views)]
    capture = read_transforms(write_transforms(tmp_path, views, frames=frames))
    assert len(names(capture)) == 8


@pytest.mark.parametrize("key", ["file_path", "mask_path", "ply_file_path", "test_filenames"])
@pytest.mark.parametrize("name", ["\ud800.png", "a" * 300, "a" * 5000, "b/" * 3000, "a\0.png"], ids=range(5))
def test_names_that_no_file_can_have_are_errors(tmp_path, views, name, key):
    frames = [{**frame(view), **({key: name} if i == 3 else {})} for i, view in enumerate(views)]
    values = {"ply_file_path": {key: name}, "test_filenames": {key: [name]}}.get(key, {"frames": frames})
    with pytest.raises(FileError, match=rf"transforms\.json: .*{key}: expected a file name, found"):
        read_transforms(write_transforms(tmp_path, views, **values))


def test_byte_order_mark_is_ignored(tmp_path, views):
    for path in (write_colmap(tmp_path / "colmap", views, POINTS) / "sparse" / "0").iterdir():
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(names(read_colmap(tmp_path / "colmap"))) == 9
    path = write_transforms(tmp_path, views) / "transforms.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(names(read_transforms(tmp_path))) == 9


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (dict(fl_x=10**400), "fl_x: expected a finite number, found 1000"),
        (dict(w=1e300), "width and height: expected 1 to 1000000 pixels"),
        (dict(fl_x=1e-9), "focal lengths: expected 0.04 to"),
        (dict(cx=1e6), "principal point: expected cx in or near the image, 0 to 40, found 1e[+]06"),
        (dict(k1=1e200), "distortion: expected coefficients of a lens"),
    ],
)
def test_value_that_no_camera_has_is_refused(tmp_path, views, values, words):
    write_transforms(tmp_path, views, **values)
    with pytest.raises(FileError, match=rf"transforms\.json: frame \d: {words}"):
        read_transforms(tmp_path)


def test_file_of_too_many_values_is_refused(tmp_path):
    path = tmp_path / "transforms.json"
    path.write_text('{"frames": [{}' + ",[]" * 3_000_000 + "]}")
    with pytest.raises(FileError, match=r"transforms\.json: expected at most 3,000,000 values, found 6,0"):
        read_transforms(tmp_path)


def test_points_far_away_are_refused(tmp_path, views):
    write_transforms(tmp_path, views, ply_file_path="a.ply")
    header = "ply\nformat ascii 1.0\nelement vertex 2\n" + "".join(f"property float {c}\n" for c in "xyz")
    (tmp_path / "a.ply").write_text(header + "end_header\n1 2 3\n4 1e30 6\n")
    with pytest.raises(FileError, match=r"a\.ply: expected positions of magnitude at most 1e\+12; 1 of 2 .*point 1"):
        read_transforms(tmp_path)


def test_json_of_a_deep_nesting_is_refused(tmp_path, views):
    nested = json.loads("[" * 500 + "]" * 500)
    frames = [{**frame(view), "transform_matrix": nested} for view in views]
    write_transforms(tmp_path, views, frames=frames)
    with pytest.raises(FileError, match="frame 0: transform_matrix"):
        read_transforms(tmp_path)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (dict(cx=0, cy=0), r"the principal point is not inside of the image, \(0, 0\) of 40×30 pixels"),
        (dict(cx=-30), r"the principal point is not inside of the image, \(-30, 15\)"),
        (dict(fl_x=41.2, fl_y=4120), "pixels are not nearly square, with focal lengths of 41.2 and 4120"),
        (dict(cx=4, fl_y=60), None),
    ],
)
def test_doubtful_cameras_are_noted(tmp_path, views, values, words):
    folders = [write_transforms(tmp_path / "json", views, **values)]
    keys = {**json.loads((folders[0] / "transforms.json").read_text())}
    camera = "PINHOLE 40 30 " + " ".join(str(keys[key]) for key in ("fl_x", "fl_y", "cx", "cy"))
    folders.append(write_colmap(tmp_path / "colmap", views, POINTS, camera))
    for folder in folders:
        notes = [note for note in read_capture(folder).notes if "check the cameras" in note]
        assert len(notes) == (words is not None)
        assert words is None or re.search(rf"check the cameras of 9 of 9 images \(.*test_000\.png: {words}", notes[0])


@pytest.mark.parametrize("kind", READERS)
def test_cameras_at_one_position_are_noted(tmp_path, views, kind):
    one = views[0].camera.viewmat
    write(kind, tmp_path, [changed(view, viewmat=one) for view in views])
    assert any("all 9 cameras are at one position" in note for note in READERS[kind](tmp_path).notes)
