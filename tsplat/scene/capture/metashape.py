"""Reads cameras of Agisoft Metashape: the XML file that File > Export > Export Cameras writes, beside the photographs.

A camera's transform maps the camera frame (x right, y down, z forward) to the chunk; the transform of the component or
the chunk maps to the world. The lens is Brown's, as in the appendix "Camera models" of Metashape's manual: f, b1 and b2
in pixels, cx and cy from the center of the image, p1 and p2 in the opposite order of OpenCV's, and a fourth radial
coefficient.
"""

import dataclasses
import math
from pathlib import Path
from xml.etree.ElementTree import Element

import torch
from torch import Tensor

from ...config import CameraModel
from ...errors import FileError, UnsupportedError
from ...precision import fp64
from ...scalars import to_float
from ...support.reading import open_file
from ..cameras import viewmat_from_pose
from ..formats.json_objects import finite_numbers
from ..rotation import is_rotation, similarity
from .brown import NEGLIGIBLE, brown_lens, corner_radius
from .colmap_model import COORDINATE_MAX
from .lenses import Lens, panorama
from .photographs import Photograph, find_usable
from .placement import ReadOptions
from .survey import find_images, list_photographs, read_number, read_survey
from .views import Capture
from .xml_tree import read_xml

SIGN = b"<document"


def find_cameras_file(folder: Path) -> Path | None:
    """Returns the file with Metashape's cameras in a folder, or `folder` if it is such a file; None if there is not
    exactly one."""
    if folder.suffix.lower() == ".xml":
        return folder if _is_cameras(folder) else None
    files = sorted(folder.glob("*.xml")) if folder.is_dir() else []
    candidates = [path for path in files if _is_cameras(path)]
    named = [path for path in candidates if path.name == "cameras.xml"]
    return (named or candidates)[0] if named or len(candidates) == 1 else None


def _is_cameras(path: Path) -> bool:
    """Returns whether a file begins like a Metashape document."""
    if not path.is_file():
        return False
    with open_file(path) as file:
        start = file.read(4096)
    return SIGN in start and b"<chunk" in start


def read_metashape(file: Path, options: ReadOptions) -> Capture:
    """Reads photographs with the cameras of Metashape, in the frame of the chunk's transform.

    Disabled cameras, cameras without a pose, and cameras outside of the largest component and chunk are left out, with
    notes. Photographs are looked up by the last part of their label, with any suffix, in ``images/`` or beside the
    file. Initial points are read from a point cloud beside the file, such as exported tie points, if there is exactly
    one; otherwise they are random.

    Args:
        file: File that :func:`find_cameras_file` returns.
        options: See :func:`read_colmap`.

    Raises:
        FileError: A file is missing or cannot be read, a value in it is missing or invalid, or fewer than two
            photographs are left.
        UnsupportedError: The type of a camera is not frame, fisheye or spherical, or its lens is not implemented.
        ArgumentError: There are fewer than two photographs.
        MissingExtraError: Pillow is not installed, or an image is distorted and pycolmap is not installed.
    """
    photographs, notes = _read_cameras(file)
    kept, missing = find_usable([p.path for p in photographs], options.strict or len(photographs) < 2)
    return read_survey(file, [photographs[i] for i in kept], [*notes, *missing], options)


def _read_cameras(file: Path) -> tuple[list[Photograph], list[str]]:
    """Returns the photographs of a file, sorted by name, and notes about cameras that are left out."""
    root = read_xml(file)
    chunks = [chunk for chunk in root.iter("chunk") if chunk.find("cameras") is not None]
    if root.tag != "document" or not chunks:
        raise FileError(f"{file}: expected a document of Metashape with a chunk of cameras, found <{root.tag[:40]}>")
    posed = [[camera for camera in chunk.iter("camera") if camera.find("transform") is not None] for chunk in chunks]
    chunk, with_pose = max(zip(chunks, posed, strict=True), key=lambda entry: len(entry[1]))
    notes = []
    if len(chunks) > 1:
        label = chunk.get("label", "")
        notes.append(f"{file}: read the chunk {label!r} of {len(chunks)}, which are in frames of their own")
    enabled = [camera for camera in with_pose if camera.get("enabled", "true") not in ("false", "0")]
    components: dict[str, list[Element]] = {}
    for camera in enabled:
        components.setdefault(camera.get("component_id", ""), []).append(camera)
    if not components:
        raise FileError(f"{file}: expected cameras that are enabled and have a transform, found none")
    component, used = max(components.items(), key=lambda entry: len(entry[1]))
    n = sum(1 for _ in chunk.iter("camera"))
    for count, what in (
        (n - len(with_pose), "have no pose"),
        (len(with_pose) - len(enabled), "are disabled"),
        (len(enabled) - len(used), "belong to other components"),
    ):
        if count:
            notes.append(f"{file}: left out {count} of {n:,} cameras that {what}")
    world = _read_world(chunk, component, file)
    sensors = {sensor.get("id", ""): sensor for sensor in chunk.iter("sensor")}
    lenses: dict[str, tuple[int, Lens]] = {}
    images = find_images(file, [camera.get("label", "") for camera in used])
    cameras = []
    for camera, image in zip(used, images, strict=True):
        label, sensor_id = camera.get("label", ""), camera.get("sensor_id", "")
        where = f"{file}: camera {label[:80]!r}"
        if sensor_id not in sensors:
            raise FileError(f"{where}: sensor_id: expected one of the file's sensors, found {sensor_id[:40]!r}")
        if sensor_id not in lenses:
            lens = _read_lens(sensors[sensor_id], f"{file}: sensor {sensor_id[:40]}", notes)
            lenses[sensor_id] = len(lenses), lens
        cameras.append((where, image, lenses[sensor_id], _read_pose(camera, world, where)))
    return list_photographs(file, cameras), notes


def _read_world(chunk: Element, component: str, file: Path) -> Tensor:
    """Returns the similarity [4, 4] fp64 from the frame of a component or chunk to the world; the identity if the file
    has none."""
    components = [element for element in chunk.iter("component") if element.get("id", "") == component]
    transforms = [element.find("transform") for element in (*components, chunk)]
    transform = next((found for found in transforms if found is not None), None)
    if transform is None:
        return similarity()
    where = f"{file}: transform of the chunk"
    if not len(transform):
        return _matrix(transform, where)
    values = {name: transform.find(name) for name in ("rotation", "translation", "scale")}
    rotation, translation, scale = (
        fp64(default if element is None else _numbers(element, len(default), where))
        for element, default in zip(values.values(), ([1.0, 0, 0, 0, 1, 0, 0, 0, 1], [0.0, 0, 0], [1.0]), strict=True)
    )
    matrix = similarity()
    matrix[:3, :3], matrix[:3, 3] = scale * rotation.view(3, 3), translation
    return _similarity(matrix, where)


def _matrix(element: Element, where: str) -> Tensor:
    """Reads a similarity transform [4, 4] fp64 from the 16 numbers of an element."""
    numbers = fp64(_numbers(element, 16, where))
    return _similarity(numbers.view(4, 4), where)


def _similarity(matrix: Tensor, where: str) -> Tensor:
    """Returns a matrix [4, 4] unchanged if it is a similarity transform; otherwise raises FileError."""
    determinant = float(torch.linalg.det(matrix[:3, :3]))
    scale = determinant ** (1 / 3) if determinant > 0 else math.nan
    if not is_rotation(matrix[:3, :3] / scale) or matrix[3].tolist() != [0, 0, 0, 1]:
        raise FileError(f"{where}: expected a rotation, a positive scale and a translation")
    if not matrix.abs().max() <= COORDINATE_MAX:
        raise FileError(f"{where}: expected numbers of at most {COORDINATE_MAX:.0e}")
    return matrix


def _read_pose(camera: Element, world: Tensor, where: str) -> tuple[Tensor, Tensor]:
    """Returns the world-to-camera matrix [4, 4] and the position [3] of a camera, fp64."""
    transform = camera.find("transform")
    assert transform is not None
    moved = world @ _matrix(transform, where)
    rotation = moved[:3, :3] / torch.linalg.det(moved[:3, :3]) ** (1 / 3)
    return viewmat_from_pose(rotation, moved[:3, 3]), moved[:3, 3]


def _read_lens(sensor: Element, where: str, notes: list[str]) -> Lens:
    """Returns the lens of a sensor from its adjusted or else initial calibration. Appends to `notes`."""
    sensor_type = sensor.get("type", "frame").removeprefix("equidistant_")  # as 2.3 names fisheye lenses
    if sensor_type not in ("frame", "fisheye", "spherical"):
        raise UnsupportedError(
            f"{where}: type: expected frame, fisheye or spherical, found {sensor_type[:40]!r}; export undistorted "
            "photographs"
        )
    calibrations = sensor.findall("calibration")
    calibrations.sort(key=lambda calibration: calibration.get("class") != "adjusted")
    sizes = [element.find("resolution") for element in (*calibrations[:1], sensor)]
    size = next((size for size in sizes if size is not None), None)
    if sensor_type == "spherical" and size is not None:  # a full panorama needs no calibration
        return panorama(*_read_size(size)).checked(where)
    if not calibrations or size is None:
        raise FileError(f"{where}: expected a calibration with a resolution; align the photographs before the export")
    calibration = {
        child.tag: _numbers(child, 1, where)[0]
        for child in calibrations[0]
        if not len(child) and (child.text or "").strip()
    }
    width, height = _read_size(size)
    f = calibration.get("f", calibration.get("fy", 0.0))
    fx = calibration.get("fx", f + calibration.get("b1", 0.0))
    cx, cy = (calibration.get(name, 0.0) + side / 2 for name, side in (("cx", width), ("cy", height)))
    k = [calibration.get(f"k{i}", 0.0) for i in range(1, 5)]
    p1, p2 = calibration.get("p2", 0.0), calibration.get("p1", 0.0)  # OpenCV's order
    model: CameraModel = "pinhole" if sensor_type == "frame" else "fisheye"
    Lens(width, height, fx, f, cx, cy, model=model).checked(where)
    radius = corner_radius((width, height), (fx, f, cx, cy))
    skew = calibration.get("b2", calibration.get("skew", 0.0))
    if abs(skew) * max(cy, height - cy) < NEGLIGIBLE * f:
        skew = 0.0
    tangential = 3 * max(abs(p1), abs(p2)) * radius**2 * f
    higher = abs(calibration.get("p3", 0.0)) * radius**2 + abs(calibration.get("p4", 0.0)) * radius**4
    ignored = {"p1 and p2": tangential} if model == "fisheye" else {}
    ignored["p3 and p4"] = tangential * higher
    for name, pixels in ignored.items():
        if pixels > 1:
            raise UnsupportedError(
                f"{where}: {name} moves points by up to {pixels:.2g} pixels and is not implemented; export undistorted "
                "photographs"
            )
        if pixels > NEGLIGIBLE:
            notes.append(f"{where}: {name} is ignored, which moves points by up to {pixels:.2g} pixels")
    if model == "fisheye":
        lens = Lens(width, height, fx, f, cx, cy, (k[0], k[1], k[2], k[3]), model)
    else:
        lens = brown_lens((width, height), (fx, f, cx, cy), k, (p1, p2), where)
    return dataclasses.replace(lens, skew=skew).checked(where)


def _read_size(resolution: Element) -> tuple[int, int]:
    """Returns the width and height of a sensor in pixels; missing values are 0."""
    sides = [to_float(read_number(resolution.get(name, ""))) for name in ("width", "height")]
    width, height = (round(min(side or 0, 1e9)) for side in sides)
    return width, height


def _numbers(element: Element, count: int, where: str) -> list[float]:
    """Returns the finite numbers in an element's text. Raises FileError for other text, or another count of numbers."""
    text = element.text or ""
    words = text.split()[: count + 1]
    return finite_numbers([read_number(word) for word in words], count, f"{where}: {element.tag}", text[:200])
