"""Reads an OpenUSD stage in a separate process: ``python usd_process.py STAGE FOLDER COUNT``.

It does not import tsplat. USD allocates as much memory as a damaged file announces, and prints its own errors.
Therefore, the memory of this process is limited, and the arrays are written to a folder, together with ``stage.json``,
which assigns them to prims (docs/decisions/0032). Prims that reference or instance the same arrays share their files.
If a stage has more than COUNT Gaussians in total, nothing is written.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TYPE = "ParticleField3DGaussianSplat"
SH = "radiance:sphericalHarmonics"
ORIGIN = "tsplat_origin"
"""Key in the custom data of a layer: the origin that the transforms of prims contain."""

ARRAYS = {"positions": 3, "orientations": 4, "scales": 3, "opacities": 1, f"{SH}Coefficients": 3}
"""Attribute -> width of its values. Quaternions are xyzw."""

BYTES_MIN, BYTES_FACTOR = 4 << 30, 16
"""Limit of the process's address space: BYTES_MIN plus BYTES_FACTOR times the size of the file."""


def limit_memory(n_bytes: int) -> None:
    """Limits the address space of this process."""
    try:
        import resource
    except ImportError:  # Windows
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or n_bytes < hard:
        resource.setrlimit(resource.RLIMIT_AS, (n_bytes, hard))


def value(prim: Any, name: str) -> Any:
    """Returns the value of an attribute at the earliest time, or None if it has none."""
    from pxr import Usd

    attribute = prim.GetAttribute(name)
    return attribute.Get(Usd.TimeCode.EarliestTime()) if attribute and attribute.HasAuthoredValue() else None


def array(prim: Any, name: str, width: int) -> NDArray[np.float32] | None:
    """Returns an array [n, width] of a prim, or its half-precision variant if only that has values; None if neither
    has."""
    values = value(prim, name)
    if values is None or not len(values):
        half = value(prim, f"{name}h")
        values = values if half is None else half
    return None if values is None else np.array(values, np.float32).reshape(-1, width)


def source(prim: Any, name: str) -> tuple[str, ...]:
    """Returns the layer, path and name that store the value of an attribute, or of its half-precision variant."""
    from pxr import Usd

    parts: list[str] = []
    for attribute in (prim.GetAttribute(name), prim.GetAttribute(f"{name}h")):
        specs = attribute.GetPropertyStack(Usd.TimeCode.EarliestTime()) if attribute else []
        parts += [str(part) for spec in specs for part in (spec.layer.identifier, spec.path)]
    return (name, *parts)


def read(path: str, folder: Path, count_max: int) -> None:
    """Writes the :data:`ARRAYS` of all Gaussians in a stage, and ``stage.json``, to a folder."""
    from pxr import Gf, Usd, UsdGeom

    stage = Usd.Stage.Open(path)
    transforms = UsdGeom.XformCache(Usd.TimeCode.EarliestTime())
    gaussian_prims = [prim for prim in stage.Traverse(Usd.TraverseInstanceProxies()) if prim.GetTypeName() == TYPE]
    counts: dict[tuple[str, ...], int] = {}
    total = 0
    for prim in gaussian_prims:
        key = source(prim, "positions")
        if key not in counts:
            positions = array(prim, "positions", 3)
            counts[key] = 0 if positions is None else len(positions)
        total += counts[key]
    prims: list[dict[str, Any]] = []
    written: dict[tuple[str, ...], str] = {}
    for prim in gaussian_prims if total <= count_max else []:
        files: dict[str, str] = {}
        for name, width in ARRAYS.items():
            key = source(prim, name)
            if key not in written:
                values = array(prim, name, width)
                written[key] = "" if values is None else f"{len(written)}.npy"
                if values is not None:
                    np.save(folder / written[key], values)
            if written[key]:
                files[name] = written[key]
        degree = value(prim, f"{SH}Degree")
        matrix = np.array(transforms.GetLocalToWorldTransform(prim), np.float64).T
        degree = 3 if degree is None else int(degree)
        prims.append({"path": str(prim.GetPath()), "degree": degree, "matrix": matrix.tolist(), "files": files})
    custom = stage.GetRootLayer().customLayerData
    data = {name: value for name, value in custom.items() if value is True}
    origin = custom.get(ORIGIN)
    position = [float(value) for value in origin] if isinstance(origin, Gf.Vec3d) else [0.0, 0.0, 0.0]
    layers = [layer.realPath for layer in stage.GetUsedLayers() if layer.realPath]
    result = {"prims": prims, "up": str(UsdGeom.GetStageUpAxis(stage)), "flags": sorted(data), "origin": position}
    (folder / "stage.json").write_text(json.dumps({**result, "count": total, "layers": layers}))


if __name__ == "__main__":
    limit_memory(BYTES_MIN + BYTES_FACTOR * Path(sys.argv[1]).stat().st_size)
    read(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
