"""Editing models: pruning, merging, decimating.

:mod:`~tsplat.scene.cropping` crops and :mod:`~tsplat.scene.rotation` moves them. All functions return new models.
"""

from .decimation import decimate_gaussians
from .joining import merge_models, set_sh_degree
from .pruning import prune_gaussians

__all__ = ["decimate_gaussians", "merge_models", "prune_gaussians", "set_sh_degree"]
