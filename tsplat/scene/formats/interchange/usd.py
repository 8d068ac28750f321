"""Reads and writes OpenUSD: ``.usda`` (text), ``.usdc`` (binary) and ``.usdz`` (archive), with the package usd-core.

Gaussians are prims of the type ParticleField3DGaussianSplat with parameters after activation. The transforms of the
prim and its ancestors apply to them. Stages have y or z up; the reader converts them to x right, y down, z forward, as
in PLY files.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ....config import SH_DEGREE_MAX
from ....errors import ArgumentError, FileError, UnsupportedError
from ....precision import fp64
from ....support.extras import require
from ....support.files import ZIP, atomic_write
from ....support.reading import note_read, open_file
from ...gaussians import Gaussians
from ...georeference import relative_to
from ...quantization import gaussians_from_activated
from ..foreign import Warn
from ..model_memory import check_model_memory, gaussians_that_fit
from .linear import join_models, linear_arrays, move_and_flip
from .usd_process import ORIGIN, SH, TYPE

SUFFIXES = (".usda", ".usdc", ".usdz", ".usd")
MAGICS = (b"#usd", b"PXR-")
SIGNS = (1, -1, -1)
"""Signs of x, y and z that convert right, up, backward to the axes of PLY files, and back."""

DATE = 315_619_200
"""Date of files in archives: 2 January 1980, which is at least 1 January, the minimum for ZIP, in every time zone."""

ANTIALIASED = "tsplat_antialiased"
"""Key of the antialiased flag in the custom data of a layer."""


def is_usd(start: bytes, suffix: str) -> bool:
    """Returns whether a file is an OpenUSD file, given its first 64 bytes and its suffix."""
    size = int.from_bytes(start[26:28], "little")
    return start[:4] in MAGICS or suffix in SUFFIXES or (start[:4] == ZIP and b".usd" in start[30 : 30 + size])


def read_usd(path: str | os.PathLike[str], *, warn: Warn = warnings.warn) -> Gaussians:
    """Reads all Gaussians of an OpenUSD stage, in world space, converted to the axes of PLY files.

    Animated values are read at the earliest time.

    Args:
        path: A ``.usda``, ``.usdc`` or ``.usdz`` file.
        warn: Called with notes about arrays that are ignored because they are too short, and about the origin of
            :func:`write_usd`, relative to which the Gaussians are returned.

    Raises:
        FileError: The file is not a stage, has no Gaussians, or is damaged.
        UnsupportedError: The SH degree is above 4, or a transform contains shear.
        MissingExtraError: usd-core is not installed.
        OSError: The file cannot be read.
    """
    require("pxr")
    with open_file(path) as file:
        start = file.read(4)
    models: list[Gaussians] = []
    is_moved = False
    with tempfile.TemporaryDirectory() as folder:
        stage = _read_stage(Path(path), start, Path(folder))
        check_model_memory(str(path), stage["count"])
        for layer in stage["layers"]:
            note_read(layer)
        origin = stage["origin"]
        if any(origin):
            warn(f"{path}: {relative_to(origin)}")
        for prim in stage["prims"]:
            matrix = fp64(prim["matrix"])
            if stage["up"] == "Z":  # a rotation by 90 degrees about x
                matrix = torch.stack([matrix[0], matrix[2], -matrix[1], matrix[3]])
            matrix[:3, 3] -= matrix.new_tensor([sign * value for sign, value in zip(SIGNS, origin, strict=True)])
            is_moved |= bool(matrix[:3, 3].any())
            try:
                gaussians = _read_prim(f"{path}: {prim['path']}", Path(folder), prim, warn)
                models.append(move_and_flip(gaussians, matrix, SIGNS))
            except ArgumentError as error:
                raise UnsupportedError(f"{path}: {prim['path']}: {error}") from error
    if not models:
        raise FileError(f"{path}: has no Gaussians; expected a prim of the type {TYPE}")
    return join_models(path, models, ANTIALIASED in stage["flags"], is_moved, warn)


def _read_stage(path: Path, start: bytes, folder: Path) -> dict[str, Any]:
    """Reads a stage with ``usd_process.py``, which writes its arrays to a folder; returns the content of
    ``stage.json``."""
    if path.suffix.lower() not in SUFFIXES:  # USD detects the format by the suffix
        link = folder / f"model{'.usdz' if start == ZIP else '.usd'}"
        link.symlink_to(path.absolute())
    else:
        link = path
    script = Path(__file__).with_name("usd_process.py")
    command = [sys.executable, "-P", str(script), str(link), str(folder), str(gaussians_that_fit())]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # every thread takes memory
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=environment)
    with contextlib.suppress(OSError, ValueError):
        stage: dict[str, Any] = json.loads((folder / "stage.json").read_bytes())
        if result.returncode == 0:
            return stage
    lines = result.stderr.decode(errors="replace").split("\n")
    reasons = [line.strip() for line in lines if line.strip().isprintable() and not line.startswith("  ")]
    raise FileError(f"{path}: USD cannot read it ({(' '.join(reasons[-1:]) or 'no reason given')[:200]})")


def _read_prim(name: str, folder: Path, prim: dict[str, Any], warn: Warn) -> Gaussians:
    """Reads the parameters of a prim. Arrays that are too long are truncated; arrays that are too short are ignored."""
    arrays = {key: np.load(folder / file) for key, file in prim["files"].items()}
    means = arrays.get("positions", np.zeros((0, 3), np.float32))
    count = len(means)

    def values(attribute: str, default: list[float], per_gaussian: int = 1) -> NDArray[np.float32]:
        array = arrays.get(attribute)
        if array is not None and len(array) >= count * per_gaussian:
            cut: NDArray[np.float32] = array[: count * per_gaussian]
            return cut
        if array is not None:
            warn(f"{name}: ignored {attribute}: {len(array)} values for {count:,} Gaussians")
        return np.tile(np.array(default, np.float32), (count, 1))

    degree = prim["degree"]
    if not 0 <= degree <= SH_DEGREE_MAX:
        raise UnsupportedError(f"{name}: expected an SH degree from 0 to {SH_DEGREE_MAX}, found {degree}")
    n_bases = (degree + 1) ** 2
    sh = values(f"{SH}Coefficients", [0.5, 0.5, 0.5], n_bases)
    if len(sh) < count * n_bases:  # missing: no view dependence
        n_bases = 1
    return gaussians_from_activated(
        name,
        means,
        values("scales", [1, 1, 1]),
        values("orientations", [0, 0, 0, 1])[:, [3, 0, 1, 2]],
        values("opacities", [1])[:, 0],
        sh.reshape(count, n_bases, 3),
        warn,
    )


def write_usd(
    path: str | os.PathLike[str],
    gaussians: Gaussians,
    *,
    suffix: str | None = None,
    origin: Sequence[float] | None = None,
) -> list[str]:
    """Writes OpenUSD atomically: a stage with y up whose default prim contains the Gaussians.

    All values are float32, after activation: scales from exp(-20) to exp(20), and opacities from 1e-6 to 1 - 1e-6. The
    antialiased flag is stored in the layer's custom data.

    Args:
        path: Path of the file.
        gaussians: Gaussians of SH degree 0 to 4.
        suffix: ``".usda"``, ``".usdc"`` or ``".usdz"``; None for the suffix of the path.
        origin: [3] position of the origin of `gaussians`. It becomes the translation of their prim, and is also stored
            in the custom data, so that :func:`read_usd` returns Gaussians relative to it. None for no translation.

    Returns:
        Losses as in :func:`write_model`; always empty.

    Raises:
        ArgumentError: A Gaussian is invalid.
        MissingExtraError: usd-core is not installed.
        OSError: The file cannot be written.
    """
    require("pxr")
    from pxr import Gf, Sdf, Usd, UsdGeom, UsdUtils, Vt

    arrays = linear_arrays(gaussians, "OpenUSD", SIGNS, degree_max=SH_DEGREE_MAX)
    stage = Usd.Stage.CreateInMemory()
    UsdGeom.SetStageUpAxis(stage, UsdGeom.Tokens.y)
    UsdGeom.SetStageMetersPerUnit(stage, 1.0)
    data: dict[str, Any] = {ANTIALIASED: True} if gaussians.antialiased else {}
    prim = stage.DefinePrim("/Gaussians", TYPE)
    if origin is not None:
        data[ORIGIN] = Gf.Vec3d(*map(float, origin))
        translation = UsdGeom.Xformable(prim).AddTranslateOp(UsdGeom.XformOp.PrecisionDouble)
        translation.Set(Gf.Vec3d(*(sign * value for sign, value in zip(SIGNS, origin, strict=True))))
    if data:
        stage.GetRootLayer().customLayerData = data
    stage.SetDefaultPrim(prim)
    types = Sdf.ValueTypeNames
    vectors = Vt.Vec3fArray.FromNumpy
    reach = 3 * arrays["scales"].max(1, keepdims=True, initial=0)
    ends = [(arrays["means"] - reach).min(0), (arrays["means"] + reach).max(0)] if len(gaussians) else []
    values = {
        "extent": (types.Float3Array, Vt.Vec3fArray([Gf.Vec3f(*map(float, end)) for end in ends])),
        "positions": (types.Point3fArray, vectors(arrays["means"])),
        "orientations": (types.QuatfArray, Vt.QuatfArray.FromNumpy(arrays["quats"][:, [1, 2, 3, 0]].copy())),
        "scales": (types.Float3Array, vectors(arrays["scales"])),
        "opacities": (types.FloatArray, Vt.FloatArray.FromNumpy(arrays["opacities"])),
        f"{SH}Coefficients": (types.Float3Array, vectors(arrays["coefficients"].reshape(-1, 3))),
    }
    for name, (type_, value) in values.items():
        prim.CreateAttribute(name, type_, custom=False).Set(value)
    uniform = Sdf.VariabilityUniform
    prim.CreateAttribute(f"{SH}Degree", types.Int, custom=False, variability=uniform).Set(gaussians.sh_degree)
    suffix = suffix or Path(path).suffix.lower()
    with tempfile.TemporaryDirectory() as folder:
        file_name = str(Path(folder) / f"model{'.usdc' if suffix == '.usdz' else suffix}")
        stage.GetRootLayer().Export(file_name)
        os.utime(file_name, (DATE, DATE))  # the archive contains this date
        if suffix == ".usdz":
            UsdUtils.CreateNewUsdzPackage(file_name, file_name := str(Path(folder) / "model.usdz"))
        with atomic_write(path) as file, open(file_name, "rb") as written:
            shutil.copyfileobj(written, file)
    return []
