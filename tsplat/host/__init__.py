"""The launchers of `tsplat.kernels` in vectorised PyTorch, for devices without Triton: same names and signatures."""

from .adam import adam_step
from .compositing import composite_bwd, composite_fwd, composite_gradients, sum_columns
from .intersection import tile_columns, tile_pairs, tile_rows
from .photometric import l1_ssim_bwd, l1_ssim_fwd
from .projection import projection_bwd, projection_fwd
from .soundness import sound_gaussians
from .spherical_harmonics import spherical_harmonics_bwd, spherical_harmonics_fwd

__all__ = [
    "adam_step",
    "composite_bwd",
    "composite_fwd",
    "composite_gradients",
    "l1_ssim_bwd",
    "l1_ssim_fwd",
    "projection_bwd",
    "projection_fwd",
    "sound_gaussians",
    "spherical_harmonics_bwd",
    "spherical_harmonics_fwd",
    "sum_columns",
    "tile_columns",
    "tile_pairs",
    "tile_rows",
]
