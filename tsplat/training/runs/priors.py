"""Priors of a run: maps of depth and normals that other programs made of its photographs."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...errors import ArgumentError, FileError, MissingExtraError
from ...scene.cameras import project_points
from ...scene.capture.views import Capture, View
from ...support.extras import require
from ..configuration import RunConfig

KINDS = {"depth_prior": 1, "normal_prior": 3}
"""Option and field of a view -> number of channels."""

CHECKED_VIEWS_MAX, CHECKED_POINTS_MAX = 64, 50_000
"""Maximum number of views whose maps are compared with points, and of points."""

CELLS = 16
"""Cells along the longer side of an image. Of points in a cell, the nearest one is visible."""

CORRELATED_POINTS_MIN = 8
"""Minimum number of points for a rank correlation."""

OPPOSITE_SHARE, OPPOSITE_VIEWS_MIN = 0.5, 2
"""Maps are not what is expected if more than this fraction of views, and at least as many, have the opposite."""

CORRELATION_MAX, DEVIATIONS = -0.2, 2
"""A rank correlation below this one, and below zero by as many standard deviations of random ranks, is opposite."""

UNIT_NORM_MIN = 0.5
"""Normals of a smaller norm are unknown."""


def read_priors(capture: Capture, config: RunConfig) -> Capture:
    """Returns the capture with the priors of its training views.

    The prior of a view has its name with the ending ``.npy`` or ``.png``, and is resized to the view. Depths that are
    zero or not finite are unknown. Normals are made unit vectors. A note tells how many views have none.

    Raises:
        ArgumentError: The weight is 0.
        FileError: No view has a prior; a file is damaged or of another shape; or most maps are not what is expected:
            inverse depth, which is large where points are near, and normals that point towards the camera.
    """
    for name, weight in (("depth_prior", "depth_weight"), ("normal_prior", "normal_weight")):
        folder = getattr(config, name)
        if not folder:
            continue
        if not getattr(config, weight):
            raise ArgumentError(f"{name}: has no effect, as {weight} is 0; set {weight}, for example to 0.05")
        paths = ([Path(folder, view.name).with_suffix(suffix) for suffix in (".npy", ".png")] for view in capture.train)
        found = [next(filter(os.path.isfile, files), None) for files in paths]
        n_missing = found.count(None)
        if n_missing == len(found):
            raise FileError(f"{folder}: has no file for any training view, such as {capture.train[0].name!r} with .npy")
        notes = [f"{n_missing} of {len(found)} training views have no {name}"] if n_missing else []
        views = [view if path is None else _with_prior(view, name, path) for view, path in zip(capture.train, found)]
        given = [view for view in views if getattr(view, name) is not None]
        given = given[:: -(-len(given) // CHECKED_VIEWS_MAX)]
        if name == "depth_prior":
            _check_depths(folder, given, None if capture.random_points else capture.points)
        else:
            _check_normals(folder, given)
        capture = dataclasses.replace(capture, train=tuple(views), notes=(*capture.notes, *notes))
    return capture


def _with_prior(view: View, name: str, path: Path) -> View:
    values = _read(path, KINDS[name])
    height, width = values.shape[-2:]
    if abs(width * view.height / (height * view.width) - 1) * min(view.width, view.height) > 2:
        raise FileError(
            f"{path}: expected the aspect ratio of the image, {view.width}×{view.height}, found {width}×{height}; make "
            "priors of the images that are trained on, undistorted ones unless --camera is native"
        )
    values, is_known = _resize(values, _known(values, name), (view.height, view.width))
    if name == "depth_prior":
        prior = values[0].masked_fill(~is_known, torch.nan)
    else:
        prior = torch.nn.functional.normalize(values.movedim(0, -1), dim=-1) * is_known[..., None]
    prior = prior.to(view.camera.viewmat.device)
    return view.replaced(**{name: prior}, files=(*view.files, path))


def _known(values: Tensor, name: str) -> Tensor:
    """Returns where a map [channels, H, W] has a value. [H, W] bool"""
    if name == "depth_prior":
        return values[0].isfinite() & (values[0] != 0)
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


def _check_depths(folder: str, views: Sequence[View], points: Tensor | None) -> None:
    """Raises FileError if the ranks of most maps are opposite to those of the inverse depths of points."""
    correlations = [_correlation(view, points) for view in views]
    measured = [correlation for correlation in correlations if correlation is not None]
    n_opposite = sum(value < min(CORRELATION_MAX, -DEVIATIONS * deviation) for value, deviation in measured)
    if _are_most(n_opposite, len(measured)):
        raise FileError(
            f"{folder}: expected maps of inverse depth, large where the scene is near; those of {n_opposite} of "
            f"{len(measured)} views are small where sparse points are near; for maps of depth, write 1 / depth, and 0 "
            "where it is unknown"
        )


def _are_most(n_opposite: int, n: int) -> bool:
    return n_opposite > OPPOSITE_SHARE * n and n_opposite >= OPPOSITE_VIEWS_MIN


def _correlation(view: View, points: Tensor | None) -> tuple[float, float] | None:
    """Returns the rank correlation of a prior with the inverse depths of visible points, and its standard deviation for
    random ranks; None if there are too few points."""
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
        # In the order of depths, the first point of each cell.
        order = z.argsort()
        order = order[cells[order].argsort(stable=True)]
        first = torch.ones_like(order, dtype=torch.bool)
        first[1:] = cells[order][1:] != cells[order][:-1]
        x, y, z = x[order[first]], y[order[first]], z[order[first]]
    values = prior[y.long().clamp(0, view.height - 1), x.long().clamp(0, view.width - 1)]
    is_known = values.isfinite() & (z > 0)
    values, inverse = values[is_known], 1 / z[is_known]
    if len(values) < CORRELATED_POINTS_MIN or values.min() == values.max():
        return None
    ranks = torch.stack([values.argsort().argsort(), inverse.argsort().argsort()]).double()
    return float(torch.corrcoef(ranks)[0, 1]), len(values) ** -0.5


def note_fits(scales: Mapping[str, Tensor]) -> list[str]:
    """Returns a note if maps of depth fit most views with a negative scale, given the last scale of each view."""
    n_opposite = sum(float(scale) < 0 for scale in scales.values())
    if not _are_most(n_opposite, len(scales)):
        return []
    return [
        f"depth_prior: maps of {n_opposite} of {len(scales)} views are small where the model is near; expected inverse "
        "depth, large where the scene is near; for maps of depth, write 1 / depth, and 0 where it is unknown"
    ]


def _check_normals(folder: str, views: Sequence[View]) -> None:
    """Raises FileError if most normals of most maps point away from the camera."""
    n_away = sum(_points_away(view) for view in views)
    if _are_most(n_away, len(views)):
        raise FileError(
            f"{folder}: expected normals that point towards the camera, in its frame, x right, y down, z forward; most "
            f"of {n_away} of {len(views)} views point away; negate y and z of maps in the frame of OpenGL"
        )


def _points_away(view: View) -> bool:
    normals = view.normal_prior
    if normals is None:
        return False
    K = view.camera.K.to(normals)
    y, x = torch.meshgrid(
        *(torch.arange(n, dtype=normals.dtype, device=normals.device) + 0.5 for n in normals.shape[:2]), indexing="ij"
    )
    rays = torch.stack([(x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1], torch.ones_like(x)], -1)
    cosines = (normals * rays).sum(-1)
    return bool((cosines > 0).sum() > (cosines < 0).sum())


def _read(path: Path, n_channels: int) -> Tensor:
    """Reads a map, [channels, H, W] fp32. Values of PNGs are from 0 to 1, or, of three channels, from -1 to 1."""
    try:
        if path.suffix == ".npy":
            array = np.load(path, allow_pickle=False)
        else:
            require("PIL")
            from PIL import Image

            with Image.open(path) as image:
                array = np.array(image)
            largest = np.iinfo(array.dtype).max if array.dtype != np.int32 else 65535  # Pillow's 16 bits
            # Black is no normal: such pixels are unknown.
            is_known = array.any(-1, keepdims=True) if n_channels == 3 else 1
            array = array / largest if n_channels == 1 else (2 * (array / largest) - 1) * is_known
    except MissingExtraError:
        raise
    except (OSError, EOFError, ValueError, TypeError, SyntaxError) as error:
        raise FileError(f"{path}: cannot be read as a map ({str(error)[:200]})") from error
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[-1] != n_channels or array.dtype.kind not in "fiu" or not array.size:
        expected = "[H, W]" if n_channels == 1 else "[H, W, 3]"
        raise FileError(f"{path}: expected numbers {expected}, found {array.dtype} {list(array.shape)}")
    return torch.from_numpy(np.moveaxis(array, -1, 0).astype(np.float32))
