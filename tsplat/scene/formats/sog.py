"""SOG datasets of PlayCanvas, version 2: ``meta.json`` and lossless WebP pictures, in a folder or a ZIP ``.sog``.

A pixel is a Gaussian: positions as 16 bits in two pictures (sign(x) log(1 + |x|) between bounds), scales and colors as
indices of codebooks, opacity as a byte, rotations by their three smaller components and the index of the largest in
alpha, and the coefficients above degree 0 as the number of a row in a palette.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import FileError, UnsupportedError
from ...support.extras import require
from ..gaussians import Gaussians
from .quantization import Bytes, Floats, logits, whole_quaternions

META = "meta.json"
META_MAX = 1 << 22
FILE_RATIO = 1032
"""How much deflate can compress at most."""
TAGS = 252
"""Alpha of a rotation whose largest component is w; x, y and z follow."""
SPARE_PIXELS = 1 << 20
"""Of pictures of few Gaussians, and enough for any palette."""
PALETTE_WIDTH = 64
"""Palette rows side by side in the picture of centroids."""

DAMAGED_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, OSError, RuntimeError)
"""What zipfile raises where bytes do not make sense."""

Load = Callable[[str], bytes]


def read_sog(path: str | os.PathLike[str]) -> Gaussians:
    """Reads a ``.sog`` file, a folder with ``meta.json``, or that file.

    Raises:
        FileError: Something is missing, damaged, or does not go together.
        UnsupportedError: Another version, or flat Gaussians.
        MissingExtraError: Pillow is not installed.
        OSError: A file cannot be read.
    """
    require("PIL")
    path = Path(path)
    if path.name == META or path.is_dir():
        folder = path if path.is_dir() else path.parent
        return _read(str(path), lambda name: (folder / name).read_bytes())
    return _read(str(path), _archive(path))


def _archive(path: Path) -> Load:
    """What reads a member of a ZIP archive, from memory, where no size in it can ask for more than there is."""
    content = path.read_bytes()
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except DAMAGED_ZIP as error:
        raise FileError(f"{path}: the ZIP archive is damaged or cut short ({error})") from error

    def load(name: str) -> bytes:
        if name not in archive.NameToInfo:
            raise FileError(f"{path}: there is no {name} in it; it is not a SOG file, or damaged")
        info = archive.getinfo(name)
        plain = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) and not info.flag_bits & 1
        if not plain or info.file_size > min(info.compress_size, len(content)) * FILE_RATIO:
            raise FileError(f"{path}: {name} is encrypted, of another compression or larger than it can be")
        try:
            return archive.read(info)
        except DAMAGED_ZIP as error:
            raise FileError(f"{path}: {name} is damaged or cut short in the ZIP archive ({error})") from error

    return load


class _Meta:
    """What ``meta.json`` says, checked as it is asked for."""

    def __init__(self, path: str, values: Any) -> None:
        self.path = path
        self.values = values if isinstance(values, dict) else {}

    def fail(self, name: str, expected: str) -> FileError:
        return FileError(f"{self.path}: {META} should have {name} as {expected}; the file is damaged")

    def part(self, name: str) -> _Meta:
        return _Meta(self.path, self.values.get(name))

    def count(self, name: str) -> int:
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.fail(name, "a whole number")
        return value

    def floats(self, name: str, size: int | None = None) -> Floats:
        """Numbers, of any count if no size is given."""
        value = self.values.get(name)
        sound = isinstance(value, list) and all(isinstance(x, int | float) for x in value)
        if not isinstance(value, list) or not sound or size not in (None, len(value)):
            raise self.fail(name, "numbers" if size is None else f"{size} numbers")
        with np.errstate(over="ignore"), contextlib.suppress(OverflowError):
            return np.array(value, np.float64).astype(np.float32)
        raise self.fail(name, "numbers that fit a float")

    def files(self, size: int) -> list[str]:
        value = self.values.get("files")
        if not isinstance(value, list) or len(value) < size or not all(isinstance(x, str) for x in value):
            raise self.fail("files", f"{size} names")
        if not all(x and x == os.path.basename(x) for x in value):
            raise self.fail("files", "plain names")
        return value


def _read(path: str, load: Load) -> Gaussians:
    text = load(META)
    try:
        meta = _Meta(path, json.loads(text[:META_MAX]))
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: {META} is not JSON ({error})") from error
    version = meta.values.get("version")
    if version != 2:
        found = "none, as of before version 2" if version is None else repr(version)
        raise UnsupportedError(f"{path}: found SOG version {found}; 2 is implemented, splat-transform converts others")
    if meta.values.get("model") == "2dgs":
        raise UnsupportedError(f"{path}: these are flat Gaussians (2DGS), whose rendering is not implemented")
    count = meta.count("count")

    def pixels(name: str) -> Bytes:
        """[count, 4] the first pixels of a picture."""
        picture = _picture(path, name, load(name), count)
        flat = picture.reshape(-1, 4)
        if len(flat) < count:
            raise FileError(f"{path}: {name} has {len(flat)} pixels for {count} Gaussians; the file is damaged")
        return flat[:count]

    part = meta.part("means")
    low, high = (pixels(name)[:, :3].astype(np.uint16) for name in part.files(2)[:2])
    mins, maxs = part.floats("mins", 3), part.floats("maxs", 3)
    with np.errstate(over="ignore", invalid="ignore"):
        logs = mins + (maxs - mins) * ((high << 8 | low) / 65535)
        means = np.copysign(np.expm1(np.abs(logs)), logs).astype(np.float32)

    part = meta.part("scales")
    log_scales = _looked_up(part, pixels(part.files(1)[0])[:, :3])
    part = meta.part("sh0")
    rgba = pixels(part.files(1)[0])
    sh0 = _looked_up(part, rgba[:, :3])
    quats = _quats(path, pixels(meta.part("quats").files(1)[0]))
    rest = np.zeros((count, 0, 3), np.float32)
    if meta.values.get("shN") is not None:
        part = meta.part("shN")
        centroids, labels = part.files(2)[:2]
        rest = _rest(part, _picture(path, centroids, load(centroids), count), pixels(labels))
    return Gaussians(
        means=torch.from_numpy(means),
        log_scales=torch.from_numpy(log_scales),
        quats=torch.from_numpy(quats),
        opacity_logits=torch.from_numpy(logits(rgba[:, 3] / 255)),
        sh0=torch.from_numpy(sh0)[:, None],
        shN=torch.from_numpy(rest),
        antialiased=meta.values.get("model") == "antialiased",
    )


def _picture(path: str, name: str, content: bytes, count: int) -> Bytes:
    """[H, W, 4], of no more pixels than `count` Gaussians may have."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > 4 * count + SPARE_PIXELS:
                raise FileError(
                    f"{path}: {name} is {image.width} x {image.height} for {count} Gaussians; it is damaged"
                )
            return np.asarray(image.convert("RGBA"))
    except FileError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise FileError(f"{path}: {name} is not a picture that can be read ({error})") from error


def _looked_up(part: _Meta, indices: NDArray[Any]) -> Floats:
    """Entries of the codebook, in the indices' shape."""
    codebook = part.floats("codebook")
    if indices.size and int(indices.max()) >= len(codebook):
        raise part.fail("codebook", f"at least {int(indices.max()) + 1} numbers")
    return codebook[indices] if indices.size else np.zeros(indices.shape, np.float32)


def _quats(path: str, pixels: Bytes) -> Floats:
    """[N, 4] wxyz"""
    if (pixels[:, 3] < TAGS).any():
        raise FileError(
            f"{path}: a rotation has no valid tag in alpha; the picture is damaged or was saved with losses"
        )
    others = (pixels[:, :3] / 255 * 2 - 1) / math.sqrt(2)
    return whole_quaternions(others, pixels[:, 3] - TAGS)


def _rest(part: _Meta, centroids: Bytes, pixels: Bytes) -> Floats:
    """[N, K - 1, 3] rows of the palette."""
    bands = part.count("bands")
    if bands not in (1, 2, 3):
        raise part.fail("shN.bands", "1, 2 or 3")
    size = (bands + 1) ** 2 - 1
    height, width, _ = centroids.shape
    if width != PALETTE_WIDTH * size:
        raise FileError(
            f"{part.path}: the picture of centroids is {width} pixels wide, not the {PALETTE_WIDTH * size} of "
            f"{bands} bands; the file is damaged"
        )
    labels = pixels[:, 0].astype(np.intp) + 256 * pixels[:, 1].astype(np.intp)
    rows = min(part.count("count"), height * PALETTE_WIDTH)
    if labels.size and int(labels.max()) >= rows:
        raise FileError(f"{part.path}: a label is {int(labels.max())} of a palette of {rows}; the file is damaged")
    palette = _looked_up(part, centroids.reshape(-1, size, 4)[..., :3])
    return np.ascontiguousarray(palette[labels])
