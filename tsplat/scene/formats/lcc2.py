"""Reads LCC2 of XGRIDS, version 0.0.3. Data Organization Format originated from XGRIDS
(github.com/xgrids/LCC2Whitepaper).

``NAME.lcc2`` is JSON with a tree of levels of detail. A node refers to rows of a SOG, SPZ or PLY file in ``data/3dgs``;
its children show the same region in more detail. The leaves are the finest level. z is up, as in LCC.
"""

import os
import warnings
from collections.abc import Callable
from pathlib import Path

from ...errors import FileError, UnsupportedError
from ..gaussians import Gaussians
from ..joining import merge_models
from ..rotation import transform_gaussians, upright
from .foreign import Warn
from .json_objects import JsonObject
from .lcc import UP, read_meta
from .model_memory import check_model_memory
from .ply import read_ply
from .sog import read_sog
from .spz import read_spz
from .streaming.streamed_sog import check_names, select_rows

VERSION = "0.0.3"
READERS: dict[str, Callable[..., Gaussians]] = {".sog": read_sog, ".spz": read_spz, ".ply": read_ply}


def read_lcc2(path: str | os.PathLike[str], *, warn: Warn = warnings.warn) -> Gaussians:
    """Reads the leaves of an LCC2 dataset, its finest level, and its surroundings, converted to the axes of PLY files.

    Args:
        path: ``NAME.lcc2``; the other files are in a folder beside it.
        warn: Called with notes about coarser levels and surroundings, and with notes of the readers of its files.

    Raises:
        FileError: A file is damaged or inconsistent with the others.
        UnsupportedError: The version or the format of a file is not supported, or the dataset shifts or scales
            coordinates.
        MissingExtraError: An optional dependency of its files is not installed.
        OSError: A file is missing or cannot be read.
    """
    path = Path(path)
    meta = read_meta(path)
    if (version := str(meta.values.get("version"))) != VERSION:
        raise UnsupportedError(f"{path}: expected LCC2 of version {VERSION}, found {version[:20]!a}")
    root = meta.part("root")
    names = root.names("splatFiles")
    around = root.part("data").part("env")
    whole = [around.count("name")] if around.values else []
    rows: dict[int, list[tuple[int, int]]] = {}
    for leaf in _leaves(root):
        rows.setdefault(leaf.count("name"), []).append((leaf.count("start"), leaf.count("count")))
    if wrong := [file for file in [*rows, *whole] if file >= len(names)]:
        raise FileError(f"{path}: a leaf is in file {wrong[0]} of {len(names)}; it is damaged")
    if not rows:
        raise FileError(f"{path}: no leaf has Gaussians; it is damaged")
    check_names(path, [names[file] for file in [*rows, *whole]])
    check_model_memory(str(path), sum(count for ranges in rows.values() for _, count in ranges))
    if (n_levels := meta.count("totalLevels")) > 1:
        warn(f"{path}: read the finest of {n_levels} levels of detail")
    models = [select_rows(path, names[file], _read(path, names[file], warn), rows[file]) for file in sorted(rows)]
    for file in whole:
        models.append(_read(path, names[file], warn))
        warn(f"{path}: {len(models[-1]):,} Gaussians are the surroundings in {names[file]}")
    return transform_gaussians(merge_models(models, warn=warn), upright(UP))


def _leaves(root: JsonObject) -> list[JsonObject]:
    """Returns the entries ``data.3dgs`` of the leaves, which describe their Gaussians."""
    leaves, stack = [], [root]
    while stack:
        node = stack.pop()
        children = node.values.get("child")
        if isinstance(children, list):
            stack += node.parts("child")[::-1]
        elif children:
            child = node.part("child")
            stack += [child.part(name) for name in child.values][::-1]
        elif (own := node.part("data").part("3dgs")).values:
            leaves.append(own)
    return leaves


def _read(path: Path, name: str, warn: Warn) -> Gaussians:
    """Reads a file of the dataset."""
    suffix = Path(name).suffix.lower()
    if suffix not in READERS:
        raise UnsupportedError(f"{path}: expected files of {', '.join(READERS)}, found {name[:60]!a}")
    if not os.path.isfile(path.parent / name):  # also if the name is too long for a file
        raise FileError(f"{path}: its file {name[:60]!a} is missing, or its name is damaged")
    return READERS[suffix](path.parent / name, warn=warn)
