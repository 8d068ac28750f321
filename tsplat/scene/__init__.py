"""Scenes: Gaussians, cameras and images, with readers and writers for their file formats.

- :mod:`~tsplat.scene.gaussians`, :mod:`~tsplat.scene.cameras`, :mod:`~tsplat.scene.images`: the data structures.
- :mod:`~tsplat.scene.formats`: models on disk (PLY, ``.splat``, ``.ksplat``, SPZ, SOG, RAD, LCC, glTF, OpenUSD,
  checkpoints).
- :mod:`~tsplat.scene.capture`: posed photographs on disk (COLMAP, ``transforms.json``), and preparing them with COLMAP.
- :mod:`~tsplat.scene.editing`: pruning, merging and decimating models; :mod:`~tsplat.scene.cropping` and
  :mod:`~tsplat.scene.rotation` crop and move them.
- :mod:`~tsplat.scene.summary`: counts, bounds and quantiles of a model.
- :mod:`~tsplat.scene.morton`: Morton order of points.
"""

from ..support.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
