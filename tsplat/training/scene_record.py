"""Where the scene of a run is, and which photographs it was trained on."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..errors import FileError
from ..scene.capture.views import Capture
from .configuration import RunConfig

NAMED_MAX = 5
"""Number of photographs that a message names."""

WORKERS = 4

Photographs = dict[str, list[dict[str, Any]]]
"""Name of a view -> size and SHA-256 of its photograph and, if there is one, of its mask."""


def with_absolute_scene(config: RunConfig) -> RunConfig:
    """Returns the configuration with the absolute path of its scene."""
    return dataclasses.replace(config, scene=os.path.abspath(config.scene)) if config.scene else config


def locate_scene(config: RunConfig, record: dict[str, Any], folder: Path, override: str | None) -> RunConfig:
    """Returns the configuration of a run with the path where its scene is now.

    Args:
        config: As in the checkpoint.
        record: The checkpoint's :func:`record_scene`; empty for older checkpoints.
        folder: The run's folder now.
        override: The path that the user gave, if any.

    Raises:
        FileError: The scene is neither at its absolute path nor at its path relative to the run.
    """
    if override is not None:
        return with_absolute_scene(dataclasses.replace(config, scene=override))
    if not config.scene:
        return config
    relative = record.get("relative")
    paths = [config.scene, *([os.path.normpath(folder.absolute() / relative)] if relative else [])]
    for path in paths:
        if os.path.exists(path):
            return with_absolute_scene(dataclasses.replace(config, scene=path))
    raise FileError(f"{' and '.join(dict.fromkeys(paths))}: no such scene; where it is now: --scene PATH")


def record_scene(config: RunConfig, photographs: Photographs, folder: Path) -> dict[str, Any]:
    """What a checkpoint holds about the scene, as JSON values."""
    relative = None
    if config.scene:
        try:
            relative = Path(os.path.relpath(config.scene, folder)).as_posix()
        except ValueError:  # another drive
            relative = None
    return {"relative": relative, "photographs": photographs}


def describe_photographs(capture: Capture) -> Photographs:
    """Reads sizes and hashes of all files that the views of a capture were read from.

    Raises:
        OSError: A file cannot be read.
    """
    views = [view for view in (*capture.train, *capture.test) if view.files]
    with ThreadPoolExecutor(WORKERS) as pool:
        found = pool.map(lambda view: [_describe(path) for path in view.files], views)
        return {view.name: files for view, files in zip(views, found, strict=True)}


def differences(recorded: Photographs, found: Photographs) -> list[str]:
    """Returns a phrase for each photograph that has changed, is missing or is new; none without a record."""
    if not recorded:
        return []
    phrases = []
    for name, files in recorded.items():
        if name not in found:
            phrases.append(f"{name} is missing")
        elif files != found[name]:
            phrases.append(f"{name} {_change(files, found[name])}")
    return phrases + [f"{name} is new" for name in found if name not in recorded]


def difference_message(phrases: Sequence[str], scene: str) -> str:
    """A sentence about :func:`differences`."""
    more = f" and {len(phrases) - NAMED_MAX} more" if len(phrases) > NAMED_MAX else ""
    return f"{scene}: {len(phrases)} photographs differ from those of the run: {', '.join(phrases[:NAMED_MAX])}{more}"


def _change(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> str:
    if len(old) != len(new):
        return "has a mask" if len(new) > len(old) else "has no mask"
    what = "has changed" if old[:1] != new[:1] else "has another mask"
    before, after = next((a["bytes"], b["bytes"]) for a, b in zip(old, new, strict=True) if a != b)
    return f"{what} ({before} bytes, now {after})" if before != after else f"{what} (its hash differs)"


def _describe(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
