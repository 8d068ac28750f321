"""Tests of loading photographs: masks, downscaled images, transparency, sparse points; through read_colmap."""

import os

import pytest
import torch
from PIL import Image

from tests.support.captures import (
    POINTS,
    project,
    sample_views,
    write_colmap,
    write_image,
    write_scene,
    write_transforms,
)
from tsplat import ArgumentError
from tsplat.scene import FileError, read_capture, read_colmap
from tsplat.scene.capture import photographs
from tsplat.scene.capture.views import StoredView

pytest.importorskip("pycolmap")


@pytest.fixture(scope="module")
def views():
    return sample_views()


def test_views_have_sparse_points_and_camera_ids(tmp_path, views):
    read = read_colmap(write_colmap(tmp_path, views, POINTS), downscale=2)
    view = read.train[0]
    assert (view.width, view.height) == (20, 15)
    pixels, depths = project(POINTS, view.camera.viewmat, view.camera.K)
    torch.testing.assert_close(view.sparse, torch.cat([pixels, depths[:, None]], -1).float())
    assert sorted(v.camera_id for v in (*read.train, *read.test)) == list(range(9))


def test_points_outside_the_image_are_dropped(tmp_path, views):
    view = views[0]
    eye = -view.camera.viewmat[:3, :3].T @ view.camera.viewmat[:3, 3]
    behind, beside = 2 * eye, eye + view.camera.viewmat[2, :3] + 5 * view.camera.viewmat[0, :3]
    points = torch.stack([POINTS[0], behind, beside])
    read = read_colmap(write_colmap(tmp_path, views[:2], points))
    assert len(read.test[0].sparse) == 1
    expected = project(points[:1], view.camera.viewmat, view.camera.K)[0][0]
    torch.testing.assert_close(read.test[0].sparse[0, :2].double(), expected, atol=1e-4, rtol=0)


def test_masks_are_found_by_name_and_downscaled(tmp_path, views):
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
    with pytest.raises(FileError, match=r"test_001.png: .* its image, 40×30, found 20×20"):
        read_colmap(tmp_path)


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_folder_of_downscaled_images_is_used(tmp_path, views, suffix):
    write_colmap(tmp_path, views, POINTS)
    for i, view in enumerate(views):
        path = tmp_path / "images_4" / view.name
        write_image(path, torch.full((8, 10, 3), 20 * i, dtype=torch.uint8))
        path.rename(path.with_suffix(suffix))
    read = read_colmap(tmp_path, downscale=4)
    assert [int(v.image.float().mean()) for v in read.train] == [20 * i for i in range(9) if i % 8]
    torch.testing.assert_close(read.train[0].camera.K, views[1].camera.K * torch.tensor([[10 / 40], [8 / 30], [1]]))
    # Other factors downscale the full images.
    assert (read_colmap(tmp_path, downscale=2).train[0].image.float().std()) > 1
    (tmp_path / "images_4" / views[3].name).with_suffix(suffix).unlink()
    with pytest.raises(FileError, match=r"images_4/train_001\.png"):
        read_colmap(tmp_path, downscale=4, strict=True)
    assert "images_4/train_001.png" in read_colmap(tmp_path, downscale=4).notes[0]


def test_strict_counts_missing_images_before_any_is_read(tmp_path, views):
    write_colmap(tmp_path, views, POINTS)
    for view in views[3:]:
        (tmp_path / "images" / view.name).unlink()
    with pytest.raises(FileError, match=rf"{views[3].name}: no such file, and 5 more of 9 images are missing"):
        read_colmap(tmp_path, strict=True)


def test_progress_is_reported_per_image(tmp_path, views):
    calls = []
    read_colmap(write_colmap(tmp_path, views, POINTS), on_progress=lambda *numbers: calls.append(numbers))
    assert calls == [(i, 9) for i in range(1, 10)]


def test_transparent_images_are_composited_over_the_background(tmp_path, views):
    write_colmap(tmp_path, views[:2], POINTS)
    image = Image.new("RGBA", (40, 30), (200, 100, 0, 0))
    image.putpixel((5, 6), (200, 100, 0, 255))
    image.save(tmp_path / "images" / views[0].name)
    read = read_colmap(tmp_path, background=(0.2, 0.4, 1.0))
    assert read.background == (0.2, 0.4, 1.0)
    assert read.test[0].image[0, 0].tolist() == [51, 102, 255]
    assert read.test[0].image[6, 5].tolist() == [200, 100, 0]
    assert read_colmap(tmp_path).test[0].image[0, 0].tolist() == [0, 0, 0]


def test_many_images_are_read_when_they_are_used(tmp_path, views, monkeypatch):
    """They are the same views, moved and on any device; a cache keeps a few of their images."""
    write_colmap(tmp_path, views, POINTS)
    image = Image.new("RGBA", (40, 30), (200, 100, 0, 0))
    image.paste((200, 100, 0, 255), (5, 6, 30, 20))
    image.save(tmp_path / "images" / views[0].name)
    expected = read_capture(tmp_path, normalize=True)
    monkeypatch.setattr(photographs, "BYTES_MAX", 1)
    found = read_capture(tmp_path, normalize=True).to("cpu")
    cache = found.train[0].source.cache
    cache.bytes_max = 3 * 4 * 40 * 30
    assert not cache._kept
    for one, other in zip((*found.train, *found.test), (*expected.train, *expected.test), strict=True):
        assert isinstance(one, StoredView) and (one.name, one.files) == (other.name, other.files)
        assert torch.equal(one.image, other.image) and torch.equal(one.camera.viewmat, other.camera.viewmat)
        assert (one.mask is None) == (other.mask is None) and (one.mask is None or torch.equal(one.mask, other.mask))
        assert len(cache._kept) <= 3
    assert any(view.mask is not None for view in (*found.train, *found.test))
    os.remove(found.train[1].files[0])
    with pytest.raises(FileError, match="cannot be read as an image"):
        torch.equal(found.train[1].image, expected.train[1].image) or pytest.fail("read from memory")


@pytest.mark.parametrize("write", [write_colmap, write_transforms])
def test_large_images_are_limited_unless_a_factor_is_given(tmp_path, views, write):
    folder = write(tmp_path / "scene", views, *([POINTS] if write is write_colmap else []))
    limited = read_capture(folder, max_size=20)
    halved, full = read_capture(folder, downscale=2), read_capture(folder)
    for view, half in zip(limited.train, halved.train, strict=True):
        assert torch.equal(view.image, half.image)
        torch.testing.assert_close(view.camera.K, half.camera.K)
    (note,) = set(limited.notes) - set(full.notes)
    assert "scaled 9 of 9 images down to a longer side of 20 pixels (first: 40×30 to 20×15)" in note
    odd = read_capture(folder, max_size=27).train[0]
    assert (odd.width, odd.height) == (27, 20)
    for options in (dict(max_size=40), dict(max_size=20, downscale=2), dict(max_size=0)):
        found = read_capture(folder, **options)
        assert (found.train[0].width, found.notes) == (40 // options.get("downscale", 1), full.notes)
    with pytest.raises(ArgumentError, match="max_size"):
        read_capture(folder, max_size=-1)


def test_held_out_copies_of_training_photographs_are_noted(tmp_path):
    folder = write_scene(tmp_path, n=10)
    images = folder / "images"
    assert read_colmap(folder).notes == ()
    (images / "08.png").write_bytes((images / "03.png").read_bytes())
    (images / "05.png").write_bytes((images / "04.png").read_bytes())  # both are trained on
    note = "1 of 2 held-out photographs are copies of training ones (first: 08.png of 03.png), "
    assert read_colmap(folder).notes == (note + "so that scores are too high; delete the copies",)
    assert read_colmap(folder, test_every=0).notes == ()


def test_copies_are_files_of_the_same_content(tmp_path):
    middle = bytes(200_000)
    contents = [b"a" + middle, b"b" + middle, b"a" + middle, b"", middle + b"a", b"", b"a" + middle]
    paths = [tmp_path / f"{i}" for i in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    assert photographs.find_copies(paths) == {2: 0, 5: 3, 6: 0}
    assert photographs.find_copies([]) == {}
