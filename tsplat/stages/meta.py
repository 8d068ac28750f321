"""The ``meta`` dictionary of ``rasterization()``: gsplat's keys and tsplat's own."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..data import ProjectedGaussians
from .intersection import BandedIntersections, count_tiles, encode_ids
from .request import Request


def describe_render(
    request: Request,
    valid: Tensor | None,
    projected: ProjectedGaussians,
    received: ProjectedGaussians,
    intersections: BandedIntersections,
) -> dict[str, Any]:
    """Returns ``meta`` as :func:`tsplat.rasterization` documents it.

    Args:
        valid: [B, N] bool, or None if values were not checked.
        projected: This rank's Gaussians.
        received: The Gaussians that this rank composited; ``projected`` itself on a single rank.
        intersections: Of ``received``.
    """
    batch_ids, camera_ids, gaussian_ids = projected.ids()
    meta: dict[str, Any] = {
        "batch_ids": batch_ids,
        "camera_ids": camera_ids,
        "gaussian_ids": gaussian_ids,
        **_rows(projected),
        **_tiles(request, received, intersections),
        "width": request.options.width,
        "height": request.options.height,
        "n_batches": request.gaussians.means.shape[0],
        "n_cameras": request.cameras.viewmats.shape[1],
        "n_invalid": None if valid is None else (~valid).sum(),
        "memory": {
            "n_intersections": intersections.n_intersections,
            "bands": len(intersections.bands),
            "peak_bytes": intersections.budget.peak_bytes,
            "budget": intersections.budget.limit,
        },
    }
    if request.distributed:
        _, camera_ids, gaussian_ids = received.ids()
        meta["received"] = {"camera_ids": camera_ids, "gaussian_ids": gaussian_ids, **_rows(received)}
    return meta


def _rows(projected: ProjectedGaussians) -> dict[str, Tensor]:
    """Projected Gaussians in the layout of ``means2d``: packed, or [..., C, N]."""
    assert projected.opacities is not None
    shape = projected.means2d.shape[:-1]
    return {
        "radii": projected.radii.view(*shape, 2),
        "means2d": projected.means2d,
        "depths": projected.depths.view(shape),
        "conics": projected.conics.view(*shape, 3),
        "opacities": projected.opacities.view(shape),
    }


def _tiles(
    request: Request, received: ProjectedGaussians, intersections: BandedIntersections
) -> dict[str, Tensor | int | None]:
    grid, whole = request.grid, intersections.whole
    tiles_per_gauss = isect_ids = isect_offsets = flatten_ids = None
    if whole is not None:
        assert whole.gaussian_major is not None
        flatten_ids = whole.flatten_ids
        tiles_per_gauss = count_tiles(whole.gaussian_major).view(received.means2d.shape[:-1])
        isect_ids = encode_ids(whole, received.depths, grid)
        isect_offsets = whole.isect_offsets[:-1].view(*request.image_shape[:-2], grid.tile_height, grid.tile_width)
    return {
        "tile_size": grid.tile_size,
        "tile_width": grid.tile_width,
        "tile_height": grid.tile_height,
        "tiles_per_gauss": tiles_per_gauss,
        "isect_ids": isect_ids,
        "flatten_ids": flatten_ids,
        "isect_offsets": isect_offsets,
    }
