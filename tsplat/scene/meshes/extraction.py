"""Extracts meshes: renders depth frames of a model, fuses them into a volume, and extracts its zero crossing."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np
import torch
from torch.nn.functional import normalize

from ...config import Backend
from ...errors import ArgumentError
from ...precision import fp64, in_full_precision
from ...scalars import check_choice, check_size
from ...support.extras import require
from ...support.progress import ShowStage
from ..cameras import Camera, choose_evenly, resize_camera
from ..extents import camera_positions, common_point, with_near_planes
from ..gaussians import Gaussians, drop_invalid
from ..option_types import TRUNCATION, Box, DepthKind
from .depth_frames import ALPHA_MIN, DepthRenderer, as_pinhole, surface_points
from .mesh import Mesh, decimate_mesh, keep_components
from .volume import Grid, Volume, make_grid

RESOLUTION = 256
"""Default number of voxels along the longest side of the bounds."""

PREVIEWS, PREVIEW_SIZE = 40, 64
"""Number of views, and longest side of their images, for finding the bounds."""

TRIMMED = 0.005
"""Share of the surface points that may lie outside of the bounds at each end of each axis."""

FAR = 3.0
"""For cameras without a common target: depth up to which the scene extends, relative to the first quartile of
depths."""

DISTANCE_MIN = 1e-3
"""Minimum magnitude of a distance in units of the truncation."""


@torch.no_grad()
@in_full_precision
def extract_mesh(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    *,
    depth: DepthKind = "median",
    voxel: float | None = None,
    resolution: int | None = None,
    bounds: Box | None = None,
    truncation: float = TRUNCATION,
    components: int | None = None,
    faces: int | None = None,
    backend: Backend = "auto",
    on_progress: ShowStage = lambda stage, done, total: None,
    tell: Callable[[str], object] = lambda message: None,
) -> Mesh:
    """Extracts the surface of a model as a mesh.

    Depth maps of many cameras are fused into a truncated signed distance function on a grid (Curless and Levoy, 1996),
    and marching cubes extracts its zero crossing. The mesh contains only the surfaces that cameras see, with open
    borders where these end. It is closed if the cameras see the model from all sides.

    Args:
        gaussians: Model on the device to render on. Invalid Gaussians are removed.
        cameras: Pinhole or fisheye cameras; they are rendered without distortion.
        depth: ``"expected"``, the mean of z with the weights of colors; or ``"median"``, the mean of z around the depth
            at which the transmittance falls below one half.
        voxel: Edge length of a voxel in world units.
        resolution: Number of voxels along the longest side, 256 by default; cannot be combined with `voxel`.
        bounds: Two corners of a box; None for the bounds of the visible scene, without parts that are much farther away
            than the rest.
        truncation: Distance from the surface within which frames are fused, in voxels, at least 2. Larger values smooth
            noise, smaller values preserve thin parts.
        components: Number of connected components to keep, by area; None for all with at least 1 % of the area of the
            largest.
        faces: Number of faces to decimate to; None for no decimation.
        backend: As for :func:`tsplat.rasterization`.
        on_progress: Called with a stage, the finished amount, and the total.
        tell: Called with a description of the grid and its memory before work starts.

    Raises:
        ArgumentError: There are no Gaussians or cameras, nothing is opaque, the voxel is larger than the surface, or a
            number is out of range.
        MemoryBudgetError: The grid does not fit into free memory.
        UnsupportedError: A camera is neither pinhole nor fisheye.
        MissingExtraError: scikit-image or, for `faces`, fast-simplification is not installed.
        BackendError: The backend is not available.
    """
    require("skimage", *([] if faces is None else ["fast_simplification"]))
    check_choice("depth", depth, get_args(DepthKind))
    _check(voxel, resolution, bounds, truncation, components, faces)
    model = drop_invalid(gaussians, tell).map(lambda tensor: tensor.detach().float())
    if not len(model):
        raise ArgumentError("gaussians: expected at least one that is valid, found none")
    if not cameras:
        raise ArgumentError("cameras: expected at least one, found none")
    views = with_near_planes([as_pinhole(camera) for camera in cameras], model.means)
    views = [dataclasses.replace(view, near=view.near or 0.01) for view in views]
    renderer = DepthRenderer(model, depth, backend)
    if bounds is None:
        bounds = _find_bounds(renderer, views, on_progress)
    edge = voxel or max(b - a for a, b in zip(*bounds, strict=True)) / (resolution or RESOLUTION)
    grid = make_grid(*bounds, edge, math.ceil(truncation) + 1)
    device = model.means.device
    tell(_describe(grid, len(views)))
    grid.check_memory(device)
    volume = Volume(grid, truncation * edge, device)
    n_shown = 0
    for i, view in enumerate(views, 1):
        frame = renderer.render(view)
        n_shown += int(frame.shown.sum())
        volume.fuse(frame)
        on_progress("fusing", i, len(views))
    if not n_shown:
        raise _nothing_opaque()
    return _extract(volume, components, faces, on_progress)


def _check(
    voxel: float | None,
    resolution: int | None,
    bounds: Box | None,
    truncation: float,
    components: int | None,
    faces: int | None,
) -> None:
    """Raises ArgumentError for numbers out of range, before anything is rendered."""
    if voxel is not None and resolution is not None:
        raise ArgumentError("resolution: not with voxel, which sets the number of voxels")
    if voxel is not None and not 0 < voxel < math.inf:
        raise ArgumentError(f"voxel: expected a positive number, found {voxel}")
    if not 2 <= truncation < math.inf:
        raise ArgumentError(f"truncation: expected a number of at least 2, found {truncation}")
    for name, value in (("resolution", resolution), ("components", components), ("faces", faces)):
        if value is not None:
            check_size(name, value)
    if bounds is not None and not all(-math.inf < a < b < math.inf for a, b in zip(*bounds, strict=True)):
        raise ArgumentError(f"bounds: expected two corners, the first below the second, found {bounds}")


def _find_bounds(renderer: DepthRenderer, views: Sequence[Camera], on_progress: ShowStage) -> Box:
    """Returns the bounds of the surface points in small images of some views, ignoring the extremes.

    Background points are left out: points that are farther from the cameras along an axis than the cameras' common
    target. If the cameras have no common target, for example in a room, points beyond three times the first quartile of
    depths are left out.
    """
    previews = [resize_camera(view, PREVIEW_SIZE) for view in choose_evenly(views, PREVIEWS)]
    frames = []
    for i, view in enumerate(previews, 1):
        frames.append(renderer.render(view))
        on_progress("bounds", i, len(previews))
    depths = torch.cat([frame.depths[frame.shown] for frame in frames])
    if not len(depths):
        raise _nothing_opaque()
    points, positions = surface_points(frames), camera_positions([view.viewmat for view in previews])
    axes = torch.stack([view.viewmat[2, :3] for view in previews]).double().cpu()
    target = common_point(positions, normalize(axes, dim=-1))
    if target is None:
        reach = FAR * float(depths.sort().values[len(depths) // 4])
    else:
        reach = float((positions - target).norm(dim=-1).median())
    low, high = positions.amin(0) - reach, positions.amax(0) + reach
    near = points[((points >= low) & (points <= high)).all(-1)]
    array = (near if len(near) else points).numpy()
    (x0, y0, z0), (x1, y1, z1) = np.quantile(array, (TRIMMED, 1 - TRIMMED), axis=0).tolist()
    return (x0, y0, z0), (x1, y1, z1)


def _nothing_opaque() -> ArgumentError:
    return ArgumentError(
        f"gaussians: no camera shows a surface, where alpha is at least {ALPHA_MIN}; are the cameras those of the "
        "model, and is it opaque?"
    )


def _describe(grid: Grid, n: int) -> str:
    sizes = " × ".join(f"{grid.voxel * count:.4g}" for count in grid.shape)
    return (
        f"fusing {n:,} views into {'×'.join(map(str, grid.shape))} voxels of {grid.voxel:.4g}, {sizes} in all: about "
        f"{grid.n_bytes / 1e9:.2g} GB of memory besides the model"
    )


def _extract(volume: Volume, components: int | None, faces: int | None, on_progress: ShowStage) -> Mesh:
    """Extracts the zero crossing of a volume between voxels that were seen."""
    from scipy.ndimage import binary_erosion
    from skimage import measure

    marching_cubes: Any = measure.marching_cubes  # not typed
    grid = volume.grid
    distances, seen = volume.distances()
    # Cubes, by their first corner, whose eight corners were all seen.
    complete: Any = binary_erosion(seen, np.ones((2, 2, 2)), origin=-1)
    no_surface = ArgumentError(
        "bounds: the surface of no view crosses them; choose other bounds, smaller voxels or more cameras"
    )
    if not complete.any() or not (distances[seen] < 0).any() or not (distances[seen] > 0).any():
        raise no_surface
    # Keep vertices away from voxel centers, so that each triangle lies within one cube.
    distances = np.copysign(np.abs(distances).clip(DISTANCE_MIN, 1), distances)
    distances[~seen] = 1
    try:
        # The mask of marching_cubes is not used, because it would leave triangles disconnected.
        voxel_coordinates, corners, _, _ = marching_cubes(distances, 0.0, gradient_direction="descent")
    except (ValueError, RuntimeError) as error:
        raise no_surface from error
    cubes = np.floor(voxel_coordinates[corners].mean(1)).astype(np.int64).clip(0, np.array(complete.shape) - 1)
    kept = complete[tuple(cubes.T)]
    if not kept.any():
        raise no_surface
    origin = fp64(grid.origin)
    vertices = origin + grid.voxel * torch.from_numpy(voxel_coordinates.astype(np.float64))
    colors = torch.zeros(len(vertices), 3, dtype=torch.float32, device="cpu")
    triangles = torch.from_numpy(corners.astype(np.int64))
    mesh = Mesh(vertices, triangles, colors, grid.voxel).select(torch.from_numpy(kept))
    on_progress("surface", 1, 2)
    mesh = keep_components(mesh, components)
    if faces is not None:
        vertices, triangles = decimate_mesh(mesh.vertices, mesh.faces, faces)
        mesh = dataclasses.replace(mesh, vertices=vertices, faces=triangles)
    mesh = dataclasses.replace(mesh, colors=volume.colors_at(mesh.vertices))
    on_progress("surface", 2, 2)
    return mesh
