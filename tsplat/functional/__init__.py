"""The steps of the pipeline as functions with gsplat's names and signatures, for code that calls them one by one.

Each function checks its arguments and calls the same stages as ``rasterization``, which does not use these functions.
``quat_scale_to_covar_preci`` is plain PyTorch.
"""

from .compositing import rasterize_to_pixels, rasterize_to_pixels_2dgs, rasterize_to_pixels_eval3d
from .intersection import isect_offset_encode, isect_tiles
from .projection import (
    fully_fused_projection,
    fully_fused_projection_2dgs,
    fully_fused_projection_with_ut,
    quat_scale_to_covar_preci,
)
from .shading import spherical_harmonics

__all__ = [
    "fully_fused_projection",
    "fully_fused_projection_2dgs",
    "fully_fused_projection_with_ut",
    "isect_offset_encode",
    "isect_tiles",
    "quat_scale_to_covar_preci",
    "rasterize_to_pixels",
    "rasterize_to_pixels_2dgs",
    "rasterize_to_pixels_eval3d",
    "spherical_harmonics",
]
