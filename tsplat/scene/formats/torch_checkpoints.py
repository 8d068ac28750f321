"""Checkpoints of other programs: gsplat's, one file a rank, and Inria's.

gsplat saves ``{"step": int, "splats": {means, scales, quats, opacities, sh0, shN}}`` as ``ckpt_<step>_rank<rank>.pt``,
each rank its own Gaussians; Inria ``(model_params, iteration)`` as ``chkpnt<iteration>.pth``. Both hold values before
their activation. Files are read by ``torch.load(weights_only=True)``, so that none can run code.
"""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import ArgumentError, FileError, UnsupportedError
from ...support.files import ZIP
from ..gaussians import PARAMETERS, Gaussians

CHECKPOINTS = (".pt", ".pth")
RANK = re.compile(r"(?P<stem>.*?)(?P<step>\d*)_rank(?P<rank>\d{1,6})\.pt")
GSPLAT = {"log_scales": "scales", "opacity_logits": "opacities"}
INRIA_SIZE = 12
INRIA = {"means": 1, "sh0": 2, "shN": 3, "log_scales": 4, "quats": 5, "opacity_logits": 6}
"""Places in Inria's model_params."""

NUMPY_GLOBALS: list[Any] = [
    # Inria saves the scene's extent as a NumPy number; NumPy 1 and 2 name what makes one differently.
    (np.float32(0).__reduce__()[0], "numpy.core.multiarray.scalar"),
    (np.float32(0).__reduce__()[0], "numpy._core.multiarray.scalar"),
    np.dtype,
    np.dtypes.Float32DType,
    np.dtypes.Float64DType,
]


def read_torch_checkpoint(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, force: bool = False
) -> Gaussians:
    """Reads a checkpoint of gsplat, its ranks merged in order, or of Inria.

    Args:
        paths: A file; the files of all ranks; or a folder, of which the ranks of the last step are read.
        force: Take values as they are where they look as if they were activated already.

    Returns:
        Gaussians of float32 on the CPU.

    Raises:
        FileError: Not such a checkpoint, damaged, with pickled objects other than tensors and numbers, without the
            files of the other ranks, or of values that look as after exp and sigmoid.
        UnsupportedError: A checkpoint whose colors are not spherical harmonics.
        OSError: A file cannot be read.
    """
    shards = _shards(paths)
    parts = [_read(path) for path in shards]
    if len(parts) > 1:
        _check_alike(shards, parts)
    merged = [part for _, part in parts]
    tensors = {
        name: torch.cat([part[name] for part in merged]) if len(merged) > 1 else merged[0][name] for name in PARAMETERS
    }
    try:
        gaussians = Gaussians(**tensors, antialiased=False)
    except ArgumentError as error:
        raise FileError(f"{shards[0]}: its tensors do not go together: {error}") from error
    if not force:
        gaussians.check_raw(str(shards[0]))
    return gaussians


def _shards(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files to read, in the order of their ranks, none of them missing."""
    if isinstance(paths, str | os.PathLike):
        path = Path(paths)
        return _of_folder(path) if path.is_dir() else _complete([path])
    if not paths:
        raise ArgumentError("paths: found none; name the checkpoints of all ranks")
    return _complete([Path(path) for path in paths])


def _of_folder(folder: Path) -> list[Path]:
    ranked = [(path, match) for path in sorted(folder.glob("*.pt")) if (match := RANK.fullmatch(path.name))]
    if not ranked:
        raise FileError(f"{folder}: there are no checkpoints ckpt_<step>_rank<rank>.pt in it; name the file")
    last = max((int(match["step"] or 0), match["stem"], match["step"]) for _, match in ranked)[1:]
    return _complete([path for path, match in ranked if (match["stem"], match["step"]) == last])


def _complete(paths: list[Path]) -> list[Path]:
    """Paths in the order of ranks; files whose names have no rank in the order given."""
    found = {path: match for path in paths if (match := RANK.fullmatch(path.name))}
    if not found:
        return paths
    names = {(path.parent, match["stem"], match["step"]) for path, match in found.items()}
    if len(names) > 1 or len(found) < len(paths):
        raise FileError(f"{', '.join(map(str, paths))}: these are not the ranks of one step; name those of one")
    ((folder, stem, step),) = names
    ranks = {int(match["rank"]): path for path, match in found.items()}
    beside = {
        int(match["rank"]): path
        for path in folder.glob("*.pt")
        if (match := RANK.fullmatch(path.name)) and (match["stem"], match["step"]) == (stem, step)
    }
    left_out = [str(beside[rank]) for rank in sorted(beside.keys() - ranks.keys())]
    if left_out:
        raise FileError(
            f"{paths[0]}: other ranks have more of its Gaussians, in {', '.join(left_out)}; name all or the folder"
        )
    missing = sorted(set(range(max(ranks) + 1)) - ranks.keys())
    if missing:
        names_missing = ", ".join(f"{stem}{step}_rank{rank}.pt" for rank in missing[:8])
        raise FileError(f"{paths[0]}: Gaussians of this scene are missing, in {names_missing} which is not beside it")
    return [ranks[rank] for rank in sorted(ranks)]


def _read(path: Path) -> tuple[int | None, dict[str, Tensor]]:
    """Step, and parameters by the names of :class:`Gaussians`."""
    content = _load(path)
    step: object
    match content:
        case {"splats": dict(splats)}:
            step = content.get("step")
            tensors = _gsplat(path, splats)
        case (tuple() | list() as values, step) if len(values) == INRIA_SIZE:
            tensors = {name: values[place] for name, place in INRIA.items()}
            opacities = tensors["opacity_logits"]
            if isinstance(opacities, Tensor) and opacities.dim() == 2:
                tensors["opacity_logits"] = opacities.flatten() if opacities.shape[1] == 1 else opacities
        case _:
            raise FileError(
                f"{path}: neither gsplat's checkpoint (a dictionary with 'splats') nor Inria's (a tuple of model "
                f"parameters and iteration), but {type(content).__name__}"
            )
    for name, tensor in tensors.items():
        plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided and tensor.device.type == "cpu"
        if not plain or not tensor.is_floating_point():
            what = f"{tensor.dtype} on {tensor.device}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise FileError(f"{path}: {name} should be a tensor of floating point numbers, found {what}")
    # Copies, as what was read may lie in the file's own pages.
    plain_tensors = {name: tensor.detach().float().clone().contiguous() for name, tensor in tensors.items()}
    return step if isinstance(step, int) else None, plain_tensors


def _load(path: Path) -> Any:
    with open(path, "rb") as opened:
        mapped = opened.read(4) == ZIP
    # The older format cannot be mapped. From memory no more can be read than there is, whatever a length in it says.
    file = path if mapped else io.BytesIO(path.read_bytes())
    try:
        with torch.serialization.safe_globals(NUMPY_GLOBALS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # damaged bytes raise nearly anything in the unpickler
        reason = " ".join(str(error).split())
        if "weights_only" in reason or "Unsupported" in reason:
            found = re.search(r"(?:GLOBAL|global|class) [`']?([\w.]+)", reason)
            what = f" ({found[1]})" if found else ""
            raise FileError(
                f"{path}: holds Python objects that could run code{what}, or is damaged; save only tensors and numbers"
            ) from error
        raise FileError(f"{path}: not a file of torch.save, or damaged ({reason[:200]})") from error


def _gsplat(path: Path, splats: dict[Any, Any]) -> dict[str, Tensor]:
    wanted = {name: GSPLAT.get(name, name) for name in PARAMETERS}
    missing = [theirs for theirs in wanted.values() if theirs not in splats]
    if "features" in splats and "sh0" in missing:
        raise UnsupportedError(f"{path}: colors by a network (app_opt) are not implemented, only spherical harmonics")
    if missing:
        raise FileError(f"{path}: its splats lack {', '.join(missing)}")
    return {name: splats[theirs] for name, theirs in wanted.items()}


def _check_alike(paths: Sequence[Path], parts: Sequence[tuple[int | None, dict[str, Tensor]]]) -> None:
    steps = [step for step, _ in parts]
    sizes = [tuple(part["shN"].shape[1:]) for _, part in parts]
    for path, step, size in zip(paths, steps, sizes):
        if step != steps[0] or size != sizes[0]:
            raise FileError(
                f"{path}: is of step {step} with shN {list(size)}, but {paths[0]} of step {steps[0]} with "
                f"{list(sizes[0])}; they are not ranks of one scene"
            )
