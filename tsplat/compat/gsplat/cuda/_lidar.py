"""The names of ``gsplat.cuda._lidar`` of gsplat 1.6. They compute the tiles and maps that gsplat's kernels use.

:func:`tsplat.rasterization` uses tiles of its own, and reads only the angles and the spinning direction of a lidar.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from .... import ArgumentError, ArgumentTypeError, UnsupportedError
from .... import RowOffsetStructuredSpinningLidarModelParameters as RowOffsetStructuredSpinningLidarModelParameters
from .... import SpinningDirection as SpinningDirection
from ....arguments import INTEGERS, check_devices, check_ids, check_numerics, check_tensor, compute_dtype
from ....config import NumericsName
from ....runtime.compilation import with_plain_tensors
from ....scalars import check_size
from ....stages.intersection import tile_bits
from ....stages.lidars import FULL_CIRCLE, SCALE, LidarLayout, direction_of
from ....support.extras import require

AZIMUTH_CELLS_MAX = 1 << 20
"""Number of cells of the field of view; azimuths of elements in the same cell count as equal."""


@dataclasses.dataclass(eq=False)
class LidarTiling:
    """Tiles of angles with about equal numbers of elements. :func:`tsplat.rasterization` does not read them.

    Attributes:
        n_bins_azimuth, n_bins_elevation: Number of tiles along each angle.
        cdf_elevation: [R + 1] int32, tile index of R equal elevation intervals from the top, followed by the number of
            tiles.
        cdf_dense_ray_mask: [R + 1, S + 1] int32, for each corner, the number of cells above and before it that contain
            an element.
        tiles_pack_info: [tiles, 2] int32, first element and number of elements of each tile.
        tiles_to_elements_map: [H * W, 2] int32, column and row of each element, tile by tile.
    """

    n_bins_azimuth: int
    n_bins_elevation: int
    cdf_elevation: Tensor
    cdf_dense_ray_mask: Tensor
    tiles_pack_info: Tensor
    tiles_to_elements_map: Tensor

    @property
    def cdf_resolution_elevation(self) -> int:
        """Number of elevation intervals, R."""
        return len(self.cdf_elevation) - 1

    @property
    def cdf_resolution_azimuth(self) -> int:
        """Number of cells along the azimuth, S."""
        return self.cdf_dense_ray_mask.shape[1] - 1


class RowOffsetStructuredSpinningLidarModelParametersExt(RowOffsetStructuredSpinningLidarModelParameters):
    """A lidar with the data structures of gsplat's renderer; :func:`tsplat.rasterization` does not read them.

    Attributes:
        angles_to_columns_map: See :func:`compute_lidar_angles_to_columns_map`.
        tiling: A :class:`LidarTiling`.
    """

    angles_to_columns_map: Tensor
    tiling: LidarTiling

    def __init__(
        self,
        params: RowOffsetStructuredSpinningLidarModelParameters,
        angles_to_columns_map: Tensor,
        tiling: LidarTiling,
    ) -> None:
        fields = dataclasses.fields(RowOffsetStructuredSpinningLidarModelParameters)
        super().__init__(**{field.name: getattr(params, field.name) for field in fields})
        object.__setattr__(self, "angles_to_columns_map", angles_to_columns_map)
        object.__setattr__(self, "tiling", tiling)


def tiling_of(lidar: object, name: str) -> LidarTiling:
    """Returns the tiling of a lidar, tsplat's or gsplat's. ``name`` is the argument of the lidar."""
    tiling: LidarTiling | None = getattr(lidar, "tiling", None)
    if tiling is None:
        raise ArgumentError(
            f"{name}: expected a lidar with a tiling, found a {type(lidar).__name__}; pass a "
            "RowOffsetStructuredSpinningLidarModelParametersExt with the tiling of compute_lidar_tiling"
        )
    return tiling


def _relative_angles(lidar: RowOffsetStructuredSpinningLidarModelParameters) -> tuple[Tensor, Tensor]:
    """Returns azimuths of elements relative to the first element, in spinning direction, and angles below the first
    row, [H, W] each, in radians."""
    azimuths = lidar.column_azimuths_rad + lidar.row_azimuth_offsets_rad[:, None]
    behind = azimuths - lidar.fov_horiz_rad.start
    if direction_of(lidar, "lidar") is SpinningDirection.CLOCKWISE:
        behind = -behind
    # The first element is at 0, even if rounding moves it before 0.
    behind = (behind + 1e-6).remainder(2 * math.pi) - 1e-6
    below = lidar.row_elevations_rad[0] - lidar.row_elevations_rad
    return behind.clamp_min(0), below[:, None].expand_as(azimuths)


def compute_angles_to_columns_map(
    lidar: RowOffsetStructuredSpinningLidarModelParameters,
    resolution_factor: int = 4,
    dtype: torch.dtype = torch.int32,
) -> Tensor:
    """Computes the column of the element nearest to each direction of a grid.

    Args:
        lidar: The lidar.
        resolution_factor: Number of directions per row and per column.
        dtype: An integer dtype.

    Returns:
        [``resolution_factor`` * H, ``resolution_factor`` * W]; directions are evenly spaced over the field of view, in
        the order of rows and columns.

    Raises:
        ArgumentError: The lidar or a number is invalid.
        MissingExtraError: SciPy, which finds the nearest elements, is not installed.
    """
    LidarLayout.of(lidar, "lidar")  # raises if the lidar is invalid
    resolution_factor = check_size("resolution_factor", resolution_factor)
    if not isinstance(dtype, torch.dtype):
        raise ArgumentTypeError(f"dtype: expected a torch.dtype, found {type(dtype).__name__}")
    require("scipy")
    from scipy import spatial

    def rays(azimuths: Tensor, elevations: Tensor) -> Tensor:
        flat = elevations.cos()
        return torch.stack([azimuths.cos() * flat, azimuths.sin() * flat, elevations.sin().expand_as(azimuths)], -1)

    height, width = lidar.n_rows, lidar.n_columns
    of_elements = (lidar.column_azimuths_rad + lidar.row_azimuth_offsets_rad[:, None]).detach()
    elements = rays(of_elements, lidar.row_elevations_rad.detach()[:, None])
    rows, columns = (
        torch.linspace(fov.start, fov.end, resolution_factor * n, dtype=elements.dtype, device=elements.device)
        for fov, n in ((lidar.fov_vert_rad, height), (lidar.fov_horiz_rad, width))
    )
    grid = rays(columns.expand(len(rows), -1), rows[:, None])
    _, nearest = spatial.cKDTree(elements.reshape(-1, 3).cpu().numpy()).query(grid.cpu().numpy())
    return (torch.from_numpy(nearest) % width).to(elements.device, dtype)


def compute_tiling(
    lidar_params: RowOffsetStructuredSpinningLidarModelParameters, n_bins_elevation: int = 16,
    max_pts_per_tile: int = 256, resolution_elevation: int = 1600, densification_factor_azimuth: int = 8,
) -> LidarTiling:  # fmt: skip
    """Computes tiles of angles with about equal numbers of elements.

    Args:
        lidar_params: The lidar.
        n_bins_elevation: Number of tiles along the elevation.
        max_pts_per_tile: Maximum number of elements per tile, which determines the number of tiles along the azimuth.
        resolution_elevation: Number of elevation intervals; tiles consist of whole intervals.
        densification_factor_azimuth: Number of azimuth cells per tile in the map of elements.

    Raises:
        ArgumentError: The lidar or a number is invalid, or more than ``max_pts_per_tile`` elements within a tile's
            elevations have the same azimuth, so that no number of tiles along the azimuth separates them.
    """
    LidarLayout.of(lidar_params, "lidar_params")  # raises if the lidar is invalid
    n_bins_elevation, max_pts_per_tile, resolution_elevation, densification_factor_azimuth = (
        check_size(name, value)
        for name, value in (
            ("n_bins_elevation", n_bins_elevation),
            ("max_pts_per_tile", max_pts_per_tile),
            ("resolution_elevation", resolution_elevation),
            ("densification_factor_azimuth", densification_factor_azimuth),
        )
    )
    azimuths, elevations = (angles.flatten() for angles in _relative_angles(lidar_params))
    spans = lidar_params.fov_horiz_rad.span, lidar_params.fov_vert_rad.span

    def cells(angles: Tensor, span: float, n: int) -> Tensor:
        return (angles / max(span, 1e-12) * n).long().clamp(0, n - 1)

    rows = cells(elevations, spans[1], resolution_elevation)
    below = torch.nn.functional.pad(rows.bincount(minlength=resolution_elevation).cumsum(0), (1, 0))
    cdf_elevation = below * n_bins_elevation // len(rows)
    bands = cdf_elevation[rows].clamp_max(n_bins_elevation - 1)
    finest = bands * AZIMUTH_CELLS_MAX + cells(azimuths, spans[0], AZIMUTH_CELLS_MAX)
    most = int(finest.unique(return_counts=True)[1].max())  # type: ignore[no-untyped-call]
    if most > max_pts_per_tile:
        raise ArgumentError(
            f"max_pts_per_tile: expected at least {most}, the number of elements in a tile with one azimuth, found "
            f"{max_pts_per_tile}; pass more, or a larger n_bins_elevation"
        )
    n_azimuth = math.ceil(len(rows) / n_bins_elevation / max_pts_per_tile)
    while True:
        tiles = bands * n_azimuth + cells(azimuths, spans[0], n_azimuth)
        counts = tiles.bincount(minlength=n_azimuth * n_bins_elevation)
        if counts.max() <= max_pts_per_tile:
            break
        n_azimuth += 1
    width, n_cells = lidar_params.n_columns, n_azimuth * densification_factor_azimuth
    order = tiles.argsort(stable=True)
    occupied = torch.zeros(resolution_elevation, n_cells, dtype=torch.int64, device=rows.device)
    occupied[rows, cells(azimuths, spans[0], n_cells)] = 1
    corners = torch.nn.functional.pad(occupied.cumsum(0).cumsum(1), (1, 0, 1, 0))
    return LidarTiling(
        n_azimuth,
        n_bins_elevation,
        cdf_elevation.int(),
        corners.int(),
        torch.stack([counts.cumsum(0) - counts, counts], -1).int(),
        torch.stack([order % width, order // width], -1).int(),
    )


@torch.no_grad()
@with_plain_tensors
def isect_tiles_lidar(
    lidar: RowOffsetStructuredSpinningLidarModelParametersExt, means2d: Tensor, radii: Tensor, depths: Tensor,
    sort: bool = True, segmented: bool = False, packed: bool = False, n_images: int | None = None,
    image_ids: Tensor | None = None, gaussian_ids: Tensor | None = None, *, numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Lists the intersections of projected Gaussians with the tiles of a lidar.

    A Gaussian intersects the tiles that its box overlaps, if the part of the box in the field of view contains an
    element. :func:`tsplat.rasterization` does not use this function.

    Args:
        lidar: A lidar with a ``tiling``, such as that of :func:`compute_lidar_tiling`.
        means2d: Azimuths and elevations, 1,024 per radian, [..., N, 2], or [nnz, 2] if packed.
        radii: Half the widths and heights of the boxes, 1,024 per radian; integers with the shape of ``means2d``, zero
            for culled Gaussians. Boxes with a non-finite center overlap no tile.
        depths: [..., N] or [nnz].
        sort: Whether to sort by image, tile and depth; otherwise intersections are ordered by Gaussian, then by tile.
        segmented: Has no effect on the result; not supported if packed.
        packed: Whether inputs are packed; requires ``n_images`` and ``image_ids`` [nnz].
        gaussian_ids: Unused, as in gsplat.
        numerics: Determines the bit layout of ``isect_ids``; pass the same to :func:`tsplat.isect_offset_encode`.

    Returns:
        ``tiles_per_gauss`` int32 [..., N] or [nnz]; ``isect_ids`` int64 [M], image | tile | depth; ``flatten_ids``
        int32 [M], indices into [I * N] or [nnz].

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        UnsupportedError: ``segmented`` with ``packed``.
    """
    check_tensor("depths", depths, [None] if packed else [...], "[nnz], as packed is True")
    check_tensor("means2d", means2d, [*depths.shape, 2], "[..., N, 2] as depths")
    check_tensor("radii", radii, means2d.shape, "[..., N, 2] as means2d", dtypes=INTEGERS)
    if packed:
        if segmented:
            raise UnsupportedError("segmented: segmented sort is not supported for packed inputs; pass False")
        if n_images is None or image_ids is None:
            raise ArgumentError("image_ids: required with n_images if packed is True")
        check_ids("image_ids", image_ids, check_size("n_images", n_images), depths.shape, "[nnz] as depths")
    preset, tiling = check_numerics(numerics), tiling_of(lidar, "lidar")
    check_devices(
        dict(means2d=means2d, radii=radii, depths=depths, image_ids=image_ids, tiling=tiling.cdf_dense_ray_mask)
    )
    is_finite = means2d.isfinite().all(-1, keepdim=True)
    means2d, radii = torch.where(is_finite, means2d, 0.0), torch.where(is_finite, radii, 0)
    azimuths, elevations = means2d.to(compute_dtype(means2d)).reshape(-1, 2).unbind(-1)
    half_widths, half_heights = radii.reshape(-1, 2).unbind(-1)
    rows = _Interval.of_elevations(lidar, elevations, half_heights)
    # A box that exceeds the circle at one end continues at the other.
    parts = _Interval.of_azimuths(lidar, azimuths, half_widths)
    overlapped = torch.zeros(len(azimuths), tiling.n_bins_azimuth, dtype=torch.bool, device=means2d.device)
    tiles = torch.arange(tiling.n_bins_azimuth, device=means2d.device)
    for part in parts:
        first, end = part.bins(tiling.n_bins_azimuth)
        held = part.holds_elements(rows, tiling) & (half_widths > 0) & (half_heights > 0)
        overlapped |= held[:, None] & (tiles >= first[:, None]) & (tiles < end[:, None])
    first_band, end_band = rows.bands(tiling)
    heights = torch.where(overlapped.any(-1), end_band - first_band, 0)
    counts = heights * overlapped.sum(-1)
    of_bands = torch.arange(len(heights), device=heights.device).repeat_interleave(heights)
    offsets = torch.arange(len(of_bands), device=heights.device) - (heights.cumsum(0) - heights)[of_bands]
    bands, columns = overlapped[of_bands].nonzero(as_tuple=True)
    gaussians = of_bands[bands]
    tile_ids = (first_band[gaussians] + offsets[bands]) * tiling.n_bins_azimuth + columns
    images = gaussians // max(depths.shape[-1], 1) if image_ids is None else image_ids.long()[gaussians]
    images = images << tile_bits(tiling.n_bins_azimuth * tiling.n_bins_elevation, preset)
    keys = depths.flatten().to(torch.float32).view(torch.int32)[gaussians]
    isect_ids = torch.stack([keys, (images + tile_ids).int()], -1).view(torch.int64).flatten()
    if sort:
        isect_ids, order = isect_ids.sort(stable=True)
        gaussians = gaussians[order]
    return counts.int().view(depths.shape), isect_ids, gaussians.int()


@dataclasses.dataclass(frozen=True)
class _Interval:
    """Intervals from ``first`` to ``end``, [R] each, as fractions of the field of view along one angle."""

    first: Tensor
    end: Tensor

    @staticmethod
    def of_elevations(
        lidar: RowOffsetStructuredSpinningLidarModelParameters, angles: Tensor, radii: Tensor
    ) -> _Interval:
        below = SCALE * lidar.fov_vert_rad.start - angles
        return _Interval._within(below - radii, below + radii, SCALE * lidar.fov_vert_rad.span)

    @staticmethod
    def of_azimuths(
        lidar: RowOffsetStructuredSpinningLidarModelParameters, angles: Tensor, radii: Tensor
    ) -> tuple[_Interval, _Interval]:
        circle, span = FULL_CIRCLE, SCALE * lidar.fov_horiz_rad.span
        behind = angles - SCALE * lidar.fov_horiz_rad.start
        if direction_of(lidar, "lidar") is SpinningDirection.CLOCKWISE:
            behind = -behind
        behind = behind.remainder(circle)
        first, end = behind - radii, behind + radii
        covers = (first <= 0) & (end >= span)
        end = end.minimum(first + circle)
        # The box continues before the start, or beyond 360 degrees.
        others = torch.where(first < 0, first + circle, 0.0), torch.where(first < 0, circle, end - circle)
        others = others[0], torch.where(covers, 0.0, others[1])
        return (
            _Interval._within(torch.where(covers, 0.0, first), torch.where(covers, span, end), span),
            _Interval._within(*others, span),
        )

    @staticmethod
    def _within(first: Tensor, end: Tensor, span: float) -> _Interval:
        return _Interval(first.clamp(0, span) / span, end.clamp(0, span) / span)

    def bins(self, n: int) -> tuple[Tensor, Tensor]:
        """Returns the first of n bins that each interval overlaps, and one past the last, [R] int64 each."""
        return (self.first * n).floor().long(), (self.end * n).ceil().long()

    def bands(self, tiling: LidarTiling) -> tuple[Tensor, Tensor]:
        """Returns the same for tiles along the elevation, which consist of whole intervals of the tiling."""
        first, end = self.bins(tiling.cdf_resolution_elevation)
        bands = tiling.cdf_elevation.long()
        last = torch.where(end > 0, (bands[(end - 1).clamp_min(0)] + 1).clamp_max(tiling.n_bins_elevation), bands[0])
        return bands[first], last

    def holds_elements(self, rows: _Interval, tiling: LidarTiling) -> Tensor:
        """Returns whether a cell in this azimuth interval and the elevation interval ``rows`` contains an element."""
        corners, n_cells = tiling.cdf_dense_ray_mask, tiling.cdf_resolution_azimuth
        (top, bottom), (first, end) = rows.bins(tiling.cdf_resolution_elevation), self.bins(n_cells)
        held = corners[bottom, end] - corners[top, end] - corners[bottom, first] + corners[top, first]
        return (held > 0) | ((first <= 0) & (end >= n_cells))
