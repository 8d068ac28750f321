"""Packages that `import tsplat` does without."""

from __future__ import annotations

import importlib

from ..checks import ArgumentError

PACKAGES = {"PIL": "pillow", "matplotlib": "matplotlib", "pycolmap": "pycolmap", "rich": "rich", "scipy": "scipy"}
"""Module -> the package that brings it; all of them come with the extra ``train``."""


class MissingExtraError(ArgumentError, ImportError):
    """A package is missing that this function needs."""


def require(*modules: str) -> None:
    """Raises :class:`MissingExtraError` for the first module that cannot be imported."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            package = PACKAGES.get(module, module)
            found = "is not installed" if getattr(error, "name", None) == module else f"does not import ({error})"
            raise MissingExtraError(f"the package {package} {found}; run: pip install 'tsplat[train]'") from error
