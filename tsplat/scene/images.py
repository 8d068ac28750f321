"""Pictures: [H, W, 3] uint8 in memory, sRGB as in the file; PNG on disk."""

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
class PictureInfo:
    """What a picture's header says: its size in pixels, and whether it may be transparent."""

    width: int
    height: int
    transparent: bool


def picture_info(path: str | os.PathLike[str]) -> PictureInfo:
    """Reads no more than the header of a picture.

    Raises:
        FileError: The file is missing or not a picture.
        MissingExtraError: Pillow is not installed.
    """
    with _opened(path) as picture:
        return PictureInfo(picture.width, picture.height, picture.has_transparency_data)


def read_image(path: str | os.PathLike[str], background: tuple[float, float, float] | None = None) -> Tensor:
    """Reads a picture as RGB [H, W, 3] uint8; its orientation tag is not followed, as COLMAP does not.

    Args:
        background: RGB in [0, 1] behind what is transparent; where None, colors are taken as if they were opaque.

    Raises:
        FileError: The file is missing or not a picture.
        MissingExtraError: Pillow is not installed.
    """
    with _opened(path) as picture:
        if background is None or not picture.has_transparency_data:
            return torch.from_numpy(np.array(picture.convert("RGB")))
        pixels = torch.from_numpy(np.array(picture.convert("RGBA"))).float() / 255
    color, alpha = pixels[..., :3], pixels[..., 3:]
    return to_bytes(color * alpha + (1 - alpha) * torch.tensor(background))


def read_mask(path: str | os.PathLike[str]) -> Tensor:
    """Reads a picture's brightness, [H, W] uint8.

    Raises:
        FileError: The file is missing or not a picture.
        MissingExtraError: Pillow is not installed.
    """
    with _opened(path) as picture:
        return torch.from_numpy(np.array(picture.convert("L")))


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    require("PIL")
    from PIL import Image

    try:
        with Image.open(path) as picture:
            yield picture
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise FileError(f"{path}: cannot be read as a picture ({error})") from error


def write_png(path: str | os.PathLike[str], image: Tensor) -> None:
    """Writes [H, W, 3], uint8 or floats in [0, 1]; the file is there whole or not at all.

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
    """Floats to uint8, rounded; values outside [0, 1] are clamped."""
    return (image.detach().clamp(0, 1) * 255).round().to(torch.uint8)


def shrink(image: Tensor, width: int, height: int) -> Tensor:
    """Area average of a picture [H, W, D] uint8 to [height, width, D]: each new pixel is the mean of what it covers."""
    rows, columns = _coverage(image.shape[0], height), _coverage(image.shape[1], width)
    mean = torch.einsum("yh,hwc,xw->yxc", rows, image.float(), columns)
    return mean.round().clamp(0, 255).to(torch.uint8)


def _coverage(old: int, new: int) -> Tensor:
    """Row i holds the share of each old pixel in new pixel i. [new, old]"""
    edges = torch.arange(new + 1, dtype=torch.float64) * old / new
    pixels = torch.arange(old, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], pixels + 1) - torch.maximum(edges[:-1, None], pixels)
    return (overlap.clamp_min(0) * new / old).float()
