"""Finds, decodes, links and converts the photographs and masks that a scene is computed from.

Photographs that Pillow cannot decode are left out; photographs that COLMAP cannot decode are converted to PNG.
"""

import dataclasses
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ...errors import ArgumentError, FileError
from ...support.suggestions import list_names
from ..images import ImageInfo, convert_image, read_image_info, read_mask
from .colmap import find_mask
from .photographs import CONVERT, PHOTOGRAPH_SUFFIXES, UNSUPPORTED_SUFFIXES, find_copies, n_readers
from .video_frames import VIDEO_SUFFIXES

OTHER_SUFFIXES = (".jpe", ".jfif", ".jp2", ".j2k", ".avif", ".heic", ".heif", ".hif", ".jxl")
"""Suffixes of other photographs that Pillow can read, some with plugins. Raw formats are missing because Pillow would
read their preview."""

SIDE_MIN = 4
"""Minimum shorter side in pixels, at the size at which features are extracted; below it, COLMAP crashes."""

PANORAMA_TOLERANCE = 0.01
"""Accepted relative difference between the width of a panorama and twice its height."""

NAMES_MAX = 10
"""Maximum number of photographs that a note names."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A photograph in the user's folder, with its header."""

    path: Path
    info: ImageInfo


def find_photographs(
    photos: Path,
    masks: Path | None,
    *,
    max_size: int,
    single_camera: bool,
    on_decoded: Callable[[int], object] = lambda _: None,
) -> tuple[dict[str, Source], list[str]]:
    """Returns the usable photographs in a folder by name, in order, and notes.

    Subfolders are searched, except for hidden folders, masks and scenes. Photographs that cannot be decoded, or are too
    narrow at `max_size`, are left out with a note. `on_decoded` is called after each decoded photograph, with the
    number of all photographs.
    """
    if not photos.is_dir():
        what = "not a folder of photographs" if photos.exists() else "no such folder"
        raise FileError(f"{photos}: {what}; videos end in {', '.join(VIDEO_SUFFIXES)}")
    visible: list[Path] = []
    for parent, folders, names in os.walk(photos):
        folders[:] = [name for name in folders if _has_photographs(Path(parent, name), masks)]
        visible += [Path(parent, name) for name in names if not name.startswith(".")]
    visible.sort(key=lambda path: path.relative_to(photos).as_posix())
    paths = [path for path in visible if path.suffix.lower() in (*PHOTOGRAPH_SUFFIXES, *OTHER_SUFFIXES)]
    for path in paths:
        try:
            path.relative_to(photos).as_posix().encode()
        except UnicodeEncodeError as error:
            raise FileError(f"{path}: expected a name in UTF-8, which COLMAP needs; rename it") from error
    unknown = [path for path in visible if path.suffix.lower() in UNSUPPORTED_SUFFIXES and path not in paths]
    damaged: dict[Path, str] = {}
    narrow: dict[Path, str] = {}
    files: dict[str, Source] = {}
    for path, info in zip(paths, _decode(paths, on_decoded), strict=True):
        if isinstance(info, FileError):
            if path.suffix.lower() in UNSUPPORTED_SUFFIXES:
                unknown.append(path)
            else:
                damaged[path] = str(info).removeprefix(f"{path}: ")
            continue
        longer, shorter = max(info.width, info.height), min(info.width, info.height)
        if shorter * min(1.0, max_size / longer) < SIDE_MIN:
            narrow[path] = f"{info.width}×{info.height} pixels, too narrow after downscaling to max_size={max_size}"
        else:
            files[path.relative_to(photos).as_posix()] = Source(path, info)
    notes = []
    if unknown:
        notes.append(
            f"skipped {len(unknown):,} photographs in formats that cannot be read (first: {min(unknown)}); {CONVERT}"
        )
    for left_out, what in ((damaged, "cannot be read"), (narrow, "are too narrow")):
        if left_out:
            shown, reason = list_names([*map(str, left_out)], NAMES_MAX), next(iter(left_out.values()))
            notes.append(f"skipped {len(left_out):,} photographs that {what}: {shown}: {reason}")
    if len(files) < 2:
        videos = [path for path in visible if path.suffix.lower() in VIDEO_SUFFIXES]
        raise FileError(
            f"{photos}: expected at least two photographs ({', '.join(PHOTOGRAPH_SUFFIXES)}), found {len(files)}"
            + "".join(f"; {note}" for note in notes)
            + (f"; name one video, such as {videos[0]}" if videos else "")
        )
    return files, notes + _check_cameras(photos, files, single_camera) + _note_copies(files)


def _decode(paths: Sequence[Path], on_decoded: Callable[[int], object]) -> list[ImageInfo | FileError]:
    """Decodes photographs in several threads. Returns the header of each, or the error if it cannot be read."""

    def read(path: Path, decoded: bool = True) -> ImageInfo | FileError:
        try:
            return read_image_info(path, decoded=decoded)
        except FileError as error:
            return error

    headers = [read(path, False) for path in paths]
    largest = max((info.width * info.height for info in headers if isinstance(info, ImageInfo)), default=1)
    infos: list[ImageInfo | FileError] = []
    pool = ThreadPoolExecutor(n_readers(largest))
    try:
        for info in pool.map(read, paths):
            infos.append(info)
            on_decoded(len(paths))
    finally:
        pool.shutdown(cancel_futures=True)
    return infos


def _check_cameras(photos: Path, files: dict[str, Source], single_camera: bool) -> list[str]:
    """Raises ArgumentError if photographs of one camera differ in size; returns a note if there are several cameras."""
    if not single_camera:
        return []
    cameras: defaultdict[str, list[ImageInfo]] = defaultdict(list)
    for name, source in files.items():
        cameras[Path(name).parent.as_posix()].append(source.info)
    for camera, infos in cameras.items():
        sizes = Counter((info.width, info.height) for info in infos)
        if len(sizes) > 1:
            found = ", ".join(f"{count} of {width}×{height}" for (width, height), count in sizes.most_common(4))
            raise ArgumentError(
                f"{photos / camera}: expected photographs of one size from a single camera, found {found}; put those "
                "of each camera into a subfolder, or pass single_camera=False (--no-single-camera)"
            )
    if len(cameras) == 1:
        return []
    shown = ", ".join(f"{name} ({len(infos)})" for name, infos in list(cameras.items())[:5])
    return [f"{len(cameras):,} cameras, one of each folder: {shown}{', …' if len(cameras) > 5 else ''}"]


def _note_copies(files: dict[str, Source]) -> list[str]:
    copies = find_copies([source.path for source in files.values()])
    if not copies:
        return []
    names = list(files)
    shown = [f"{names[i]} of {names[first]}" for i, first in copies.items()]
    return [f"{len(copies):,} photographs are copies of others: {list_names(shown, NAMES_MAX)}; delete them"]


def _has_photographs(folder: Path, masks: Path | None) -> bool:
    """Returns whether a subfolder may contain photographs: it is not hidden, not the masks, and not a scene."""
    if folder.name.startswith(".") or (folder / "sparse").is_dir():
        return False
    return masks is None or folder.resolve() != masks.resolve()


def link_masks(masks: Path, folder: Path, files: dict[str, Source]) -> list[str]:
    """Links the masks of photographs into a folder under the names that COLMAP and training expect, ``a.jpg.png``.

    COLMAP needs a mask for each photograph: photographs without a mask get a white one, and a note is returned.
    """
    from PIL import Image

    if not masks.exists():
        raise FileError(f"{masks}: no such file or folder; expected masks")
    lacking = []
    checked: set[Path] = set()
    for name, source in files.items():
        mask, target = masks if masks.is_file() else find_mask(masks, name), folder / f"{name}.png"
        if mask is None:
            lacking.append(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (source.info.width, source.info.height), 255).save(target)
            continue
        mask_info = read_image_info(mask)
        if (mask_info.width, mask_info.height) != (source.info.width, source.info.height):
            raise ArgumentError(
                f"{mask}: expected a mask of the size of {name}, {source.info.width}×{source.info.height}, found "
                f"{mask_info.width}×{mask_info.height}"
            )
        if mask not in checked:
            read_mask(mask)  # the same check as in training
            checked.add(mask)
        if mask.suffix.lower() == ".png":
            link(mask, target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            convert_image(mask, target)
    if len(lacking) == len(files):
        raise FileError(f"{masks}: expected masks such as {lacking[0]}.png, found none")
    if not lacking:
        return []
    return [f"{len(lacking):,} photographs have no mask: all their pixels count (first: {lacking[0]})"]


def check_panoramas(files: dict[str, Source]) -> None:
    """Raises ArgumentError for photographs that are not twice as wide as high and so cannot show 360 by 180 degrees."""
    for name, source in files.items():
        width, height = source.info.width, source.info.height
        if abs(width - 2 * height) > max(2.0, PANORAMA_TOLERANCE * width):
            raise ArgumentError(
                f"{name}: expected a panorama of 360 by 180 degrees, twice as wide as high, found {width}×{height}; "
                "complete it by a stitching program, or choose another camera_model"
            )


def mask_panoramas(folder: Path, files: dict[str, Source], below: float) -> None:
    """Masks the part of panoramas more than `below` degrees below the middle row, in addition to the masks in a folder.

    Panoramas of the same size without other masks share one file by links.
    """
    from PIL import Image

    plain: dict[tuple[int, int], Path] = {}
    for name, source in files.items():
        path, size = folder / f"{name}.png", (source.info.width, source.info.height)
        if size in plain and not path.exists():
            link(plain[size], path)
            continue
        if path.exists():
            mask = read_mask(path).numpy().copy()
            path.unlink()  # it may be a link to the user's file
        else:
            mask = np.full(size[::-1], 255, np.uint8)
            plain[size] = path
        first = round(size[1] * (0.5 + below / 180))
        mask[first:] = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask).save(path, "PNG")


def convert_photographs(names: Sequence[str], images: Path, masks: Path | None) -> dict[str, str]:
    """Replaces linked photographs by PNGs, ``a.webp`` by ``a.webp.png``, and renames masks; returns old names -> new
    names."""
    renamed = {}
    for name in names:
        new = f"{name}.png"
        while (images / new).exists():
            new += ".png"
        convert_image(images / name, images / new)
        (images / name).unlink()
        if masks is not None:
            os.replace(masks / f"{name}.png", masks / f"{new}.png")
        renamed[name] = new
    return renamed


def link(file: Path, target: Path) -> None:
    """Creates a hard link, or a copy if that is not possible, and its folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file.resolve(), target)
    except OSError:
        shutil.copyfile(file, target)
