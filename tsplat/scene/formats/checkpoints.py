"""Finds, verifies and reads training checkpoints, independently of the training code.

A run's ``checkpoints/`` folder contains one folder per checkpoint and a file ``latest`` with the name of the newest:

    step_00007000/
        checkpoint.json        manifest: step, configuration, figures, versions, and hashes of all files
        scene.safetensors      the raw parameters: means, log_scales, quats, opacity_logits, sh0, shN
        training.safetensors   the other tensors for resuming
        rows/                  instead of scene.safetensors, the shards of a run with several ranks

:mod:`tsplat.training.runs.run_checkpoints` writes them.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...errors import ArgumentError, FileError
from ...support.reading import check_memory, check_possible, open_file, read_file, read_json, stays_inside
from ..gaussians import GSPLAT_NAMES, Gaussians
from ..georeference import WORLD, Georeference, georeference_path, parse_georeference
from .foreign import listed
from .image_sets import META
from .lcc import find_index, read_offset
from .models import POINT_CLOUD, read_model
from .ply import ply_georeference
from .safetensors_file import SafetensorsFile
from .streaming.streamed_sog import LOD_META
from .torch_checkpoints import DTYPES

T = TypeVar("T")

FORMAT, VERSION = "tsplat checkpoint", 1
SHARDING, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
"""Metadata of a shard in the format of ``torch.distributed.checkpoint``: JSON with the first row of each tensor."""

SCENE, TRAINING, MANIFEST, LATEST = "scene.safetensors", "training.safetensors", "checkpoint.json", "latest"
ROWS = "rows"
SCENE_PREFIX = "scene/"
"""Prefix of the names of raw parameters in ``rows/``."""

RowsOf = Callable[[int], slice]
"""Returns the range of Gaussians to read, given their number."""

NAME = re.compile(r"step_(\d{8,})(?:_(\d+))?")
LATEST_BYTES_MAX = 4096
MANIFEST_TYPES = dict(step=int, n_gaussians=int, antialiased=bool, surfels=bool, files=dict, figures=dict, config=dict)
JSON_TYPES = {int: "integer", bool: "boolean", dict: "object"}


class CheckpointError(FileError):
    """A checkpoint is incomplete or damaged, or no valid checkpoint was found."""


@dataclasses.dataclass(frozen=True, eq=False)
class RawCheckpoint:
    """The content of a checkpoint: the raw parameters of the scene, other tensors, figures, and the configuration as
    JSON values."""

    step: int
    gaussians: Gaussians
    tensors: dict[str, Tensor]
    figures: dict[str, Any]
    config: dict[str, Any]


def open_model(
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    checkpoint: str | None = None,
    warn: Callable[[str], object] = warnings.warn,
) -> Gaussians:
    """Reads the Gaussians of a model file in any format, or of a training run.

    Args:
        path: A model as for :func:`read_model`; a run or its ``checkpoints`` folder, whose newest valid checkpoint is
            read; or a single checkpoint.
        force: As in :func:`read_raw_checkpoint` and :func:`read_model`.
        checkpoint: Step or folder name of a run's checkpoint to read instead of the newest.
        warn: Called with a message for each damaged checkpoint that is skipped, and with the notes of
            :func:`read_model`.

    Raises:
        CheckpointError: The run has no valid checkpoint, or no valid `checkpoint`.
        ArgumentError: `checkpoint` is given for a model that is not a run.
        AlreadyActivatedError: See :func:`read_raw_checkpoint`.
        FileError, UnsupportedError, MissingExtraError, OSError: See :func:`read_model`.
    """
    check_possible(path)
    if not is_run(path):
        if checkpoint is not None and Path(path).exists():
            raise ArgumentError(f"checkpoint: {path} is not a training run, so that it has no checkpoint {checkpoint}")
        return read_model(path, force=force, warn=warn)
    checkpoint_folder, raw, errors = read_newest_valid(
        path, lambda folder: read_raw_checkpoint(folder, force=force), checkpoint
    )
    for message in skipped_messages(errors, checkpoint_folder):
        warn(message)
    return raw.gaussians


def read_georeference(path: str | os.PathLike[str]) -> Georeference | None:
    """Reads the georeference of a model, which relates its coordinates to the frame of its scene's files; None if it is
    unknown.

    A run stores it as ``world.json`` if its models are not in that frame; for other models, :func:`write_model` writes
    it to a file beside them. If there is no such file, a PLY that :func:`read_ply` reads relative to an origin is
    itself in that frame, and LCC defines it by an offset.

    Args:
        path: A model as for :func:`open_model`.

    Raises:
        FileError: The file is damaged.
        OSError: The file cannot be read.
    """
    path = Path(path)
    run = run_folder(path) if is_run(path) else path.parent if path.name == POINT_CLOUD else path
    candidates = (*map(georeference_path, (path, path / META, path / LOD_META)), run / WORLD)
    file = next(filter(os.path.isfile, candidates), None)
    if file is not None:
        return parse_georeference(file)
    if (index := find_index(path)) is not None:
        return read_offset(index)
    return ply_georeference(path) if path.suffix.lower() == ".ply" and path.is_file() else None


def is_run(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is a run, its ``checkpoints`` folder, or a single checkpoint."""
    path = Path(path)
    return (path / "checkpoints").is_dir() or (path / LATEST).is_file() or (path / MANIFEST).is_file()


def run_folder(path: str | os.PathLike[str]) -> Path:
    """Returns the folder of a run, given the run, its ``checkpoints`` folder, or a checkpoint."""
    path = Path(path)
    if (path / MANIFEST).is_file():
        return path.absolute().parent.parent
    return path.absolute().parent if (path / LATEST).is_file() else path


def find_checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints in a folder, oldest first."""
    matches = {path: match for path in folder.iterdir() if (match := NAME.fullmatch(path.name)) and path.is_dir()}
    return sorted(matches, key=lambda path: (int(matches[path][1]), int(matches[path][2] or 1), path))


def read_newest_valid(
    folder: str | os.PathLike[str], read: Callable[[Path], T], checkpoint: str | None = None
) -> tuple[Path, T, list[str]]:
    """Reads the checkpoint that ``latest`` names or, if it is invalid, the newest valid one.

    Args:
        folder: A run, its ``checkpoints`` folder, or a single checkpoint, which is then the only candidate.
        read: Reads a checkpoint; raises CheckpointError if it is invalid.
        checkpoint: Step or folder name of the only candidate; None for all checkpoints.

    Returns:
        The folder of the checkpoint, the result of `read`, and the errors of skipped checkpoints.

    Raises:
        CheckpointError: No checkpoint is valid.
    """
    folder = Path(folder)
    if (folder / MANIFEST).is_file() or NAME.fullmatch(folder.name):
        if checkpoint is not None and find_checkpoint([folder], checkpoint) is None:
            raise CheckpointError(f"{folder}: is not checkpoint {checkpoint}; name the run's folder instead")
        return folder, read(folder), []
    if (folder / "checkpoints").is_dir():
        folder = folder / "checkpoints"
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "no such folder"
        raise CheckpointError(f"{folder}: {problem}; expected a run with a checkpoints/ folder")
    candidates = find_checkpoints(folder)[::-1]
    if checkpoint is not None:
        path = find_checkpoint(candidates, checkpoint)
        if path is None:
            names = ", ".join(candidate.name for candidate in candidates[::-1]) or "none"
            raise CheckpointError(f"{folder}: no checkpoint {checkpoint}; found {names}")
        return path, read(path), []
    with contextlib.suppress(OSError, ValueError):
        latest = folder / read_file(folder / LATEST, LATEST_BYTES_MAX).decode().strip()
        if latest in candidates:
            candidates.remove(latest)
            candidates.insert(0, latest)
    errors: list[str] = []
    for path in candidates:
        try:
            return path, read(path), errors
        except CheckpointError as error:
            errors.append(str(error))
    raise CheckpointError("; ".join([f"{folder}: no valid checkpoint found", *errors]))


def find_checkpoint(candidates: Sequence[Path], checkpoint: str) -> Path | None:
    """Returns the first candidate with a given folder name or step; None if there is none."""
    for path in candidates:
        match = NAME.fullmatch(path.name)
        is_step = match is not None and checkpoint.isdecimal() and match[1].lstrip("0") == checkpoint.lstrip("0")
        if is_step or path.name == checkpoint:
            return path
    return None


def skipped_messages(errors: Sequence[str], used: Path) -> list[str]:
    """Returns a message for each checkpoint that :func:`read_newest_valid` skipped."""
    return [f"skipped a damaged checkpoint ({error}); using {used.name}" for error in errors]


def has_rows(name: str, tensor: Tensor, n: int) -> bool:
    """Returns whether a tensor of the training state, such as ``adam/means/exp_avg``, has one row per Gaussian."""
    part, key = name.split("/")[:2]
    return tensor.shape[:1] == (n,) if part == "strategy" else key in GSPLAT_NAMES.values()


def read_raw_checkpoint(
    path: str | os.PathLike[str], *, force: bool = False, rows: RowsOf | None = None
) -> RawCheckpoint:
    """Verifies the hashes of a checkpoint folder ``step_...``, and reads it, or only the Gaussians in `rows`.

    Raises CheckpointError if a file is missing, truncated, modified or invalid. Raises AlreadyActivatedError if scales
    or opacities look activated, unless `force` is set or only some rows are read.
    """
    path = Path(path)
    with checkpoint_errors(path):
        manifest = read_manifest(path)
        _verify_files(path, manifest["files"])
        n = manifest["n_gaussians"]
        selection = slice(None) if rows is None else rows(n)
        tensors = _read_tensors(path / TRAINING, n, selection)
        if (path / ROWS).is_dir():
            shards = [path / name for name in manifest["files"] if name.startswith(f"{ROWS}/")]
            sharded = _read_rows(path / ROWS, shards, n, selection)
            scene = {k.removeprefix(SCENE_PREFIX): sharded.pop(k) for k in list(sharded) if k.startswith(SCENE_PREFIX)}
            tensors |= sharded
        else:
            scene = _read_tensors(path / SCENE, n, selection)
        for name, tensor in scene.items():
            if tensor.dtype not in DTYPES:
                raise CheckpointError(f"{path}: {name}: expected floats of 16 to 64 bits, found {tensor.dtype}")
        gaussians = Gaussians(**scene, antialiased=manifest["antialiased"], surfels=manifest["surfels"])
        if rows is None and len(gaussians) != n:
            raise CheckpointError(f"{path}: the manifest says {n:,} Gaussians, the file holds {len(gaussians):,}")
        checkpoint = RawCheckpoint(manifest["step"], gaussians, tensors, manifest["figures"], manifest["config"])
    if not force and rows is None:
        gaussians.check_not_activated(str(path))
    return checkpoint


def is_intact(path: Path) -> bool:
    """Returns whether all files of a checkpoint exist and match the hashes in its manifest."""
    try:
        with checkpoint_errors(path):
            _verify_files(path, read_manifest(path)["files"])
    except CheckpointError:
        return False
    return True


@contextlib.contextmanager
def checkpoint_errors(path: Path) -> Iterator[None]:
    """Converts any error that reading a damaged checkpoint can cause to a :class:`CheckpointError` with the path."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{error.filename or path}: cannot be read ({error.strerror or error})") from error
    except (ArgumentError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a valid checkpoint ({str(error)[:200]})") from error


def manifest_digest(manifest: dict[str, Any]) -> str:
    """Returns the SHA-256 of a manifest without its entry ``sha256``."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads the manifest of a checkpoint and verifies its own hash, but not the other files."""
    manifest: dict[str, Any] = read_json(path / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path / MANIFEST}: not a tsplat checkpoint")
    if manifest.get("version") != VERSION:
        raise CheckpointError(
            f"{path / MANIFEST}: has version {manifest.get('version')!r}, but this tsplat reads version {VERSION}; "
            "update tsplat"
        )
    if manifest.pop("sha256", None) != manifest_digest(manifest):
        raise CheckpointError(f"{path / MANIFEST}: modified or truncated since it was written (hash mismatch)")
    manifest.setdefault("surfels", False)  # not in checkpoints of earlier versions
    for name, type_ in MANIFEST_TYPES.items():
        if type(manifest.get(name)) is not type_:
            raise CheckpointError(f"{path / MANIFEST}: expected {name!r} to be a JSON {JSON_TYPES[type_]}")
    files = manifest["files"]
    is_complete = TRAINING in files and (SCENE in files or any(name.startswith(f"{ROWS}/") for name in files))
    if (
        not is_complete
        or not all(map(stays_inside, files))
        or not all(isinstance(entry, dict) for entry in files.values())
    ):
        raise CheckpointError(f"{path / MANIFEST}: expected the files of a checkpoint, found {listed(list(files))}")
    return manifest


def _verify_files(path: Path, files: dict[str, dict[str, Any]]) -> None:
    """Raises :class:`CheckpointError` unless the folder contains these files with these hashes; ignores other files."""
    missing = [name for name in sorted(files) if not (path / name).is_file()]
    if missing:
        raise CheckpointError(f"{path / missing[0]}: missing; copy a checkpoint's folder as a whole")
    for name, entry in files.items():
        with open_file(path / name) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != entry["sha256"]:
            raise CheckpointError(f"{path / name}: modified or truncated since it was written (hash mismatch)")


def _read_tensors(path: Path, n: int, selection: slice) -> dict[str, Tensor]:
    """Reads the tensors of a file; of tensors with one row per Gaussian, only the selected rows."""
    with SafetensorsFile(path) as file:
        sizes = {name: entry.dtype.itemsize * math.prod(entry.shape) for name, entry in file.entries.items()}
        check_memory(f"{path}: {len(sizes)} tensors", sum(sizes.values()), "free some")
        tensors = {}
        for name, entry in file.entries.items():
            is_row = path.name == SCENE or has_rows(name, torch.empty(entry.shape, device="meta"), n)
            tensors[name] = file.read(name, selection if is_row else slice(None))
        return tensors


def _read_rows(folder: Path, shards: Sequence[Path], n_rows: int, selection: slice = slice(None)) -> dict[str, Tensor]:
    """Reads the selected rows of tensors that are sharded over files with `n_rows` rows in total."""
    ids = range(n_rows)[selection]
    counts: dict[str, int] = defaultdict(int)
    pieces_of: dict[str, list[tuple[int, int, SafetensorsFile]]] = defaultdict(list)
    with contextlib.ExitStack() as files:
        for shard in shards:
            file = files.enter_context(SafetensorsFile(shard))
            offsets = json.loads(file.metadata[SHARDING])
            for name, entry in file.entries.items():
                counts[name] += entry.shape[0]
                pieces_of[name].append((offsets[name][OFFSETS][0], entry.shape[0], file))
        # Count rows before reading, because several names may refer to one file.
        for name, count in counts.items():
            if count != n_rows:
                raise ArgumentError(f"{folder}: the shards hold {count} rows of {name}, expected {n_rows}")
        entries = [pieces[0][2].entries[name] for name, pieces in pieces_of.items()]
        row_bytes = sum(entry.dtype.itemsize * math.prod(entry.shape[1:]) for entry in entries)
        check_memory(f"{folder}: {len(ids):,} rows", row_bytes * len(ids), "free some")
        rows: dict[str, Tensor] = {}
        for name, pieces in pieces_of.items():
            parts = []
            for first, count, file in sorted(pieces, key=itemgetter(0)):
                begin, end = (min(max(end - first, 0), count) for end in (ids.start, ids.stop))
                parts.append(file.read(name, slice(begin, end)))
            rows[name] = torch.cat([part for part in parts if len(part)] or parts[:1])
        return rows
