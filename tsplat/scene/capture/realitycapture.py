"""Reads cameras of RealityCapture and RealityScan: CSV tables of registered cameras, beside the photographs.

Two exports are supported. "Internal/External camera parameters" contains positions, and yaw, pitch and roll in degrees.
If these are zero, the camera looks down, with the top of the image towards +y, in a world with z up. Focal lengths are
in millimeters for a longer side of 36 mm; principal points are offsets from the image center, divided by the longer
side. "OpenCV-compliant Internal/External Camera Parameters" contains world-to-camera matrices, and intrinsics in
pixels. Both use Brown's lens with four radial coefficients; t1 and t2 are OpenCV's p2 and p1.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...errors import FileError, UnsupportedError
from ...precision import fp64
from ...scalars import describe, to_float
from ...support.reading import open_file, read_file
from ..cameras import viewmat_from_pose
from ..images import read_image_info
from ..rotation import is_rotation
from .brown import NEGLIGIBLE, brown_lens, corner_radius
from .colmap_model import COORDINATE_MAX
from .lenses import Lens
from .photographs import Photograph, find_usable
from .placement import ReadOptions
from .survey import find_images, list_photographs, read_number, read_survey
from .views import Capture

BYTES_MAX = 1 << 26
HEADER_BYTES = 4096

SYNONYMS = {"yaw": "heading", "z": "alt", "f_35mm": "f", "px_norm": "px", "py_norm": "py"}
"""Column name in RealityScan 2 -> column name in RealityCapture."""

ANGLES = ("x", "y", "alt", "heading", "pitch", "roll", "f")
"""Required columns of "Internal/External camera parameters"."""

MATRIX = (*(f"r{i}{j}" for i in range(3) for j in range(3)), "tx", "ty", "tz", "f_pix", "px_pix", "py_pix")
"""Required columns of "OpenCV-compliant Internal/External Camera Parameters"."""

LENS = ("k1", "k2", "k3", "k4", "t1", "t2")

SENSOR_WIDTH = 36.0
"""Sensor width in millimeters that focal lengths refer to."""

FLATNESS = 100.0
"""Positions look like degrees and meters if the range of heights exceeds this factor times the horizontal range."""


def find_cameras_table(folder: Path) -> Path | None:
    """Returns the camera table in a folder, or `folder` if it is one; None if there is not exactly one.

    Tables with angles are preferred.
    """
    if folder.suffix.lower() == ".csv":
        return folder if _columns_of(folder) else None
    files = sorted(path for path in folder.glob("*") if path.suffix.lower() == ".csv") if folder.is_dir() else []
    tables = {path: columns for path in files if (columns := _columns_of(path))}
    for needed in (ANGLES, MATRIX, ("name",)):
        matching = [path for path, columns in tables.items() if {*needed} <= {*columns}]
        if matching:
            return matching[0] if len(matching) == 1 else None
    return None


def read_realitycapture(file: Path, options: ReadOptions) -> Capture:
    """Reads photographs with the cameras of a table exported by RealityCapture or RealityScan.

    Photographs are looked up by their name, with any suffix, in ``images/`` or beside the file. Initial points are read
    from a point cloud beside the file if there is exactly one; otherwise they are random.

    Args:
        file: File that :func:`find_cameras_table` returns.
        options: See :func:`read_colmap`.

    Raises:
        FileError: A file is missing or cannot be read, or a value in it is missing or invalid.
        UnsupportedError: The table lacks orientations or lenses, coordinates are in degrees, or a lens is not
            implemented.
        ArgumentError: There are fewer than two photographs.
        MissingExtraError: Pillow is not installed, or an image is distorted and pycolmap is not installed.
    """
    rows = _read_rows(file)
    images = find_images(file, [name for name, _ in rows])
    kept, missing = find_usable(images, options.strict or len(rows) < 2)
    notes: list[str] = []
    photographs = _read_cameras(file, [(images[i], *rows[i]) for i in kept], notes)
    return read_survey(file, photographs, [*missing, *notes], options)


def _columns_of(path: Path) -> list[str]:
    """Returns the column names of a file that begins like RealityCapture's tables; empty for other files."""
    if not path.is_file():
        return []
    with open_file(path) as file:
        start = file.read(HEADER_BYTES).decode("utf-8-sig", "replace")
    return next((columns for line in start.splitlines()[:3] if (columns := _columns(line))), [])


def _columns(line: str) -> list[str]:
    """Returns the column names of a header line, without explanations in parentheses; empty for other lines."""
    if not line.startswith("#"):
        return []
    names = [word.strip().lower() for word in line[1:].partition("(")[0].strip(" ,").split(",")]
    columns = [SYNONYMS.get(name, name) for name in names]
    return columns if columns[0] == "name" and len(columns) > 1 else []


def _read_rows(file: Path) -> list[tuple[str, dict[str, float]]]:
    """Returns the name and the numbers of each camera in a table."""
    lines = read_file(file, BYTES_MAX).decode("utf-8-sig", "replace").splitlines()
    columns = _columns_of(file)
    repeated = next((name for i, name in enumerate(columns) if name in columns[:i]), None)
    if repeated is not None:
        raise FileError(f"{file}: expected columns of different names, found {repeated[:40]!r} twice")
    if not ({*ANGLES} <= {*columns} or {*MATRIX} <= {*columns}):
        raise UnsupportedError(
            f"{file}: expected positions, orientations and lenses, found the columns {', '.join(columns)[:200]}; "
            "export the registration as Internal/External camera parameters"
        )
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        # Names may contain commas.
        name, *words = line.rsplit(",", len(columns) - 1)
        if len(words) != len(columns) - 1:
            raise FileError(f"{file}: line {number}: expected {len(columns)} values, found {len(words) + 1}")
        values = {}
        for column, word in zip(columns[1:], words, strict=True):
            value = to_float(read_number(word))
            if value is None or abs(value) > COORDINATE_MAX:
                raise FileError(
                    f"{file}: line {number}: {column[:40]}: expected a number of at most {COORDINATE_MAX:.0e}, found "
                    f"{describe(word[:40])}"
                )
            values[column] = value
        rows.append((name.strip().strip('"'), values))
    if not rows:
        raise FileError(f"{file}: expected cameras, found none")
    return rows


def _read_cameras(file: Path, rows: Sequence[tuple[Path, str, dict[str, float]]], notes: list[str]) -> list[Photograph]:
    """Returns the photographs for rows of (image, name, numbers), sorted by name. Appends to `notes`."""
    cameras = []
    lenses: dict[tuple[object, ...], tuple[int, Lens]] = {}
    doubts: dict[str, int] = {}
    for image, label, values in rows:
        where = f"{file}: camera {label[:80]!r}"
        info = read_image_info(image)
        size = info.width, info.height
        key = (*size, *(values.get(name, 0.0) for name in ("f", "px", "py", "f_pix", "px_pix", "py_pix", *LENS)))
        if key not in lenses:
            lenses[key] = len(lenses), _read_lens(values, size, where, doubts)
        cameras.append((where, image, lenses[key], _read_pose(values, where)))
    photographs = list_photographs(file, cameras)
    _check_unit(file, [photograph.position for photograph in photographs])
    notes += [f"{file}: {count} of {len(lenses)} lenses: {doubt}" for doubt, count in doubts.items()]
    return photographs


def _read_pose(values: dict[str, float], where: str) -> tuple[Tensor, Tensor]:
    """Returns the world-to-camera matrix [4, 4] and the position [3] of a camera, fp64."""
    if "r00" in values and "tx" in values:
        numbers = [[values[f"r{i}{j}"] for j in range(3)] for i in range(3)]
        rotation = fp64(numbers)
        if not is_rotation(rotation):
            raise FileError(f"{where}: R00 to R22: expected a rotation")
        translation = fp64([values[name] for name in ("tx", "ty", "tz")])
        position = -rotation.T @ translation
    else:
        angles = fp64([values[name] for name in ("heading", "pitch", "roll")])
        rotation = rotation_of(angles)
        position = fp64([values[name] for name in ("x", "y", "alt")])
    return viewmat_from_pose(rotation.T, position), position


def rotation_of(angles: Tensor) -> Tensor:
    """Returns the world-to-camera rotation [3, 3] fp64 for yaw, pitch and roll [3] in degrees.

    According to Epic's page "Registration export and camera orientations", the camera is rotated about its y axis by
    the roll, then about x by the pitch, and about z by the yaw, clockwise as seen from above.
    """
    (cz, cx, cy), (sz, sx, sy) = torch.deg2rad(angles).cos().tolist(), torch.deg2rad(angles).sin().tolist()
    rows = [
        [cy * cz + sy * sx * sz, -cy * sz + cz * sy * sx, -cx * sy],
        [-cx * sz, -cx * cz, -sx],
        [cy * sx * sz - cz * sy, cy * cz * sx + sy * sz, -cy * cx],
    ]
    return fp64(rows)


def _read_lens(values: dict[str, float], size: tuple[int, int], where: str, doubts: dict[str, int]) -> Lens:
    """Returns the lens of a camera, given the size of its photograph. Counts ambiguous values in `doubts`."""
    width, height = size
    if "f_pix" in values:
        f, cx, cy = values["f_pix"], values["px_pix"], values["py_pix"]
    else:
        scale = max(size)
        f = values["f"] * scale / SENSOR_WIDTH
        cx, cy = (values.get(name, 0.0) * scale + side / 2 for name, side in (("px", width), ("py", height)))
    Lens(width, height, f, f, cx, cy).checked(where)
    *k, t1, t2 = (values.get(name, 0.0) for name in LENS)
    K = (f, f, cx, cy)
    if k[0] and not any((*k[1:], t1, t2)):
        # The table does not name the lens model; Brown's and the division model agree to first order.
        pixels = 2 * k[0] ** 2 * corner_radius(size, K) ** 5 * f
        if pixels > 1:
            raise UnsupportedError(
                f"{where}: k1 = {k[0]:.3g} alone may be the division model, which would move points by up to "
                f"{pixels:.2g} pixels; align with the distortion model Brown3, or export undistorted photographs"
            )
        if pixels > NEGLIGIBLE:
            doubt = "k1 alone is taken for Brown's; the division model would move points by less than a pixel"
            doubts[doubt] = doubts.get(doubt, 0) + 1
    return brown_lens(size, K, k, (t2, t1), where).checked(where)


def _check_unit(file: Path, positions: Sequence[Tensor | None]) -> None:
    """Raises UnsupportedError if positions look like longitudes and latitudes in degrees, with heights in meters."""
    known = torch.stack([position for position in positions if position is not None])
    if len(known) < 2:
        return
    x, y, z = (known.amax(0) - known.amin(0)).tolist()
    far_x, far_y, _ = known.abs().amax(0).tolist()
    if far_x <= 180 and far_y <= 90 and max(far_x, far_y) > 1 and z > FLATNESS * max(x, y):
        raise UnsupportedError(
            f"{file}: x and y look like longitudes and latitudes in degrees: they differ by {max(x, y):.2g}, heights "
            f"by {z:.2g}; export in a projected or local coordinate system, such as Grid Plane"
        )
