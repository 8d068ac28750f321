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
import secrets
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from ..errors import FileError
from ..scene.formats.checkpoints import (
    FORMAT,
    LATEST,
    MANIFEST,
    ROWS,
    SCENE,
    SCENE_PREFIX,
    TRAINING,
    VERSION,
    checkpoint_errors,
    find_checkpoints,
    manifest_digest,
    read_newest_valid,
    read_raw_checkpoint,
)
from ..scene.gaussians import Gaussians
from ..support.extras import require
from ..support.files import atomic_write
from .config import RunConfig, from_json, to_json
from .processes.group import Team
from .processes.shards import write_rows


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
        for old in find_checkpoints(folder)[:-keep]:
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
        rows = {SCENE_PREFIX + name: tensor for name, tensor in checkpoint.gaussians.tensors().items()}
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
    """Verifies the hashes of a checkpoint and reads it.

    Args, Raises:
        As :func:`tsplat.scene.formats.checkpoints.read_raw_checkpoint`; also CheckpointError for an invalid
        configuration.
    """
    path = Path(path)
    raw = read_raw_checkpoint(path, force=force)
    with checkpoint_errors(path):
        config = from_json(raw.config, str(path / MANIFEST))
    return Checkpoint(raw.step, raw.gaussians, raw.tensors, raw.figures, config)


def read_newest(folder: str | os.PathLike[str], *, force: bool = False) -> tuple[Path, Checkpoint, list[str]]:
    """Reads the newest valid checkpoint of a run.

    Args:
        folder: A run, its ``checkpoints`` folder, or a checkpoint, which then is the only candidate.
        force: As in :func:`read_checkpoint`.

    Returns:
        The checkpoint's folder, the checkpoint, and the errors of the invalid checkpoints that were skipped.

    Raises:
        CheckpointError: None is valid.
        AlreadyActivatedError: The parameters look activated already.
    """
    return read_newest_valid(folder, lambda path: read_checkpoint(path, force=force))


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
    manifest["sha256"] = manifest_digest(manifest)
    with atomic_write(folder / MANIFEST) as out:
        out.write(json.dumps(manifest, indent=1, allow_nan=False).encode())


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
