"""Reads a capture from a folder in any supported format."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path

from ...errors import ArgumentError, FileError
from ...support.reading import check_possible, is_possible
from ..option_types import CameraKind, Color
from .colmap import find_model, read_posed_colmap
from .initial_points import N_RANDOM
from .metashape import find_cameras_file, read_metashape
from .phones import RECORD3D_FILES, find_polycam, find_record3d, read_polycam, read_record3d, refuse_phone_file
from .photographs import PHOTOGRAPH_SUFFIXES, TEST_EVERY, UNSUPPORTED_SUFFIXES, OnProgress
from .placement import FrameChoice, ReadOptions
from .realitycapture import find_cameras_table, read_realitycapture
from .transforms import has_transforms, read_posed_transforms
from .views import Capture


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
    frame: FrameChoice = "model",
    keep_far: bool = False,
) -> Capture:
    """Reads a capture of COLMAP (:func:`read_colmap`), nerfstudio (:func:`read_transforms`), Metashape, RealityCapture,
    RealityScan, Polycam or Record3D.

    Args:
        folder: A folder with a COLMAP model or ``transforms.json`` (COLMAP's ``sparse/0/`` and ``sparse/`` are
            preferred), with cameras exported by Metashape as XML, or with cameras exported by RealityCapture or
            RealityScan as CSV; or the path of one of these files. Or a folder with raw data of Polycam
            (``keyframes/``), or an EXR + JPG sequence of Record3D.
        downscale, test_every, background, strict, on_progress, cameras, max_size, frame, keep_far: See
            :func:`read_colmap` and :func:`read_transforms`.
        normalize: Whether to normalize the capture with :func:`normalize_capture`; the same as ``frame="normalized"``.
        seed: Random seed of the initial points, which are drawn at random if the scene has none.

    Raises:
        FileError: The folder has none of these formats; or see the two functions.
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
    for find, read in READERS:
        if (found := find(folder)) is not None:
            return read(found, options)
    refuse_phone_file(folder)
    if not folder.exists():
        raise FileError(f"{folder}: no such folder")
    names = [path.name for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
    if names and all(name.lower().endswith(PHOTOGRAPH_SUFFIXES + UNSUPPORTED_SUFFIXES) for name in names):
        raise FileError(
            f"{folder}: a folder of photographs without cameras; to compute them, run: tsplat prepare "
            f"{shlex.quote(str(folder))} --out SCENE, then tsplat train SCENE --out RUN"
        )
    raise FileError(
        f"{folder}: no cameras found; expected sparse/0/ or sparse/ and images/ (COLMAP), transforms_train.json or "
        "transforms.json, one XML file of Metashape's cameras, one CSV file of RealityCapture's, keyframes/ (Polycam), "
        "or metadata.json and rgb/ (Record3D); to compute cameras from photographs, run: "
        "tsplat prepare PHOTOS --out SCENE"
    )


def is_capture(folder: str | os.PathLike[str]) -> bool:
    """Returns whether :func:`read_capture` finds cameras at a path."""
    folder = Path(folder)
    if not is_possible(folder) or (_is_json(folder) and not folder.name.startswith("transforms")):
        return False
    return any(find(folder) is not None for find, _ in READERS)


def _find_colmap(folder: Path) -> Path | None:
    """Returns the folder if it contains a COLMAP model; if it also has a ``transforms.json``, only in the usual
    places."""
    model = find_model(folder)
    preferred = model in (folder / "sparse" / "0", folder / "sparse")
    others = (model is not None or (folder / "sparse").is_dir()) and not has_transforms(folder)
    return folder if preferred or others else None


def _find_transforms(path: Path) -> Path | None:
    """Returns the path if it is a file, or a folder with files, that :func:`read_transforms` can read."""
    return path if _is_json(path) or has_transforms(path) else None


def _is_json(path: Path) -> bool:
    return path.suffix == ".json" and not path.is_dir() and path.name not in RECORD3D_FILES


READERS: tuple[tuple[Callable[[Path], Path | None], Callable[[Path, ReadOptions], Capture]], ...] = (
    (_find_colmap, read_posed_colmap),
    (_find_transforms, read_posed_transforms),
    (find_cameras_file, read_metashape),
    (find_cameras_table, read_realitycapture),
    (find_polycam, read_polycam),
    (find_record3d, read_record3d),
)
"""For each format, in order of preference, a function that finds cameras in a folder, and a function that reads
them."""
