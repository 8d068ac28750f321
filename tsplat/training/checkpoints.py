"""Checkpoints: a folder a step, safetensors and JSON with hashes, there whole or not at all.

`step_00007000/` holds `scene.safetensors`, the raw parameters under names that say what their activation is (means,
log_scales, quats, opacity_logits, sh0, shN), `training.safetensors`, the rest of what training goes on from, and
`checkpoint.json` with figures, configuration, versions and the hashes of all three. `latest` beside it has the name of
the newest. A folder is written aside, flushed and renamed before `latest` names it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from ..errors import ArgumentError, FileError
from ..scene.formats.models import read_model
from ..scene.gaussians import Gaussians
from ..support.extras import require
from ..support.files import atomic_write
from .config import RunConfig, from_json, to_json
from .processes.group import Team
from .processes.shards import read_rows, write_rows

FORMAT, VERSION = "tsplat checkpoint", 1
SCENE, TRAINING, MANIFEST, LATEST = "scene.safetensors", "training.safetensors", "checkpoint.json", "latest"
ROWS = "rows"
NAME = re.compile(r"step_(\d{8,})(?:_(\d+))?")
MANIFEST_BYTES_MAX = 64 << 20


class CheckpointError(FileError):
    """A checkpoint is not whole, or not what it says."""


@dataclasses.dataclass(frozen=True, eq=False)
class Checkpoint:
    """A scene and where its training is.

    Attributes:
        step: Steps taken.
        gaussians: The scene's raw parameters.
        tensors, figures: The rest of what :meth:`tsplat.training.Trainer.restore` takes, and what the run added.
        config: Of the run.
        row_names: Those of the tensors that have a row for each Gaussian.
    """

    step: int
    gaussians: Gaussians
    tensors: dict[str, Tensor]
    figures: dict[str, Any]
    config: RunConfig
    row_names: frozenset[str] = frozenset()


def write_checkpoint(
    folder: Path, checkpoint: Checkpoint, keep: int | None = None, team: Team | None = None, *, sharded: bool = False
) -> Path:
    """Writes a checkpoint into `folder`; older ones than the newest `keep` go once it is there.

    Args:
        team: The ranks that call this together, all with the same checkpoint, which one writes.
        sharded: Whether each has its rows of it instead, as :meth:`Team.rows` shares them out; then all write.

    Returns:
        The checkpoint's own folder.

    Raises:
        FileError: It cannot be written; what was there before is as it was. On every rank.
        MissingExtraError: safetensors is not installed.
    """
    require("safetensors")
    team = team or Team()
    path, trouble = None, None
    try:
        aside = _begin(folder, checkpoint.step) if team.leads else None
    except OSError as error:
        aside, trouble = None, error.strerror or str(error)
    aside, trouble = team.collect((aside, trouble))[0]
    try:
        if aside is not None:
            trouble = _contents(aside, checkpoint, team, sharded)
            if team.leads and trouble is None:
                path = _finish(folder, aside)
    except OSError as error:
        trouble = error.strerror or str(error)
    finally:
        if aside is not None and team.leads and path is None:
            shutil.rmtree(aside, ignore_errors=True)
    told = team.collect((path, trouble))
    for rank, (_, words) in enumerate(told):
        if words is not None:
            where = f" on rank {rank}" if team.size > 1 and not words.startswith("rank ") else ""
            raise FileError(
                f"{folder}: the checkpoint of step {checkpoint.step} cannot be written{where} ({words}); those before "
                "it are intact: make room or choose another folder, then resume"
            )
    path = told[0][0]
    assert path is not None
    if keep is not None and team.leads:
        for old in checkpoints(folder)[:-keep]:
            if old != path:
                _remove(old)
    return path


def _begin(folder: Path, step: int) -> Path:
    """A folder to write to, beside where the checkpoint will be."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{_free_name(folder, step).name}.{secrets.token_hex(4)}"
    aside.mkdir()
    return aside


def _finish(folder: Path, aside: Path) -> Path:
    """Gives what is written its name, and has `latest` say so."""
    path = folder / aside.name[1:].rpartition(".")[0]
    _flush(aside)
    os.rename(aside, path)
    _flush(folder)
    with atomic_write(folder / LATEST) as file:
        file.write(path.name.encode() + b"\n")
    _flush(folder)
    return path


def _contents(aside: Path, checkpoint: Checkpoint, team: Team, sharded: bool) -> str | None:
    """Writes all files. Returns what goes wrong where all ranks write, alike on all."""
    tensors, n = checkpoint.tensors, len(checkpoint.gaussians)
    if sharded:
        rows = {f"scene/{name}": tensor for name, tensor in checkpoint.gaussians.tensors().items()}
        of_rows = {name: tensor for name, tensor in tensors.items() if name in checkpoint.row_names}
        total = sum(team.collect(n))
        try:
            if team.leads:
                (aside / ROWS).mkdir()
            team.wait()
            write_rows(aside / ROWS, rows | of_rows, total, team)
        except OSError as error:
            return error.strerror or str(error)
        tensors, n = {name: tensor for name, tensor in tensors.items() if name not in of_rows}, total
    if team.leads:
        _write_files(aside, checkpoint, tensors, n, sharded)
    return None


def read_checkpoint(path: str | os.PathLike[str], *, force: bool = False) -> Checkpoint:
    """Reads a checkpoint's folder, after its hashes were found to be right.

    Args:
        path: `step_...`.
        force: Whether to take values that look as if they had been through their activation already.

    Raises:
        CheckpointError: A file is missing, cut short or changed, or holds what it should not.
        AlreadyActivatedError: Values that look as if they had been through their activation already.
        MissingExtraError: safetensors is not installed.
    """
    require("safetensors")
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    manifest = _read_manifest(path)
    with _complaints(path):
        _check_files(path, manifest["files"])
        sharded = (path / ROWS).is_dir()
        try:
            tensors = load_file(path / TRAINING)
            scene = read_rows(path / ROWS, manifest["n_gaussians"]) if sharded else load_file(path / SCENE)
        except SafetensorError as error:
            raise CheckpointError(f"{path}: not tensors that can be read ({error})") from error
        if sharded:
            tensors |= {name: tensor for name, tensor in scene.items() if not name.startswith("scene/")}
            scene = {name.removeprefix("scene/"): t for name, t in scene.items() if name.startswith("scene/")}
        gaussians = Gaussians(**scene, antialiased=manifest["antialiased"])
        if len(gaussians) != manifest["n_gaussians"]:
            raise CheckpointError(f"{path}: tells of {manifest['n_gaussians']} Gaussians, holds {len(gaussians)}")
        config = from_json(manifest["config"], str(path / MANIFEST))
        checkpoint = Checkpoint(manifest["step"], gaussians, tensors, manifest["figures"], config)
    if not force:
        gaussians.check_not_activated(str(path))
    return checkpoint


def read_newest(folder: str | os.PathLike[str], *, force: bool = False) -> tuple[Path, Checkpoint, list[str]]:
    """Reads the newest checkpoint that is whole: what `latest` names, or what is found behind it.

    Args:
        folder: A run, its `checkpoints`, or a checkpoint, which then is the one to read.
        force: As of :func:`read_checkpoint`.

    Returns:
        The checkpoint's folder, the checkpoint, and in words what is wrong with those that were passed over.

    Raises:
        CheckpointError: None is whole.
        AlreadyActivatedError: As :func:`read_checkpoint`.
    """
    folder = Path(folder)
    if (folder / MANIFEST).is_file() or NAME.fullmatch(folder.name):
        return folder, read_checkpoint(folder, force=force), []
    if (folder / "checkpoints").is_dir():
        folder = folder / "checkpoints"
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; a run has checkpoints/ with a folder for each")
    candidates = checkpoints(folder)[::-1]
    with contextlib.suppress(OSError, UnicodeDecodeError):
        named = folder / (folder / LATEST).read_text("utf-8")[:100].strip()
        if named in candidates:
            candidates.remove(named)
            candidates.insert(0, named)
    troubles: list[str] = []
    for path in candidates:
        try:
            return path, read_checkpoint(path, force=force), troubles
        except CheckpointError as error:
            troubles.append(str(error))
    raise CheckpointError("; ".join([f"{folder}: found no checkpoint that is whole", *troubles]))


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the folder of a run, of its checkpoints, or of one of them."""
    path = Path(path)
    return (path / "checkpoints").is_dir() or (path / LATEST).is_file() or (path / MANIFEST).is_file()


def open_model(path: str | os.PathLike[str], *, force: bool = False) -> Gaussians:
    """The Gaussians of a model in any format, of a run's newest checkpoint that is whole, or of a checkpoint.

    Raises:
        As :func:`tsplat.scene.read_model` and :func:`read_newest`.
    """
    return read_newest(path, force=force)[1].gaussians if is_run(path) else read_model(path, force=force)


def checkpoints(folder: Path) -> list[Path]:
    """The folders of checkpoints, oldest first."""
    found = []
    for path in folder.iterdir():
        match = NAME.fullmatch(path.name)
        if match and path.is_dir():
            found.append((int(match[1]), int(match[2] or 1), path))
    return [path for _, _, path in sorted(found)]


def clean(folder: Path) -> None:
    """Removes what interrupted writes left; not while another process writes there."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name.startswith((".step_", ".gone_")) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)


def _write_files(
    folder: Path, checkpoint: Checkpoint, tensors: dict[str, Tensor], n_gaussians: int, sharded: bool
) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    contents = {TRAINING: tensors} if sharded else {SCENE: checkpoint.gaussians.tensors(), TRAINING: tensors}
    for name, group in contents.items():
        try:
            save_file({k: v.detach().cpu().contiguous().clone() for k, v in group.items()}, folder / name)
        except SafetensorError as error:
            raise OSError(str(error)) from error
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with open(path, "rb+") as file:
            files[path.relative_to(folder).as_posix()] = {
                "bytes": os.fstat(file.fileno()).st_size,
                "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
            }
            os.fsync(file.fileno())
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "step": checkpoint.step,
        "n_gaussians": n_gaussians,
        "antialiased": checkpoint.gaussians.antialiased,
        "files": files,
        "config": to_json(checkpoint.config),
        "figures": checkpoint.figures,
        "software": {"tsplat": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    manifest["sha256"] = _digest(manifest)
    with atomic_write(folder / MANIFEST) as out:
        out.write(json.dumps(manifest, indent=1, allow_nan=False).encode())


def _check_files(path: Path, files: dict[str, dict[str, Any]]) -> None:
    """Raises `CheckpointError` unless just these files are there, and as they were written."""
    there = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()} - {MANIFEST}
    for names, words in ((set(files) - there, "is missing"), (there - set(files), "does not belong there")):
        if names:
            raise CheckpointError(f"{path / min(names)}: {words}; a checkpoint is its whole folder as it was written")
    for name, told in files.items():
        with open(path / name, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != told["sha256"]:
            raise CheckpointError(f"{path / name}: was changed or cut short since it was written (hash differs)")


def _read_manifest(path: Path) -> dict[str, Any]:
    with _complaints(path):
        with open(path / MANIFEST, "rb") as file:
            if os.fstat(file.fileno()).st_size > MANIFEST_BYTES_MAX:
                raise CheckpointError(f"{path / MANIFEST}: is larger than any checkpoint's")
            manifest: dict[str, Any] = json.loads(file.read())
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise CheckpointError(f"{path / MANIFEST}: not a checkpoint of tsplat")
        if manifest.get("version") != VERSION:
            raise CheckpointError(
                f"{path / MANIFEST}: is of version {manifest.get('version')!r}, this tsplat reads {VERSION}; update it"
            )
        if manifest.pop("sha256", None) != _digest(manifest):
            raise CheckpointError(f"{path / MANIFEST}: was changed or cut short since it was written (hash differs)")
    return manifest


@contextlib.contextmanager
def _complaints(path: Path) -> Iterator[None]:
    """Whatever a broken file leads to, as one kind of error that names the checkpoint."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{error.filename or path}: cannot be read ({error.strerror or error})") from error
    except (ArgumentError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a checkpoint that can be read ({str(error)[:200]})") from error


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _free_name(folder: Path, step: int) -> Path:
    """A name that no other checkpoint of this step has, as none is ever overwritten."""
    path, n = folder / f"step_{step:08d}", 1
    while path.exists():
        n += 1
        path = folder / f"step_{step:08d}_{n}"
    return path


def _remove(path: Path) -> None:
    """Removes a checkpoint so that no half of it is ever found under its name."""
    gone = path.with_name(f".gone_{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        os.rename(path, gone)
        shutil.rmtree(gone, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Makes sure that names in a folder last; nothing to do where folders cannot be opened (Windows)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
