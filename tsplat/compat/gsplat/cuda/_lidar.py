"""The names of ``gsplat.cuda._lidar`` of gsplat 1.6. Lidars are not implemented."""

import enum

import torch

from .._unsupported import unsupported, unsupported_class

_CAMERAS = "lidars cannot be rendered; use cameras"


class SpinningDirection(enum.Enum):
    """Direction in which a lidar spins."""

    CLOCKWISE = 0
    COUNTER_CLOCKWISE = 1


RowOffsetStructuredSpinningLidarModelParameters = unsupported_class(
    "RowOffsetStructuredSpinningLidarModelParameters",
    "row_elevations_rad column_azimuths_rad row_azimuth_offsets_rad spinning_frequency_hz spinning_direction",
    {"fov_eps_factor": 4},
    instead=_CAMERAS,
    keyword_only=True,
)
RowOffsetStructuredSpinningLidarModelParametersExt = unsupported_class(
    "RowOffsetStructuredSpinningLidarModelParametersExt",
    "params angles_to_columns_map tiling",
    instead=_CAMERAS,
    base=RowOffsetStructuredSpinningLidarModelParameters,
)
LidarTiling = unsupported_class(
    "LidarTiling",
    "n_bins_azimuth n_bins_elevation cdf_elevation cdf_dense_ray_mask tiles_pack_info tiles_to_elements_map",
    instead=_CAMERAS,
)
compute_angles_to_columns_map = unsupported(
    "compute_lidar_angles_to_columns_map", "lidar", {"resolution_factor": 4, "dtype": torch.int32}, instead=_CAMERAS
)
compute_tiling = unsupported(
    "compute_lidar_tiling",
    "lidar_params",
    {"n_bins_elevation": 16, "max_pts_per_tile": 256, "resolution_elevation": 1600, "densification_factor_azimuth": 8},
    instead=_CAMERAS,
)
isect_tiles_lidar = unsupported(
    "isect_tiles_lidar",
    "lidar means2d radii depths",
    {"sort": True, "segmented": False, "packed": False, "n_images": None, "image_ids": None, "gaussian_ids": None},
    instead="lidars cannot be rendered; use isect_tiles for cameras",
)
