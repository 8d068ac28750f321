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
