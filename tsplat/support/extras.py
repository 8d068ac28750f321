"""Packages that `import tsplat` does without."""

from __future__ import annotations

import importlib

from ..errors import MissingExtraError

PACKAGES = {"PIL": "pillow", "imageio_ffmpeg": "imageio-ffmpeg"}
"""Module -> the package that brings it, where they differ."""

EXTRAS = {"imageio_ffmpeg": "video", "zstandard": "io", "torchmetrics": "lpips", "torchvision": "lpips"}
"""Module -> the extra that it comes with; train for all others."""


def require(*modules: str) -> None:
    """Raises :class:`MissingExtraError` for the first module that cannot be imported."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            package = PACKAGES.get(module, module)
            extra = EXTRAS.get(module, "train")
            found = "is not installed" if getattr(error, "name", None) == module else f"does not import ({error})"
            raise MissingExtraError(f"the package {package} {found}; run: pip install 'tsplat[{extra}]'") from error
