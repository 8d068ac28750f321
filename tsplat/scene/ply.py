"""Gaussians in PLY files, in the layout of Inria's 3D Gaussian Splatting (Kerbl et al., 2023).

Little-endian floats, one record a Gaussian: x y z, nx ny nz (unused), f_dc_0..2 (degree 0), f_rest_* (the degrees
above, channel by channel), opacity (logit), scale_0..2 (logarithms), rot_0..3 (wxyz). All values are before their
activation.
"""

from __future__ import annotations

import os
from typing import BinaryIO

import numpy as np
import torch
from einops import rearrange

from ..checks import UnsupportedError
from .files import FileError, write_whole
from .gaussians import Gaussians

HEADER_MAX = 1 << 20
REST_SIZES = (0, 9, 24, 45)
"""How many f_rest there are for degrees 0 to 3."""

TYPES = {
    **dict(char="i1", uchar="u1", short="<i2", ushort="<u2", int="<i4", uint="<u4", float="<f4", double="<f8"),
    **dict(int8="i1", uint8="u1", int16="<i2", uint16="<u2", int32="<i4", uint32="<u4", float32="<f4", float64="<f8"),
}

GROUPS = {
    "means": ("x", "y", "z"),
    "sh0": ("f_dc_0", "f_dc_1", "f_dc_2"),
    "opacity_logits": ("opacity",),
    "log_scales": ("scale_0", "scale_1", "scale_2"),
    "quats": ("rot_0", "rot_1", "rot_2", "rot_3"),
}


def read_ply(path: str | os.PathLike[str]) -> Gaussians:
    """Reads Gaussians: properties in any order, 0, 9, 24 or 45 f_rest, whatever else there is left aside.

    Nothing is allocated before the header's sizes are known to fit the file.

    Raises:
        FileError: The file is not a PLY of Gaussians, or shorter than its header says.
        UnsupportedError: A PLY of Gaussians in a form that is not implemented.
        OSError: The file cannot be read.
    """
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        record, count, skipped = _read_header(file, str(path))
        start = file.tell() + skipped
        if count * record.itemsize > size - start:
            raise FileError(
                f"{path}: the header asks for {count} vertices of {record.itemsize} bytes, "
                f"but only {max(size - start, 0)} bytes follow; the file is cut short or not what it says"
            )
        file.seek(start)
        vertices = np.fromfile(file, record, count)
    n_rest = sum(name.startswith("f_rest_") for name in record.names or ())

    def columns(names: tuple[str, ...]) -> torch.Tensor:
        values = np.empty((count, len(names)), np.float32)
        for i, name in enumerate(names):
            values[:, i] = vertices[name]
        return torch.from_numpy(values)

    values = {group: columns(names) for group, names in GROUPS.items()}
    values["opacity_logits"] = values["opacity_logits"][:, 0]
    values["sh0"] = values["sh0"][:, None]
    values["shN"] = rearrange(columns(tuple(f"f_rest_{i}" for i in range(n_rest))), "n (c k) -> n k c", c=3)
    return Gaussians(**{name: tensor.contiguous() for name, tensor in values.items()})


def write_ply(path: str | os.PathLike[str], gaussians: Gaussians) -> None:
    """Writes 62 floats a Gaussian, normals and unused degrees zero; the file is there whole or not at all.

    Raises:
        UnsupportedError: Spherical harmonics above degree 3.
        OSError: The file cannot be written.
    """
    if gaussians.sh_degree > 3:
        raise UnsupportedError(f"sh_degree: {gaussians.sh_degree} has no place in a PLY of Gaussians; 3 is the highest")
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
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {count}"]
    lines += [*(f"property float {name}" for name in names), "end_header", ""]
    with write_whole(path) as file:
        file.write("\n".join(lines).encode())
        file.write(values.tobytes())


def _read_header(file: BinaryIO, path: str) -> tuple[np.dtype[np.void], int, int]:
    """The vertices' record, how many there are, and the bytes before them; leaves the file at the header's end."""
    if file.readline(8).strip() != b"ply":
        raise FileError(f"{path}: not a PLY file (its first line is not 'ply')")
    elements: dict[str, tuple[int, list[tuple[str, str]]]] = {}
    encoding = ""
    while True:
        line = file.readline(HEADER_MAX)
        if not line.endswith(b"\n") or file.tell() > HEADER_MAX:
            raise FileError(f"{path}: the PLY header has no end_header line")
        match line.decode("latin-1").split():
            case ["end_header"]:
                break
            case [] | ["comment", *_] | ["obj_info", *_]:
                pass
            case ["format", encoding, _]:
                pass
            case ["element", name, number] if number.isascii() and number.isdecimal() and len(number) < 32:
                elements[name] = (int(number), [])
            case ["property", kind, name] if kind in TYPES and elements:
                elements[next(reversed(elements))][1].append((name, TYPES[kind]))
            case ["property", "list", *_, name] if elements:
                # Only what lies before or in the vertices has to be understood.
                elements[next(reversed(elements))][1].append((name, "list"))
            case words:
                raise FileError(f"{path}: the PLY header has a line that is not understood: {' '.join(words)[:80]!r}")
    if encoding != "binary_little_endian":
        raise UnsupportedError(f"{path}: found PLY format {encoding!r}; convert the file to binary_little_endian")
    if "vertex" not in elements:
        raise FileError(f"{path}: the PLY has no element 'vertex', so there are no Gaussians in it")
    skipped = 0
    for element, (count, properties) in elements.items():
        names = [name for name, _ in properties]
        if element == "vertex" and "packed_position" in names:
            raise UnsupportedError(f"{path}: this is a compressed PLY; convert it to a plain one (splat-transform)")
        if len(set(names)) < len(names) or any(kind == "list" for _, kind in properties):
            raise FileError(f"{path}: element {element!r} has a list or two properties of one name; rewrite the file")
        if element == "vertex":
            _check_names(path, names)
            return np.dtype(properties), count, skipped
        skipped += count * np.dtype(properties).itemsize
    raise AssertionError("unreachable")


def _check_names(path: str, names: list[str]) -> None:
    missing = [name for group in GROUPS.values() for name in group if name not in names]
    if missing:
        raise FileError(f"{path}: not a PLY of Gaussians, its vertices lack {', '.join(missing)}")
    rest = {name for name in names if name.startswith("f_rest_")}
    if len(rest) not in REST_SIZES or rest != {f"f_rest_{i}" for i in range(len(rest))}:
        raise FileError(
            f"{path}: expected f_rest_0 up to {REST_SIZES} of them for SH degrees 0 to 3, found {len(rest)}"
        )
