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
from ..checks import ArgumentError
from ..scene.extras import require
from ..scene.files import FileError, write_whole
from ..scene.gaussians import Gaussians
from ..scene.models import read_model
from .config import RunConfig, from_json, to_json

FORMAT, VERSION = "tsplat checkpoint", 1
SCENE, TRAINING, MANIFEST, LATEST = "scene.safetensors", "training.safetensors", "checkpoint.json", "latest"
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
    """

    step: int
    gaussians: Gaussians
    tensors: dict[str, Tensor]
    figures: dict[str, Any]
    config: RunConfig


def write_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int | None = None) -> Path:
    """Writes a checkpoint into `folder`; older ones than the newest `keep` go once it is there.

    Returns:
        The checkpoint's own folder.

    Raises:
        FileError: It cannot be written; what was there before is as it was.
        MissingExtraError: safetensors is not installed.
    """
    require("safetensors")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = _free_name(folder, checkpoint.step)
        aside = folder / f".{path.name}.{secrets.token_hex(4)}"
        try:
            aside.mkdir()
            _write_files(aside, checkpoint)
            _flush(aside)
            os.rename(aside, path)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        _flush(folder)
        with write_whole(folder / LATEST) as file:
            file.write(path.name.encode() + b"\n")
        _flush(folder)
    except OSError as error:
        raise FileError(
            f"{folder}: the checkpoint of step {checkpoint.step} cannot be written ({error.strerror or error}); "
            "those before it are intact: make room or choose another folder, then resume"
        ) from error
    if keep is not None:
        for old in checkpoints(folder)[:-keep]:
            if old != path:
                _remove(old)
    return path


def read_checkpoint(path: str | os.PathLike[str], *, force: bool = False) -> Checkpoint:
    """Reads a checkpoint's folder, after its hashes were found to be right.

    Args:
        path: `step_...`.
        force: Whether to take values that look as if they had been through their activation already.

    Raises:
        CheckpointError: A file is missing, cut short or changed, or holds what it should not.
        ActivatedError: Values that look as if they had been through their activation already.
        MissingExtraError: safetensors is not installed.
    """
    require("safetensors")
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    manifest = _read_manifest(path)
    with _complaints(path):
        for name, told in manifest["files"].items():
            if name not in (SCENE, TRAINING):
                raise CheckpointError(f"{path}: lists a file {name!r} that no checkpoint has")
            with open(path / name, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != told["sha256"]:
                raise CheckpointError(f"{path / name}: was changed or cut short since it was written (hash differs)")
        scene, tensors = ({}, {})
        try:
            scene = load_file(path / SCENE)
            tensors = load_file(path / TRAINING)
        except SafetensorError as error:
            raise CheckpointError(f"{path}: not tensors that can be read ({error})") from error
        gaussians = Gaussians(**scene, antialiased=manifest["antialiased"])
        if len(gaussians) != manifest["n_gaussians"]:
            raise CheckpointError(f"{path}: tells of {manifest['n_gaussians']} Gaussians, holds {len(gaussians)}")
        config = from_json(manifest["config"], str(path / MANIFEST))
        checkpoint = Checkpoint(manifest["step"], gaussians, tensors, manifest["figures"], config)
    if not force:
        gaussians.check_raw(str(path))
    return checkpoint


def newest(folder: str | os.PathLike[str]) -> tuple[Path, list[str]]:
    """The newest checkpoint that is whole: what `latest` names, or what is found behind it.

    Args:
        folder: A run, its `checkpoints`, or a checkpoint.

    Returns:
        The checkpoint's folder, and in words what is wrong with those that were passed over.

    Raises:
        CheckpointError: None is whole.
    """
    folder = Path(folder)
    if (folder / MANIFEST).is_file() or NAME.fullmatch(folder.name):
        return folder, []
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
    troubles = []
    for path in candidates:
        try:
            read_checkpoint(path, force=True)
        except CheckpointError as error:
            troubles.append(str(error))
        else:
            return path, troubles
    raise CheckpointError("; ".join([f"{folder}: found no checkpoint that is whole", *troubles]))


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the folder of a run, of its checkpoints, or of one of them."""
    path = Path(path)
    return (path / "checkpoints").is_dir() or (path / LATEST).is_file() or (path / MANIFEST).is_file()


def open_scene(path: str | os.PathLike[str], *, force: bool = False) -> Gaussians:
    """The Gaussians of a model in any format, of a run's newest checkpoint that is whole, or of a checkpoint.

    Raises:
        As :func:`tsplat.scene.read_model` and :func:`read_checkpoint`.
    """
    return read_checkpoint(newest(path)[0], force=force).gaussians if is_run(path) else read_model(path, force=force)


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


def _write_files(folder: Path, checkpoint: Checkpoint) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    contents = {SCENE: checkpoint.gaussians.tensors(), TRAINING: checkpoint.tensors}
    files = {}
    for name, tensors in contents.items():
        try:
            save_file({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, folder / name)
        except SafetensorError as error:
            raise OSError(str(error)) from error
        with open(folder / name, "rb+") as file:
            files[name] = {
                "bytes": os.fstat(file.fileno()).st_size,
                "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
            }
            os.fsync(file.fileno())
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "step": checkpoint.step,
        "n_gaussians": len(checkpoint.gaussians),
        "antialiased": checkpoint.gaussians.antialiased,
        "files": files,
        "config": to_json(checkpoint.config),
        "figures": checkpoint.figures,
        "software": {"tsplat": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    manifest["sha256"] = _digest(manifest)
    with write_whole(folder / MANIFEST) as out:
        out.write(json.dumps(manifest, indent=1, allow_nan=False).encode())


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
