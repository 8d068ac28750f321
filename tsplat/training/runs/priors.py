"""Priors of a run: depth and normal maps that other programs predicted from its photographs."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...errors import ArgumentError, FileError, MissingExtraError, UnsupportedError
from ...formulas.pixel_centers import pixel_centers
from ...precision import fp64
from ...scene.cameras import Camera, project_points
from ...scene.capture.views import Capture, View
from ...scene.exr_maps import read_exr
from ...scene.images import BoundedFile, open_image
from ...scene.rotation import similarity_scale
from ...support.extras import require
from ...support.progress import reported
from ..configuration import PriorKind, RunConfig

KINDS = {"depth_prior": 1, "depth_confidence": 1, "normal_prior": 3}
"""Number of channels of each prior, by the name of its setting and of its field of a view."""

STAGES = {"depth_prior": "depths", "depth_confidence": "confidence", "normal_prior": "normals"}
"""Names in the progress display while the maps of each prior are read."""

SUFFIXES = (".npy", ".exr", ".png")
"""Suffixes of map files, in order of preference."""

EXPECTED: dict[PriorKind, tuple[str, str]] = {
    "inverse": ("inverse depth, large where the scene is near", "small"),
    "disparity": ("disparity, large where the scene is near", "small"),
    "metric": ("depth, small where the scene is near", "large"),
}
"""For each `depth_kind`, the expected values, and the values that maps of the wrong kind have where points are near."""

ARKIT_LEVELS = 2
"""Largest of ARKit's integer confidence levels, 0, 1 and 2."""

MISFIT_MAX = 0.25
"""Median relative difference between fitted maps and points above which a note suggests another `depth_kind`."""

UNIT_SPREAD_MAX = 0.1
"""Median relative deviation of the units of views above which a note says that the maps have no common unit."""

RAY_RATIO, RAY_RANGE_MIN = 0.7, 0.05
"""A note suggests the other `depth_along` if it reduces the deviations of maps from points to this fraction, and if the
logarithms of the cosines of the points' rays have at least this range."""

CHECKED_VIEWS_MAX, CHECKED_POINTS_MAX = 64, 50_000
"""Maximum number of views whose maps are compared with points, and maximum number of these points."""

CELLS = 16
"""Number of grid cells along the longer side of an image. Only the nearest point in each cell counts as visible."""

CORRELATED_POINTS_MIN = 8
"""Minimum number of points for a rank correlation."""

OPPOSITE_SHARE, OPPOSITE_VIEWS_MIN = 0.5, 2
"""Minimum fraction and minimum number of views with inverted maps for which maps are rejected."""

CORRELATION_MAX, DEVIATIONS = -0.2, 2
"""A map is inverted if its rank correlation with points is below CORRELATION_MAX, and below zero by this number of
standard deviations of random ranks."""

UNIT_NORM_MIN = 0.5
"""Minimum norm of a normal; a smaller vector means that the normal is unknown."""


def read_priors(capture: Capture, config: RunConfig) -> Capture:
    """Returns the capture with the priors of its training views.

    The file of a prior has the name of the view with the suffix ``.npy``, ``.exr`` or ``.png``; the map is resized to
    the view. Depths are unknown where they are zero or not finite and, in metric and disparity maps, where they are
    negative. All depth maps are converted to inverse depth along z, metric ones in the local frame. Normals are
    normalized. Notes say how many views have no prior, the unit of metric maps, and whether `depth_kind` or
    `depth_along` may be wrong.

    Raises:
        ArgumentError: The weight of the prior is 0, or the unit of metric maps is unknown.
        FileError: No view has a prior; a file is damaged or has another shape; most depth maps are inverted, compared
            with the sparse points; or most normals point away from the camera.
        UnsupportedError: Distances along rays, for distorted lenses.
    """
    weights = {"depth_prior": "depth_weight", "depth_confidence": "depth_weight", "normal_prior": "normal_weight"}
    for name, weight in weights.items():
        folder = getattr(config, name)
        if not folder:
            continue
        if not getattr(config, weight):
            raise ArgumentError(f"{name}: has no effect, as {weight} is 0; set {weight}, for example to 0.05")
        paths = ([Path(folder, view.name).with_suffix(suffix) for suffix in SUFFIXES] for view in capture.train)
        existing = [next(filter(os.path.isfile, files), None) for files in paths]
        n_missing = existing.count(None)
        if n_missing == len(existing):
            raise FileError(
                f"{folder}: has no file for any training view; for {capture.train[0].name!r}, expected "
                f"{Path(folder, capture.train[0].name).with_suffix('.npy')}, or .exr or .png there"
            )
        notes = [f"{n_missing} of {len(existing)} training views have no {name}"] if n_missing else []
        views = [
            view if path is None else _with_prior(view, name, path, config)
            for view, path in reported(zip(capture.train, existing), len(existing), STAGES[name])
        ]
        checked = [view for view in views if getattr(view, name) is not None]
        checked = checked[:: -(-len(checked) // CHECKED_VIEWS_MAX)]
        if name == "depth_prior":
            _check_known_depths(folder, config.depth_kind, views)
            points = None if capture.random_points else capture.points
            samples = [sample for view in checked if (sample := _sample(view, points)) is not None]
            _check_depths(folder, config.depth_kind, samples)
            if config.depth_kind == "metric":
                unit, points_unit, unit_notes = _find_unit(capture, config, samples)
                views = [
                    view if view.depth_prior is None else view.replaced(depth_prior=view.depth_prior / unit)
                    for view in views
                ]
                samples = [dataclasses.replace(sample, values=sample.values / points_unit) for sample in samples]
                notes += unit_notes
            notes += _note_misfits(folder, config, samples)
        elif name == "normal_prior":
            _check_normals(folder, checked)
        capture = dataclasses.replace(capture, train=tuple(views), notes=(*capture.notes, *notes))
    return capture


def _with_prior(view: View, name: str, path: Path, config: RunConfig) -> View:
    values = _read(path, name, config.depth_kind)
    height, width = values.shape[-2:]
    if abs(width * view.height / (height * view.width) - 1) * min(view.width, view.height) > 2:
        raise FileError(
            f"{path}: expected the aspect ratio of the image, {view.width}×{view.height}, found {width}×{height}; "
            "compute priors from the images that training uses: undistorted ones, unless --camera is native"
        )
    is_known = _known(values, name, config.depth_kind)
    if name == "depth_prior" and config.depth_kind == "metric":
        values = 1 / values.masked_fill(~is_known, 1)
    values, is_known = _resize(values, is_known, (view.height, view.width))
    if name == "depth_prior":
        prior = values[0].masked_fill(~is_known, torch.nan)
        if config.depth_along == "ray":
            x, y = pixel_centers(view.width, view.height, prior)
            prior = prior / _cosines(view.camera, x, y[:, None])
    elif name == "depth_confidence":
        prior = values[0] * is_known
    else:
        prior = torch.nn.functional.normalize(values.movedim(0, -1), dim=-1) * is_known[..., None]
    prior = prior.to(view.camera.viewmat.device)
    return view.replaced(**{name: prior}, files=(*view.files, path))


def _cosines(camera: Camera, x: Tensor, y: Tensor) -> Tensor:
    """Returns the cosines between the rays of image points and the optical axis; NaN for rays that point backward.

    `x` and `y` are broadcast.

    Panoramas have cosines of 1, as their depth is along the rays. Raises UnsupportedError for distorted lenses.
    """
    if camera.is_panorama:
        return torch.ones_like(x)
    if camera.distortion is not None:
        raise UnsupportedError(
            f"depth_along: not implemented for the distorted lens of {camera.name!r}; use camera undistorted, or maps "
            "of the depth along the optical axis"
        )
    radius = _radius(camera, x, y)
    if camera.model == "fisheye":
        return torch.where(radius < math.pi / 2, radius.cos(), torch.nan)
    return (1 + radius.square()).rsqrt()


def _radius(camera: Camera, x: Tensor, y: Tensor) -> Tensor:
    """Returns the distances of image points from the principal point, in focal lengths."""
    K = camera.K.to(x)
    return torch.hypot((x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1])


def _known(values: Tensor, name: str, kind: PriorKind) -> Tensor:
    """Returns where the values of a map [channels, H, W] are known, [H, W] bool."""
    if name == "depth_prior":
        return values[0].isfinite() & (values[0] != 0 if kind == "inverse" else values[0] > 0)
    if name == "depth_confidence":
        return values[0].isfinite()
    return values.isfinite().all(0) & (values.square().sum(0) >= UNIT_NORM_MIN**2)


def _resize(values: Tensor, is_known: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Resizes the known values of a map [channels, H, W]. Returns [channels, *size], and where it is known [*size]."""

    def resized(image: Tensor) -> Tensor:
        result: Tensor = torch.nn.functional.interpolate(image[None], size, mode="bilinear", antialias=True)[0]
        return result

    if is_known.all():
        return resized(values), torch.ones(size, dtype=torch.bool, device=values.device)
    shares = resized(is_known[None].to(values.dtype))
    values = resized(values.masked_fill(~is_known, 0)) / shares.clamp_min(0.5)
    return values, shares[0] > 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """Values of a depth prior at points that a view shows.

    Attributes:
        values: [P] inverse depths of the prior.
        inverse: [P] inverse depths of the points along z, in the local frame.
        cosines: [P] cosines between the points' rays and the optical axis; None for distorted lenses.
    """

    values: Tensor
    inverse: Tensor
    cosines: Tensor | None

    @property
    def correlation(self) -> float:
        """Rank correlation of values and inverse depths."""
        ranks = torch.stack([self.values.argsort().argsort(), self.inverse.argsort().argsort()]).double()
        return float(torch.corrcoef(ranks)[0, 1])


def _check_depths(folder: str, kind: PriorKind, samples: Sequence[Sample]) -> None:
    """Raises FileError if most maps are inverted: their rank correlation with inverse depths of points is negative."""
    n_opposite = sum(
        sample.correlation < min(CORRELATION_MAX, -DEVIATIONS * len(sample.values) ** -0.5) for sample in samples
    )
    if not _are_mostly_opposite(n_opposite, len(samples)):
        return
    expected, opposite = EXPECTED[kind]
    advice = "for maps of inverse depth, use depth_kind inverse (--depth-kind inverse)"
    if kind != "metric":
        write = "write 1 / depth, and 0 where depth is unknown"
        advice = f"for maps of depth, use depth_kind metric (--depth-kind metric), or {write}"
    raise FileError(
        f"{folder}: expected maps of {expected}; the maps of {n_opposite} of {len(samples):,} views are {opposite} "
        f"where sparse points are near; {advice}"
    )


def _check_known_depths(folder: str, kind: PriorKind, views: Sequence[View]) -> None:
    """Raises FileError if no map of depth has a known value."""
    if not any(view.depth_prior.isfinite().any() for view in views if view.depth_prior is not None):
        unknown = "zero or not finite" if kind == "inverse" else "zero, negative or not finite"
        raise FileError(
            f"{folder}: expected maps of {EXPECTED[kind][0]}; no map has a known value at the size of its photograph: "
            f"all values are {unknown}, or at most half of the values in each pixel are known; use denser or smaller "
            "maps"
        )


def _find_unit(capture: Capture, config: RunConfig, samples: Sequence[Sample]) -> tuple[float, float, list[str]]:
    """Finds the unit of metric maps, in units of the local frame.

    Returns the given unit or, without one, the estimate; the estimate, which is the median over views of the ratio of
    maps to points, or the given unit if there are no points; and notes.
    """
    per_file = similarity_scale(capture.frame.to_local())
    given = config.depth_unit * per_file
    medians = [float((sample.values / sample.inverse).median()) for sample in samples]
    units = fp64(medians)
    if not len(units):
        if given:
            return given, given, []
        raise ArgumentError(
            "depth_unit: the unit of the metric maps cannot be estimated from sparse points; give it in units of the "
            "scene's files, 1 for the same unit (--depth-unit)"
        )
    unit = float(units.log().median().exp())
    found = f"one unit of the maps is {unit / per_file:.4g} units of the scene's files, by the sparse points of "
    found += f"{len(units):,} views"
    if given:
        notes = []
        if abs(math.log(unit / given)) > math.log1p(MISFIT_MAX):
            notes.append(
                f"depth_prior: {found}, but depth_unit is {config.depth_unit:g}; leave it out to use the estimate"
            )
    else:
        notes = [f"depth_prior: {found}"]
    spread = float((units / unit).log().abs().median())
    if spread > UNIT_SPREAD_MAX:
        notes.append(
            f"depth_prior: the units of views deviate from {'the estimate' if given else 'it'} by {spread:.0%} in the "
            "median, so the maps seem to have no common unit; write 1 / depth and use depth_kind disparity "
            "(--depth-kind disparity) to fit a unit per view"
        )
    return given or unit, unit, notes


def _note_misfits(folder: str, config: RunConfig, samples: Sequence[Sample]) -> list[str]:
    """Returns notes if maps differ from points, or would fit most views better with the other `depth_along`."""
    if config.depth_kind == "inverse" or not samples:
        return []
    errors, n_other, n = [], 0, 0
    for sample in samples:
        logs = (sample.values / sample.inverse).double().log()
        center = 0.0 if config.depth_kind == "metric" else logs.median()
        errors.append(float((logs - center).abs().median()))
        if sample.cosines is None:
            continue
        shift = sample.cosines.double().log()
        if float(shift.max() - shift.min()) < RAY_RANGE_MIN:
            continue
        n += 1
        other = logs - shift if config.depth_along == "z" else logs + shift
        n_other += float(_deviation(other)) < RAY_RATIO * float(_deviation(logs))
    notes = []
    if _are_mostly_opposite(n_other, n):
        better, use = ("distances along rays", "ray") if config.depth_along == "z" else ("depths along the axis", "z")
        notes.append(
            f"{folder}: maps of {n_other} of {n:,} views fit sparse points better as {better}; use depth_along {use} "
            f"(--depth-along {use})"
        )
    typical = math.expm1(sorted(errors)[len(errors) // 2])
    if typical > MISFIT_MAX:
        notes.append(
            f"{folder}: maps of the kind {config.depth_kind} differ from sparse points by {typical:.0%} in the median; "
            "for inverse depth of any scale and shift, use depth_kind inverse (--depth-kind inverse)"
        )
    return notes


def _deviation(values: Tensor) -> Tensor:
    """Returns the median absolute deviation from the median."""
    return (values - values.median()).abs().median()


def _are_mostly_opposite(n_opposite: int, n: int) -> bool:
    return n_opposite > OPPOSITE_SHARE * n and n_opposite >= OPPOSITE_VIEWS_MIN


def _sample(view: View, points: Tensor | None) -> Sample | None:
    """Returns the values of a view's depth prior at visible points; None if there are too few points."""
    prior = view.depth_prior
    if prior is None:
        return None
    if view.sparse is not None and len(view.sparse) >= CORRELATED_POINTS_MIN:
        x, y, z = view.sparse.to(prior).unbind(-1)
    elif points is None:
        return None
    else:
        chosen = points[:: max(1, -(-len(points) // CHECKED_POINTS_MAX))].to(prior)
        x, y, z, is_inside = project_points(view.camera, chosen)
        x, y, z = x[is_inside], y[is_inside], z[is_inside]
        cell = max(view.width, view.height) / CELLS
        cells = (y / cell).long() * CELLS + (x / cell).long()
        # The nearest point of each cell.
        order = z.argsort()
        order = order[cells[order].argsort(stable=True)]
        first = torch.ones_like(order, dtype=torch.bool)
        first[1:] = cells[order][1:] != cells[order][:-1]
        x, y, z = x[order[first]], y[order[first]], z[order[first]]
        if view.camera.model == "fisheye":  # project_points returns r / theta as the depth
            theta = _radius(view.camera, x, y).clamp_min(1e-6)
            z = z * theta / theta.tan()
    values = prior[y.long().clamp(0, view.height - 1), x.long().clamp(0, view.width - 1)]
    is_known = values.isfinite() & (z > 0)
    values, inverse = values[is_known], 1 / z[is_known]
    if len(values) < CORRELATED_POINTS_MIN or values.min() == values.max():
        return None
    cosines = None if view.camera.distortion is not None else _cosines(view.camera, x[is_known], y[is_known])
    return Sample(values, inverse, cosines)


def note_fits(scales: Mapping[str, Tensor]) -> list[str]:
    """Returns a note if the depth priors of most views were fitted with a negative scale; see :class:`.DepthLoss`."""
    n_opposite = sum(float(scale) < 0 for scale in scales.values())
    if not _are_mostly_opposite(n_opposite, len(scales)):
        return []
    return [
        f"depth_prior: the maps of {n_opposite} of {len(scales):,} views are small where the model is near; expected "
        "inverse depth, large where the scene is near; for maps of depth, use depth_kind metric (--depth-kind metric)"
    ]


def _check_normals(folder: str, views: Sequence[View]) -> None:
    """Raises FileError if most normals of most maps point away from the camera."""
    n_away = sum(_points_away(view) for view in views)
    if _are_mostly_opposite(n_away, len(views)):
        raise FileError(
            f"{folder}: expected normals that point towards the camera, in its frame (x right, y down, z forward); in "
            f"{n_away} of {len(views):,} views, most normals point away; negate y and z of maps in the frame of OpenGL"
        )


def _points_away(view: View) -> bool:
    normals = view.normal_prior
    if normals is None:
        return False
    K = view.camera.K.to(normals)
    x, y = pixel_centers(normals.shape[1], normals.shape[0], normals)
    x, y = (x - K[0, 2]) / K[0, 0], (y[:, None] - K[1, 2]) / K[1, 1]
    cosines = normals[..., 0] * x + normals[..., 1] * y + normals[..., 2]
    return bool((cosines > 0).sum() > (cosines < 0).sum())


def _read(path: Path, name: str, kind: PriorKind) -> Tensor:
    """Reads a map, [channels, H, W] fp32.

    Values of PNG files are scaled to 0 to 1, or to -1 to 1 if there are three channels; metric depth is not scaled.
    Confidences are from 0 to 1. Integer confidences are divided by the maximum of their type or, if none exceeds
    ARKit's levels, by the highest level.
    """
    n_channels = KINDS[name]
    try:
        if path.suffix == ".npy":
            array = np.load(path, allow_pickle=False)
        elif path.suffix == ".exr":
            array = read_exr(path, n_channels)
        else:
            require("PIL")
            with BoundedFile(path) as file, open_image(file) as image:
                array = np.array(image)
            largest = np.iinfo(array.dtype).max if array.dtype != np.int32 else 65535  # Pillow's 16 bits
            # A black pixel means that the normal is unknown.
            is_known = array.any(-1, keepdims=True) if n_channels == 3 else 1
            if n_channels == 3:
                array = (2 * (array / largest) - 1) * is_known
            elif name == "depth_prior" and kind != "metric":
                array = array / largest
    except (FileError, MissingExtraError):
        raise
    except (OSError, EOFError, ValueError, TypeError, SyntaxError) as error:
        raise FileError(f"{path}: cannot be read as a map ({str(error)[:200]})") from error
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[-1] != n_channels or array.dtype.kind not in "fiu" or not array.size:
        expected = "[H, W]" if n_channels == 1 else "[H, W, 3]"
        raise FileError(f"{path}: expected numbers {expected}, found {array.dtype} {list(array.shape)}")
    if name == "depth_confidence":
        if array.dtype.kind in "iu":
            largest = 255 if array.dtype.itemsize == 1 else 65535
            largest = ARKIT_LEVELS if array.max() <= ARKIT_LEVELS else largest
            array = array / largest
        if not (np.nan_to_num(array, nan=0.0) <= 1).all() or not (np.nan_to_num(array, nan=0.0) >= 0).all():
            raise FileError(f"{path}: expected confidences from 0 to 1, found {array.min():.3g} to {array.max():.3g}")
    return torch.from_numpy(np.moveaxis(array, -1, 0).astype(np.float32))
