"""Drop-in replacement for gsplat 1.5.3: change the import, keep the code.

``from tsplat.compat.gsplat import rasterization`` replaces ``from gsplat import rasterization``, and so do modules, as
``tsplat.compat.gsplat.strategy``. To keep even the imports, call :func:`install` first, or run the script with
``python -m tsplat.compat.gsplat SCRIPT``. All public names of gsplat exist; those that are not implemented
raise `UnsupportedError`, which says what to use instead.
"""

from .compression import PngCompression
from .cuda._torch_impl import accumulate
from .cuda._torch_impl_2dgs import accumulate_2dgs
from .cuda._wrapper import (
    RollingShutterType,
    fully_fused_projection,
    fully_fused_projection_2dgs,
    fully_fused_projection_with_ut,
    isect_offset_encode,
    isect_tiles,
    proj,
    quat_scale_to_covar_preci,
    rasterize_to_indices_in_range,
    rasterize_to_indices_in_range_2dgs,
    rasterize_to_pixels,
    rasterize_to_pixels_2dgs,
    rasterize_to_pixels_eval3d,
    spherical_harmonics,
    world_to_cam,
)
from .exporter import export_splats
from .installation import AlreadyImportedError, install
from .optimizers import SelectiveAdam
from .rendering import (
    rasterization,
    rasterization_2dgs,
    rasterization_2dgs_inria_wrapper,
    rasterization_inria_wrapper,
)
from .strategy import DefaultStrategy, MCMCStrategy, Strategy
from .version import __version__

__all__ = [
    "AlreadyImportedError",
    "DefaultStrategy",
    "MCMCStrategy",
    "PngCompression",
    "RollingShutterType",
    "SelectiveAdam",
    "Strategy",
    "__version__",
    "accumulate",
    "accumulate_2dgs",
    "export_splats",
    "fully_fused_projection",
    "fully_fused_projection_2dgs",
    "fully_fused_projection_with_ut",
    "install",
    "isect_offset_encode",
    "isect_tiles",
    "proj",
    "quat_scale_to_covar_preci",
    "rasterization",
    "rasterization_2dgs",
    "rasterization_2dgs_inria_wrapper",
    "rasterization_inria_wrapper",
    "rasterize_to_indices_in_range",
    "rasterize_to_indices_in_range_2dgs",
    "rasterize_to_pixels",
    "rasterize_to_pixels_2dgs",
    "rasterize_to_pixels_eval3d",
    "spherical_harmonics",
    "world_to_cam",
]
