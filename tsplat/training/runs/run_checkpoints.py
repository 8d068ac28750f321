"""Writes checkpoints atomically, and reads them with the configuration of their run.

:mod:`tsplat.scene.formats.checkpoints` describes the files. A checkpoint is written to a temporary folder, flushed to
disk and renamed; then its name is written to ``latest``.
"""

import contextlib
import dataclasses
import json
import os
import platform
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import __version__
from ...errors import FileError
from ...runtime.process_group import RankGroup
from ...scene.capture.views import View
from ...scene.formats.checkpoints import (
    FORMAT,
    LATEST,
    MANIFEST,
    OFFSETS,
    ROWS,
    SCENE,
    SCENE_PREFIX,
    SHARDING,
    TRAINING,
    VERSION,
    RowsOf,
    checkpoint_errors,
    find_checkpoints,
    is_intact,
    manifest_digest,
    read_manifest,
    read_newest_valid,
    read_raw_checkpoint,
)
from ...scene.formats.safetensors_file import write_safetensors
from ...scene.gaussians import GSPLAT_NAMES, Gaussians
from ...support.files import atomic_write, size_and_hash
from ...support.output import FULL
from ..configuration import RunConfig, from_json, to_json
from ..parameters import scene_tensors
from ..view_corrections import Lenses, ViewGains


@dataclasses.dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything that a run needs to resume.

    Attributes:
        step: Number of steps taken.
        gaussians: The raw parameters of the scene, in the frame of the run's model.
        tensors: The other tensors of :meth:`tsplat.training.Trainer.state`, and Gaussian parameters that differ in the
            local frame of training.
        figures: JSON values; the entry ``trainer`` has those of :meth:`tsplat.training.Trainer.state`.
        config: The run's configuration.
        per_gaussian_names: Names of the tensors that have a row per Gaussian.
    """

    step: int
    gaussians: Gaussians
    tensors: dict[str, Tensor]
    figures: dict[str, Any]
    config: RunConfig
    per_gaussian_names: frozenset[str] = frozenset()

    def local_tensors(self) -> dict[str, Tensor]:
        """Returns the tensors of :meth:`tsplat.training.Trainer.state`, in the local frame of training."""
        return scene_tensors(self.gaussians) | self.tensors

    def local_gaussians(self) -> Gaussians:
        """Returns the Gaussians in the local frame of training."""
        tensors = self.local_tensors()
        values: dict[str, Any] = {name: tensors[f"params/{theirs}"] for name, theirs in GSPLAT_NAMES.items()}
        return dataclasses.replace(self.gaussians, **values)

    def with_lenses(self, views: Sequence[View], train: Sequence[View]) -> Sequence[View]:
        """Returns views with the learned lenses, as :meth:`tsplat.training.Trainer.with_lenses`.

        `train` are all training views.
        """
        changes = self.tensors.get("params/lenses")
        if changes is None:
            return views
        device = views[0].camera.viewmat.device
        return Lenses([view.camera for view in train]).apply_to_views(views, changes.to(device))

    def known_gains(self, views: Sequence[View], train: Sequence[View]) -> Tensor | None:
        """Returns the gains of held-out views, as :meth:`tsplat.training.Trainer.known_gains`.

        `train` are all training views.
        """
        if not self.figures["trainer"].get("gains_known", False):
            return None
        gains = ViewGains(len(train), self.tensors["gains/logs"])
        gains.set_known(self.tensors["gains/logs"])
        return gains.of_held_out(train, views)


def has_checkpoints(folder: Path) -> bool:
    """Returns whether a run has saved a checkpoint, valid or not. An interrupted write does not count."""
    path = folder / "checkpoints"
    return path.is_dir() and bool(find_checkpoints(path))


def read_checkpoint(path: str | os.PathLike[str], *, force: bool = False, rows: RowsOf | None = None) -> Checkpoint:
    """Verifies the hashes of a checkpoint and reads it.

    Args:
        path: The folder ``step_...``.
        force: Accept parameters that look activated already.
        rows: Returns the rows to read, given the number of Gaussians; by default all.

    Raises:
        CheckpointError: A file is missing, truncated, modified or invalid.
        AlreadyActivatedError: The parameters look activated already.
    """
    path = Path(path)
    raw = read_raw_checkpoint(path, force=force, rows=rows)
    with checkpoint_errors(path):
        config = from_json(raw.config, str(path / MANIFEST))
    return Checkpoint(raw.step, raw.gaussians, raw.tensors, raw.figures, config)


def read_newest(
    folder: str | os.PathLike[str], *, force: bool = False, checkpoint: str | None = None, rows: RowsOf | None = None
) -> tuple[Path, Checkpoint, list[str]]:
    """Reads the newest valid checkpoint of a run.

    Args:
        folder: A run, its ``checkpoints`` folder, or a checkpoint, which then is the only candidate.
        force: As in :func:`read_checkpoint`.
        checkpoint: Step or folder name of the only candidate; None for all.
        rows: As in :func:`read_checkpoint`.

    Returns:
        The checkpoint's folder, the checkpoint, and the errors of the invalid checkpoints that were skipped.

    Raises:
        CheckpointError: No checkpoint is valid, or `checkpoint` does not exist.
        AlreadyActivatedError: The parameters look activated already.
    """
    return read_newest_valid(folder, lambda path: read_checkpoint(path, force=force, rows=rows), checkpoint)


def read_newest_settings(
    folder: str | os.PathLike[str], checkpoint: str | None = None
) -> tuple[Path, RunConfig, dict[str, Any]]:
    """Like :func:`read_newest`, but reads only the path, the configuration and the ``figures`` of the checkpoint."""

    def read(path: Path) -> tuple[RunConfig, dict[str, Any]]:
        with checkpoint_errors(path):
            manifest = read_manifest(path)
            return from_json(manifest["config"], str(path / MANIFEST)), manifest["figures"]

    path, (config, figures), _ = read_newest_valid(folder, read, checkpoint)
    return path, config, figures


def write_checkpoint(
    folder: Path,
    checkpoint: Checkpoint,
    keep: int | None = None,
    ranks: RankGroup | None = None,
    *,
    sharded: bool = False,
    intact: dict[Path, bool] | None = None,
) -> Path:
    """Writes a checkpoint into a folder, then deletes old checkpoints.

    Args:
        folder: The run's folder of checkpoints.
        checkpoint: Content to write; the same on every rank or, if `sharded`, with this rank's rows.
        keep: Number of newest intact checkpoints to keep; newer damaged ones are kept, too. None to keep all.
        ranks: The ranks that call this together.
        sharded: Whether each rank writes its shard, see :meth:`RankGroup.shard_rows`. Otherwise rank 0 writes.
        intact: Cache of which checkpoints are intact, so that none is verified twice; updated in place.

    Returns:
        The folder of the new checkpoint.

    Raises:
        FileError: The checkpoint cannot be written; existing ones are unchanged. Raised on every rank.
    """
    ranks = ranks or RankGroup()
    path, problem = None, None
    try:
        temporary = _create_temporary(folder, checkpoint.step) if ranks.is_main else None
    except OSError as error:
        temporary, problem = None, _reason(error)
    temporary, problem = ranks.all_gather_object((temporary, problem))[0]
    try:
        if temporary is not None:
            problem = _write_contents(temporary, checkpoint, ranks, sharded)
            if ranks.is_main and problem is None:
                path = _publish(folder, temporary)
    except OSError as error:
        problem = _reason(error)
    finally:
        if temporary is not None and ranks.is_main and path is None:
            shutil.rmtree(temporary, ignore_errors=True)
    results = ranks.all_gather_object((path, problem))
    for rank, (_, problem) in enumerate(results):
        if problem is not None:
            where = f" on rank {rank}" if ranks.world_size > 1 and not problem.startswith("rank ") else ""
            raise FileError(
                f"{folder}: the checkpoint of step {checkpoint.step} cannot be written{where} ({problem}); its tensors "
                f"have {_size(checkpoint):,} bytes{_free(folder)}; earlier checkpoints are intact: free disk space or "
                "choose another folder, then resume"
            )
    path = results[0][0]
    assert path is not None
    if keep is not None and ranks.is_main:
        intact = {} if intact is None else intact
        intact[path] = True
        _delete_old(folder, path, keep, intact)
    return path


def _delete_old(folder: Path, written: Path, keep: int, intact: dict[Path, bool]) -> None:
    """Deletes the checkpoints that are older than the newest `keep` intact ones, except the one just written."""
    n_kept = 0
    for path in reversed(find_checkpoints(folder)):
        if n_kept < keep:
            if path not in intact:
                intact[path] = is_intact(path)
            n_kept += intact[path]
        elif path != written:
            _delete(path)


def _size(checkpoint: Checkpoint) -> int:
    """Returns the size of the tensors of a checkpoint, or of this rank's rows of them, in bytes."""
    tensors = [*checkpoint.gaussians.tensors().values(), *checkpoint.tensors.values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _reason(error: OSError) -> str:
    # The message for a full disk states the size of a single file, not of the checkpoint.
    return os.strerror(error.errno) if error.errno and error.errno in FULL else error.strerror or str(error)


def _free(folder: Path) -> str:
    try:
        return f", and {shutil.disk_usage(folder).free:,} are free"
    except OSError:
        return ""


def delete_incomplete(folder: Path) -> None:
    """Deletes remains of interrupted writes and deletions. No other process may be writing checkpoints there."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name.startswith((".step_", ".gone_")) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)


def _create_temporary(folder: Path, step: int) -> Path:
    """Creates a temporary folder, whose name contains the name of the future checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{_unused_path(folder, step).name}.{secrets.token_hex(4)}"
    temporary.mkdir()
    return temporary


def _unused_path(folder: Path, step: int) -> Path:
    """Returns a path for a checkpoint of this step that does not exist, as checkpoints are never overwritten."""
    path, n = folder / f"step_{step:08d}", 1
    while path.exists():
        n += 1
        path = folder / f"step_{step:08d}_{n}"
    return path


def _publish(folder: Path, temporary: Path) -> Path:
    """Renames the temporary folder to the checkpoint's name and updates ``latest``."""
    path = folder / temporary.name[1:].rpartition(".")[0]
    for directory in (temporary / ROWS, temporary):
        if directory.is_dir():
            _flush(directory)
    os.rename(temporary, path)
    _flush(folder)
    with atomic_write(folder / LATEST) as file:
        file.write(path.name.encode() + b"\n")
    _flush(folder)
    return path


def _write_contents(folder: Path, checkpoint: Checkpoint, ranks: RankGroup, sharded: bool) -> str | None:
    """Writes all files. Returns an error message, on every rank, if writing shards fails; otherwise None."""
    tensors, n = checkpoint.tensors, len(checkpoint.gaussians)
    if sharded:
        rows = {SCENE_PREFIX + name: tensor for name, tensor in checkpoint.gaussians.tensors().items()}
        rows |= {name: tensor for name, tensor in tensors.items() if name in checkpoint.per_gaussian_names}
        counts = ranks.all_gather_object(n)
        n = sum(counts)
        problem = _problem(ranks, (folder / ROWS).mkdir if ranks.is_main else lambda: None) or _problem(
            ranks, lambda: _write_shard(folder / ROWS, rows, ranks.rank, sum(counts[: ranks.rank]))
        )
        if problem is not None:
            return problem
        tensors = {name: tensor for name, tensor in tensors.items() if name not in rows}
    if ranks.is_main:
        _write_files(folder, checkpoint, tensors, n, sharded)
    return None


def _problem(ranks: RankGroup, write: Callable[[], object]) -> str | None:
    """Calls a function on every rank. Returns the messages of the OSErrors of all ranks; None if there are none.

    Other errors, such as too little memory, are also raised on the rank on which they occur.
    """
    problem, other = None, None
    try:
        write()
    except OSError as error:
        problem = _reason(error)
    except Exception as error:
        problem, other = f"{type(error).__name__}: {error}", error
    problems = ranks.all_gather_object(problem)
    if other is not None:
        raise other
    return "; ".join(f"rank {rank}: {reason}" for rank, reason in enumerate(problems) if reason is not None) or None


def _write_shard(folder: Path, tensors: dict[str, Tensor], rank: int, first: int) -> None:
    """Writes the rows of a rank and flushes them to disk; `first` is the index of its first row."""
    offsets = {name: {OFFSETS: [first, *[0] * (tensor.dim() - 1)]} for name, tensor in tensors.items()}
    path = folder / f"shard-{rank:05d}.safetensors"
    write_safetensors(path, tensors, {SHARDING: json.dumps(offsets)})
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _write_files(
    folder: Path, checkpoint: Checkpoint, tensors: dict[str, Tensor], n_gaussians: int, sharded: bool
) -> None:
    """Writes the safetensors files that are not sharded, and the manifest with the hashes of all files."""
    contents = {TRAINING: tensors} if sharded else {SCENE: checkpoint.gaussians.tensors(), TRAINING: tensors}
    for name, group in contents.items():
        write_safetensors(folder / name, group)
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with open(path, "rb+") as file:
            files[path.relative_to(folder).as_posix()] = size_and_hash(file)
            os.fsync(file.fileno())
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "step": checkpoint.step,
        "n_gaussians": n_gaussians,
        "antialiased": checkpoint.gaussians.antialiased,
        "surfels": checkpoint.gaussians.surfels,
        "files": files,
        "config": to_json(checkpoint.config),
        "figures": checkpoint.figures,
        "software": {"tsplat": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    manifest["sha256"] = manifest_digest(manifest)
    with atomic_write(folder / MANIFEST) as out:
        out.write(json.dumps(manifest, indent=1, allow_nan=False).encode())


def _delete(path: Path) -> None:
    """Deletes a checkpoint. It is renamed first, so that a partly deleted one is never read."""
    renamed = path.with_name(f".gone_{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        os.rename(path, renamed)
        shutil.rmtree(renamed, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Flushes a folder's entries to disk, if the platform can open folders (not on Windows)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
