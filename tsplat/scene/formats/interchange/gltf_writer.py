"""Writes glTF; :mod:`~tsplat.scene.formats.interchange.gltf` describes and reads the format."""

import base64
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ....support.files import atomic_write
from ...gaussians import Gaussians
from ...quantization import Bytes, Floats
from ...sh_colors import sh0_to_colors
from .gltf import BINARY_CHUNK, CHUNK, EXTENSION, FLAGS, HEADER, JSON_CHUNK, MAGIC, POINTS, SIGNS
from .linear import linear_arrays, linear_colors

COMPONENT_TYPES = {"f4": 5126, "u1": 5121, "u2": 5123, "u4": 5125}
TYPES = {1: "SCALAR", 3: "VEC3", 4: "VEC4"}
ARRAY_BUFFER, ELEMENT_ARRAY_BUFFER = 34962, 34963
SUFFIX = ".gltf"


def write_gltf(
    path: str | os.PathLike[str],
    gaussians: Gaussians,
    *,
    text: bool | None = None,
    origin: Sequence[float] | None = None,
) -> list[str]:
    """Writes glTF 2.0 with KHR_gaussian_splatting atomically, converted to its axes: x left, y up, z forward.

    All values are float32, after activation: scales from exp(-20) to exp(20), and opacities from 1e-6 to 1 - 1e-6.
    Viewers without the extension show points in the colors of degree 0. The antialiased flag is stored under
    ``extras``.

    Args:
        path: Path of the file.
        gaussians: Gaussians of SH degree 0 to 3.
        text: True for ``.gltf``, JSON with embedded data; False for ``.glb``; None to decide by the suffix of the path.
        origin: [3] position of the origin of `gaussians`. It becomes the translation of their node, and is also stored
            under ``extras``, so that :func:`read_gltf` returns Gaussians relative to it. None for no translation.

    Returns:
        Losses as in :func:`write_model`; always empty.

    Raises:
        UnsupportedError: The SH degree is above 3.
        ArgumentError: A Gaussian is invalid.
        OSError: The file cannot be written.
    """
    arrays = linear_arrays(gaussians, "glTF", SIGNS)
    attributes: dict[str, Floats | Bytes] = {
        "POSITION": arrays["means"],
        f"{EXTENSION}:ROTATION": np.ascontiguousarray(arrays["quats"][:, [1, 2, 3, 0]]),
        f"{EXTENSION}:SCALE": arrays["scales"],
        f"{EXTENSION}:OPACITY": arrays["opacities"][:, None],
    }
    for band in range(gaussians.sh_degree + 1):
        for i in range(2 * band + 1):
            column = arrays["coefficients"][:, band * band + i]
            attributes[f"{EXTENSION}:SH_DEGREE_{band}_COEF_{i}"] = np.ascontiguousarray(column)
    attributes["COLOR_0"] = _fallback_colors(arrays)
    document = _document(gaussians, attributes, origin)
    with atomic_write(path) as file:
        if text or (text is None and Path(path).suffix.lower() == SUFFIX):
            if attributes["POSITION"].size:
                data = base64.b64encode(b"".join(array.tobytes() for array in attributes.values()))
                document["buffers"][0]["uri"] = f"data:application/octet-stream;base64,{data.decode()}"
            file.write(json.dumps(document).encode())
            return []
        write_glb(file, document, attributes.values())
    return []


def write_glb(file: BinaryIO, document: dict[str, Any], arrays: Iterable[NDArray[Any]]) -> None:
    """Writes a binary glTF: its JSON, and a buffer with the arrays if there are any values."""
    arrays = list(arrays)
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    size = sum(array.nbytes for array in arrays)
    binary_size = CHUNK.size + size if size else 0
    file.write(HEADER.pack(MAGIC, 2, HEADER.size + CHUNK.size + len(text) + binary_size))
    file.write(CHUNK.pack(len(text), JSON_CHUNK) + text)
    if size:
        file.write(CHUNK.pack(size, BINARY_CHUNK))
    for array in arrays:
        file.write(array.tobytes())


def buffer_document(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Returns the accessors, buffer views and buffer for consecutive arrays [N, 1, 3 or 4].

    ``POSITION`` gets its bounds. Integers are normalized, unless they are ``indices``.
    """
    accessors: list[dict[str, Any]] = []
    views = []
    offset = 0
    for name, array in arrays.items():
        target = ELEMENT_ARRAY_BUFFER if name == "indices" else ARRAY_BUFFER
        views.append({"buffer": 0, "byteOffset": offset, "byteLength": array.nbytes, "target": target})
        accessor = {
            "bufferView": len(accessors),
            "componentType": COMPONENT_TYPES[array.dtype.str[1:]],
            "count": len(array),
            "type": TYPES[array.shape[1]],
        }
        if array.dtype.kind != "f" and name != "indices":
            accessor["normalized"] = True
        if name == "POSITION":
            accessor |= {"min": array.min(0).tolist(), "max": array.max(0).tolist()}
        accessors.append(accessor)
        offset += array.nbytes
    return {"accessors": accessors, "bufferViews": views, "buffers": [{"byteLength": offset}]}


def _fallback_colors(arrays: dict[str, Floats]) -> Bytes:
    """Returns RGBA [N, 4] for viewers that only draw points: linear colors of degree 0, and opacities."""
    display = sh0_to_colors(arrays["coefficients"][:, 0]).clip(0, 1)
    rgba: Bytes = np.rint(np.concatenate([linear_colors(display), arrays["opacities"][:, None]], 1) * 255).astype(
        np.uint8
    )
    return rgba


def _document(
    gaussians: Gaussians, attributes: dict[str, Floats | Bytes], origin: Sequence[float] | None
) -> dict[str, Any]:
    """Returns the JSON of a file with one buffer that contains the attributes one after another."""
    asset: dict[str, Any] = {"version": "2.0", "generator": "tsplat"}
    flags: dict[str, Any] = {"antialiased": True} if gaussians.antialiased else {}
    node: dict[str, Any] = {"mesh": 0}
    if origin is not None:
        flags["origin"] = list(origin)
        node["translation"] = [sign * value for sign, value in zip(SIGNS, origin, strict=True)]
    if not len(gaussians):  # glTF does not allow empty accessors
        asset["extras"] = {FLAGS: {**flags, "sh_degree": gaussians.sh_degree}}
        return {"asset": asset}
    if flags:
        asset["extras"] = {FLAGS: flags}
    settings = {"kernel": "ellipse", "colorSpace": "srgb_rec709_display"}
    settings |= {"projection": "perspective", "sortingMethod": "cameraDistance"}
    primitive = {
        "mode": POINTS,
        "attributes": {name: i for i, name in enumerate(attributes)},
        "extensions": {EXTENSION: settings},
    }
    return {
        "asset": asset,
        "extensionsUsed": [EXTENSION],
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [node],
        "meshes": [{"primitives": [primitive]}],
        **buffer_document(attributes),
    }
