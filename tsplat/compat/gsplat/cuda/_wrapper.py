"""The names of ``gsplat.cuda._wrapper``: the stages of the pipeline."""

from .... import (
    RollingShutterType,
    isect_offset_encode,
    isect_tiles,
    quat_scale_to_covar_preci,
    rasterize_to_pixels,
    rasterize_to_pixels_2dgs,
)
from ._adam import adam
from ._cameras import persp_proj, proj, world_to_cam
from ._capabilities import (
    CameraModel,
    ExternalDistortionModelMeta,
    has_2dgs,
    has_3dgs,
    has_3dgut,
    has_adam,
    has_camera_wrappers,
    has_losses,
    has_reloc,
)
from ._contributions import rasterize_to_indices_in_range, rasterize_to_indices_in_range_2dgs
from ._contributors import (
    rasterize_contributing_gaussian_ids,
    rasterize_contributing_gaussian_ids_sparse,
    rasterize_num_contributing_gaussians,
    rasterize_num_contributing_gaussians_sparse,
    rasterize_top_contributing_gaussian_ids,
    rasterize_top_contributing_gaussian_ids_sparse,
)
from ._distortion import (
    BivariateWindshieldModelParameters,
    ExternalDistortionModelParameters,
    ExternalDistortionReferencePolynomial,
    FThetaCameraDistortionParameters,
    FThetaPolynomialType,
    UnscentedTransformParameters,
)
from ._lidar import (
    RowOffsetStructuredSpinningLidarModelParameters,
    RowOffsetStructuredSpinningLidarModelParametersExt,
    SpinningDirection,
    isect_tiles_lidar,
)
from ._packed_projection import fully_fused_projection, fully_fused_projection_2dgs
from ._sparse_pixels import build_sparse_tile_layout, isect_tiles_sparse, rasterize_to_pixels_sparse
from ._spherical_harmonics import spherical_harmonics, spherical_harmonics_l0, spherical_harmonics_l1_plus
from ._unscented import (
    fully_fused_projection_with_ut,
    rasterize_to_pixels_eval3d,
    rasterize_to_pixels_eval3d_extra,
)
