"""Tests of panoramas among the photographs that a scene is computed from."""

import pytest
import torch
from PIL import Image

from tests.support.captures import write_image
from tsplat import ArgumentError
from tsplat.scene import prepare
from tsplat.scene.capture.source_photographs import Source, check_panoramas, mask_panoramas
from tsplat.scene.images import ImageInfo, read_mask

pytest.importorskip("pycolmap")


def sources(folder, *sizes):
    return {f"{i}.png": Source(folder / f"{i}.png", ImageInfo(*size, False)) for i, size in enumerate(sizes)}


@pytest.mark.parametrize(("below", "first"), [(0, 18), (30, 24), (60, 30), (89.9, 36)])
def test_masks_begin_at_a_latitude(tmp_path, below, first):
    mask_panoramas(tmp_path, sources(tmp_path, (72, 36), (72, 36)), below)
    for name in ("0.png.png", "1.png.png"):
        mask = read_mask(tmp_path / name)
        assert mask.shape == (36, 72)
        assert (mask[:first] == 255).all()
        assert (mask[first:] == 0).all()


def test_masks_are_added_to_those_of_the_user_which_stay_as_they_are(tmp_path):
    own = tmp_path / "own.png"
    pixels = torch.full((36, 72), 255, dtype=torch.uint8)
    pixels[:10] = 0
    Image.fromarray(pixels.numpy()).save(own)
    before = own.read_bytes()
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "0.png.png").hardlink_to(own)
    mask_panoramas(tmp_path / "masks", sources(tmp_path, (72, 36), (72, 36)), 45)
    pixels[27:] = 0
    assert torch.equal(read_mask(tmp_path / "masks" / "0.png.png"), pixels)
    assert (read_mask(tmp_path / "masks" / "1.png.png")[:27] == 255).all()
    assert own.read_bytes() == before


def test_only_panoramas_of_360_by_180_degrees_are_taken(tmp_path):
    check_panoramas(sources(tmp_path, (7680, 3840), (101, 50)))
    with pytest.raises(ArgumentError, match=r"1\.png: expected a panorama .* twice as wide as high, found 7680×2000"):
        check_panoramas(sources(tmp_path, (7680, 3840), (7680, 2000)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(mask_below=60), "mask_below: only for panoramas, camera_model EQUIRECTANGULAR, found SIMPLE_RADIAL"),
        (dict(mask_below=90), "mask_below: expected degrees under the horizon, from 0 to 90, found 90"),
        (dict(mask_below=float("nan")), "mask_below: expected degrees"),
        (dict(camera_model="EQUIRECTANGULAR"), r"0\.png: expected a panorama of 360 by 180 degrees"),
        (dict(camera_model="FISHEYE"), "camera_model: .*EQUIRECTANGULAR"),
    ],
)
def test_options_about_panoramas_are_checked_before_anything_is_computed(tmp_path, options, words):
    for i in range(2):
        write_image(tmp_path / "photos" / f"{i}.png", torch.full((30, 40, 3), i, dtype=torch.uint8))
    with pytest.raises(ArgumentError, match=words):
        prepare(tmp_path / "photos", tmp_path / "scene", **options)
    assert not (tmp_path / "scene").exists()
