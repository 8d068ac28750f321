"""Captures: posed photographs and the points that training starts from.

- :mod:`~tsplat.scene.capture.views`: the data classes :class:`View` and :class:`Capture`.
- :mod:`~tsplat.scene.capture.captures`: :func:`read_capture`, which picks the reader: ``colmap`` or ``transforms``.
  Both list :mod:`~tsplat.scene.capture.photographs`, which are loaded, undistorted (``lenses``) and downscaled.
- :mod:`~tsplat.scene.capture.normalization`: moves a capture to a canonical frame.
- :mod:`~tsplat.scene.capture.structure_from_motion`: computes camera poses from photographs or a video with
  COLMAP. It runs the stages of ``colmap_pipeline``, on frames of ``video_frames``, and draws a ``camera_plot``.
- :mod:`~tsplat.scene.capture.block_plans`: divides a capture into blocks; ``block_plot`` draws them.
- :mod:`~tsplat.scene.capture.procedural`: a synthetic capture that needs no data.
"""

from .block_plans import Block, BlockPlan, plan_blocks, read_plan, write_plan
from .captures import read_capture
from .colmap import read_colmap
from .normalization import normalize_capture
from .procedural import procedural_capture
from .structure_from_motion import Prepared, prepare
from .transforms import read_transforms
from .views import Capture, Color, View

__all__ = [
    "Block",
    "BlockPlan",
    "Capture",
    "Color",
    "Prepared",
    "View",
    "normalize_capture",
    "plan_blocks",
    "prepare",
    "procedural_capture",
    "read_capture",
    "read_colmap",
    "read_plan",
    "read_transforms",
    "write_plan",
]
