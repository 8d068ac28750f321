"""Scenes: Gaussians, cameras and images in memory, and reading and writing them.

- :mod:`~tsplat.scene.gaussians`, :mod:`~tsplat.scene.cameras`, :mod:`~tsplat.scene.images`: the data itself.
- :mod:`~tsplat.scene.formats`: models on disk (PLY, ``.splat``, SPZ, SOG, glTF, OpenUSD, checkpoints).
- :mod:`~tsplat.scene.capture`: posed photographs on disk (COLMAP, ``transforms.json``) and how to make them.
- :mod:`~tsplat.scene.editing`: pruning, merging and decimating models; :mod:`~tsplat.scene.cropping` and
  :mod:`~tsplat.scene.rotation` crop and move them.
- :mod:`~tsplat.scene.summary`: counts, bounds and quantiles of a model.
- :mod:`~tsplat.scene.morton`: Morton order of points.
"""

from ..errors import FileError, MissingExtraError
from .cameras import Camera, intrinsics, look_at, orbit, rasterization_arguments
from .capture import (
    Block,
    BlockPlan,
    Capture,
    Color,
    Prepared,
    View,
    normalize_capture,
    plan_blocks,
    prepare,
    procedural_capture,
    read_capture,
    read_colmap,
    read_plan,
    read_transforms,
    write_plan,
)
from .cropping import crop_gaussians, crop_sphere
from .editing import decimate_gaussians, merge_models, prune_gaussians, set_sh_degree
from .formats import (
    CheckpointError,
    OrbitLimits,
    open_model,
    read_gltf,
    read_model,
    read_orbit_limits,
    read_ply,
    read_sog,
    read_splat,
    read_spz,
    read_streamed_sog,
    read_torch_checkpoint,
    read_usd,
    write_compressed_ply,
    write_gltf,
    write_model,
    write_ply,
    write_sog,
    write_splat,
    write_spz,
    write_streamed_sog,
    write_usd,
)
from .gaussians import AlreadyActivatedError, Gaussians
from .morton import morton_order
from .rotation import rotate_gaussians, transform_gaussians
from .summary import Summary, summarize

__all__ = [
    "AlreadyActivatedError",
    "Block",
    "BlockPlan",
    "Camera",
    "Capture",
    "CheckpointError",
    "Color",
    "FileError",
    "Gaussians",
    "MissingExtraError",
    "OrbitLimits",
    "Prepared",
    "Summary",
    "View",
    "crop_gaussians",
    "crop_sphere",
    "decimate_gaussians",
    "intrinsics",
    "look_at",
    "merge_models",
    "morton_order",
    "normalize_capture",
    "open_model",
    "orbit",
    "plan_blocks",
    "prepare",
    "procedural_capture",
    "prune_gaussians",
    "rasterization_arguments",
    "read_capture",
    "read_colmap",
    "read_gltf",
    "read_model",
    "read_orbit_limits",
    "read_plan",
    "read_ply",
    "read_sog",
    "read_splat",
    "read_spz",
    "read_streamed_sog",
    "read_torch_checkpoint",
    "read_transforms",
    "read_usd",
    "rotate_gaussians",
    "set_sh_degree",
    "summarize",
    "transform_gaussians",
    "write_compressed_ply",
    "write_gltf",
    "write_model",
    "write_plan",
    "write_ply",
    "write_sog",
    "write_splat",
    "write_spz",
    "write_streamed_sog",
    "write_usd",
]
