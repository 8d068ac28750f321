"""Reads ``transforms.json``, the format of nerfstudio, instant-ngp and the synthetic NeRF scenes.

Poses are camera-to-world matrices in OpenGL axes: x right, y up, z backward (nerfstudio's data conventions; Mildenhall
et al., "NeRF", 2020). Intrinsics follow OpenCV. They may be given per frame or for the whole file; values of the frame
take precedence.
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import ArgumentError, FileError
from ...scalars import describe
from ...support.reading import check_possible, is_possible, is_special, path_inside, read_json
from ..images import read_image_info
from ..option_types import CameraKind, Color
from .colmap import downscaled_folder, find_by_stem
from .initial_points import N_RANDOM, blender_bounds, bounds, random_points, read_points
from .lenses import Lens
from .photographs import TEST_EVERY, OnProgress, Photograph, find_usable, is_held_out
from .placement import FrameChoice, ReadOptions, read_posed
from .survey import name_of
from .transforms_cameras import read_lens, read_viewmat
from .views import Capture

SUFFIXES = (".png", ".jpg", ".jpeg", ".JPG", ".PNG", ".webp")
"""Suffixes that are tried in this order if ``file_path`` has none."""

WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]")
"""The beginning of an absolute path on Windows."""


def read_transforms(
    path: str | os.PathLike[str],
    downscale: int = 1,
    test_every: int = TEST_EVERY,
    background: Color | None = None,
    *,
    n_random: int = N_RANDOM,
    seed: int = 0,
    strict: bool = False,
    on_progress: OnProgress | None = None,
    cameras: CameraKind = "undistorted",
    max_size: int = 0,
    frame: FrameChoice = "model",
    keep_far: bool = False,
) -> Capture:
    """Reads images, cameras and points in the world frame of the file.

    Training views come from ``transforms_train.json`` if it exists, and held-out views from ``transforms_test.json`` or
    else ``transforms_val.json``. Otherwise, ``transforms.json`` contains both; if it has ``train_filenames``,
    ``val_filenames`` or ``test_filenames``, these split the views, and the last two are held out. Frames that repeat an
    image, and images without valid pixels, are skipped with a note.

    Initial points are read from ``ply_file_path``. If it is missing, gray points are drawn uniformly in a box: [-1.3,
    1.3]^3 for the synthetic NeRF scenes, scaled by a power of two to fit the cameras; otherwise around the cameras and
    their targets.

    Images with distortion (``k1`` to ``k3``, ``p1``, ``p2``) are undistorted. Images with the model OPENCV_FISHEYE or
    ``is_fisheye`` (``k1`` to ``k4``) become equidistant fisheye images, up to 90 degrees from the optical axis. Images
    of EQUIRECTANGULAR cameras are not changed: they are full panoramas, or partial ones with ``fl_x`` and ``fl_y`` in
    pixels per 180 degrees, as in nerfstudio. For other cameras, focal lengths are ``fl_x`` and ``fl_y``, or computed
    from ``camera_angle_x`` (radians) or ``x_fov`` (degrees). ``mask_path`` is white for valid pixels. The EXIF
    orientation of images is ignored, unless only the rotated image has the size of its camera; see :func:`read_views`.

    Args:
        path: A folder or the JSON file. Paths of images, masks and points are relative to it and must stay inside its
            folder.
        downscale: See :func:`read_colmap`. Downscaled images are looked up in ``images_2/`` and so on, if the images
            are in ``images/``.
        test_every: If the files do not specify held-out views, every N-th image, sorted by name, is held out, starting
            with the first.
        background: RGB in [0, 1] behind the scene and behind transparent images; None for white if any image is
            transparent, otherwise black.
        n_random, seed, strict, on_progress, cameras, max_size, frame, keep_far: See :func:`read_colmap`.

    Raises:
        FileError: A file is missing or cannot be read, a value in it is missing or invalid, fewer than two images are
            left, or no training image has a valid pixel.
        UnsupportedError: The camera model is not supported, or there is a rolling shutter.
        ArgumentError: An invalid argument, or fewer than two images.
        MissingExtraError: Pillow is not installed, or an image is distorted and pycolmap is not installed.
    """
    options = ReadOptions(
        downscale, test_every, background, n_random, seed, strict, on_progress, cameras, max_size, frame, keep_far
    )
    return read_posed_transforms(Path(path), options)


def read_posed_transforms(path: Path, options: ReadOptions) -> Capture:
    """Implements :func:`read_transforms`."""
    check_possible(path)
    files, has_test_file = _find_files(path)
    contents = [_read_json(file) for file in files]
    frames, notes = _find_frames(files, contents, options.downscale, options.strict)
    lenses: dict[Lens, int] = {}
    photographs = [_photograph(frame, lenses) for frame in frames]
    test_names: set[str] | None = None
    if has_test_file:
        test_names = {photograph.name for photograph, frame in zip(photographs, frames) if frame.file != files[0]}
    else:
        photographs, test_names, unused = _split(files[0], contents[0], photographs)
        notes += unused

    def held_out(photographs: Sequence[Photograph], about: Sequence[str]) -> list[bool]:
        """Returns which photographs are held out. Raises ArgumentError if too few are left for training."""
        if test_names is None:
            flags = [is_held_out(i, options.test_every) for i in range(len(photographs))]
        else:
            flags = [photograph.name in test_names for photograph in photographs]
        if len(flags) < 2 or all(flags):
            raise ArgumentError(
                f"{path}: expected at least two images, some of them for training, found {flags.count(False)} "
                f"training images and {sum(flags)} held-out images" + "".join(f"; {note}" for note in about)
            )
        return flags

    held_out(photographs, notes)
    if options.background is None:
        is_white = any(read_image_info(photograph.path).transparent for photograph in photographs)
        options = dataclasses.replace(options, background=(1.0, 1.0, 1.0) if is_white else (0.0, 0.0, 0.0))
    ply = contents[0].get("ply_file_path")
    if ply is not None:
        initial = read_points(_resolve_file(files[0], ply, "ply_file_path"))
    else:
        is_blender = has_test_file and "fl_x" not in contents[0]
        box = blender_bounds if is_blender else bounds
        initial = random_points(box, options.n_random, options.seed, f"{files[0]}: no ply_file_path")
    return read_posed(photographs, initial, files[0], options, notes, held_out)


def has_transforms(folder: Path) -> bool:
    """Returns whether a folder contains a file that :func:`read_transforms` can read."""
    return any((folder / name).is_file() for name in ("transforms_train.json", "transforms.json"))


def _find_files(path: Path) -> tuple[list[Path], bool]:
    """Returns the files to read, and whether the second one contains the held-out views."""
    if not path.is_dir():
        return [path], False
    train = path / "transforms_train.json"
    if not train.is_file():
        if not (path / "transforms.json").is_file():
            raise FileError(f"{path}: expected transforms.json or transforms_train.json, found neither")
        return [path / "transforms.json"], False
    test_files = [path / f"transforms_{name}.json" for name in ("test", "val")]
    existing = [file for file in test_files if file.is_file()][:1]
    return [train, *existing], bool(existing)


def _split(
    path: Path, content: Mapping[str, Any], photographs: Sequence[Photograph]
) -> tuple[list[Photograph], set[str] | None, list[str]]:
    """Splits photographs by the file's train_filenames, val_filenames and test_filenames.

    Images in the last two are held out. If both are missing, images that are not in train_filenames are held out.
    Returns the used photographs, sorted by name; the names of held-out photographs, or None if the file has no list;
    and notes.
    """
    photographs = sorted(photographs, key=lambda photograph: photograph.name)
    names, notes = {photograph.name for photograph in photographs}, []
    in_lower_case = {name.lower(): name for name in names}
    listed: dict[str, set[str]] = {}
    for key in ("train_filenames", "val_filenames", "test_filenames"):
        values = content.get(key)
        if isinstance(values, list) and values:
            view_names = {name_of(_find_image(path, name, key), path) for name in values}
            listed[key] = {name if name in names else in_lower_case.get(name.lower(), name) for name in view_names}
            if unknown := listed[key] - names:
                first = min(unknown)
                notes.append(f"{path}: {key}: {len(unknown)} of {len(values)} names match no image (first: {first})")
    if not listed:
        return photographs, None, []
    train = listed.pop("train_filenames", names)
    test = set().union(*listed.values()) if listed else names - train
    if listed and train is not names and (both := train & test & names):
        known = f"{len(both)} of {len(names):,} images"
        notes.append(f"{path}: {known} are in train_filenames, but held out (first: {min(both)})")
    if unused := names - train - test:
        known = f"{len(unused)} of {len(names):,} images"
        notes.append(f"{path}: {known} are in no list of file names (first: {min(unused)})")
    if not test & names:
        notes.append(f"{path}: its lists of file names leave no image to hold out")
    used = [photograph for photograph in photographs if photograph.name not in unused]
    return used, test, notes


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    frames = content.get("frames") if isinstance(content, dict) else None
    if not isinstance(frames, list) or not frames or not all(isinstance(frame, dict) for frame in frames):
        raise FileError(f"{path}: not a transforms.json; expected an object with a nonempty list of frames")
    return dict(content)


@dataclasses.dataclass(frozen=True, eq=False)
class _Frame:
    """A frame of a file; its values are completed by values of the whole file.

    `full` is the image of the frame; `image` is the image to read, which may be in a folder of downscaled images.
    `name` is for messages.
    """

    file: Path
    name: str
    values: Mapping[str, Any]
    full: Path
    image: Path


def _find_frames(
    files: Sequence[Path], contents: Sequence[Mapping[str, Any]], downscale: int, strict: bool
) -> tuple[list[_Frame], list[str]]:
    """Returns the frames of readable images, each image once, and notes about the others."""
    frames: list[_Frame] = []
    other_case: list[Path] = []
    folders: dict[Path, dict[str, Path]] = {}
    for file, content in zip(files, contents):
        for number, frame in enumerate(content["frames"]):
            name = frame.get("file_path")
            full = _find_image(file, name, f"frame {number}: file_path")
            image = _downscaled(file, full, downscale)
            if not os.path.isfile(image) and not os.path.isfile(full):
                if WINDOWS_PATH.match(name) and os.name != "nt":
                    raise FileError(
                        f"{file}: frame {number}: file_path: expected a path relative to the file, found the absolute "
                        f"path {describe(name)} of a Windows machine; make the paths relative"
                    )
                if renamed := _find_in_other_case(full, folders):
                    other_case.append(full)
                    full = renamed
                    image = _downscaled(file, full, downscale)
            # Values of null count as missing.
            values = {key: value for part in (content, frame) for key, value in part.items() if value is not None}
            frames.append(_Frame(file, f"frame {number}", values, full, image))
    kept, notes = find_usable([frame.image for frame in frames], strict or len(frames) < 2)
    if other_case:
        n = len(other_case)
        notes.append(f"found {n} of {len(frames):,} images by ignoring upper and lower case (first: {other_case[0]})")
    usable = [frames[i] for i in kept]
    first_frames = {os.path.normpath(frame.full): frame for frame in reversed(usable)}
    unique = [frame for frame in usable if first_frames[os.path.normpath(frame.full)] is frame]
    if n_repeated := len(usable) - len(unique):
        repeated = next(frame for frame, other in zip(usable, [*unique, None]) if frame is not other)
        notes.append(
            f"skipped {n_repeated} of {len(frames):,} frames that repeat the image of another (first: {repeated.file}: "
            f"{repeated.name})"
        )
    return unique, notes


def _find_in_other_case(image: Path, folders: dict[Path, dict[str, Path]]) -> Path | None:
    """Returns the file whose name differs only in upper and lower case. Caches the listing of each folder in
    `folders`."""
    folder = image.parent
    if folder not in folders:
        try:
            folders[folder] = {path.name.lower(): path for path in folder.iterdir() if path.is_file()}
        except (OSError, ValueError):
            folders[folder] = {}
    return folders[folder].get(image.name.lower())


def _downscaled(file: Path, full: Path, downscale: int) -> Path:
    """Returns the downscaled image to read instead of the full one, if there is a folder of downscaled images."""
    is_scene = full.parent.resolve() == file.parent.resolve()  # the folder beside it is another scene
    folder = None if is_scene else downscaled_folder(full.parent, downscale)
    return full if folder is None else find_by_stem(folder, full.name)


def _photograph(frame: _Frame, lenses: dict[Lens, int]) -> Photograph:
    """Returns the photograph of a frame. Adds a new lens to `lenses`, which maps them to ids."""
    where = f"{frame.file}: {frame.name}"
    lens = read_lens(frame.values, frame.full if os.path.isfile(frame.full) else frame.image, where)
    mask = frame.values.get("mask_path")
    mask = None if mask is None else _resolve_file(frame.file, mask, f"{frame.name}: mask_path")
    if mask is not None and os.path.realpath(mask) in map(os.path.realpath, (frame.image, frame.full)):
        raise FileError(f"{where}: mask_path: expected an image of the valid pixels, found the photograph itself")
    viewmat, position = read_viewmat(frame.values.get("transform_matrix"), where)
    return Photograph(
        name=name_of(frame.full, frame.file),
        path=frame.image,
        lens=lens,
        viewmat=viewmat,
        position=position,
        camera_id=lenses.setdefault(lens, len(lenses)),
        is_downscaled=frame.image != frame.full,
        mask=mask,
    )


def _resolve(path: Path, name: object, what: str) -> Path:
    """Resolves a name relative to the file `path`. Raises FileError if it leads out of the file's folder."""
    relative = name.replace("\\", "/") if isinstance(name, str) else ""
    if not relative or not is_possible(path.parent / relative):
        raise FileError(f"{path}: {what}: expected a file name, found {describe(name)}")
    full = path_inside(path.parent, relative)
    if full is None:
        raise FileError(
            f"{path}: {what}: expected a path inside the folder of this file, found {describe(name)}; move the files "
            "there, or link their folder there, and make the paths relative"
        )
    return full


def _resolve_file(path: Path, name: object, what: str) -> Path:
    """Resolves a name like `_resolve`; raises FileError for files such as pipes, because reading them may block."""
    full = _resolve(path, name, what)
    if os.path.exists(full) and is_special(os.stat(full).st_mode):
        raise FileError(f"{path}: {what}: expected a regular file, found {str(name)!r}, a pipe, a socket or a device")
    return full


def _find_image(path: Path, name: object, what: str) -> Path:
    """Returns the path of an image with its suffix; if it does not exist, the path given in the file."""
    image = _resolve(path, name, what)
    if os.path.isfile(image) or not image.name:
        return image
    return next((p for s in SUFFIXES if os.path.isfile(p := image.with_name(image.name + s))), image)
