"""Triton kernels and their launchers, without autograd. ``kernels_torch`` has the same functions in PyTorch."""

from .adam import adam_step
from .compositing import bytes_per_intersection, composite_bwd, composite_fwd, tile_alphas
from .feature_gradients import sum_feature_gradients
from .image_loss import l1_ssim_bwd, l1_ssim_fwd
from .intersection import max_unread_spans, tile_columns, tile_intersections, tile_lists, tile_rows
from .mcmc_step import mcmc_noise, mcmc_regularization
from .projection import projection_bwd, projection_fwd
from .scans import prefix_sums
from .small_sorts import gather_tiles, max_gathered, max_ordered, order_values
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
