"""Reading a capture from a folder, whatever its format."""

import os
from pathlib import Path

from ...errors import ArgumentError, FileError
from ...support.reading import check_possible, is_possible
from .colmap import find_model, read_colmap
from .initial_points import N_RANDOM
from .metashape import find_cameras_file, read_metashape
from .phones import RECORD3D_FILES, find_polycam, find_record3d, read_polycam, read_record3d, refuse_phone_file
from .photographs import TEST_EVERY, CameraKind, OnProgress
from .placement import Frame, ReadOptions
from .realitycapture import find_cameras_table, read_realitycapture
from .transforms import has_transforms, read_transforms
from .views import Capture, Color


def read_capture(
    folder: str | os.PathLike[str],
    *,
    downscale: int = 1,
    test_every: int = TEST_EVERY,
    background: Color | None = None,
    normalize: bool = False,
    seed: int = 0,
    strict: bool = False,
    on_progress: OnProgress | None = None,
    cameras: CameraKind = "undistorted",
    max_size: int = 0,
    frame: Frame = "model",
    keep_far: bool = False,
) -> Capture:
    """Reads a capture of COLMAP (:func:`read_colmap`), nerfstudio (:func:`read_transforms`), Metashape, RealityScan,
    Polycam or Record3D.

    Args:
        folder: A folder with a COLMAP model or ``transforms.json`` (COLMAP's ``sparse/0/`` and ``sparse/``
            are preferred), with the cameras that Metashape exported as XML, or with those that RealityCapture or
            RealityScan exported as CSV; or the path of one of these files. Or raw data of Polycam, with ``keyframes/``,
            or an EXR + JPG sequence of Record3D.
        downscale, test_every, background, strict, on_progress, cameras, max_size, frame, keep_far: See
            :func:`read_colmap` and :func:`read_transforms`.
        normalize: Whether to normalize the capture as :func:`normalize_capture` does; ``frame="normalized"`` is the
            same.
        seed: Random seed of the initial points that are drawn if the scene has none.

    Raises:
        FileError: The folder has neither format, or see the two functions.
        UnsupportedError, ArgumentError, MissingExtraError: See the two functions.
    """
    folder = Path(folder)
    check_possible(folder)
    if normalize and frame != "model":
        raise ArgumentError(f"normalize: not with another frame, found {frame!r}")
    frame = "normalized" if normalize else frame
    options = ReadOptions(
        downscale, test_every, background, N_RANDOM, seed, strict, on_progress, cameras, max_size, frame, keep_far
    )
    if _is_colmap(folder):
        return read_colmap(folder, **vars(options))
    if _is_json(folder) or has_transforms(folder):
        return read_transforms(folder, **vars(options))
    if (file := find_cameras_file(folder)) is not None:
        return read_metashape(file, options)
    if (file := find_cameras_table(folder)) is not None:
        return read_realitycapture(file, options)
    if (keyframes := find_polycam(folder)) is not None:
        return read_polycam(keyframes, options)
    if (file := find_record3d(folder)) is not None:
        return read_record3d(file, options)
    refuse_phone_file(folder)
    if not folder.exists():
        raise FileError(f"{folder}: no such folder")
    raise FileError(
        f"{folder}: no cameras found; expected sparse/0/ or sparse/ and images/ (COLMAP), transforms_train.json or "
        "transforms.json, one XML file of Metashape's cameras, one CSV file of RealityCapture's, keyframes/ (Polycam), "
        "or metadata.json and rgb/ (Record3D); to compute cameras from photographs, run: "
        "tsplat prepare PHOTOS --out SCENE"
    )


def is_capture(folder: str | os.PathLike[str]) -> bool:
    """Returns whether :func:`read_capture` finds cameras at a path."""
    folder = Path(folder)
    if not is_possible(folder):
        return False
    is_transforms = _is_json(folder) and folder.name.startswith("transforms")
    known = _is_colmap(folder) or is_transforms or has_transforms(folder)
    finders = (find_cameras_file, find_cameras_table, find_polycam, find_record3d)
    return known or any(find(folder) is not None for find in finders)


def _is_colmap(folder: Path) -> bool:
    model = find_model(folder)
    if model in (folder / "sparse" / "0", folder / "sparse"):
        return True
    return (model is not None or (folder / "sparse").is_dir()) and not has_transforms(folder)


def _is_json(path: Path) -> bool:
    return path.suffix == ".json" and not path.is_dir() and path.name not in RECORD3D_FILES
