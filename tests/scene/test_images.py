"""Tests of reading, writing and downscaling images."""

import struct
import subprocess
import sys
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, ImageOps

from tsplat.scene import FileError, images
from tsplat.scene.images import downscale, read_image, read_image_info, read_mask, rotate_by_exif, write_png
from tsplat.support import reading


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


RAMP = [0, 64, 128, 255]


def png_bytes(width, height, depth, color, values, *, transparent=None):
    """A PNG, which Pillow cannot write in all of PNG's types; `values` are of 16 bits."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = np.asarray(values, ">u2").reshape(height, -1)
    content = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    key = b"" if transparent is None else chunk(b"tRNS", struct.pack(f">{len(transparent)}H", *transparent))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + key + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def gray(mode):
    image = Image.new(mode, (4, 1))
    image.putdata([(v, 255) if mode in ("LA", "PA") else v for v in RAMP])
    return image


def colored(mode, *values):
    image = Image.new(mode, (len(values), 1))
    image.putdata(values)
    return image


def palette(mode="P", **info):
    image = Image.new(mode, (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putdata([(0, 255), (1, 255)] if mode == "PA" else [0, 1])
    image.info.update(info)
    return image


MODES = {
    "1": (Image.frombytes("1", (4, 1), b"\x50"), "png", [[0] * 3, [255] * 3, [0] * 3, [255] * 3]),
    "L": (gray("L"), "png", [[v] * 3 for v in RAMP]),
    "LA": (gray("LA"), "png", [[v] * 3 for v in RAMP]),
    "P": (palette(), "png", [[10, 20, 30], [200, 100, 50]]),
    "PA": (palette("PA"), "tif", [[10, 20, 30], [200, 100, 50]]),
    "RGB": (colored("RGB", (1, 2, 3), (250, 128, 0)), "png", [[1, 2, 3], [250, 128, 0]]),
    "RGBA": (colored("RGBA", (1, 2, 3, 255), (250, 128, 0, 255)), "png", [[1, 2, 3], [250, 128, 0]]),
    "CMYK": (colored("CMYK", (0, 0, 0, 0), (255, 0, 0, 0)), "tif", [[255] * 3, [0, 255, 255]]),
    "I;16": (Image.fromarray(np.array([[0, 128, 129, 25700, 65535]], np.uint16)), "png", [0, 0, 1, 100, 255]),
    "I;16 TIFF": (Image.fromarray(np.array([[0, 25700, 65535]], np.uint16)), "tif", [0, 100, 255]),
    "I of PGM": (Image.fromarray(np.array([[0, 25700, 65535]], np.uint16)), "pgm", [0, 100, 255]),
}


@pytest.mark.parametrize("mode", MODES)
def test_mode_is_read_in_its_brightness(tmp_path, mode):
    image, suffix, expected = MODES[mode]
    image.save(tmp_path / f"a.{suffix}")
    expected = [[v] * 3 if isinstance(v, int) else v for v in expected]
    for background in (None, (0.3, 0.3, 0.3)):
        assert read_image(tmp_path / f"a.{suffix}", background)[0].tolist() == expected
    if "16" in mode:
        assert read_mask(tmp_path / f"a.{suffix}")[0].tolist() == [v[0] for v in expected]


def test_sixteen_bit_png_is_read(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(png_bytes(2, 1, 16, 2, [257, 514, 65535, 25700, 0, 771]))
    assert read_image(path)[0].tolist() == [[1, 2, 255], [100, 0, 3]]
    # Gray or RGB with a transparent color, and with alpha.
    path.write_bytes(png_bytes(2, 1, 16, 0, [25700, 1000], transparent=[1000]))
    assert read_image(path, (1.0, 0.0, 0.0))[0].tolist() == [[100, 100, 100], [255, 0, 0]]
    path.write_bytes(png_bytes(2, 1, 16, 2, [25700, 0, 0, 1000, 2000, 3000], transparent=[1000, 2000, 3000]))
    assert read_image(path, (1.0, 0.0, 0.0))[0].tolist() == [[100, 0, 0], [255, 0, 0]]
    path.write_bytes(png_bytes(2, 1, 16, 4, [25700, 65535, 25700, 0]))
    assert read_image(path, (1.0, 0.0, 0.0))[0].tolist() == [[100, 100, 100], [255, 0, 0]]
    path.write_bytes(png_bytes(2, 1, 16, 6, [257, 514, 771, 65535, 0, 0, 0, 0]))
    assert read_image(path, (1.0, 0.0, 0.0))[0].tolist() == [[1, 2, 3], [255, 0, 0]]


def test_palette_with_transparency_is_composited(tmp_path):
    palette(transparency=bytes([255, 0])).save(tmp_path / "a.png", transparency=bytes([255, 0]))
    assert read_image_info(tmp_path / "a.png").transparent
    assert read_image(tmp_path / "a.png", (0.0, 1.0, 0.0))[0].tolist() == [[10, 20, 30], [0, 255, 0]]


@pytest.mark.parametrize(("mode", "kind"), [("I", "32-bit integers"), ("F", "32-bit floats")])
def test_mode_of_unknown_range_is_refused(tmp_path, mode, kind):
    Image.new(mode, (4, 3), 7).save(tmp_path / "a.tif")
    for read in (read_image, read_mask):
        with pytest.raises(FileError, match=rf"a\.tif: expected .* 8 or 16 bits .* found mode {mode} \({kind}\)"):
            read(tmp_path / "a.tif")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_exif_orientation_is_ignored_and_can_be_applied(tmp_path, suffix, orientation):
    pixels = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    exif = Image.Exif()
    exif[0x112] = orientation
    Image.fromarray(pixels).save(tmp_path / f"a.{suffix}", exif=exif)
    info = read_image_info(tmp_path / f"a.{suffix}")
    assert (info.width, info.height, info.orientation) == (4, 3, orientation)
    stored = read_image(tmp_path / f"a.{suffix}")
    assert np.array_equal(stored.numpy(), pixels)
    Image.fromarray(pixels).save(tmp_path / "b.png", exif=exif)
    upright = np.array(ImageOps.exif_transpose(Image.open(tmp_path / "b.png")))
    assert np.array_equal(rotate_by_exif(stored, orientation).numpy(), upright)


def _move_behind_pixels(content, kind):
    """A PNG with a chunk moved to its end."""
    start = content.index(kind) - 4
    end = start + 12 + int.from_bytes(content[start : start + 4], "big")
    return content[:start] + content[end:-12] + content[start:end] + content[-12:]


def test_exif_orientation_behind_the_pixels_of_a_png_is_found(tmp_path):
    exif = Image.Exif()
    exif[0x112] = 6
    Image.fromarray(np.zeros((3, 4, 3), np.uint8)).save(tmp_path / "a.png", exif=exif)
    (tmp_path / "b.png").write_bytes(_move_behind_pixels((tmp_path / "a.png").read_bytes(), b"eXIf"))
    assert read_image_info(tmp_path / "b.png").orientation == 6


@pytest.mark.parametrize("metadata", [{}, {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0"}])
def test_header_of_a_png_is_read_without_its_pixels(tmp_path, monkeypatch, metadata):
    Image.fromarray(np.zeros((3, 4, 3), np.uint8)).save(tmp_path / "a.png", **metadata)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: pytest.fail("decoded"))
    info = read_image_info(tmp_path / "a.png")
    assert (info.width, info.height, info.orientation) == (4, 3, 1)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_image_is_downscaled_while_it_is_read(tmp_path, monkeypatch, mode):
    rng = np.random.default_rng(0)
    channels = len(Image.new(mode, (1, 1)).getbands())
    pixels = rng.integers(0, 256, (37, 53, channels), np.uint8)
    Image.fromarray(pixels.squeeze()).save(tmp_path / "a.png")
    whole = read_image(tmp_path / "a.png", (0.1, 0.2, 0.3))
    expected = downscale(whole, 13, 9)
    monkeypatch.setattr(images, "STRIP_PIXELS", 200)
    assert torch.equal(read_image(tmp_path / "a.png", (0.1, 0.2, 0.3)), whole)
    assert torch.equal(read_image(tmp_path / "a.png", (0.1, 0.2, 0.3), size=(13, 9)), expected)
    assert torch.equal(downscale(whole, 13, 9), expected)


def test_mask_of_zeros_and_ones_is_refused(tmp_path):
    Image.fromarray(np.array([[0, 1]], np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(FileError, match=r"a\.png: expected a mask that is white .* found values 0 and 1"):
        read_mask(tmp_path / "a.png")


MEASURE = """
import resource, sys
from tsplat.scene.images import read_image
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read_image(sys.argv[1], size=(1000, 1000))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_large_photograph_is_decoded_once(tmp_path):
    Image.new("RGB", (4000, 4000), (10, 20, 30)).save(tmp_path / "a.jpg")
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "a.jpg")]
    added = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # Pillow's image takes 4 bytes per pixel, 63 MB. Floats of all pixels would take 192 MB more.
    assert added * 1024 < 64e6 + 80e6


def test_images_of_many_pixels_are_bounded_by_the_memory(tmp_path, monkeypatch):
    """Without a warning of Pillow, which is an error here."""
    path = tmp_path / "a.png"
    Image.new("RGB", (40, 30)).save(path)
    Image.new("RGB", (80, 30)).save(tmp_path / "b.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    monkeypatch.setattr(reading, "UNCHECKED_BYTES_MAX", 0)
    for read in (read_image, read_mask):
        monkeypatch.setattr(reading, "available_bytes", lambda: 8 * 40 * 30)
        assert read(path).shape[:2] == (30, 40)
        monkeypatch.setattr(reading, "available_bytes", lambda: 8 * 40 * 30 - 1)
        with pytest.raises(FileError, match=r"a.png: an image of 40×30 pixels needs .* are free; scale it down"):
            read(path)
        with pytest.raises(FileError, match=r"b.png: cannot be read as an image \(Image size \(2400 pixels\) exceeds"):
            read(tmp_path / "b.png")


def test_damaged_chunk_length_allocates_little(tmp_path):
    Image.new("RGB", (40, 30), (1, 2, 3)).save(tmp_path / "a.png")
    content = bytearray((tmp_path / "a.png").read_bytes())
    content[content.index(b"IDAT") - 4] |= 0x20  # a length of 512 MiB
    (tmp_path / "a.png").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(FileError, match=r"a\.png"):
        read_image(tmp_path / "a.png")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20


def test_damaged_pixels_of_a_png_are_noticed(tmp_path):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (30, 40, 3), np.uint8)).save(tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    start = content.index(b"IDAT")
    for i in range(start + 4, len(content) - 12, 97):
        (tmp_path / "a.png").write_bytes(content[:i] + bytes([content[i] ^ 4]) + content[i + 1 :])
        with pytest.raises(FileError, match=r"a\.png: cannot be read as an image"):
            read_image(tmp_path / "a.png")
