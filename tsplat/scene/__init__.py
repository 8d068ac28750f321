"""Scenes: Gaussians, cameras and images in memory, and reading and writing them.

- :mod:`~tsplat.scene.gaussians`, :mod:`~tsplat.scene.cameras`, :mod:`~tsplat.scene.images`: the data itself.
- :mod:`~tsplat.scene.formats`: models on disk (PLY, ``.splat``, SPZ, SOG, checkpoints).
- :mod:`~tsplat.scene.capture`: posed photographs on disk (COLMAP, ``transforms.json``) and how to make them.
- :mod:`~tsplat.scene.summary`: counts, bounds and quantiles of a model.
- :mod:`~tsplat.scene.morton`: Morton order of points.
"""

from ..errors import FileError, MissingExtraError
from .cameras import Camera, intrinsics, look_at, orbit, rasterization_arguments
from .capture import (
    Capture,
    Color,
    Prepared,
    View,
    normalize_capture,
    prepare,
    procedural_capture,
    read_capture,
    read_colmap,
    read_transforms,
)
from .formats import (
    CheckpointError,
    open_model,
    read_model,
    read_ply,
    read_sog,
    read_splat,
    read_spz,
    read_torch_checkpoint,
    write_compressed_ply,
    write_model,
    write_ply,
    write_sog,
    write_splat,
    write_spz,
)
from .gaussians import AlreadyActivatedError, Gaussians
from .morton import morton_order
from .summary import Summary, summarize

__all__ = [
    "AlreadyActivatedError",
    "Camera",
    "Capture",
    "CheckpointError",
    "Color",
    "FileError",
    "Gaussians",
    "MissingExtraError",
    "Prepared",
    "Summary",
    "View",
    "intrinsics",
    "look_at",
    "morton_order",
    "normalize_capture",
    "open_model",
    "orbit",
    "prepare",
    "procedural_capture",
    "rasterization_arguments",
    "read_capture",
    "read_colmap",
    "read_model",
    "read_ply",
    "read_sog",
    "read_splat",
    "read_spz",
    "read_torch_checkpoint",
    "read_transforms",
    "summarize",
    "write_compressed_ply",
    "write_model",
    "write_ply",
    "write_sog",
    "write_splat",
    "write_spz",
]
