"""The launchers of `tsplat.kernels` in vectorised PyTorch, for devices without Triton: same names and signatures."""

from .compositing import composite_bwd, composite_fwd
from .intersection import tile_columns, tile_pairs, tile_rows
from .projection import projection_bwd, projection_fwd
from .spherical_harmonics import spherical_harmonics_bwd, spherical_harmonics_fwd

__all__ = [
    "composite_bwd",
    "composite_fwd",
    "projection_bwd",
    "projection_fwd",
    "spherical_harmonics_bwd",
    "spherical_harmonics_fwd",
    "tile_columns",
    "tile_pairs",
    "tile_rows",
]
