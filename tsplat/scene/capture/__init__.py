"""Captures: posed photographs and initial points for training.

- :mod:`~tsplat.scene.capture.views`: the data classes :class:`View` and :class:`Capture`.
- :mod:`~tsplat.scene.capture.captures`: :func:`read_capture`, which selects the reader by the format. Readers list
  :mod:`~tsplat.scene.capture.photographs`, which are then loaded, undistorted (``lenses``) and downscaled.
- :mod:`~tsplat.scene.capture.normalization`: moves a capture to a canonical frame.
- :mod:`~tsplat.scene.capture.structure_from_motion`: computes camera poses from photographs or a video with
  COLMAP. It runs the stages of ``colmap_pipeline``, on photographs or ``video_frames``, and draws a ``camera_plot``.
- :mod:`~tsplat.scene.capture.block_plans`: divides a capture into blocks; ``block_plot`` draws them.
- :mod:`~tsplat.scene.capture.procedural`: a synthetic capture that requires no files.
"""
