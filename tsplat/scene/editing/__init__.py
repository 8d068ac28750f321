"""Edits models: pruning, merging, decimating.

:mod:`~tsplat.scene.cropping` crops models, and :mod:`~tsplat.scene.rotation` moves them. All functions return new
models.
"""
