"""Reads and writes PLY files in the layout of Inria's 3D Gaussian Splatting (Kerbl et al., 2023).

One vertex per Gaussian: x y z, nx ny nz (unused), f_dc_0..2 (SH degree 0), f_rest_* (higher degrees, channel by
channel), opacity (logit), scale_0..2 (logarithms), rot_0..3 (wxyz). All values are before activation.

Models trained with ``rasterize_mode="antialiased"`` are marked with the header line ``comment SplatRenderMode: mip``,
as in Brush and splat-transform. Postshot's ``comment postshot.anti_aliasing=1`` and ``comment antialiased 1`` are also
recognized.

Files of other programs may have the colors red, green and blue instead of f_dc, for example nerfstudio's with
``--ply-color-mode rgb``.

2D Gaussians are marked by a missing scale_2, as in the files of 2DGS, or by the comment ``SplatRenderMode: 2dgs``;
tsplat writes both.

Files in a frame such as UTM store x, y, z as doubles. Means are read relative to an origin. It is given by the comment
``tsplat origin X Y Z``, which tsplat writes. Otherwise, an origin near the means is chosen.

Mip-Splatting's property filter_3D is applied; see :mod:`~tsplat.scene.formats.filter_3d`. Properties of methods that 3D
Gaussians cannot represent raise an error, and others are ignored with a note; see :mod:`~tsplat.scene.formats.foreign`.
"""

import contextlib
import math
import os
import re
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from einops import rearrange
from numpy.typing import NDArray

from ...errors import FileError, UnsupportedError
from ...support.files import atomic_write
from ...support.reading import open_file
from ..extents import far_origin, rounding_at
from ..gaussians import FLAT, Gaussians
from ..georeference import Georeference, relative_to
from ..model_rows import ModelProperties, Rows, as_rows
from ..quantization import sh0_from_colors
from ..rotation import similarity
from .compressed_ply import decode_compressed_ply, encode_compressed_ply
from .filter_3d import NAMES as FILTER_NAMES
from .filter_3d import apply_filter
from .foreign import HARMLESS, Warn, check_method, note_ignored
from .model_memory import check_model_memory
from .ply_file import PlyFile, ply_header

REST_SIZES = (0, 9, 24, 45)
"""Number of f_rest properties for SH degrees 0 to 3."""

GROUPS = {
    "means": ("x", "y", "z"),
    "sh0": ("f_dc_0", "f_dc_1", "f_dc_2"),
    "opacity_logits": ("opacity",),
    "log_scales": ("scale_0", "scale_1", "scale_2"),
    "quats": ("rot_0", "rot_1", "rot_2", "rot_3"),
}
"""Parameter -> PLY properties."""

RGB = ("red", "green", "blue")
"""Colors that some programs write instead of coefficients of degree 0."""

COLOR_MAX = {"u1": 255.0, "u2": 65535.0}
"""Integer type of such a color -> value that represents 1. Floats range from 0 to 1."""

HOW_TO_TRAIN = (
    "to train a model from it and from photographs with poses, run: tsplat train SCENE --points FILE --out RUN"
)
"""Advice for users who pass a point cloud."""

ANTIALIASED_COMMENT = "SplatRenderMode: mip"
SURFELS = "2dgs"
"""The value for 2D Gaussians in the comment SplatRenderMode."""

ORIGIN = "tsplat origin"
"""Beginning of the comment with the origin to which means are relative in single precision."""

SAMPLED = 1 << 16
"""Number of positions from which the origin of a file of doubles is computed."""

FLAG_COMMENT = re.compile(r"(?:antialiased|postshot\.anti_aliasing)(?:\s*=\s*|\s+)([01])")
"""Other comments, in lower case, that state whether a model was trained with antialiasing."""


def read_ply(path: str | os.PathLike[str], *, warn: Warn = warnings.warn) -> Gaussians:
    """Reads Gaussians from a PLY file in ASCII, little-endian or big-endian, or from PlayCanvas's compressed PLY.

    The properties may be in any order. Memory is allocated only after the sizes in the header have been checked against
    the size of the file. Reading takes a few megabytes besides the Gaussians.

    Positions that are doubles and too far from zero for single precision are read relative to an origin, with a note;
    :func:`read_georeference` returns it.

    The 3D filter of Mip-Splatting (property filter_3D) is applied to scales and opacities. Such a model counts as
    antialiased, unless a comment in the header says otherwise, because the method renders with a compensated 2D filter.

    Args:
        path: Path of the file.
        warn: Called with notes about ignored elements and properties, and about the origin.

    Raises:
        FileError: The file is not a PLY of Gaussians, or it is truncated.
        UnsupportedError: The variant of the format is not implemented, or the parameters belong to another method, such
            as 4D Gaussians.
        OSError: The file cannot be read.
    """
    with open_file(path) as file:
        ply = PlyFile(file, str(path))
        mode = render_mode(ply)
        if "vertex" not in ply.elements:
            raise FileError(f"{path}: not a PLY of Gaussians; expected an element 'vertex'")
        if "packed_position" in ply.elements["vertex"].names:
            gaussians = decode_compressed_ply(ply, mode == "mip", warn)
            ply.note_rest(warn)
            return gaussians.as_surfels() if mode == SURFELS else gaussians
        rows = PlyRows(ply, mode, warn)
        check_model_memory(str(path), rows.count, rows.properties.sh_degree, copies=1)  # read block by block
        return rows.read(0, rows.count)


class PlyRows(Rows):
    """The Gaussians of an open PLY as rows. An ASCII file can only be read as a whole.

    Raises the errors of :func:`read_ply`.

    Args:
        ply: File with an element ``vertex`` that is not compressed.
        mode: Result of :func:`render_mode`.
        warn: As for :func:`read_ply`.
    """

    def __init__(self, ply: PlyFile, mode: str | None, warn: Warn) -> None:
        names, path = ply.elements["vertex"].names, ply.path
        n_rest = _check_names(ply, names)
        self._ply = ply
        self._groups = {**GROUPS, "shN": tuple(f"f_rest_{i}" for i in range(n_rest))}
        self._color_max: float | None = None
        if not set(GROUPS["sh0"]) <= set(names):
            self._groups["sh0"] = RGB
            types = {type_ for name, type_ in ply.elements["vertex"].properties if name in RGB}
            self._color_max = max(COLOR_MAX.get(type_, 1.0) for type_ in types)
        self._filter = next((name for name in FILTER_NAMES if name in names), None)
        is_flat = "scale_2" not in names
        if is_flat:
            self._groups["log_scales"] = GROUPS["log_scales"][:2]
        if self._filter is not None and (is_flat or mode == SURFELS):
            raise UnsupportedError(f"{path}: {self._filter}: the 3D filter of 2D Gaussians is not implemented")
        known = {self._filter, *(name for group in self._groups.values() for name in group)}
        unknown = [name for name in names if name not in known and not HARMLESS.fullmatch(name)]
        ply.blocks("vertex")  # checks the size
        ply.note_rest(warn)
        note_ignored(path, "the properties", unknown, warn)
        note_ignored(path, "the elements", (name for name in ply.elements if name not in ("vertex", "face")), warn)
        self._origin = ply_origin(ply)
        if any(self._origin):
            warn(
                f"{path}: {relative_to(self._origin)}; single precision would have rounded them by up to "
                f"{rounding_at(self._origin):.2g}"
            )
        surfels = is_flat or mode == SURFELS
        antialiased = not surfels and (mode == "mip" or (mode is None and self._filter is not None))
        super().__init__(
            ply.elements["vertex"].count, ModelProperties(math.isqrt(n_rest // 3 + 1) - 1, antialiased, surfels)
        )

    def close(self) -> None:
        self._ply.close()

    def columns(self, names: Sequence[str], start: int, stop: int) -> dict[str, torch.Tensor]:
        # The filter changes both parameters.
        needed = {*names, *(("log_scales", "opacity_logits") if self._filter is not None else ())}
        groups = {group: self._groups[group] for group in needed}
        values = {group: np.empty((stop - start, len(properties)), np.float32) for group, properties in groups.items()}
        if "log_scales" in values:
            values["log_scales"] = np.full((stop - start, 3), FLAT, np.float32)
        first = 0
        # A double beyond the range of float32 becomes infinite, which makes the Gaussian invalid.
        with np.errstate(over="ignore", invalid="ignore"):
            for block in self._ply.blocks("vertex", start, stop):
                rows = slice(first, first + len(block))
                for group, properties in groups.items():
                    for column, name in zip(_columns(group, len(properties)), properties):
                        shift = self._origin[column] if group == "means" else 0.0
                        values[group][rows, column] = block[name] - shift if shift else block[name]
                if self._color_max is not None and "sh0" in values:
                    values["sh0"][rows] = sh0_from_colors(values["sh0"][rows] / self._color_max)
                if self._filter is not None:
                    log_scales, logits = values["log_scales"][rows], values["opacity_logits"][rows]
                    log_scales[:], logits[:, 0] = apply_filter(log_scales, logits[:, 0], block[self._filter])
                first += len(block)
        if self.properties.surfels and "log_scales" in values:
            values["log_scales"][:, 2] = FLAT
        shapes = self.properties.shapes
        return {name: torch.from_numpy(values[name]).view(stop - start, *shapes[name]) for name in names}


def write_ply(
    path: str | os.PathLike[str], gaussians: Gaussians | Rows, *, origin: Sequence[float] | None = None
) -> list[str]:
    """Writes a little-endian PLY file atomically: 62 floats per Gaussian of SH degree 3, with zeros for normals.

    Lower degrees have fewer properties ``f_rest``; degree 0 has none. 2D Gaussians have two scales, as in the files of
    2DGS.

    Args:
        path: Path of the file.
        gaussians: Gaussians of SH degree 0 to 3, or rows of a model that is larger than memory.
        origin: [3] position of the origin of `gaussians`. It is added to the means, which are then written as doubles.
            None writes the means unchanged as floats.

    Returns:
        Losses as in :func:`write_model`; always empty.

    Raises:
        UnsupportedError: The SH degree is above 3.
        OSError: The file cannot be written.
    """
    rows = as_rows(gaussians)
    _check_degree(rows.properties)
    f_rest = (f"f_rest_{i}" for i in range(REST_SIZES[rows.properties.sh_degree]))
    scales = GROUPS["log_scales"][: 2 if rows.properties.surfels else 3]
    names = ("nx", "ny", "nz", *GROUPS["sh0"], *f_rest, *GROUPS["opacity_logits"], *scales, *GROUPS["quats"])
    comments, position_type = _comments(rows.properties), "float"
    if origin is not None:
        comments.append(f"{ORIGIN} {' '.join(map(repr, map(float, origin)))}")
        position_type = "double"
    properties = [*(f"{position_type} {name}" for name in GROUPS["means"]), *(f"float {name}" for name in names)]
    with atomic_write(path) as file:
        file.write(ply_header(comments, {"vertex": (rows.count, properties)}))
        for chunk in rows.chunks():
            records = _records(chunk)
            file.write(records.data if origin is None else _add_origin(records, origin).data)
    return []


def _add_origin(records: NDArray[np.float32], origin: Sequence[float]) -> NDArray[np.void]:
    """Adds an origin [3] to the means of vertex records [N, properties], which become doubles."""
    absolute = np.empty(len(records), [("means", "<f8", 3), ("other", "<f4", records.shape[1] - 3)])
    absolute["means"] = records[:, :3].astype(np.float64) + np.array(origin, np.float64)
    absolute["other"] = records[:, 3:]
    return absolute


def _records(gaussians: Gaussians) -> NDArray[np.float32]:
    """Returns the values of vertices, [N, properties]."""
    tensors = {name: tensor.numpy() for name, tensor in gaussians.tensors().items()}
    values = [
        tensors["means"],
        np.zeros((len(gaussians), 3)),
        tensors["sh0"][:, 0],
        rearrange(tensors["shN"], "n k c -> n (c k)"),
        tensors["opacity_logits"][:, None],
        tensors["log_scales"][:, : gaussians.n_scales],
        tensors["quats"],
    ]
    return np.concatenate(values, axis=1, dtype="<f4", casting="same_kind")


def write_compressed_ply(path: str | os.PathLike[str], gaussians: Gaussians) -> list[str]:
    """Writes PlayCanvas's compressed PLY atomically, ordered into small boxes of 256 Gaussians.

    The order is kept if the format represents all positions exactly, as for a model that was read from such a file;
    writing it again gives the same bytes.

    Positions, log scales and colors have 8 to 11 bits between the bounds of 256 Gaussians, rotations 10 bits, and
    opacities 8 bits. SH coefficients above degree 0 have 8 bits between -4 and 4.

    Returns:
        Losses as in :func:`write_model`.

    Raises:
        UnsupportedError: The SH degree is above 3.
        ArgumentError: A Gaussian is invalid; the format cannot represent NaN.
        OSError: The file cannot be written.
    """
    content, lost = compressed_ply_content(gaussians)
    with atomic_write(path) as file:
        file.write(content)
    return lost


def compressed_ply_content(gaussians: Gaussians) -> tuple[bytes, list[str]]:
    """Returns the content of the file that :func:`write_compressed_ply` writes, and the losses."""
    _check_degree(gaussians)
    return encode_compressed_ply(gaussians, _comments(gaussians)), ["every value rounded to 8 to 11 bits"]


def _check_degree(gaussians: Gaussians | ModelProperties) -> None:
    if gaussians.sh_degree > 3:
        raise UnsupportedError(f"sh_degree: expected at most 3 for a PLY of Gaussians, found {gaussians.sh_degree}")


def _comments(gaussians: Gaussians | ModelProperties) -> list[str]:
    return [f"SplatRenderMode: {SURFELS}"] if gaussians.surfels else [ANTIALIASED_COMMENT] * gaussians.antialiased


def open_ply_rows(path: str | os.PathLike[str], *, warn: Warn = warnings.warn) -> PlyRows | None:
    """Opens a PLY as rows; returns None for compressed and ASCII files, which can only be read as a whole.

    The arguments and errors are those of :func:`read_ply`.
    """
    file = open_file(path)
    try:
        ply = PlyFile(file, str(path))
        vertex = ply.elements.get("vertex")
        if ply.is_binary and vertex is not None and "packed_position" not in vertex.names:
            return PlyRows(ply, render_mode(ply), warn)
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def render_mode(ply: PlyFile) -> str | None:
    """Returns the render mode in the last such comment: "mip" (antialiased), another word, or None."""
    mode = None
    for comment in ply.comments:
        words = comment.lower().split()
        if len(words) == 2 and words[0] == "splatrendermode:":
            mode = words[1]
        elif match := FLAG_COMMENT.fullmatch(" ".join(words)):
            mode = "mip" if match[1] == "1" else "default"
    return mode


def ply_origin(ply: PlyFile) -> tuple[float, ...]:
    """Returns the origin [3] relative to which means are read.

    It is given by a comment; otherwise, it is near the positions if these are doubles that single precision cannot
    represent, and zero for other files.
    """
    origins = [comment.split()[2:] for comment in ply.comments if comment.split()[:2] == ORIGIN.split()]
    if not origins:
        return _origin_of_doubles(ply)
    with contextlib.suppress(ValueError):
        x, y, z = map(float, origins[-1])
        if all(map(math.isfinite, (x, y, z))):
            return x, y, z
    raise FileError(
        f"{ply.path}: expected the comment {ORIGIN!r} with three numbers, found {' '.join(origins[-1])[:80]!r}"
    )


def _origin_of_doubles(ply: PlyFile) -> tuple[float, ...]:
    """Returns an origin [3] near the positions if these are doubles that are too far from zero for single precision;
    else zeros."""
    vertex, names = ply.elements["vertex"], GROUPS["means"]
    here = (0.0, 0.0, 0.0)
    if [dict(vertex.properties).get(name) for name in names] != ["f8"] * 3:
        return here
    step, first, sample = 1 + vertex.count // SAMPLED, 0, []
    for block in ply.blocks("vertex"):
        rows = block[-first % step :: step]
        sample.append(np.stack([rows[name].astype(np.float64) for name in names], 1))
        first += len(block)
    return here if not sample else far_origin(torch.from_numpy(np.concatenate(sample))) or here


def ply_georeference(path: str | os.PathLike[str]) -> Georeference | None:
    """Returns the georeference of a PLY whose means are read relative to an origin; None for other files."""
    with open_file(path) as file:
        ply = PlyFile(file, str(path))
        origin = ply_origin(ply) if "vertex" in ply.elements else ()
    return Georeference(similarity(translation=[-value for value in origin])) if any(origin) else None


def _columns(group: str, size: int) -> list[int]:
    """Returns the column of each property in its parameter's array. f_rest is stored as [channel, coefficient], shN as
    [coefficient, channel]."""
    return [3 * (i % (size // 3)) + i // (size // 3) for i in range(size)] if group == "shN" else list(range(size))


def _check_names(ply: PlyFile, names: list[str]) -> int:
    """Checks the property names of the vertices and returns the number of f_rest properties."""
    path = ply.path
    check_method(path, names)
    groups = GROUPS | {"sh0": GROUPS["sh0"] if not set(RGB) <= set(names) else ()}
    missing = [name for group in groups.values() for name in group if name not in names]
    if missing not in ([], ["scale_2"]):
        message = f"{path}: not a PLY of Gaussians; its vertices lack {', '.join(missing)}"
        gaussian_names = {name for group in ("opacity_logits", "log_scales", "quats") for name in GROUPS[group]}
        if not gaussian_names <= {*missing} or not {*GROUPS["means"]} <= {*names}:
            raise FileError(message)
        if "face" in ply.elements and ply.elements["face"].count:
            raise FileError(f"{message}: it is a mesh")
        raise FileError(f"{message}: it is a point cloud; {HOW_TO_TRAIN}")
    rest = {name for name in names if name.startswith("f_rest_")}
    complete = rest == {f"f_rest_{i}" for i in range(len(rest))}
    degree = math.isqrt(len(rest) // 3 + 1) - 1
    if complete and degree > 3 and len(rest) == 3 * ((degree + 1) ** 2 - 1):
        raise UnsupportedError(
            f"{path}: expected SH degree 0 to 3 in a PLY, found {len(rest)} properties f_rest_*, which is SH degree "
            f"{degree}; export it with SH degree 3"
        )
    if not complete or len(rest) not in REST_SIZES:
        raise FileError(
            f"{path}: expected {REST_SIZES} properties f_rest_0, f_rest_1, ... for SH degrees 0 to 3, found {len(rest)}"
        )
    return len(rest)
