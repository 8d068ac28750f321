"""Reads Streamed SOG, version 1: ``lod-meta.json`` and folders with SOG 2, such as ``0_3/meta.json`` of level 0.

``lod-meta.json`` lists the datasets and contains a tree of boxes. For each level of detail, a leaf refers to rows of a
dataset; level 0 is the finest. An ``environment`` is a dataset that belongs to every level.
"""

import contextlib
import os
import warnings
from pathlib import Path

import torch

from ....errors import ArgumentError, FileError, UnsupportedError
from ....support.reading import allow_overwrite, read_file, stays_inside
from ...gaussians import Gaussians
from ...joining import merge_models
from ..foreign import Warn, note_ignored
from ..image_sets import META, named_images
from ..json_objects import JsonObject, is_file_name
from ..model_memory import check_model_memory
from ..sog import read_sog

LOD_META = "lod-meta.json"
LOD_META_MAX = 1 << 28
"""Maximum size of ``lod-meta.json`` in bytes."""

VERSION = 1
KNOWN = ("version", "asset", "count", "counts", "lodLevels", "environment", "filenames", "tree")


def read_streamed_sog(path: str | os.PathLike[str], *, level: int = 0, warn: Warn = warnings.warn) -> Gaussians:
    """Reads one level of detail of a Streamed SOG dataset.

    Args:
        path: The folder, or ``lod-meta.json`` in it.
        level: Level of detail, 0 for the finest. If a leaf lacks it, its next coarser level is read, or else its
            coarsest.
        warn: Called with a note that lists unknown parts.

    Raises:
        ArgumentError: `level` is negative.
        FileError: A file or value is missing, damaged or inconsistent with the others.
        UnsupportedError: The version of the format is not supported.
        MissingExtraError: Pillow is not installed.
        OSError: A file cannot be read.
    """
    if not isinstance(level, int) or level < 0:
        raise ArgumentError(f"level: expected a number of 0 or more, found {level!r}")
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    meta = _read_lod_meta(folder)
    if meta.count("version", VERSION) != VERSION:  # the first files had none
        raise UnsupportedError(f"{path}: expected Streamed SOG version {VERSION}, found {meta.count('version')}")
    note_ignored(path, "the parts", (name for name in meta.values if name not in KNOWN), warn)
    names = meta.names("filenames")
    rows: dict[int, list[tuple[int, int]]] = {}
    for file, offset, count in _leaves(meta, level):
        if file >= len(names):
            raise FileError(f"{path}: {LOD_META}: a leaf is in file {file} of {len(names)}; it is damaged")
        rows.setdefault(file, []).append((offset, count))
    environment = [meta.text("environment")] if "environment" in meta.values else []
    check_names(folder / LOD_META, [*(names[file] for file in rows), *environment])
    check_model_memory(str(path), sum(count for ranges in rows.values() for _, count in ranges))
    models = [
        select_rows(folder / LOD_META, names[file], read_sog(folder / names[file], warn=warn), rows[file])
        for file in sorted(rows)
    ]
    models += [read_sog(folder / name, warn=warn) for name in environment]
    if not models:
        raise FileError(f"{path}: {LOD_META}: no leaf has Gaussians; it is damaged")
    return merge_models(models, warn=warn)


def dataset_size(folder: Path) -> int:
    """Returns the total size in bytes of all files of a written dataset."""
    names = _read_lod_meta(folder).values["filenames"]
    files = [folder / LOD_META, *(file for name in names for file in (folder / name).parent.iterdir())]
    return sum(file.stat().st_size for file in files)


def _read_lod_meta(folder: Path) -> JsonObject:
    return JsonObject.parse(str(folder), read_file(folder / LOD_META, LOD_META_MAX), LOD_META)


def named_files(folder: Path) -> set[str]:
    """Returns the names of all files in the ``lod-meta.json`` of an earlier output; an empty set if it cannot be
    read."""
    with contextlib.suppress(FileError, OSError), allow_overwrite():
        filenames = _read_lod_meta(folder).values.get("filenames")
        names = [name for name in filenames if isinstance(name, str)] if isinstance(filenames, list) else []
        paths = [Path(name).parts for name in names]
        datasets = {parts[0] for parts in paths if len(parts) == 2 and parts[1] == META and is_file_name(parts[0])}
        return {f"{name}/{file}" for name in datasets for file in (META, *named_images(folder / name))}
    return set()


def check_names(meta: Path, names: list[str]) -> None:
    """Raises FileError if names in an index lead out of its folder, or if two names refer to the same file."""
    seen: dict[str, str] = {}
    for name in names:
        if not stays_inside(name) or not name.isprintable() or not name.isascii() or "\\" in name:
            raise FileError(f"{meta.parent}: {meta.name}: expected names of files in it, found {name[:60]!a}")
        real_path = os.path.realpath(meta.parent / name)
        if real_path in seen:
            raise FileError(
                f"{meta.parent}: {meta.name}: found {seen[real_path][:60]!a} and {name[:60]!a}, which are the same "
                "file; it is damaged"
            )
        seen[real_path] = name


def _leaves(meta: JsonObject, level: int) -> list[tuple[int, int, int]]:
    """Returns (file, offset, count) of each leaf."""
    leaves = []
    stack = [meta.part("tree")]
    while stack:
        node = stack.pop()
        stack += node.parts("children")[::-1]
        lods = node.part("lods")
        if not lods.values:
            continue
        if not all(name.isascii() and name.isdecimal() and len(name) < 4 for name in lods.values):
            raise node.fail("lods", "levels by their numbers")
        levels = sorted(map(int, lods.values))
        lod = lods.part(str(next((coarser for coarser in levels if coarser >= level), levels[-1])))
        leaves.append((lod.count("file"), lod.count("offset"), lod.count("count")))
    return leaves


def select_rows(meta: Path, name: str, gaussians: Gaussians, ranges: list[tuple[int, int]]) -> Gaussians:
    """Returns the rows of a dataset in ranges (offset, count), in ascending order; raises FileError for invalid
    ranges."""
    end = 0
    ranges = sorted(ranges)
    for offset, count in ranges:
        if offset < end or offset + count > len(gaussians):
            raise FileError(
                f"{meta.parent}: {meta.name}: rows {offset:,} to {offset + count:,} of {name} overlap others, or it "
                f"has only {len(gaussians):,}; it is damaged"
            )
        end = offset + count
    if sum(count for _, count in ranges) == len(gaussians):
        return gaussians
    ids = torch.cat([torch.arange(offset, offset + count, device="cpu") for offset, count in ranges])
    return gaussians.select(ids)
