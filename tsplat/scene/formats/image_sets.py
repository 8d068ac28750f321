"""Functions shared by the formats that store parameters as images: ``meta.json``, images and ZIP archives."""

import contextlib
import io
import itertools
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from ...errors import FileError
from ...support.files import atomic_write
from ...support.reading import allow_overwrite, check_memory, raise_if_read, read_file
from ..images import open_image
from ..quantization import Bytes
from .json_objects import JsonObject

META = "meta.json"
META_MAX = 1 << 22
"""Maximum size of ``meta.json`` in bytes."""

DEFLATE_RATIO_MAX = 1032
"""Maximum compression ratio of deflate."""

IMAGE_RATIO_MAX, IMAGE_SPARE_BYTES = 8, 1 << 20
"""Deflate hardly compresses images; a member that is larger than its compressed size by this factor plus these bytes is
damaged."""

SPARE_PIXELS = 1 << 20
"""Maximum number of pixels in addition to four per Gaussian; enough for any palette."""

ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, OSError, RuntimeError)
"""Exceptions that zipfile raises for damaged archives."""

Load = Callable[[str], bytes]
"""Returns the content of a file of the dataset by its name."""


def archive_loader(path: Path, size_max: int | None = None) -> Load:
    """Returns a function that reads a member of a ZIP archive.

    Args:
        path: The archive.
        size_max: Maximum size of a member in bytes. None limits images to about :data:`IMAGE_RATIO_MAX` times their
            size in the archive, and ``meta.json`` to :data:`META_MAX`.
    """
    # Read the archive into memory, so that the sizes stored in it are checked against its content.
    content = read_file(path)
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except ZIP_ERRORS as error:
        raise FileError(f"{path}: the ZIP archive is damaged or cut short ({error})") from error

    def load(name: str) -> bytes:
        if name not in archive.NameToInfo:
            raise FileError(f"{path}: the archive has no {name}; it is damaged or of another format")
        info = archive.getinfo(name)
        plain = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) and not info.flag_bits & 1
        packed = min(info.compress_size, len(content))
        usual = META_MAX if name == META else IMAGE_SPARE_BYTES + packed * IMAGE_RATIO_MAX
        if not plain or info.file_size > min(packed * DEFLATE_RATIO_MAX, usual if size_max is None else size_max):
            raise FileError(
                f"{path}: {name} is encrypted, uses another compression than deflate, or its size of "
                f"{info.file_size:,} bytes is invalid; the file is damaged"
            )
        check_memory(f"{path}: {name}", info.file_size)
        try:
            return archive.read(info)
        except ZIP_ERRORS as error:
            raise FileError(f"{path}: {name} is damaged or cut short in the ZIP archive ({error})") from error

    return load


def write_files(folder: Path, index: str, files: Iterable[tuple[str, bytes]], old: Iterable[str]) -> None:
    """Writes the files of a dataset into a folder, so that it contains either the old or the new dataset at any time.

    Args:
        folder: An existing folder.
        index: Name of the file that lists all others. It is written last and replaced atomically.
        files: Names, possibly with folders, and contents. No file except the index may exist already.
        old: Names of the files of the old dataset, which are removed at the end.
    """
    raise_if_read(folder / index)
    new: list[str] = []
    written = None
    try:
        for name, content in files:
            if name == index:
                written = content
            else:
                new.append(name)
                (folder / name).parent.mkdir(exist_ok=True)
            with atomic_write(folder / name) as file:
                file.write(content)
    except BaseException:
        if not _may_contain(folder / index, written):
            _remove(folder, new)
        raise
    _remove(folder, set(old).difference(new))


def _may_contain(path: Path, content: bytes | None) -> bool:
    """Returns whether a file has the given content, or cannot be read."""
    try:
        return content is not None and path.read_bytes() == content
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _remove(folder: Path, names: Iterable[str]) -> None:
    """Removes files, and folders below `folder` that become empty; ignores files that cannot be removed."""
    for name in names:
        with contextlib.suppress(OSError, ValueError, FileError):
            raise_if_read(folder / name)
            (folder / name).unlink()
    for inner in {(folder / name).parent for name in names} - {folder}:
        with contextlib.suppress(OSError, ValueError):
            inner.rmdir()


def free_suffix(folder: Path, names: Iterable[str]) -> str:
    """Returns a suffix for the stems of names, such as ``""`` or ``"_2"``, with which none of them exists in a
    folder."""
    paths = [folder / name for name in names]
    suffixes = itertools.chain([""], (f"_{i}" for i in itertools.count(2)))
    return next(
        suffix
        for suffix in suffixes
        if not any(os.path.lexists(path.with_name(f"{path.stem}{suffix}{path.suffix}")) for path in paths)
    )


def read_meta(folder: Path) -> JsonObject:
    """Reads the ``meta.json`` of a folder."""
    return JsonObject.parse(str(folder), read_file(folder / META, META_MAX), META)


def named_images(folder: Path) -> set[str]:
    """Returns the image names in the ``meta.json`` of an earlier output; an empty set if it cannot be read."""
    with contextlib.suppress(FileError, OSError), allow_overwrite():
        meta = read_meta(folder)
        parts = [meta.part(name) for name in meta.values]
        return {name for part in parts if "files" in part.values for name in part.files(0)}
    return set()


def decode_image(path: str, name: str, content: bytes, count: int) -> Bytes:
    """Decodes an image, [H, W, 4]; raises FileError if it has far more pixels than `count` Gaussians need."""
    from PIL import Image

    try:
        with open_image(io.BytesIO(content)) as image:
            if image.width * image.height > 4 * count + SPARE_PIXELS:
                raise FileError(
                    f"{path}: {name} has {image.width}×{image.height} pixels for {count:,} Gaussians; it is damaged"
                )
            check_memory(f"{path}: {name}", 8 * image.width * image.height)
            return np.asarray(image.convert("RGBA"))
    except FileError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise FileError(f"{path}: {name} cannot be read as an image ({error})") from error
