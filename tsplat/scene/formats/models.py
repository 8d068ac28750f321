"""Models of Gaussians in any format that is known, told by content first and by name where that says nothing."""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import FileError, UnsupportedError
from ...support.files import ZIP
from ..gaussians import Gaussians
from .ply import read_ply, write_ply
from .sog import META, read_sog
from .splat import read_splat, write_splat
from .spz import GZIP, MAGIC, read_spz
from .torch_checkpoints import CHECKPOINTS, read_torch_checkpoint

KNOWN = "PLY, .splat, .spz, .sog or its folder, gsplat's .pt, Inria's .pth"
READ_ONLY = (".spz", ".sog", ".pt", ".pth", ".json")


def read_model(path: str | os.PathLike[str], *, force: bool = False) -> Gaussians:
    """Reads Gaussians: PLY (plain or compressed), .splat, SPZ, SOG, gsplat's and Inria's checkpoints.

    Args:
        path: A file, a folder with SOG's ``meta.json``, or a folder with the checkpoints of gsplat's ranks.
        force: As in :func:`read_torch_checkpoint`; without meaning for other formats.

    Raises:
        FileError: It is none of these, or damaged.
        UnsupportedError: A format or version that is known but not implemented.
        MissingExtraError: A package is missing that the format needs.
        OSError: The file cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        if (path / META).exists():
            return read_sog(path)
        if any(path.glob("*.pt")):
            return read_torch_checkpoint(path, force=force)
        raise FileError(f"{path}: the folder has neither {META} of a SOG nor a .pt of gsplat; name a file: {KNOWN}")
    with open(path, "rb") as file:
        start = file.read(4)
    suffix = path.suffix.lower()
    if suffix == ".ksplat":
        raise UnsupportedError(f"{path}: .ksplat is not implemented; convert it with splat-transform to .ply")
    if suffix in CHECKPOINTS:
        return read_torch_checkpoint(path, force=force)
    if suffix == ".splat":
        return read_splat(path)
    if start[:3] == b"ply" or suffix == ".ply":
        return read_ply(path)
    if start[:2] == GZIP or start == MAGIC or suffix == ".spz":
        return read_spz(path)
    if path.name == META or suffix == ".sog" or start == ZIP:
        return read_sog(path)
    raise FileError(f"{path}: not a model that is known, by content or by name; expected {KNOWN}")


def write_model(path: str | os.PathLike[str], gaussians: Gaussians) -> None:
    """Writes ``.ply`` or ``.splat``, by the name; :func:`write_ply` and :func:`write_splat` say what is lost.

    Raises:
        UnsupportedError: A format that is read but not written, or spherical harmonics that it has no place for.
        FileError: Another name.
        ArgumentError: As :func:`write_splat`.
        OSError: The file cannot be written.
    """
    name = Path(path).name.lower()
    suffix = Path(name).suffix
    if suffix in READ_ONLY or name.endswith((".ksplat", ".compressed.ply")):
        raise UnsupportedError(f"{path}: writing this format is not implemented; write .ply or .splat")
    if suffix not in (".ply", ".splat"):
        raise FileError(f"{path}: cannot tell the format from the name; end it in .ply or .splat")
    (write_ply if suffix == ".ply" else write_splat)(path, gaussians)


def lost_in(path: str | os.PathLike[str], gaussians: Gaussians) -> list[str]:
    """What of Gaussians a file of this name has no place for, in words."""
    if Path(path).suffix.lower() == ".ply":
        return []
    lost = {
        f"view dependence (SH degree {gaussians.sh_degree})": gaussians.sh_degree > 0,
        "the mark of antialiased Gaussians": gaussians.antialiased,
        "all but 8 bits of colors, opacities and rotations": True,
    }
    return [words for words, holds in lost.items() if holds]
