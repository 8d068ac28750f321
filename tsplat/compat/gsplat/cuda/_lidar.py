"""The names of ``gsplat.cuda._lidar`` of gsplat 1.6. Lidars are not implemented: all of these raise when called."""

import enum
from typing import NoReturn

import torch
from torch import Tensor

from .... import UnsupportedError

USE_CAMERAS = "not implemented; lidars cannot be rendered; use cameras"


def refuse_lidars(lidar_coeffs: object) -> None:
    """Raises `UnsupportedError` unless the argument of this name is None."""
    if lidar_coeffs is not None:
        raise UnsupportedError(f"lidar_coeffs: {USE_CAMERAS}; pass None")


class SpinningDirection(enum.Enum):
    """Direction in which a lidar spins."""

    CLOCKWISE = 0
    COUNTER_CLOCKWISE = 1


class RowOffsetStructuredSpinningLidarModelParameters:
    """Raises `UnsupportedError` when constructed: lidars cannot be rendered; use cameras."""

    def __init__(
        self, *, row_elevations_rad: Tensor, column_azimuths_rad: Tensor, row_azimuth_offsets_rad: Tensor,
        spinning_frequency_hz: float, spinning_direction: SpinningDirection, fov_eps_factor: float = 4,
    ) -> None:  # fmt: skip
        raise UnsupportedError(f"{type(self).__name__}: {USE_CAMERAS}")


class RowOffsetStructuredSpinningLidarModelParametersExt(RowOffsetStructuredSpinningLidarModelParameters):
    """Raises `UnsupportedError` when constructed: lidars cannot be rendered; use cameras."""

    def __init__(
        self,
        params: RowOffsetStructuredSpinningLidarModelParameters,
        angles_to_columns_map: Tensor,
        tiling: "LidarTiling",
    ) -> None:
        raise UnsupportedError(f"{type(self).__name__}: {USE_CAMERAS}")


class LidarTiling:
    """Raises `UnsupportedError` when constructed: lidars cannot be rendered; use cameras."""

    def __init__(
        self, n_bins_azimuth: int, n_bins_elevation: int, cdf_elevation: Tensor, cdf_dense_ray_mask: Tensor,
        tiles_pack_info: Tensor, tiles_to_elements_map: Tensor,
    ) -> None:  # fmt: skip
        raise UnsupportedError(f"{type(self).__name__}: {USE_CAMERAS}")


def compute_angles_to_columns_map(
    lidar: object, resolution_factor: int = 4, dtype: torch.dtype = torch.int32
) -> NoReturn:
    """Raises `UnsupportedError`: lidars cannot be rendered; use cameras."""
    raise UnsupportedError(f"compute_lidar_angles_to_columns_map: {USE_CAMERAS}")


def compute_tiling(
    lidar_params: object, n_bins_elevation: int = 16, max_pts_per_tile: int = 256, resolution_elevation: int = 1600,
    densification_factor_azimuth: int = 8,
) -> NoReturn:  # fmt: skip
    """Raises `UnsupportedError`: lidars cannot be rendered; use cameras."""
    raise UnsupportedError(f"compute_lidar_tiling: {USE_CAMERAS}")


def isect_tiles_lidar(
    lidar: object, means2d: Tensor, radii: Tensor, depths: Tensor,
    sort: bool = True, segmented: bool = False, packed: bool = False, n_images: int | None = None,
    image_ids: Tensor | None = None, gaussian_ids: Tensor | None = None,
) -> NoReturn:  # fmt: skip
    """Raises `UnsupportedError`: lidars cannot be rendered; use :func:`tsplat.isect_tiles` for cameras."""
    raise UnsupportedError("isect_tiles_lidar: not implemented; lidars cannot be rendered; use isect_tiles for cameras")
