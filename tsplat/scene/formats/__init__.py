"""Reads and writes model files: one module per format, and :mod:`~tsplat.scene.formats.models`, which selects the
format.

Every reader returns :class:`~tsplat.scene.Gaussians` in float32 on the CPU, and raises
:class:`~tsplat.errors.FileError` for a damaged file.
"""
