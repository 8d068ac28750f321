"""Drop-in replacement for gsplat 1.5.3, with the names of gsplat 1.6: change the import, keep the code.

``from tsplat.compat.gsplat import rasterization`` replaces ``from gsplat import rasterization``; modules such as
``tsplat.compat.gsplat.strategy`` work in the same way. To keep even the imports, call :func:`install` first, or run the
script with ``python -m tsplat.compat.gsplat SCRIPT``. All names that `gsplat` exports exist, and the names of its
modules that ``docs/from_gsplat.md`` lists. Names that are not implemented raise `UnsupportedError`, which says what to
use instead.
"""

from .color_correct import color_correct_affine, color_correct_quadratic
from .compression import PngCompression
from .cuda._lidar import LidarTiling, SpinningDirection
from .cuda._lidar import compute_angles_to_columns_map as compute_lidar_angles_to_columns_map
from .cuda._lidar import compute_tiling as compute_lidar_tiling
from .cuda._torch_impl import accumulate
from .cuda._torch_impl_2dgs import accumulate_2dgs
from .cuda._wrapper import (
    CameraModel,
    ExternalDistortionModelMeta,
    ExternalDistortionModelParameters,
    RollingShutterType,
    RowOffsetStructuredSpinningLidarModelParameters,
    RowOffsetStructuredSpinningLidarModelParametersExt,
    build_sparse_tile_layout,
    fully_fused_projection,
    fully_fused_projection_2dgs,
    fully_fused_projection_with_ut,
    has_2dgs,
    has_3dgs,
    has_3dgut,
    has_adam,
    has_camera_wrappers,
    has_losses,
    has_reloc,
    isect_offset_encode,
    isect_tiles,
    isect_tiles_lidar,
    isect_tiles_sparse,
    proj,
    quat_scale_to_covar_preci,
    rasterize_contributing_gaussian_ids,
    rasterize_contributing_gaussian_ids_sparse,
    rasterize_num_contributing_gaussians,
    rasterize_num_contributing_gaussians_sparse,
    rasterize_to_indices_in_range,
    rasterize_to_indices_in_range_2dgs,
    rasterize_to_pixels,
    rasterize_to_pixels_2dgs,
    rasterize_to_pixels_eval3d,
    rasterize_to_pixels_sparse,
    rasterize_top_contributing_gaussian_ids,
    rasterize_top_contributing_gaussian_ids_sparse,
    spherical_harmonics,
    spherical_harmonics_l0,
    spherical_harmonics_l1_plus,
    world_to_cam,
)
from .exporter import export_splats
from .installation import AlreadyImportedError, install
from .losses import depth_l1_loss as depth_l1_loss
from .losses import gaussian_density_reg, gaussian_scale_reg, gaussian_z_scale_reg, out_of_bound_loss
from .losses import l1_loss as l1_loss
from .losses import lidar_background_loss as lidar_background_loss
from .losses import lidar_distance_loss as lidar_distance_loss
from .losses import lidar_intensity_loss as lidar_intensity_loss
from .losses import lidar_raydrop_loss as lidar_raydrop_loss
from .losses import mse_loss as mse_loss
from .losses import opacity_reg_loss as opacity_reg_loss
from .losses import scale_reg_loss as scale_reg_loss
from .losses import ssim_loss as ssim_loss
from .losses import total_variation_loss as total_variation_loss
from .losses_fused import FusedGaussianLosses
from .optimizers import SelectiveAdam
from .rendering import (
    RasterizeMode,
    RendererConfig,
    RendererConfig_MixedBatch,
    RendererConfig_ParallelBatch,
    RenderMode,
    rasterization,
    rasterization_2dgs,
    rasterization_2dgs_inria_wrapper,
    rasterization_inria_wrapper,
)
from .strategy import DefaultStrategy, MCMCStrategy, Strategy
from .version import __version__

__all__ = [
    "AlreadyImportedError",
    "CameraModel",
    "DefaultStrategy",
    "ExternalDistortionModelMeta",
    "ExternalDistortionModelParameters",
    "FusedGaussianLosses",
    "LidarTiling",
    "MCMCStrategy",
    "PngCompression",
    "RasterizeMode",
    "RenderMode",
    "RendererConfig",
    "RendererConfig_MixedBatch",
    "RendererConfig_ParallelBatch",
    "RollingShutterType",
    "RowOffsetStructuredSpinningLidarModelParameters",
    "RowOffsetStructuredSpinningLidarModelParametersExt",
    "SelectiveAdam",
    "SpinningDirection",
    "Strategy",
    "__version__",
    "accumulate",
    "accumulate_2dgs",
    "build_sparse_tile_layout",
    "color_correct_affine",
    "color_correct_quadratic",
    "compute_lidar_angles_to_columns_map",
    "compute_lidar_tiling",
    "export_splats",
    "fully_fused_projection",
    "fully_fused_projection_2dgs",
    "fully_fused_projection_with_ut",
    "gaussian_density_reg",
    "gaussian_scale_reg",
    "gaussian_z_scale_reg",
    "has_2dgs",
    "has_3dgs",
    "has_3dgut",
    "has_adam",
    "has_camera_wrappers",
    "has_losses",
    "has_reloc",
    "install",
    "isect_offset_encode",
    "isect_tiles",
    "isect_tiles_lidar",
    "isect_tiles_sparse",
    "out_of_bound_loss",
    "proj",
    "quat_scale_to_covar_preci",
    "rasterization",
    "rasterization_2dgs",
    "rasterization_2dgs_inria_wrapper",
    "rasterization_inria_wrapper",
    "rasterize_contributing_gaussian_ids",
    "rasterize_contributing_gaussian_ids_sparse",
    "rasterize_num_contributing_gaussians",
    "rasterize_num_contributing_gaussians_sparse",
    "rasterize_to_indices_in_range",
    "rasterize_to_indices_in_range_2dgs",
    "rasterize_to_pixels",
    "rasterize_to_pixels_2dgs",
    "rasterize_to_pixels_eval3d",
    "rasterize_to_pixels_sparse",
    "rasterize_top_contributing_gaussian_ids",
    "rasterize_top_contributing_gaussian_ids_sparse",
    "spherical_harmonics",
    "spherical_harmonics_l0",
    "spherical_harmonics_l1_plus",
    "world_to_cam",
]
