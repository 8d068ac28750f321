"""Images: [H, W, 3] uint8 sRGB in memory, PNG on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FileError
from ..support.extras import require
from ..support.files import atomic_write


@dataclasses.dataclass(frozen=True)
class ImageInfo:
    """The header of an image file.

    Attributes:
        width, height: Size in pixels.
        transparent: Whether the image has transparency data.
    """

    width: int
    height: int
    transparent: bool


def read_image_info(path: str | os.PathLike[str]) -> ImageInfo:
    """Reads the header of an image file, but not its pixels.

    Raises:
        FileError: The file is missing or is not an image.
        MissingExtraError: Pillow is not installed.
    """
    with _opened(path) as image:
        return ImageInfo(image.width, image.height, image.has_transparency_data)


def read_image(path: str | os.PathLike[str], background: tuple[float, float, float] | None = None) -> Tensor:
    """Reads an image as RGB. The EXIF orientation is ignored, as in COLMAP.

    Args:
        path: An image file.
        background: RGB in [0, 1] that transparent images are composited over. None ignores their alpha channel.

    Returns:
        [H, W, 3] uint8.

    Raises:
        FileError: The file is missing or is not an image.
        MissingExtraError: Pillow is not installed.
    """
    with _opened(path) as image:
        if background is None or not image.has_transparency_data:
            return torch.from_numpy(np.array(image.convert("RGB")))
        pixels = torch.from_numpy(np.array(image.convert("RGBA"))).float() / 255
    color, alpha = pixels[..., :3], pixels[..., 3:]
    return to_bytes(color * alpha + (1 - alpha) * torch.tensor(background))


def read_mask(path: str | os.PathLike[str]) -> Tensor:
    """Reads the brightness of an image, [H, W] uint8.

    Raises:
        FileError: The file is missing or is not an image.
        MissingExtraError: Pillow is not installed.
    """
    with _opened(path) as image:
        return torch.from_numpy(np.array(image.convert("L")))


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    require("PIL")
    from PIL import Image

    try:
        with Image.open(path) as image:
            yield image
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise FileError(f"{path}: cannot be read as an image ({error})") from error


def write_png(path: str | os.PathLike[str], image: Tensor) -> None:
    """Writes a PNG file atomically.

    Args:
        path: Where to write.
        image: [H, W, 3], uint8 or floats in [0, 1].

    Raises:
        MissingExtraError: Pillow is not installed.
        OSError: The file cannot be written.
    """
    require("PIL")
    from PIL import Image

    pixels = image if image.dtype == torch.uint8 else to_bytes(image)
    with atomic_write(path) as file:
        Image.fromarray(pixels.cpu().numpy()).save(file, "PNG")


def to_bytes(image: Tensor) -> Tensor:
    """Converts floats in [0, 1] to uint8 with rounding. Values outside the range are clamped."""
    return (image.detach().clamp(0, 1) * 255).round().to(torch.uint8)


def downscale(image: Tensor, width: int, height: int) -> Tensor:
    """Downscales an image by area averaging: each new pixel is the mean of the area it covers.

    Args:
        image: [H, W, D] uint8.
        width, height: New size in pixels, at most the old one.

    Returns:
        [height, width, D] uint8.
    """
    vertical, horizontal = _coverage(image.shape[0], height), _coverage(image.shape[1], width)
    mean = torch.einsum("yh,hwc,xw->yxc", vertical, image.float(), horizontal)
    return mean.round().clamp(0, 255).to(torch.uint8)


def _coverage(old: int, new: int) -> Tensor:
    """Weights [new, old] of each old pixel in each new pixel, along one axis."""
    edges = torch.arange(new + 1, dtype=torch.float64) * old / new
    pixels = torch.arange(old, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], pixels + 1) - torch.maximum(edges[:-1, None], pixels)
    return (overlap.clamp_min(0) * new / old).float()
