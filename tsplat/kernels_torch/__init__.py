"""The functions of ``kernels`` in vectorized PyTorch, for devices without Triton. Names and signatures are the same.

This holds for the functions that this package exports. Projectors, lenses and footprints have the same names as in
``kernels``, but other interfaces: tensor operations need other functions than device functions of a lane or a pixel.
"""

from .adam import adam_step
from .compositing import bytes_per_intersection, composite_bwd, composite_fwd, tile_alphas
from .feature_gradients import sum_feature_gradients
from .image_loss import l1_ssim_bwd, l1_ssim_fwd
from .intersection import (
    gather_tiles,
    max_gathered,
    max_ordered,
    max_unread_spans,
    order_values,
    prefix_sums,
    tile_columns,
    tile_intersections,
    tile_lists,
    tile_rows,
)
from .mcmc_step import mcmc_noise, mcmc_regularization
from .projection import projection_bwd, projection_fwd
from .spherical_harmonics import spherical_harmonics_bwd, spherical_harmonics_fwd
from .validation import find_valid

__all__ = [
    "adam_step",
    "bytes_per_intersection",
    "composite_bwd",
    "composite_fwd",
    "find_valid",
    "gather_tiles",
    "l1_ssim_bwd",
    "l1_ssim_fwd",
    "max_gathered",
    "max_ordered",
    "max_unread_spans",
    "mcmc_noise",
    "mcmc_regularization",
    "order_values",
    "prefix_sums",
    "projection_bwd",
    "projection_fwd",
    "spherical_harmonics_bwd",
    "spherical_harmonics_fwd",
    "sum_feature_gradients",
    "tile_alphas",
    "tile_columns",
    "tile_intersections",
    "tile_lists",
    "tile_rows",
]
