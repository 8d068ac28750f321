"""tsplat: 3D Gaussian Splatting in Triton. See :func:`rasterization`."""

from .checks import (
    ArgumentError,
    BackendError,
    DeviceError,
    DtypeError,
    RollingShutterType,
    ShapeError,
    UnsupportedError,
)
from .compositing import rasterize_to_pixels
from .distributed import DisagreementError, PeerError
from .intersection import isect_offset_encode, isect_tiles
from .memory import MemoryBudgetError
from .photometric import l1_and_ssim, l1_ssim_loss
from .projection import fully_fused_projection, quat_scale_to_covar_preci
from .rasterization import rasterization
from .spherical_harmonics import spherical_harmonics
from .validation import InvalidValueError

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "BackendError",
    "DeviceError",
    "DisagreementError",
    "DtypeError",
    "InvalidValueError",
    "MemoryBudgetError",
    "PeerError",
    "RollingShutterType",
    "ShapeError",
    "UnsupportedError",
    "__version__",
    "fully_fused_projection",
    "isect_offset_encode",
    "isect_tiles",
    "l1_and_ssim",
    "l1_ssim_loss",
    "quat_scale_to_covar_preci",
    "rasterization",
    "rasterize_to_pixels",
    "spherical_harmonics",
]
