"""Tests of reading, writing and downscaling images."""

import pytest
import torch
from PIL import Image

from tsplat.scene import FileError
from tsplat.scene.images import downscale, read_image, read_image_info, write_png


def test_downscale_by_an_integer_averages_blocks():
    image = torch.randint(0, 256, (12, 20, 3), dtype=torch.uint8)
    blocks = image.double().view(3, 4, 5, 4, 3).mean((1, 3))
    assert (downscale(image, 5, 3) - blocks).abs().max() <= 0.5 + 1e-4


def test_downscale_weights_pixels_by_their_overlap():
    image = torch.tensor([[10, 20, 90]], dtype=torch.uint8)[..., None].expand(1, 3, 3)
    # The new pixels are 1.5 wide: (10 + 20 / 2) / 1.5 and (20 / 2 + 90) / 1.5.
    assert downscale(image, 2, 1)[0, :, 0].tolist() == [13, 67]


def test_downscale_keeps_constant_images():
    assert (downscale(torch.full((53, 37, 3), 201, dtype=torch.uint8), 7, 11) == 201).all()


def test_png_round_trip(tmp_path):
    image = torch.randint(0, 256, (6, 9, 3), dtype=torch.uint8)
    write_png(tmp_path / "a.png", image)
    assert torch.equal(read_image(tmp_path / "a.png"), image)
    write_png(tmp_path / "b.png", image / 255)
    assert torch.equal(read_image(tmp_path / "b.png"), image)
    write_png(tmp_path / "c.png", torch.tensor([[[-1.0, 0.5, 7.0]]]))
    assert read_image(tmp_path / "c.png").tolist() == [[[0, 128, 255]]]


def test_gray_and_transparent_images_become_rgb(tmp_path):
    for mode in ("L", "LA", "RGBA", "P", "1"):
        Image.new(mode, (4, 3)).save(tmp_path / "a.png")
        assert read_image(tmp_path / "a.png").shape == (3, 4, 3)
        info = read_image_info(tmp_path / "a.png")
        assert (info.width, info.height, info.transparent) == (4, 3, mode in ("LA", "RGBA"))


def test_invalid_image_is_rejected(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n truncated")
    for name in ("a.png", "missing.png"):
        with pytest.raises(FileError, match=name):
            read_image(tmp_path / name)
