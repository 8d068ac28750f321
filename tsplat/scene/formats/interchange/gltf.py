"""Reads glTF 2.0 with Khronos's KHR_gaussian_splatting: ``.glb``, and ``.gltf`` with embedded or external buffers.

Gaussians are points of a mesh primitive, with attributes ``KHR_gaussian_splatting:ROTATION`` (xyzw), ``:SCALE`` and
``:OPACITY`` after activation, and ``:SH_DEGREE_l_COEF_n``. Nodes of the scene transform them. The axes of glTF are x
left, y up, z forward; the reader rotates by 180 degrees about z to x right, y down, z forward, as in PLY files.
"""

import base64
import binascii
import collections
import functools
import os
import re
import struct
import urllib.parse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....errors import ArgumentError, FileError, UnsupportedError
from ....precision import identity
from ....support.reading import check_memory, read_file, stays_inside
from ...gaussians import Gaussians
from ...georeference import relative_to
from ...model_rows import ModelProperties
from ...quantization import gaussians_from_activated, gaussians_from_arrays
from ...rotation import rotation_matrix
from ..foreign import Warn, listed, note_ignored
from ..json_objects import JsonObject
from ..model_memory import bytes_of
from .linear import join_models, move_and_flip

EXTENSION = "KHR_gaussian_splatting"
MAGIC, JSON_CHUNK, BINARY_CHUNK = b"glTF", 0x4E4F534A, 0x004E4942
HEADER, CHUNK = struct.Struct("<4sII"), struct.Struct("<II")
SIGNS = (-1, -1, 1)
"""Signs of x, y and z that convert the axes of glTF to those of PLY files, and back."""

TYPES = {5120: "i1", 5121: "u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
COMPONENTS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4}
POINTS = 0
KNOWN_EXTENSIONS = {EXTENSION, "KHR_mesh_quantization"}
DEGREE_MAX = 3
FLAGS = "tsplat"
"""Key in ``extras`` of ``asset`` for data that glTF cannot store otherwise: the antialiased flag, the SH degree of an
empty model, and the origin that the translations of nodes contain."""

OTHERS = re.compile(r"COLOR_\d|NORMAL|TANGENT|TEXCOORD_\d|_.*")
"""Attributes that do not belong to Gaussians."""


def read_gltf(path: str | os.PathLike[str], *, warn: Warn = warnings.warn) -> Gaussians:
    """Reads all Gaussians of a glTF file, transformed by their nodes and converted to the axes of PLY files.

    Args:
        path: A ``.glb`` or ``.gltf`` file. Buffers may be files beside it.
        warn: Called with notes about ignored meshes and properties, and about the origin of :func:`write_gltf`,
            relative to which the Gaussians are returned.

    Raises:
        FileError: The file is not glTF, has no Gaussians, or is damaged.
        UnsupportedError: The version, a compression, a kernel other than ellipses, or a shear of a node is not
            supported.
        OSError: A file cannot be read.
    """
    path = Path(path)
    document, binary = _split(str(path), read_file(path))
    return _Document(path, document, binary, warn).read()


def _split(path: str, content: bytes) -> tuple[JsonObject, memoryview | None]:
    """Splits the content of a file into its JSON and the binary chunk of a ``.glb``."""
    if content[:4] != MAGIC:
        return JsonObject.parse(path, content, "its JSON"), None
    if len(content) < HEADER.size + CHUNK.size:
        raise FileError(f"{path}: the file ends within its header")
    _, version, length = HEADER.unpack_from(content)
    if version != 2:
        raise UnsupportedError(f"{path}: expected glTF version 2, found {version}")
    if length > len(content):
        raise FileError(f"{path}: expected {length:,} bytes, found {len(content):,}; the file is cut short")
    chunks: dict[int, memoryview] = {}
    start = HEADER.size
    while start + CHUNK.size <= length:
        size, type_ = CHUNK.unpack_from(content, start)
        start += CHUNK.size
        if size > length - start:
            raise FileError(f"{path}: a chunk of {size:,} bytes exceeds the file; it is damaged")
        chunks.setdefault(type_, memoryview(content)[start : start + size])
        start += size
    if JSON_CHUNK not in chunks:
        raise FileError(f"{path}: the file has no JSON chunk; it is damaged")
    return JsonObject.parse(path, bytes(chunks[JSON_CHUNK]), "its JSON"), chunks.get(BINARY_CHUNK)


class _Document:
    """Reads the content of a glTF file."""

    def __init__(self, path: Path, document: JsonObject, binary: memoryview | None, warn: Warn) -> None:
        self.path, self.document, self.binary, self.warn = path, document, binary, warn
        self.buffers: dict[int, memoryview] = {}
        self.parts = functools.cache(document.parts)

    def read(self) -> Gaussians:
        version = self.document.part("asset").text("version")
        if not version.startswith("2."):
            raise UnsupportedError(f"{self.path}: expected glTF version 2.0, found {version[:20]!r}")
        required = self.document.names("extensionsRequired", [])
        if unknown := [name for name in required if name not in KNOWN_EXTENSIONS]:
            raise UnsupportedError(f"{self.path}: requires {listed(unknown)}, which is not implemented")
        flags = self.document.part("asset").part("extras").part(FLAGS)
        origin = flags.floats("origin", 3) if "origin" in flags.values else np.zeros(3)
        if origin.any():
            self.warn(f"{self.path}: {relative_to(origin.tolist())}")
        meshes: dict[int, list[Gaussians]] = {}
        models: list[Gaussians] = []
        is_moved = False
        instances = self._placed_meshes()
        self._check_memory([mesh for _, mesh, _ in instances])
        for node, mesh, matrix in instances:
            matrix[:3, 3] -= torch.from_numpy(origin * SIGNS)
            is_moved |= bool(matrix[:3, 3].any())
            if mesh not in meshes:
                meshes[mesh] = self._mesh(self._entry("meshes", mesh))
            try:
                models += [move_and_flip(model, matrix, SIGNS) for model in meshes[mesh]]
            except ArgumentError as error:
                raise UnsupportedError(f"{self.path}: node {node}: {error}") from error
        if not models:
            degree = flags.count("sh_degree", 99)
            if degree > DEGREE_MAX:
                raise FileError(f"{self.path}: has no Gaussians; no mesh of its scene has {EXTENSION}")
            means, scales, quats, opacities, sh0, shN = (
                np.zeros((0, *shape)) for shape in ModelProperties(degree).shapes.values()
            )
            models = [gaussians_from_arrays(means, scales, quats, opacities, sh0, shN)]
        return join_models(self.path, models, flags.values.get("antialiased") is True, is_moved, self.warn)

    def _check_memory(self, meshes: list[int]) -> None:
        """Raises FileError if the Gaussians of meshes do not fit into memory; nodes and primitives may share them."""
        counts: dict[tuple[int, int], int] = collections.Counter()
        for mesh, times in collections.Counter(meshes).items():
            for primitive in self._splats(self._entry("meshes", mesh)):
                counts[self._count(primitive), self._degree(primitive.part("attributes"))] += times
        needed = sum(times * bytes_of(count, degree) for (count, degree), times in counts.items())
        total = sum(times * count for (count, _), times in counts.items())
        check_memory(f"{self.path}: a model of {total:,} Gaussians", needed)

    def _placed_meshes(self) -> list[tuple[int, int, Tensor]]:
        """Returns (node, mesh, matrix [4, 4] fp64 to the scene) for each node with a mesh in the scene."""
        if self.parts("scenes"):
            scene = self._entry("scenes", self.document.count("scene", 0))
            roots = self._indices(scene, "nodes")
        else:  # without scenes, all nodes are used
            roots = list(range(len(self.parts("nodes"))))
        stack = [(node, identity(4)) for node in reversed(roots)]
        instances, seen = [], set()
        while stack:
            index, outer = stack.pop()
            node = self._entry("nodes", index)
            if index in seen:
                raise FileError(f"{self.path}: node {index} has several parents; the file is damaged")
            seen.add(index)
            matrix = outer @ _local_matrix(node)
            if "mesh" in node.values:
                instances.append((index, node.count("mesh"), matrix))
            stack += [(child, matrix) for child in reversed(self._indices(node, "children"))]
        return instances

    def _entry(self, name: str, index: int) -> JsonObject:
        entries = self.parts(name)
        if index >= len(entries):
            raise FileError(f"{self.path}: there is no {name}[{index}]; the file is damaged")
        return entries[index]

    def _indices(self, part: JsonObject, name: str) -> list[int]:
        values = part.values.get(name, [])
        if not isinstance(values, list) or not all(type(x) is int and x >= 0 for x in values):
            raise part.fail(name, "a list of indices")
        return values

    def _mesh(self, mesh: JsonObject) -> list[Gaussians]:
        """Returns the Gaussians of each primitive of a mesh that contains Gaussians."""
        splats = self._splats(mesh)
        others = len(mesh.parts("primitives")) - len(splats)
        note_ignored(self.path, "meshes:", [f"{others} primitives of {mesh.name}"] if others else [], self.warn)
        return [self._primitive(primitive) for primitive in splats]

    def _splats(self, mesh: JsonObject) -> list[JsonObject]:
        """Returns the primitives of a mesh that contain Gaussians."""
        return [p for p in mesh.parts("primitives") if EXTENSION in p.part("extensions").values]

    def _count(self, primitive: JsonObject) -> int:
        """Returns the number of vertices of a primitive."""
        return self._entry("accessors", primitive.part("attributes").count("POSITION")).count("count")

    def _degree(self, attributes: JsonObject) -> int:
        """Returns the SH degree for which attributes exist."""
        degree = 0
        while degree < DEGREE_MAX and f"{EXTENSION}:SH_DEGREE_{degree + 1}_COEF_0" in attributes.values:
            degree += 1
        return degree

    def _primitive(self, primitive: JsonObject) -> Gaussians:
        extension = primitive.part("extensions").part(EXTENSION)
        kernel, mode = extension.text("kernel"), primitive.count("mode", 4)
        if inner := list(extension.part("extensions").values):
            raise UnsupportedError(f"{self.path}: {listed(inner)} is not implemented; export it uncompressed")
        if kernel != "ellipse" or mode != POINTS:
            other = f"mode {mode}" if mode != POINTS else f"the kernel {kernel[:40]!r}"
            raise UnsupportedError(f"{self.path}: expected points with the kernel 'ellipse', found {other}")
        if extension.values.get("colorSpace") != "srgb_rec709_display":
            self.warn(f"{self.path}: its colors are not sRGB; they are read as they are, and look darker")
        defaults = {"projection": "perspective", "sortingMethod": "cameraDistance"}
        others = [name for name, value in defaults.items() if extension.values.get(name, value) != value]
        note_ignored(self.path, "the settings", others, self.warn)
        attributes = primitive.part("attributes")
        prefix = f"{EXTENSION}:"
        widths = {"POSITION": 3, f"{prefix}ROTATION": 4, f"{prefix}SCALE": 3, f"{prefix}OPACITY": 1}
        degree = self._degree(attributes)
        sh_names = [f"{prefix}SH_DEGREE_{band}_COEF_{i}" for band in range(degree + 1) for i in range(2 * band + 1)]
        count = self._count(primitive)
        means, quats, scales, opacities, *sh = (
            self._values(attributes, name, count, width)
            for name, width in (widths | dict.fromkeys(sh_names, 3)).items()
        )
        unknown = [
            name for name in attributes.values if name not in (*widths, *sh_names) and not OTHERS.fullmatch(name)
        ]
        note_ignored(self.path, "the attributes", unknown, self.warn)
        quats, opacities = quats[:, [3, 0, 1, 2]], opacities[:, 0]
        return gaussians_from_activated(str(self.path), means, scales, quats, opacities, np.stack(sh, 1), self.warn)

    def _values(self, attributes: JsonObject, name: str, count: int, width: int) -> NDArray[np.float32]:
        """Returns an attribute of `count` vertices as floats [count, width]."""
        index = attributes.count(name)
        accessor = self._entry("accessors", index)
        vector, type_ = accessor.text("type"), TYPES.get(accessor.count("componentType"))
        if COMPONENTS.get(vector) != width or type_ is None or accessor.count("count") != count:
            raise FileError(
                f"{self.path}: {name[:60]}: expected {count} vectors of {width} numbers in accessors[{index}], found "
                f"{accessor.count('count')} of type {vector[:20]!r}; the file is damaged"
            )
        if "sparse" in accessor.values or "bufferView" not in accessor.values:
            raise UnsupportedError(f"{self.path}: {name[:60]}: sparse accessors are not implemented")
        dtype = np.dtype(type_)
        view = self._entry("bufferViews", accessor.count("bufferView"))
        start, length = view.count("byteOffset", 0), view.count("byteLength")
        stride, offset = view.count("byteStride", width * dtype.itemsize), accessor.count("byteOffset", 0)
        end = offset + (count - 1) * stride + width * dtype.itemsize if count else 0
        data = self._buffer(view.count("buffer"))
        if start + length > len(data) or end > length or stride < width * dtype.itemsize:
            raise FileError(f"{self.path}: {name[:60]}: its data exceed their buffer; the file is damaged or cut short")
        if not count:
            return np.zeros((0, width), np.float32)
        raw: NDArray[Any] = np.ndarray((count, width), dtype, data, start + offset, (stride, dtype.itemsize))
        values = raw.astype(np.float32)
        if accessor.values.get("normalized") is True and dtype.kind != "f":
            values = np.maximum(values / np.iinfo(dtype).max, -1, dtype=np.float32)
        return values

    def _buffer(self, index: int) -> memoryview:
        if index not in self.buffers:
            buffer = self._entry("buffers", index)
            self.buffers[index] = self._load(buffer)
            if len(self.buffers[index]) < buffer.count("byteLength"):
                raise FileError(f"{self.path}: buffers[{index}] is shorter than its byteLength; it is cut short")
        return self.buffers[index]

    def _load(self, buffer: JsonObject) -> memoryview:
        if "uri" not in buffer.values and self.binary is not None:
            return self.binary
        uri = buffer.text("uri")
        if uri.startswith("data:"):
            head, _, data = uri.partition(",")
            try:
                return memoryview(
                    base64.b64decode(data, validate=True)
                    if head.endswith(";base64")
                    else urllib.parse.unquote_to_bytes(data)
                )
            except (binascii.Error, ValueError) as error:
                raise FileError(f"{self.path}: {buffer.name}: its data URI is damaged ({error})") from error
        name = urllib.parse.unquote(uri)
        if ":" in name or "\\" in name or "\0" in name or not stays_inside(name):
            raise FileError(f"{self.path}: {buffer.name}: expected a file beside it, found the URI {name[:60]!a}")
        try:
            return memoryview(read_file(self.path.parent / name))
        except OSError as error:
            raise FileError(f"{self.path}: its buffer {name[:60]!a} cannot be read ({error.strerror})") from error


def _local_matrix(node: JsonObject) -> Tensor:
    """Returns the local matrix [4, 4] fp64 of a node, given directly or as translation, rotation (xyzw) and scale."""
    if "matrix" in node.values:
        return torch.from_numpy(node.floats("matrix", 16).reshape(4, 4).T.copy())
    matrix = identity(4)
    if "rotation" in node.values:
        x, y, z, w = (float(value) for value in node.floats("rotation", 4))
        matrix[:3, :3] = rotation_matrix([w, x, y, z])
    if "scale" in node.values:
        matrix[:3, :3] *= torch.from_numpy(node.floats("scale", 3))
    if "translation" in node.values:
        matrix[:3, 3] = torch.from_numpy(node.floats("translation", 3))
    return matrix
