"""Reads and writes images: [H, W, 3] uint8 sRGB in memory.

All modes of Pillow with a known range are read with the correct brightness: Pillow converts 8-bit modes, palettes and
CMYK; 16-bit gray is divided by 257; 16-bit RGB keeps its high bytes. 32-bit integers (I) and floats (F) have no known
range and are rejected, except for 16-bit PGM files, which Pillow reads as I.

Large images are converted, composited and downscaled in strips of rows, so that no second copy of them is made.
"""

import contextlib
import dataclasses
import io
import math
import os
import re
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ..errors import ArgumentError, FileError
from ..precision import fp32
from ..support.extras import require
from ..support.files import atomic_write
from ..support.reading import check_memory, open_file

STRIP_PIXELS = 1 << 20
"""Number of pixels that are converted at a time."""

PNG = b"\x89PNG\r\n\x1a\n"
"""The first bytes of a PNG."""

PANORAMA_METADATA = re.compile(rb"""ProjectionType\s*(=\s*["']|>)\s*equirectangular""")

PNG_METADATA = (b"eXIf", b"tEXt", b"zTXt", b"iTXt")
"""PNG chunks that may contain an EXIF orientation."""

JPEG_QUALITY = 95

EXIF_ORIENTATION = 0x112
EXIF_IFD, EXIF_TIME, EXIF_F_NUMBER, EXIF_SENSITIVITY = 0x8769, 0x829A, 0x829D, 0x8827
SWAPPED_ORIENTATIONS = (5, 6, 7, 8)
"""EXIF orientations that swap width and height."""

INVERSE_TRANSPOSES = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_90",
    7: "TRANSVERSE",
    8: "ROTATE_270",
}
"""EXIF orientation -> name in Pillow of the transpose from the upright image to the stored one."""

SIXTEEN_BIT_FORMATS = ("PNG", "PPM")
"""Formats in which images with Pillow's mode I have values from 0 to 65535."""

BITS_PER_SAMPLE = 258
"""Tag of TIFF files."""

_warnings_lock = threading.Lock()
"""Guards the warning filters, which are global, while several threads read photographs."""

ReadStrip = Callable[[int, int], Tensor]
"""Returns the pixel rows from a first index up to, but excluding, a last index, [rows, W, D] uint8."""


@dataclasses.dataclass(frozen=True)
class ImageInfo:
    """The header of an image file: size in pixels as stored, transparency, EXIF orientation 1 to 8."""

    width: int
    height: int
    transparent: bool
    orientation: int = 1

    @property
    def is_sideways(self) -> bool:
        """Returns whether the EXIF orientation swaps width and height."""
        return self.orientation in SWAPPED_ORIENTATIONS


def read_image_info(path: str | os.PathLike[str], *, decoded: bool = False) -> ImageInfo:
    """Reads the header of an image file. If `decoded`, also decodes the pixels, so that a damaged file raises an
    error."""
    with _opened(path, verified=decoded) as image:
        orientation = _orientation(image)
        width, height = image.size
        if image.format == "TIFF" and orientation in SWAPPED_ORIENTATIONS:
            width, height = height, width  # Pillow rotates TIFF files.
        info = ImageInfo(width, height, image.has_transparency_data, orientation)
        if decoded:
            _load(image, path)
        return info


def is_marked_panorama(path: str | os.PathLike[str]) -> bool:
    """Returns whether the XMP metadata of an image marks it as an equirectangular panorama (Google's GPano)."""
    with _opened(path) as image:
        xmp = image.info.get("xmp") or image.info.get("XML:com.adobe.xmp") or b""
    return PANORAMA_METADATA.search(xmp.encode() if isinstance(xmp, str) else xmp) is not None


def read_exposure(path: str | os.PathLike[str]) -> float | None:
    """Returns the logarithm of the exposure in an image's EXIF data: time times sensitivity over the squared f-number.

    A missing sensitivity or f-number counts as 1. Returns None if the time is missing or the data is damaged.
    """
    with _opened(path) as image:
        # Pillow raises errors of many types for damaged metadata.
        try:
            values = image.getexif().get_ifd(EXIF_IFD)
            time, f_number, iso = values[EXIF_TIME], values.get(EXIF_F_NUMBER, 1), values.get(EXIF_SENSITIVITY, 1)
            sensitivity = iso[0] if isinstance(iso, tuple) else iso
            exposure = math.log(float(time) * float(sensitivity) / float(f_number) ** 2)
        except Exception:
            return None
        return exposure if math.isfinite(exposure) else None


def convert_image(path: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Converts an image file to an 8-bit PNG atomically, with its transparency and without applying its orientation."""
    with _opened(path, verified=True) as file:
        image = _load(file, path)
        pixels = _with_alpha(image, file) if image.has_transparency_data else _to_8_bit(image, file).convert("RGB")
    with atomic_write(target) as out:
        pixels.save(out, "PNG")


def read_image(
    path: str | os.PathLike[str],
    background: tuple[float, float, float] | None = None,
    *,
    size: tuple[int, int] | None = None,
    keep_alpha: bool = False,
) -> Tensor:
    """Reads an image as RGB, [H, W, 3] uint8.

    The EXIF orientation is ignored, as in COLMAP; see :func:`rotate_by_exif`.

    Args:
        background: RGB in [0, 1] over which transparent images are composited. None ignores their alpha channel.
        size: Width and height to downscale to (see :func:`downscale`); None keeps the size of the file.
        keep_alpha: Whether to composite transparent images over black and return their alpha as a fourth channel;
            `background` is then unused.

    Raises:
        FileError: The file is missing or is not an image, or the range of its mode is unknown.
        MissingExtraError: Pillow is not installed.
    """
    with _opened(path, verified=True) as file:
        image = _load(file, path)
        composited = image.has_transparency_data and (keep_alpha or background is not None)
        backdrop = None if keep_alpha or background is None else fp32(background)

        def read_strip(first: int, last: int) -> Tensor:
            strip = image.crop((0, first, image.width, last))
            if not composited:
                return torch.from_numpy(np.array(_to_8_bit(strip, file).convert("RGB")))
            pixels = torch.from_numpy(np.array(_with_alpha(strip, file)))
            alpha = pixels[..., 3:].float() / 255
            color = pixels[..., :3].float() / 255 * alpha
            if backdrop is None:
                return torch.cat([to_bytes(color), pixels[..., 3:]], -1)
            return to_bytes(color + (1 - alpha) * backdrop)

        channels = 3 if backdrop is not None or not composited else 4
        return _assemble(read_strip, image.width, image.height, channels, size)


def read_mask(path: str | os.PathLike[str]) -> Tensor:
    """Reads the brightness of an image, [H, W] uint8. Rejects images that contain only 0 and 1."""
    with _opened(path, verified=True) as file:
        image = _load(file, path)

        def read_strip(first: int, last: int) -> Tensor:
            strip = image.crop((0, first, image.width, last))
            return torch.from_numpy(np.array(_to_8_bit(strip, file).convert("L")))[..., None]

        mask = _assemble(read_strip, image.width, image.height, 1, None)[..., 0]
        if image.mode == "L" and image.getextrema()[1] == 1:
            raise FileError(f"{path}: expected a mask that is white (255) for valid pixels, found values 0 and 1")
    return mask


def rotate_by_exif(image: Tensor, orientation: int) -> Tensor:
    """Rotates and mirrors an image [H, W, D] or [H, W] by its EXIF orientation, so that it is upright."""
    if orientation in SWAPPED_ORIENTATIONS:
        image = image.transpose(0, 1)
    axes = {2: (1,), 3: (0, 1), 4: (0,), 6: (1,), 7: (0, 1), 8: (0,)}.get(orientation, ())
    return image.flip(axes).contiguous() if axes else image.contiguous()


def _orientation(image: Any) -> int:
    """Returns the EXIF orientation of an opened image; 1 if it is missing or unreadable."""
    from PIL import Image

    # Pillow decodes the pixels of a PNG to find metadata after them.
    is_read = image.format == "PNG" and not _has_metadata_behind_pixels(image.fp)
    try:
        orientation = (Image.Image.getexif(image) if is_read else image.getexif()).get(EXIF_ORIENTATION, 1)
    # Pillow raises errors of many types for damaged metadata.
    except Exception:
        return 1
    return int(orientation) if orientation in range(1, 9) else 1


def _has_metadata_behind_pixels(file: BinaryIO) -> bool:
    """Returns whether a PNG is damaged, or has chunks after its pixels that may contain an EXIF orientation."""
    position, pixels = file.tell(), False
    file.seek(len(PNG))
    try:
        while len(start := file.read(8)) == 8:
            length, chunk = struct.unpack(">I4s", start)
            if chunk == b"IEND":
                return False
            if pixels and chunk in PNG_METADATA:
                return True
            pixels |= chunk == b"IDAT"
            file.seek(length + 4, io.SEEK_CUR)  # including the checksum
        return True
    finally:
        file.seek(position)


def _load(image: Any, path: str | os.PathLike[str]) -> Any:
    """Decodes an opened image without applying its orientation, after checking that its values have a known range."""
    if image.mode == "F" or (image.mode == "I" and image.format not in SIXTEEN_BIT_FORMATS):
        values = "32-bit floats" if image.mode == "F" else "32-bit integers"
        raise FileError(
            f"{path}: expected an image of 8 or 16 bits per channel, found mode {image.mode} ({values}), whose range "
            "is unknown; convert it"
        )
    # Pillow stores up to 4 bytes per pixel, and so does the returned image.
    width, height = image.size
    check_memory(f"{path}: an image of {width}×{height} pixels", 8 * width * height, "scale it down")
    orientation = _orientation(image)
    image.load()
    key = image.info.get("transparency")
    if isinstance(key, tuple) and max(key) > 255:
        # Pillow keeps the high bytes of a 16-bit RGB image, but not of its transparent color.
        image.info["transparency"] = tuple(value >> 8 for value in key)
    if image.format == "TIFF" and orientation != 1:
        # Undo Pillow's rotation.
        from PIL import Image

        return image.transpose(Image.Transpose[INVERSE_TRANSPOSES[orientation]])
    return image


def _to_8_bit(strip: Any, image: Any) -> Any:
    """Converts rows of a gray image with more than 8 bits to mode L; returns others unchanged."""
    if strip.mode != "I" and not strip.mode.startswith("I;16"):
        return strip
    from PIL import Image

    bits = image.tag_v2.get(BITS_PER_SAMPLE, (16,))[0] if image.format == "TIFF" else 16
    largest = (1 << bits) - 1
    values = np.asarray(strip).astype(np.uint32)
    return Image.fromarray(np.minimum((values * 255 + largest // 2) // largest, 255).astype(np.uint8))


def _with_alpha(strip: Any, image: Any) -> Any:
    """Converts rows of an image to RGBA."""
    gray = _to_8_bit(strip, image)
    if gray is strip:
        return strip.convert("RGBA")
    # The image has a transparent 16-bit gray value.
    from PIL import Image

    alpha = np.where(np.asarray(strip) == image.info["transparency"], 0, 255).astype(np.uint8)
    rgba = gray.convert("RGBA")
    rgba.putalpha(Image.fromarray(alpha))
    return rgba


def _assemble(read_strip: ReadStrip, width: int, height: int, channels: int, size: tuple[int, int] | None) -> Tensor:
    """Assembles an image [H, W, channels] uint8 from strips, downscaled to `size`."""
    if size is not None and size != (width, height):
        return _downscale_strips(read_strip, (width, height), channels, size)
    result = torch.empty(height, width, channels, dtype=torch.uint8, device="cpu")
    step = max(1, STRIP_PIXELS // width)
    for first in range(0, height, step):
        last = min(first + step, height)
        result[first:last] = read_strip(first, last)
    return result


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str], verified: bool = False) -> Iterator[Any]:
    """Opens an image. If `verified`, first verifies the checksums of a PNG, which Pillow ignores for pixels."""
    require("PIL")

    try:
        with BoundedFile(path) as file:
            if verified and file.read(len(PNG)) == PNG:
                file.seek(0)
                open_image(file).verify()
            file.seek(0)
            with open_image(file) as image:
                yield image
    except (ArgumentError, MemoryError):
        raise
    # Pillow raises errors of many types for damaged files.
    except Exception as error:
        raise FileError(f"{path}: cannot be read as an image ({_describe(error)})") from error


def open_image(file: BinaryIO) -> Any:
    """Opens an image without Pillow's warning about many pixels; callers check memory before decoding."""
    from PIL import Image

    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(file)


class BoundedFile(io.BufferedReader):
    """A file that limits reads to its size, so that a damaged length in it cannot cause a huge allocation."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(open_file(path).detach())
        self._size = os.fstat(self.fileno()).st_size

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(self._size - self.tell(), 0)
        return super().read(left if size is None or size < 0 else min(size, left))


def _describe(error: Exception) -> str:
    """Returns the reason of an error without the path, which the message already contains."""
    if type(error).__name__ == "UnidentifiedImageError":
        return "not in a format that Pillow knows; convert it to JPEG or PNG"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def write_png(path: str | os.PathLike[str], image: Tensor, xmp: str = "") -> None:
    """Writes an image [H, W, 3], uint8 or floats in [0, 1], as a PNG file atomically, with optional XMP metadata."""
    content = encode_png(image, xmp)
    with atomic_write(path) as file:
        file.write(content)


def encode_png(image: Tensor, xmp: str = "") -> bytes:
    """Returns the content of the file that :func:`write_png` writes."""
    require("PIL")
    from PIL import Image, PngImagePlugin

    info = PngImagePlugin.PngInfo()
    if xmp:
        info.add_itxt("XML:com.adobe.xmp", xmp)
    file = io.BytesIO()
    Image.fromarray(_bytes_of(image)).save(file, "PNG", pnginfo=info)
    return file.getvalue()


def write_jpeg(path: str | os.PathLike[str], image: Tensor, xmp: str = "") -> None:
    """Writes an image as a JPEG of high quality; the arguments are those of :func:`write_png`."""
    require("PIL")
    from PIL import Image

    with atomic_write(path) as file:
        Image.fromarray(_bytes_of(image)).save(file, "JPEG", quality=JPEG_QUALITY, subsampling=0, xmp=xmp.encode())


def _bytes_of(image: Tensor) -> np.ndarray[Any, Any]:
    pixels: np.ndarray[Any, Any] = (image if image.dtype == torch.uint8 else to_bytes(image)).cpu().numpy()
    return pixels


def to_bytes(image: Tensor) -> Tensor:
    """Converts floats in [0, 1] to uint8 with rounding. Values outside the range are clamped."""
    return (image.detach().clamp(0, 1) * 255).round().to(torch.uint8)


def downscale(image: Tensor, width: int, height: int) -> Tensor:
    """Downscales an image [H, W, D] uint8 by area averaging: each new pixel is the mean of the area it covers."""
    old_height, old_width, channels = image.shape
    if (old_width, old_height) == (width, height):
        return image
    return _downscale_strips(lambda first, last: image[first:last], (old_width, old_height), channels, (width, height))


def _downscale_strips(read_strip: ReadStrip, old: tuple[int, int], channels: int, new: tuple[int, int]) -> Tensor:
    """Downscales an image from `old` to `new` width and height, reading it in strips of rows."""
    vertical, horizontal = _coverage(old[1], new[1]), _coverage(old[0], new[0])
    result = torch.empty(new[1], new[0], channels, dtype=torch.uint8, device="cpu")
    step = max(1, STRIP_PIXELS * new[1] // (old[0] * old[1]))
    for start in range(0, new[1], step):
        indices, weights = (part[start : start + step] for part in vertical)
        first = int(indices[0, 0])
        strip = read_strip(first, int(indices.max()) + 1)
        tall = _average(strip, indices - first, weights)
        mean = _average(tall.transpose(0, 1), *horizontal).transpose(0, 1)
        result[start : start + step] = mean.round_().clamp_(0, 255).to(torch.uint8)
    return result


def _average(values: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Returns weighted sums of the rows of `values` [old, ...]: fp32 [new, ...], given indices and weights [new, K]."""
    total = torch.zeros(len(indices), *values.shape[1:], dtype=torch.float32, device="cpu")
    for k in range(indices.shape[1]):
        total += values[indices[:, k]] * weights[:, k].view(-1, *[1] * (values.dim() - 1))
    return total


def _coverage(old: int, new: int) -> tuple[Tensor, Tensor]:
    """Returns indices and weights [new, K] of the old pixels that each new pixel covers, along one axis."""
    edges = torch.arange(new + 1, dtype=torch.float64, device="cpu") * old / new
    first = edges[:-1].floor().long()
    indices = first[:, None] + torch.arange(int((edges[1:].ceil().long() - first).max()), device="cpu")
    overlap = torch.minimum(edges[1:, None], indices + 1.0) - torch.maximum(edges[:-1, None], indices.double())
    return indices.clamp_max(old - 1), (overlap.clamp_min(0) * new / old).float()
