"""PLY files in the layout of Inria's 3D Gaussian Splatting (Kerbl et al., 2023).

One vertex per Gaussian: x y z, nx ny nz (unused), f_dc_0..2 (SH degree 0), f_rest_* (higher degrees, channel by
channel), opacity (logit), scale_0..2 (logarithms), rot_0..3 (wxyz). All values are before activation.

Models trained with ``rasterize_mode="antialiased"`` are marked with the header line ``comment SplatRenderMode: mip``,
as Brush and splat-transform do. Postshot's ``comment antialiased 1`` is read as well.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from einops import rearrange

from ...errors import FileError, UnsupportedError
from ...support.files import atomic_write
from ..gaussians import Gaussians
from .compressed_ply import decode_compressed_ply, encode_compressed_ply
from .ply_file import PlyFile

REST_SIZES = (0, 9, 24, 45)
"""Number of f_rest properties for SH degrees 0 to 3."""

GROUPS = {
    "means": ("x", "y", "z"),
    "sh0": ("f_dc_0", "f_dc_1", "f_dc_2"),
    "opacity_logits": ("opacity",),
    "log_scales": ("scale_0", "scale_1", "scale_2"),
    "quats": ("rot_0", "rot_1", "rot_2", "rot_3"),
}
"""Parameter -> its PLY properties."""

ANTIALIASED_COMMENT = "SplatRenderMode: mip"


def read_ply(path: str | os.PathLike[str]) -> Gaussians:
    """Reads Gaussians from a PLY file in ASCII, little-endian or big-endian, or from PlayCanvas's compressed PLY.

    The properties may be in any order; unknown ones are ignored. Memory is allocated only after the sizes in the header
    have been checked against the size of the file. Apart from the Gaussians, reading needs a few megabytes.

    Raises:
        FileError: The file is not a PLY of Gaussians, or it is cut short.
        UnsupportedError: A variant of the format that is not implemented.
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        ply = PlyFile(file, str(path))
        antialiased = is_antialiased(ply)
        if "vertex" not in ply.elements:
            raise FileError(f"{path}: not a PLY of Gaussians; expected an element 'vertex'")
        vertex = ply.elements["vertex"]
        if "packed_position" in vertex.names:
            return decode_compressed_ply(ply, antialiased)
        n_rest = _check_names(ply.path, vertex.names)
        groups = {**GROUPS, "shN": tuple(f"f_rest_{i}" for i in range(n_rest))}
        blocks = ply.blocks("vertex")
        values = {group: np.empty((vertex.count, len(names)), np.float32) for group, names in groups.items()}
        first = 0
        # A double beyond the range of float32 becomes infinite, which makes the Gaussian invalid.
        with np.errstate(over="ignore", invalid="ignore"):
            for block in blocks:
                for group, names in groups.items():
                    target = values[group][first : first + len(block)]
                    for column, name in zip(_columns(group, len(names)), names):
                        target[:, column] = block[name]
                first += len(block)
    tensors = {group: torch.from_numpy(array) for group, array in values.items()}
    tensors["opacity_logits"] = tensors["opacity_logits"][:, 0]
    tensors["sh0"] = tensors["sh0"][:, None]
    tensors["shN"] = tensors["shN"].view(vertex.count, n_rest // 3, 3)
    return Gaussians(**tensors, antialiased=antialiased)


def write_ply(path: str | os.PathLike[str], gaussians: Gaussians) -> None:
    """Writes a little-endian PLY file atomically: 62 floats per Gaussian, with zeros for normals and unused degrees.

    Raises:
        UnsupportedError: The SH degree is above 3.
        OSError: The file cannot be written.
    """
    _check_degree(gaussians)
    tensors = {name: tensor.detach().cpu().numpy() for name, tensor in gaussians.tensors().items()}
    count = len(gaussians)
    rest = np.zeros((count, REST_SIZES[-1] // 3, 3), "<f4")
    rest[:, : tensors["shN"].shape[1]] = tensors["shN"]
    values = np.concatenate(
        [
            tensors["means"],
            np.zeros((count, 3)),
            tensors["sh0"][:, 0],
            rearrange(rest, "n k c -> n (c k)"),
            tensors["opacity_logits"][:, None],
            tensors["log_scales"],
            tensors["quats"],
        ],
        axis=1,
        dtype="<f4",
        casting="same_kind",
    )
    f_rest = tuple(f"f_rest_{i}" for i in range(REST_SIZES[-1]))
    names = (
        *(*GROUPS["means"], "nx", "ny", "nz", *GROUPS["sh0"], *f_rest),
        *(*GROUPS["opacity_logits"], *GROUPS["log_scales"], *GROUPS["quats"]),
    )
    lines = ["ply", "format binary_little_endian 1.0"]
    lines += [f"comment {comment}" for comment in _comments(gaussians)]
    lines += [f"element vertex {count}", *(f"property float {name}" for name in names), "end_header", ""]
    with atomic_write(path) as file:
        file.write("\n".join(lines).encode())
        file.write(values.tobytes())


def write_compressed_ply(path: str | os.PathLike[str], gaussians: Gaussians) -> None:
    """Writes PlayCanvas's compressed PLY atomically, in Morton order.

    Positions, log scales and colors have 8 to 11 bits between the bounds of 256 Gaussians, rotations 10 bits, and
    opacities 8 bits. SH coefficients above degree 0 have 8 bits between -4 and 4.

    Raises:
        UnsupportedError: The SH degree is above 3.
        ArgumentError: A Gaussian is invalid; the format cannot represent NaN.
        OSError: The file cannot be written.
    """
    _check_degree(gaussians)
    content = encode_compressed_ply(gaussians, _comments(gaussians))
    with atomic_write(path) as file:
        file.write(content)


def _check_degree(gaussians: Gaussians) -> None:
    if gaussians.sh_degree > 3:
        raise UnsupportedError(f"sh_degree: expected at most 3 for a PLY of Gaussians, found {gaussians.sh_degree}")


def _comments(gaussians: Gaussians) -> list[str]:
    return [ANTIALIASED_COMMENT] if gaussians.antialiased else []


def is_antialiased(ply: PlyFile) -> bool:
    """Returns whether the header's comments mark the model as antialiased. The last such comment decides.

    Raises:
        UnsupportedError: The model is marked as 2DGS.
    """
    mode = "default"
    for comment in ply.comments:
        match comment.lower().split():
            case ["splatrendermode:", mode]:
                pass
            case ["antialiased", flag] if flag in ("0", "1"):
                mode = "mip" if flag == "1" else "default"
    if mode == "2dgs":
        raise UnsupportedError(f"{ply.path}: rendering 2D Gaussians (2DGS) is not implemented")
    return mode == "mip"


def _columns(group: str, size: int) -> list[int]:
    """Column of each property in its array. f_rest is stored [channel, coefficient], shN is [coefficient, channel]."""
    return [3 * (i % (size // 3)) + i // (size // 3) for i in range(size)] if group == "shN" else list(range(size))


def _check_names(path: str, names: list[str]) -> int:
    """Checks the property names of the vertices and returns the number of f_rest properties."""
    missing = [name for group in GROUPS.values() for name in group if name not in names]
    if missing == ["scale_2"]:
        raise UnsupportedError(f"{path}: rendering 2D Gaussians (2DGS, no scale_2) is not implemented")
    if missing:
        raise FileError(f"{path}: not a PLY of Gaussians; its vertices lack {', '.join(missing)}")
    rest = {name for name in names if name.startswith("f_rest_")}
    if len(rest) not in REST_SIZES or rest != {f"f_rest_{i}" for i in range(len(rest))}:
        raise FileError(
            f"{path}: expected {REST_SIZES} properties f_rest_0, f_rest_1, ... for SH degrees 0 to 3, found {len(rest)}"
        )
    return len(rest)
