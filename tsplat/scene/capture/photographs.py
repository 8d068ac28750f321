"""Loads photographs: reads images and masks, undistorts and downscales them."""

import dataclasses
import functools
import hashlib
import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import FileError
from ...precision import fp32
from ...scalars import check_size
from ...support.progress import reported
from ...support.reading import open_file
from ..cameras import Camera, centers
from ..images import SWAPPED_ORIENTATIONS, downscale, read_image, read_image_info, read_mask, rotate_by_exif
from ..option_types import CameraKind, Color
from .image_cache import BYTES_MAX, WORKERS_MAX, CachedPixels, ImageCache, Pixels
from .lens_conversions import native_lens
from .lenses import Lens
from .undistortion import Undistortion, coverage, undistorted_intrinsics
from .views import StoredView, View

ASPECT_TOLERANCE = 0.01
"""Accepted relative difference between the aspect ratios of an image and its camera, in addition to one pixel."""

PIXELS_AT_ONCE = 200_000_000
"""Maximum total number of pixels of images that are read at the same time."""

SAMPLE = 1 << 16
"""Number of bytes that are compared before files of equal size are compared completely."""

PHOTOGRAPH_SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp")
"""Suffixes of photographs, in lower case, that Pillow reads and COLMAP may."""

UNSUPPORTED_SUFFIXES = (
    *(".heic", ".heif", ".hif", ".avif", ".jxl", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"),
    *(".pef", ".srw", ".gif"),
)
"""Suffixes of photographs that COLMAP cannot read, and Pillow mostly only with plugins."""

TEST_EVERY = 8
"""Default interval of held-out images."""

CONVERT = "convert them to JPEG, under the same names"

OnProgress = Callable[[int, int], None]
"""Called with the number of images read and their total."""

Undistortions = dict[tuple[Lens, int, int], Undistortion]
"""Undistortion for each combination of lens, width and height that several images share."""


@dataclasses.dataclass(frozen=True, eq=False)
class Photograph:
    """An image file and its camera.

    Attributes:
        path: Path of the image, which may have any size with the aspect ratio of the lens.
        viewmat: [4, 4] fp64 world to camera.
        position: [3] fp64 position, if the file contains it instead of a translation.
        camera_id: Index of the physical camera.
        downscale: Factor by which the image is downscaled while it is read.
        is_downscaled: Whether the file itself is downscaled, as in ``images_2/``.
        mask: Path of a mask with the same aspect ratio, white for valid pixels.
        points: [P, 3] sparse points observed in the image, world frame.
        point_ids: [P] int64 ids of these points.
        near: Near plane, see :class:`tsplat.scene.Camera`.
        border: Width of the border that is masked out, in pixels of the lens.
    """

    name: str
    path: Path
    lens: Lens
    viewmat: Tensor
    camera_id: int = 0
    downscale: float = 1
    is_downscaled: bool = False
    mask: Path | None = None
    points: Tensor | None = None
    point_ids: Tensor | None = None
    position: Tensor | None = None
    near: float | None = None
    border: float = 0.0


def is_held_out(index: int, test_every: int) -> bool:
    """Returns whether the view with an index, in the order of names, is held out: every `test_every`-th, starting with
    the first."""
    return test_every > 0 and index % test_every == 0


def find_usable(paths: Sequence[Path], strict: bool) -> tuple[list[int], list[str]]:
    """Returns the indices of the images that exist and that Pillow can read (unlike HEIC), and notes about the
    others."""
    missing = [i for i, path in enumerate(paths) if not os.path.isfile(path)]
    unreadable = [i for i in set(range(len(paths))).difference(missing) if _is_unreadable(paths[i])]
    left_out = {*missing, *unreadable}
    kept = [i for i in range(len(paths)) if i not in left_out]
    notes, n = [], len(paths)
    if missing:
        notes.append(f"skipped {len(missing)} of {n:,} images whose files are missing (first: {paths[missing[0]]})")
    if unreadable:
        first = paths[min(unreadable)]
        notes.append(f"skipped {len(unreadable)} of {n:,} images that Pillow cannot read (first: {first}); {CONVERT}")
    if left_out and (strict or len(kept) < 2):
        if missing:
            more = f", and {len(missing) - 1} more of {n:,} images are missing" if len(missing) > 1 else ""
            message = f"{paths[missing[0]]}: no such file{more}"
        else:
            message = f"{paths[min(unreadable)]}: one of {len(unreadable):,} images that Pillow cannot read; {CONVERT}"
        raise FileError(message if strict else f"{message}; expected at least two images, {len(kept)} can be read")
    return kept, notes


def _is_unreadable(path: Path) -> bool:
    if path.suffix.lower() not in UNSUPPORTED_SUFFIXES:
        return False
    try:
        read_image_info(path)
    except FileError:
        return True
    return False


def find_copies(paths: Sequence[Path]) -> dict[int, int]:
    """Maps the index of each file with the content of an earlier file to the index of that file."""
    # Only files of equal size with equal samples are read completely.
    groups: dict[tuple[int, bytes], list[int]] = {}
    sizes = [path.stat().st_size for path in paths]
    counts = Counter(sizes)
    for i, (path, size) in enumerate(zip(paths, sizes)):
        if counts[size] > 1:
            groups.setdefault((size, _sample(path, size)), []).append(i)
    copies = {}
    for indices in groups.values():
        firsts: dict[bytes, int] = {}
        for i in indices if len(indices) > 1 else ():
            with open_file(paths[i]) as file:
                first = firsts.setdefault(hashlib.file_digest(file, "sha256").digest(), i)
            if first != i:
                copies[i] = first
    return dict(sorted(copies.items()))


def _sample(path: Path, size: int) -> bytes:
    """Returns the hash of a sample of bytes from the middle of a file."""
    with open_file(path) as file:
        file.seek(max(size - SAMPLE, 0) // 2)
        return hashlib.sha256(file.read(SAMPLE)).digest()


def limit_sizes(photographs: Sequence[Photograph], max_size: int) -> tuple[list[Photograph], list[str]]:
    """Limits the longer side of images to `max_size` pixels, 0 for no limit; returns a note if any is downscaled."""
    if check_size("max_size", max_size, or_zero=True) == 0:
        return list(photographs), []
    infos = [read_image_info(photograph.path) for photograph in photographs]
    factors = [max(1.0, max(info.width, info.height) / max_size) for info in infos]
    limited = [dataclasses.replace(photograph, downscale=f) for photograph, f in zip(photographs, factors)]
    scaled = [i for i, factor in enumerate(factors) if factor > 1]
    if not scaled:
        return limited, []
    first, factor = infos[scaled[0]], factors[scaled[0]]
    note = (
        f"scaled {len(scaled)} of {len(photographs):,} images down to a longer side of {max_size} pixels (first: "
        f"{first.width}×{first.height} to {round(first.width / factor)}×{round(first.height / factor)}); max_size 0 "
        "keeps their size"
    )
    return limited, [note]


def read_views(
    photographs: Sequence[Photograph],
    background: Color | None,
    on_progress: OnProgress | None = None,
    cameras: CameraKind = "undistorted",
) -> list[View]:
    """Reads photographs in several threads; the views are in the order of the photographs.

    If the images take more than 1 GiB together, they are read on demand, and a cache keeps at most 1 GiB.

    Distorted images and their masks are undistorted to pinhole or equidistant fisheye images of the same size. Pixels
    without a source are masked out. With ``cameras="native"``, images are not resampled and cameras are distorted, if
    the rasterizer supports the lens. Transparent images are composited over a background in [0, 1]; None masks out
    pixels whose alpha is below one half.

    The EXIF orientation of an image is ignored, as in COLMAP, instant-ngp and nerfstudio, if the image's stored size
    fits its camera, which includes square images. If only the transposed size fits, the cameras were computed from
    rotated images, and the image is rotated by its orientation.
    """
    _check_masks([photograph.mask for photograph in photographs if photograph.mask])
    if cameras == "native":
        photographs = [
            p if (native := native_lens(p.lens)) is None else dataclasses.replace(p, lens=native[0])
            for p in photographs
        ]
    found = (_find_layout(photograph, cameras) for photograph in photographs)
    layouts = list(reported(found, len(photographs), "checking"))
    largest = max((math.prod(layout.size) for layout in layouts), default=1)
    distorted = [(p.lens, *layout.size) for p, layout in zip(photographs, layouts) if layout.is_resampled]
    # Maps of lenses with a single image are not kept, because survey software may give each image its own lens.
    undistortions: Undistortions = {key: Undistortion(*key) for key, count in Counter(distorted).items() if count > 1}
    reads = [
        functools.partial(_read_pixels, photograph, layout, background, undistortions)
        for photograph, layout in zip(photographs, layouts, strict=True)
    ]
    cache = ImageCache() if sum(3 * math.prod(layout.view_size) for layout in layouts) > BYTES_MAX else None
    views: list[View] = []
    workers = n_readers(largest)
    with ThreadPoolExecutor(workers) as pool:
        decoded = itertools.repeat(None) if cache is not None else pool.map(lambda read: read(), reads)
        for photograph, layout, read, pixels in zip(photographs, layouts, reads, decoded):
            values = _describe(photograph, layout)
            if cache is None:
                image, mask = pixels
                views.append(View(image=image, mask=mask, **values))
            else:
                views.append(StoredView(CachedPixels(cache, len(views), layout.view_size, read), **values))
            if on_progress is not None:
                on_progress(len(views), len(photographs))
    return views


def n_readers(pixels: int) -> int:
    """Returns the number of threads for reading images of up to `pixels` pixels."""
    return max(1, min(WORKERS_MAX, os.cpu_count() or 1, PIXELS_AT_ONCE // max(pixels, 1)))


def split_views(views: Sequence[View], held_out: Sequence[bool]) -> tuple[list[View], list[View], list[str]]:
    """Splits views into training and held-out views; views without valid pixels are left out, with a note.

    Such views have nothing to train on, and their PSNR is infinite. Views whose images are read on demand are not
    checked. Raises FileError if no training view is left.
    """
    usable = [isinstance(view, StoredView) or view.mask is None or bool(view.mask.any()) for view in views]
    train = [view for view, is_test, has_pixels in zip(views, held_out, usable) if has_pixels and not is_test]
    test = [view for view, is_test, has_pixels in zip(views, held_out, usable) if has_pixels and is_test]
    notes = _note_copies(train, test)
    if all(usable):
        return train, test, notes
    first, n_empty = views[usable.index(False)].files[-1], usable.count(False)
    if not train:
        raise FileError(
            f"{first}: {n_empty} of {len(views):,} images have no valid pixel, and none is left for training; masks "
            "are white for valid pixels"
        )
    skipped = f"skipped {n_empty} of {len(views):,} images without valid pixels (first: {first})"
    return train, test, [skipped, *notes]


def _note_copies(train: Sequence[View], test: Sequence[View]) -> list[str]:
    """Returns a note if held-out photographs are copies of training photographs, which makes scores too high."""
    if not test:
        return []
    copies = find_copies([view.files[0] for view in (*train, *test)])
    copied = [(test[i - len(train)].name, train[first].name) for i, first in copies.items() if first < len(train) <= i]
    if not copied:
        return []
    name, original = copied[0]
    return [
        f"{len(copied)} of {len(test)} held-out photographs are copies of training ones (first: {name} of {original}), "
        "so that scores are too high; delete the copies"
    ]


@dataclasses.dataclass(frozen=True)
class _ImageLayout:
    """Sizes of an image and of its view, and how the image is changed.

    Attributes:
        size: Width and height of the image after rotation.
        view_size: Width and height of the view's image.
        orientation: EXIF orientation to apply; 1 for none.
        is_resampled: Whether the image is undistorted.
    """

    size: tuple[int, int]
    view_size: tuple[int, int]
    orientation: int
    is_resampled: bool


def _find_layout(photograph: Photograph, cameras: CameraKind) -> _ImageLayout:
    """Decides whether an image must be rotated, and checks that it fits its camera."""
    lens, info = photograph.lens, read_image_info(photograph.path)
    size, full, orientation = (info.width, info.height), (lens.width, lens.height), 1
    fits, turned_fits = _has_aspect_ratio(*size, *full), info.is_sideways and _has_aspect_ratio(*size[::-1], *full)
    if turned_fits and size != full and (not fits or size[::-1] == full):
        size, orientation = size[::-1], info.orientation
    elif not fits:
        raise FileError(
            f"{photograph.path}: expected the aspect ratio of its camera, {lens.width}×{lens.height}, found "
            f"{info.width}×{info.height}; use the images that the cameras were computed from"
        )
    width, height = (max(1, round(side / photograph.downscale)) for side in size)
    # The rasterizer supports no skew, and OpenCV's lenses only.
    needs_undistortion = cameras == "undistorted" or lens.colmap is not None or lens.skew != 0
    return _ImageLayout(size, (width, height), orientation, not lens.is_undistorted and needs_undistortion)


def _read_pixels(
    photograph: Photograph, layout: _ImageLayout, background: Color | None, undistortions: Undistortions
) -> Pixels:
    """Returns the image of a view, [H, W, 3] uint8, and its mask, [H, W] bool or None."""
    size, key = layout.view_size, (photograph.lens, *layout.size)
    undistortion = undistortions.get(key)
    if undistortion is None and layout.is_resampled:
        undistortion = Undistortion(*key)
    # Undistortion needs the full image; otherwise the image is downscaled while it is read.
    read_size = layout.size if undistortion is not None else size
    stored_size = read_size if layout.orientation not in SWAPPED_ORIENTATIONS else read_size[::-1]
    image = read_image(photograph.path, background, size=stored_size, keep_alpha=background is None)
    image = rotate_by_exif(image, layout.orientation)
    mask = None
    if photograph.mask is not None:
        mask = _read_mask(photograph.mask, layout, read_size)
    elif undistortion is not None and not undistortion.has_source.all():
        mask = torch.full((*image.shape[:2], 1), 255, dtype=torch.uint8, device="cpu")
    if undistortion is not None:
        image = downscale(undistortion(image), *size)
        mask = None if mask is None else downscale(undistortion(mask), *size)
    valid = None if mask is None else mask[..., 0] > 127
    if image.shape[-1] == 4:
        image, opaque = _split_alpha(image)
        if not opaque.all():
            valid = opaque if valid is None else valid & opaque
    lens = photograph.lens
    if undistortion is None and not lens.is_undistorted and not (shown := lens.shown(*size)).all():
        valid = shown if valid is None else valid & shown
    if photograph.border:
        inner = _inside_border(image, photograph.border / lens.width)
        valid = inner if valid is None else valid & inner
    return image, valid


def _inside_border(image: Tensor, share: float) -> Tensor:
    """Returns a mask [H, W] bool of the pixels of an image [H, W, 3] inside a border; `share` is its width relative to
    the image."""
    width = math.ceil(share * image.shape[1])
    inside = torch.zeros(image.shape[:2], dtype=torch.bool, device="cpu")
    inside[width : image.shape[0] - width, width : image.shape[1] - width] = True
    return inside


def _describe(photograph: Photograph, layout: _ImageLayout) -> dict[str, Any]:
    """Returns the arguments of a view, except for the image and the mask."""
    lens, viewmat, size = photograph.lens, photograph.viewmat.float(), layout.view_size
    K = lens.intrinsics(*size)
    if layout.is_resampled:
        undistorted = undistorted_intrinsics(lens, *layout.size)
        K = torch.diag(K.new_tensor([size[0] / layout.size[0], size[1] / layout.size[1], 1])) @ undistorted
        lens = lens.undistorted
    distortion = fp32(lens.distortion) if any(lens.distortion) else None
    sparse = sparse_ids = None
    if photograph.points is not None:
        sparse, inside = _project_visible(photograph.points, photograph.viewmat, lens, K, *size)
        sparse_ids = None if photograph.point_ids is None else photograph.point_ids[inside]
    return dict(
        camera=Camera(
            viewmat, K.float(), *size, lens.model, photograph.name, distortion=distortion, near=photograph.near
        ),
        sparse=sparse,
        sparse_ids=sparse_ids,
        camera_id=photograph.camera_id,
        files=(photograph.path, *([photograph.mask] if photograph.mask else [])),
    )


def _split_alpha(image: Tensor) -> tuple[Tensor, Tensor]:
    """Splits an image [H, W, 4] composited over black into its colors [H, W, 3] and a mask of opaque pixels."""
    color, alpha = torch.empty_like(image[..., :3]), image[..., 3:]
    for first in range(0, len(image), 256):
        rows = slice(first, first + 256)
        values = image[rows, :, :3].float() * 255 / alpha[rows].clamp_min(1)
        color[rows] = values.round().clamp(0, 255).to(torch.uint8)
    return color, alpha[..., 0] > 127


def _read_mask(path: Path, layout: _ImageLayout, size: tuple[int, int]) -> Tensor:
    """Reads the mask of an image, [H, W, 1] uint8, downscaled to `size`; it is rotated like its image if only that
    fits."""
    info, orientation = read_image_info(path), 1
    width, height = info.width, info.height
    if not _has_aspect_ratio(width, height, *layout.size) and _has_aspect_ratio(height, width, *layout.size):
        orientation = info.orientation if info.is_sideways else layout.orientation
    if orientation in SWAPPED_ORIENTATIONS:
        width, height = height, width
    if not _has_aspect_ratio(width, height, *layout.size):
        expected = "×".join(map(str, layout.size))
        raise FileError(f"{path}: expected the aspect ratio of its image, {expected}, found {width}×{height}")
    mask = rotate_by_exif(read_mask(path), orientation)[..., None]
    return downscale(downscale(mask, *layout.size), *size)


def _has_aspect_ratio(width: int, height: int, full_width: int, full_height: int) -> bool:
    """Returns whether an image could be a downscaled version of one of the full size."""
    return abs(width * full_height / full_width - height) <= max(1.0, ASPECT_TOLERANCE * height)


def _project_visible(
    points: Tensor, viewmat: Tensor, lens: Lens, K: Tensor, width: int, height: int
) -> tuple[Tensor, Tensor]:
    """Projects points [P, 3]. Returns pixel x, y and depth of the points in the image, [Q, 3] fp32, and their row
    indices [Q]."""
    camera = points.double() @ viewmat[:3, :3].T + viewmat[:3, 3]
    shown, depths, rows = lens.project(camera)
    pixels = shown * K.diagonal()[:2] + K[:2, 2]
    inside = ((pixels >= 0) & (pixels < pixels.new_tensor([width, height]))).all(-1)
    return torch.cat([pixels, depths[:, None]], -1)[inside].float(), rows[inside]


def camera_warnings(photographs: Sequence[Photograph], where: Path) -> list[str]:
    """Returns notes about cameras of the file `where` that can be rendered but are probably wrong."""
    notes = []
    doubtful = [photograph for photograph in photographs if photograph.lens.doubt is not None]
    if doubtful:
        first = f"{doubtful[0].name}: {doubtful[0].lens.doubt}"
        notes.append(f"{where}: check the cameras of {len(doubtful)} of {len(photographs):,} images ({first})")
    positions = centers(torch.stack([photograph.viewmat for photograph in photographs]))
    apart = float((positions - positions[0]).norm(dim=-1).max())
    if not apart > 1e-9 * max(1.0, float(positions[0].norm())):
        notes.append(f"{where}: all {len(photographs):,} cameras are at one position; depth needs several positions")
    return notes


def note_lenses(photographs: Sequence[Photograph], where: Path, cameras: CameraKind) -> list[str]:
    """Returns notes that say how photographs of the file `where` with lenses other than OpenCV's are resampled.

    With native cameras, this includes lenses with skew, whose photographs are always resampled.
    """
    groups: dict[tuple[str, str], list[Photograph]] = {}
    for photograph in photographs:
        lens = photograph.lens
        if lens.colmap is not None or (lens.skew and cameras == "native"):
            native = native_lens(lens) if cameras == "native" else None
            name = f"{lens.colmap[0] if lens.colmap else 'OPENCV'}{' and a skew' if lens.skew else ''}"
            groups.setdefault((name, lens.model if native is None else "native"), []).append(photograph)
    return [f"{where}: {_describe_group(name, result, group)}" for (name, result), group in groups.items()]


def _describe_group(name: str, result: str, photographs: Sequence[Photograph]) -> str:
    """Describes photographs with one COLMAP model that become fisheye or pinhole images, or are not resampled."""
    lenses = list(dict.fromkeys(photograph.lens for photograph in photographs))
    cameras = "1 camera" if len(lenses) == 1 else f"{len(lenses):,} cameras"
    about = f"{len(photographs):,} photographs of {cameras} with the lens {name} (first: {photographs[0].name})"
    if result == "native":
        error = max(native[1] for native in map(native_lens, lenses) if native is not None)
        by = f" by a fisheye polynomial, which is within {error:.2g} pixels of the lens" if error else ""
        return f"{about} are trained on as taken{by}"
    shown = [coverage(lens) for lens in lenses]
    share, scale = min(shown, key=lambda c: c.share).share, min(c.scale for c in shown)
    by = "are resampled to equidistant fisheye images" if result == "fisheye" else "are undistorted to pinhole images"
    return f"{about} {by}, which show {100 * share:.0f} % of their pixels at {scale:.2f} of their scale in the middle"


def _check_masks(paths: Sequence[Path]) -> None:
    """Raises one FileError for all missing masks, before any file is read."""
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        more = f", and {len(missing) - 1} more of {len(paths)} masks are missing" if len(missing) > 1 else ""
        raise FileError(f"{missing[0]}: no such file{more}")
