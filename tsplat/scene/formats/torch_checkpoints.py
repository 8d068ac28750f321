"""Reads training checkpoints of gsplat, nerfstudio's splatfacto and Inria's 3D Gaussian Splatting.

gsplat saves ``{"step": int, "splats": {means, scales, quats, opacities, sh0, shN}}`` as ``ckpt_<step>_rank<rank>.pt``,
one file per rank with the Gaussians of that rank. Nerfstudio saves ``{"step": int, "pipeline":
{"_model.gauss_params.means": ...}}`` as ``nerfstudio_models/step-<step>.ckpt``. Inria saves ``(model_params,
iteration)`` as ``chkpnt<iteration>.pth``. All store values before activation. Files are read with
``torch.load(weights_only=True)``, so they cannot execute code.
"""

import contextlib
import io
import os
import re
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import ArgumentError, FileError, UnsupportedError
from ...support.files import ZIP
from ...support.reading import check_memory, open_file, read_file
from ..gaussians import GSPLAT_NAMES, PARAMETERS, Gaussians
from ..sh_colors import colors_to_sh0
from .foreign import Warn, note_ignored
from .image_sets import ZIP_ERRORS

CHECKPOINT_SUFFIXES = (".pt", ".pth", ".ckpt")
"""File name suffixes."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

PIECE = 1 << 22
"""Number of bytes that are read at a time to verify a checksum."""

RANK = re.compile(r"(?P<stem>.*?)(?P<step>\d*)_rank(?P<rank>\d{1,6})\.pt")
NERFSTUDIO_NAMES = GSPLAT_NAMES | {"sh0": "features_dc", "shN": "features_rest"}
NERFSTUDIO_NAME = re.compile(r"(?:module\.)?_model\.(?:gauss_params\.)?(\w+)")
"""Names in the state of nerfstudio's pipeline, also for several GPUs and versions before 1.1."""

NERFSTUDIO_CHECKPOINT = re.compile(r"step-(\d+)\.ckpt")

ANTIALIASED = {"config.yml": r"rasterize_mode: antialiased", "cfg.yml": r"antialiased: true"}
"""Settings file of nerfstudio or gsplat, above the checkpoint folder -> line that enables antialiasing."""

SETTINGS_BYTES_MAX = 1 << 20

INRIA_SIZE = 12
"""Length of Inria's model_params."""

INRIA_INDICES = {"means": 1, "sh0": 2, "shN": 3, "log_scales": 4, "quats": 5, "opacity_logits": 6}
"""Indices of the tensors in Inria's model_params."""

NUMPY_GLOBALS: list[Any] = [
    # Inria saves the scene extent as a NumPy scalar; its constructor has different names in NumPy 1 and 2.
    (np.float32(0).__reduce__()[0], "numpy.core.multiarray.scalar"),
    (np.float32(0).__reduce__()[0], "numpy._core.multiarray.scalar"),
    np.dtype,
    np.dtypes.Float32DType,
    np.dtypes.Float64DType,
]


def read_torch_checkpoint(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, force: bool = False, warn: Warn = warnings.warn
) -> Gaussians:
    """Reads a checkpoint of gsplat, with its ranks concatenated in order, of nerfstudio's splatfacto, or of Inria.

    The settings of gsplat and nerfstudio in the parent folder determine whether the model is antialiased.

    Args:
        paths: One file; the files of all ranks of gsplat; or a folder, whose last step is read.
        force: Read values that look already activated instead of raising an error.
        warn: Called with a note that lists ignored parts of a gsplat checkpoint, such as the poses of training cameras.

    Returns:
        Gaussians in float32 on the CPU.

    Raises:
        FileError: The file is not a checkpoint, is damaged, contains pickled objects other than tensors and numbers,
            or belongs to a set of ranks that is incomplete.
        AlreadyActivatedError: The values look as if exp and sigmoid had already been applied.
        UnsupportedError: The colors are not spherical harmonics.
        OSError: A file cannot be read.
    """
    shards = _find_shards(paths)
    # Memory for the files and twice the parameters. Several names may refer to one file.
    needed = 3 * sum(os.stat(path).st_size for path in shards)
    check_memory(f"{shards[0]}: a checkpoint of {len(shards)} files", needed, "free some")
    steps, parts = zip(*(_read(path, warn) for path in shards))
    _check_consistent(shards, steps, parts)
    tensors = {
        name: torch.cat([part[name] for part in parts]) if len(parts) > 1 else parts[0][name] for name in PARAMETERS
    }
    scales = tensors["log_scales"]
    is_flat = scales.dim() == 2 and scales.shape[1] == 2  # a checkpoint of 2DGS
    if is_flat:
        tensors["log_scales"] = torch.nn.functional.pad(scales, (0, 1))
    try:
        gaussians = Gaussians(**tensors, antialiased=_is_antialiased(shards[0]), surfels=False)
    except ArgumentError as error:
        raise FileError(f"{shards[0]}: inconsistent tensors: {error}") from error
    if not force:
        gaussians.check_not_activated(str(shards[0]))
    return gaussians.as_surfels() if is_flat else gaussians


def _find_shards(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Returns the files to read, ordered by rank. Raises FileError if one is missing."""
    if isinstance(paths, str | os.PathLike):
        path = Path(paths)
        return _last_step(path) if path.is_dir() else _sorted_by_rank([path])
    if not paths:
        raise ArgumentError("paths: expected the checkpoints of all ranks, found none")
    return _sorted_by_rank([Path(path) for path in paths])


def _last_step(folder: Path) -> list[Path]:
    """Returns the files of the last step in a folder, ordered by rank."""
    steps = {path: match for path in folder.glob("*.ckpt") if (match := NERFSTUDIO_CHECKPOINT.fullmatch(path.name))}
    if steps:
        return [max(steps, key=lambda path: int(steps[path][1]))]
    ranked = [(path, match) for path in sorted(folder.glob("*.pt")) if (match := RANK.fullmatch(path.name))]
    if not ranked:
        raise FileError(
            f"{folder}: expected files ckpt_<step>_rank<rank>.pt or step-<step>.ckpt, found none; pass the path of the "
            "file instead"
        )
    last = max((int(match["step"] or 0), match["stem"], match["step"]) for _, match in ranked)[1:]
    return _sorted_by_rank([path for path, match in ranked if (match["stem"], match["step"]) == last])


def _is_antialiased(checkpoint: Path) -> bool:
    """Returns whether the settings above a checkpoint enable antialiasing. YAML is read as text, because its tags could
    run code."""
    for name, line in ANTIALIASED.items():
        with contextlib.suppress(OSError):
            text = read_file(checkpoint.absolute().parent.parent / name, SETTINGS_BYTES_MAX).decode("utf-8", "replace")
            return re.search(rf"^\s*{line}\s*$", text, re.MULTILINE) is not None
    return False


def _sorted_by_rank(paths: list[Path]) -> list[Path]:
    """Sorts paths by rank and checks that no rank is missing. Files without a rank in their name keep their order."""
    matches = {path: match for path in paths if (match := RANK.fullmatch(path.name))}
    if not matches:
        return paths
    names = {(path.parent, match["stem"], match["step"]) for path, match in matches.items()}
    if len(names) > 1 or len(matches) < len(paths):
        raise FileError(f"{', '.join(map(str, paths))}: expected the ranks of one step, found several steps or files")
    ((folder, stem, step),) = names
    ranks = {int(match["rank"]): path for path, match in matches.items()}
    beside = {
        int(match["rank"]): path
        for path in folder.glob("*.pt")
        if (match := RANK.fullmatch(path.name)) and (match["stem"], match["step"]) == (stem, step)
    }
    omitted = [str(beside[rank]) for rank in sorted(beside.keys() - ranks.keys())]
    if omitted:
        raise FileError(
            f"{paths[0]}: the checkpoint continues in {', '.join(omitted)}; pass the files of all ranks or the folder"
        )
    missing = sorted(set(range(max(ranks) + 1)) - ranks.keys())
    if missing:
        names_missing = ", ".join(f"{stem}{step}_rank{rank}.pt" for rank in missing[:8])
        raise FileError(f"{paths[0]}: files of other ranks are missing: {names_missing}; copy them to {folder}")
    return [ranks[rank] for rank in sorted(ranks)]


def _read(path: Path, warn: Warn) -> tuple[int | None, dict[str, Tensor]]:
    """Returns the step, or None, and the parameters by their names in :class:`Gaussians`."""
    content = _load(path)
    step: object
    match content:
        case {"splats": dict(splats)}:
            step = content.get("step")
            tensors = _select_gsplat(path, splats)
            others = [str(name) for name in splats if name not in GSPLAT_NAMES.values()]
            others += [str(name) for name in content if name not in ("splats", "step")]
            note_ignored(path, "the parts", others, warn)
        case {"pipeline": dict(state)}:
            step = content.get("step")
            tensors = _select_nerfstudio(path, state)
        case (tuple() | list() as values, step) if len(values) == INRIA_SIZE:
            tensors = {name: values[index] for name, index in INRIA_INDICES.items()}
        case _:
            raise FileError(
                f"{path}: expected a checkpoint of gsplat (a dict with 'splats'), nerfstudio (a dict with 'pipeline') "
                f"or Inria (a tuple of model_params and iteration), found another {type(content).__name__}"
            )
    opacities = tensors["opacity_logits"]
    if isinstance(opacities, Tensor) and opacities.dim() == 2:
        tensors["opacity_logits"] = opacities.flatten() if opacities.shape[1] == 1 else opacities
    for name, tensor in tensors.items():
        plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided and tensor.device.type == "cpu"
        if not plain or tensor.dtype not in DTYPES:
            what = f"{tensor.dtype} on {tensor.device}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise FileError(f"{path}: {name}: expected a dense tensor of 16 to 64 bit floats, found {what}")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise FileError(
                f"{path}: {name}: expected a value for each entry, found {list(tensor.shape)} expanded from "
                f"{tensor.untyped_storage().nbytes():,} bytes; save tensors that are contiguous"
            )
    # Copy the tensors, so that the rest of their storages is released.
    plain_tensors = {name: tensor.detach().float().clone().contiguous() for name, tensor in tensors.items()}
    return step if isinstance(step, int) else None, plain_tensors


def _load(path: Path) -> Any:
    with open_file(path) as opened:
        is_archive = opened.read(4) == ZIP
    if is_archive:
        _check_records(path)
    # The legacy format is read from memory, so that a damaged length cannot cause a large allocation. Archives are not
    # mapped into memory, because truncating a mapped file while it is read would end the process.
    file = path if is_archive else io.BytesIO(path.read_bytes())
    try:
        with torch.serialization.safe_globals(NUMPY_GLOBALS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True, mmap=False)
    except Exception as error:  # damaged files raise nearly any exception in the unpickler
        reason = " ".join(str(error).split())
        if "weights_only" in reason or "Unsupported" in reason:
            match = re.search(r"(?:GLOBAL|global|class) [`']?([\w.]+)", reason)
            what = f" ({match[1]})" if match else ""
            raise FileError(
                f"{path}: contains objects that could run code{what}, or is damaged; save only tensors and numbers"
            ) from error
        raise FileError(f"{path}: not a file written by torch.save, or damaged ({reason[:200]})") from error


def _check_records(path: Path) -> None:
    """Verifies the checksums of the records in a ZIP archive, which ``torch.load`` ignores."""
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            stored = all(record.compress_type == zipfile.ZIP_STORED for record in records)
            if not stored or sum(record.file_size for record in records) > path.stat().st_size:
                raise FileError(f"{path}: its records are compressed or overlap, unlike those of torch.save")
            for record in records:
                # torch.serialization.set_crc32_options(False) stores zeros instead of checksums.
                if record.CRC:
                    with archive.open(record) as file:
                        while file.read(PIECE):
                            pass
    except FileError:
        raise
    except ZIP_ERRORS as error:
        raise FileError(f"{path}: damaged or cut short ({' '.join(str(error).split())[:200]})") from error


def _select_gsplat(path: Path, splats: dict[Any, Any]) -> dict[str, Tensor]:
    """Returns gsplat's tensors by their names in :class:`Gaussians`."""
    missing = [theirs for theirs in GSPLAT_NAMES.values() if theirs not in splats]
    if "features" in splats and "sh0" in missing:
        raise UnsupportedError(
            f"{path}: colors from a network (app_opt) are not implemented; only spherical harmonics are"
        )
    if missing:
        raise FileError(f"{path}: 'splats' lacks {', '.join(missing)}")
    return {name: splats[theirs] for name, theirs in GSPLAT_NAMES.items()}


def _select_nerfstudio(path: Path, state: dict[Any, Any]) -> dict[str, Any]:
    """Returns splatfacto's tensors by their names in :class:`Gaussians`."""
    theirs_by_name = {
        match[1]: tensor for name, tensor in state.items() if (match := NERFSTUDIO_NAME.fullmatch(str(name)))
    }
    missing = [name for name in NERFSTUDIO_NAMES.values() if not isinstance(theirs_by_name.get(name), Tensor)]
    if missing:
        raise FileError(f"{path}: 'pipeline' lacks {', '.join(missing)} of splatfacto; other methods are not read")
    tensors = {name: theirs_by_name[theirs] for name, theirs in NERFSTUDIO_NAMES.items()}
    if tensors["shN"].dim() == 3 and tensors["shN"].shape[1] == 0:
        # With SH degree 0, splatfacto's colors are the sigmoid of sh0.
        tensors["sh0"] = colors_to_sh0(tensors["sh0"].sigmoid())
    if tensors["sh0"].dim() == 2:
        tensors["sh0"] = tensors["sh0"][:, None]
    return tensors


def _check_consistent(paths: Sequence[Path], steps: Sequence[int | None], parts: Sequence[dict[str, Tensor]]) -> None:
    """Checks that the files of several ranks belong to one checkpoint."""
    shapes = [", ".join(["N", *map(str, part["shN"].shape[1:])]) for part in parts]
    for path, step, shape in zip(paths, steps, shapes):
        if step != steps[0] or shape != shapes[0]:
            raise FileError(
                f"{path}: expected step {steps[0]} and shN [{shapes[0]}] as in {paths[0]}, found step {step} and "
                f"shN [{shape}]; the files belong to different checkpoints"
            )
