"""Writes meshes as PLY, Wavefront OBJ and binary glTF, with vertex normals and colors."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import ArgumentError
from ...support.files import atomic_write
from ..capture.local_frame import move_points
from ..formats.interchange.gltf import SIGNS
from ..formats.interchange.gltf_writer import buffer_document, write_glb
from ..formats.interchange.linear import linear_colors
from ..formats.ply_file import ply_header
from ..georeference import Georeference, check_frame, written_georeference
from ..option_types import MeshEnding, ModelFrame
from ..rotation import similarity
from .mesh import Mesh

ROUNDING = 0.01
"""Rounding error of single precision, in voxels, above which coordinates are written in double precision or with an
offset."""

LINES = 1 << 14
"""Number of lines of text that are written at a time."""

UNLIT = "KHR_materials_unlit"


def write_mesh(
    path: str | os.PathLike[str],
    mesh: Mesh,
    *,
    georeference: Georeference | None = None,
    frame: ModelFrame = "local",
) -> None:
    """Writes a mesh atomically, as binary PLY (``.ply``), Wavefront OBJ (``.obj``) or binary glTF (``.glb``).

    All formats contain vertex normals and colors; in OBJ, colors follow the coordinates, an extension that most
    programs read. PLY and OBJ are in the frame of the mesh. glTF is converted to its axes, as in
    :func:`tsplat.scene.write_gltf`, and unlit, because the colors already contain the lighting. If single precision is
    not sufficient, coordinates are doubles in PLY, and relative to the translation of the node in glTF.

    Args:
        path: Path of the file.
        mesh: The mesh.
        georeference: Georeference of the model, written beside the mesh to a file whose name ends in ``.world.json``.
            If it is None, such a file of an older mesh is removed.
        frame: ``"files"`` moves the mesh to the frame of the scene's files, ``"local"`` writes it unchanged.

    Raises:
        ArgumentError: The path has another suffix, or `frame` is ``"files"`` without a georeference.
        OSError: The file cannot be written.
    """
    writer = _writer(path)
    check_frame(frame, georeference)
    if georeference is not None and frame == "files":
        vertices = move_points(mesh.vertices, torch.linalg.inv(georeference.world))
        is_reflected = torch.linalg.det(georeference.world[:3, :3]) < 0
        faces = mesh.faces.flip(-1) if is_reflected else mesh.faces  # counterclockwise, as before
        mesh = dataclasses.replace(mesh, vertices=vertices, faces=faces, voxel=georeference.scale * mesh.voxel)
        georeference = dataclasses.replace(georeference, world=similarity())
    with written_georeference(path, georeference, absolute=frame == "files"), atomic_write(path) as file:
        writer(file, mesh)


def check_mesh_path(path: str | os.PathLike[str]) -> None:
    """Raises ArgumentError if :func:`write_mesh` does not support the suffix of a path."""
    _writer(path)


def _writer(path: str | os.PathLike[str]) -> Callable[[BinaryIO, Mesh], None]:
    suffix = Path(path).suffix.lower()
    if suffix not in WRITERS:
        raise ArgumentError(f"{path}: expected the name of a mesh that ends in {', '.join(WRITERS)}, found {suffix!r}")
    return WRITERS[suffix]


def _needs_doubles(mesh: Mesh) -> bool:
    rounded = mesh.vertices.float().double()
    return bool(((rounded - mesh.vertices).abs() > ROUNDING * mesh.voxel).any()) and mesh.voxel > 0


def _write_ply(file: BinaryIO, mesh: Mesh) -> None:
    position_type, code = ("double", "<f8") if _needs_doubles(mesh) else ("float", "<f4")
    properties = [
        *(f"{position_type} {name}" for name in "xyz"),
        *(f"float n{name}" for name in "xyz"),
        *("uchar red", "uchar green", "uchar blue"),
    ]
    elements = {
        "vertex": (len(mesh.vertices), properties),
        "face": (len(mesh.faces), ["list uchar int vertex_indices"]),
    }
    vertices = np.empty(len(mesh.vertices), [("position", code, 3), ("normal", "<f4", 3), ("color", "u1", 3)])
    vertices["position"], vertices["normal"], vertices["color"] = mesh.vertices, mesh.normals, _bytes(mesh)
    faces = np.empty(len(mesh.faces), [("count", "u1"), ("corners", "<i4", 3)])
    faces["count"], faces["corners"] = 3, mesh.faces
    file.write(ply_header(["tsplat"], elements))
    file.write(vertices.tobytes())
    file.write(faces.tobytes())


def _write_obj(file: BinaryIO, mesh: Mesh) -> None:
    file.write(b"# tsplat\n")
    digits = "%.14g" if _needs_doubles(mesh) else "%.10g"
    rows = np.concatenate([mesh.vertices.numpy(), mesh.colors.double().numpy()], 1)
    _write_lines(file, f"v {digits} {digits} {digits} %.4f %.4f %.4f\n", rows)
    _write_lines(file, "vn %.4f %.4f %.4f\n", mesh.normals.numpy())
    _write_lines(file, "f %d//%d %d//%d %d//%d\n", np.repeat(mesh.faces.numpy() + 1, 2, axis=1))


def _write_lines(file: BinaryIO, line: str, rows: NDArray[Any]) -> None:
    for start in range(0, len(rows), LINES):
        block = rows[start : start + LINES]
        file.write((line * len(block) % tuple(block.ravel().tolist())).encode())


def _write_glb(file: BinaryIO, mesh: Mesh) -> None:
    signs = np.array(SIGNS, np.float64)
    positions = mesh.vertices.numpy() * signs
    node: dict[str, Any] = {"mesh": 0}
    if _needs_doubles(mesh):
        center = (positions.min(0) + positions.max(0)) / 2
        positions, node["translation"] = positions - center, center.tolist()
    linear = linear_colors(mesh.colors.double().numpy())
    colors = np.concatenate([linear, np.ones((len(linear), 1))], 1)
    arrays: dict[str, NDArray[Any]] = {
        "POSITION": positions.astype("<f4"),
        "NORMAL": (mesh.normals.numpy() * signs).astype("<f4"),
        "COLOR_0": np.rint(65535 * colors).astype("<u2"),
        "indices": mesh.faces.numpy().astype("<u4").reshape(-1, 1),
    }
    attributes = {name: i for i, name in enumerate(arrays) if name != "indices"}
    document = {
        "asset": {"version": "2.0", "generator": "tsplat"},
        "extensionsUsed": [UNLIT],
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [node],
        "meshes": [{"primitives": [{"attributes": attributes, "indices": 3, "material": 0}]}],
        "materials": [{"pbrMetallicRoughness": {"metallicFactor": 0}, "extensions": {UNLIT: {}}}],
        **buffer_document(arrays),
    }
    write_glb(file, document, arrays.values())


def _bytes(mesh: Mesh) -> NDArray[np.uint8]:
    colors: NDArray[np.uint8] = np.rint(255 * mesh.colors.numpy()).astype(np.uint8)
    return colors


WRITERS: dict[MeshEnding, Callable[[BinaryIO, Mesh], None]] = {
    ".ply": _write_ply,
    ".obj": _write_obj,
    ".glb": _write_glb,
}
