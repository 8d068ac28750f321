from .config import (
    FThetaCameraDistortionParameters,
    FThetaPolynomialType,
    RollingShutterType,
    UnscentedTransformParameters,
)
from .errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendError,
    CapacityError,
    DeviceError,
    DisagreementError,
    DtypeError,
    InvalidValueError,
    MemoryBudgetError,
    PeerError,
    ShapeError,
    UnsupportedError,
)
from .functional import (
    fully_fused_projection,
    fully_fused_projection_2dgs,
    fully_fused_projection_with_ut,
    isect_offset_encode,
    isect_tiles,
    quat_scale_to_covar_preci,
    rasterize_to_pixels,
    rasterize_to_pixels_2dgs,
    rasterize_to_pixels_eval3d,
    spherical_harmonics,
)
from .ops.depth_maps import depth_to_normals, depth_to_points
from .ops.image_loss import l1_and_ssim, l1_ssim_loss
from .passes.graphed_calls import graphed
from .rasterization import rasterization, rasterization_2dgs
from .stages.lens_models import BivariateWindshieldModelParameters
from .stages.lidars import RowOffsetStructuredSpinningLidarModelParameters, SpinningDirection
from .stages.overflow_checks import check_overflow

__version__: str

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BackendError",
    "BivariateWindshieldModelParameters",
    "CapacityError",
    "DeviceError",
    "DisagreementError",
    "DtypeError",
    "FThetaCameraDistortionParameters",
    "FThetaPolynomialType",
    "InvalidValueError",
    "MemoryBudgetError",
    "PeerError",
    "RollingShutterType",
    "RowOffsetStructuredSpinningLidarModelParameters",
    "ShapeError",
    "SpinningDirection",
    "UnscentedTransformParameters",
    "UnsupportedError",
    "__version__",
    "check_overflow",
    "depth_to_normals",
    "depth_to_points",
    "fully_fused_projection",
    "fully_fused_projection_2dgs",
    "fully_fused_projection_with_ut",
    "graphed",
    "isect_offset_encode",
    "isect_tiles",
    "l1_and_ssim",
    "l1_ssim_loss",
    "quat_scale_to_covar_preci",
    "rasterization",
    "rasterization_2dgs",
    "rasterize_to_pixels",
    "rasterize_to_pixels_2dgs",
    "rasterize_to_pixels_eval3d",
    "spherical_harmonics",
]
