"""Helpers shared by scene, viewing and training.

- :mod:`~tsplat.support.files`: atomic writes and output folders.
- :mod:`~tsplat.support.progress`: progress displays.
- :mod:`~tsplat.support.extras`: optional dependencies.
"""

from .extras import require
from .files import atomic_write, output_folder, write_json
from .progress import stage_display

__all__ = ["atomic_write", "output_folder", "require", "stage_display", "write_json"]
