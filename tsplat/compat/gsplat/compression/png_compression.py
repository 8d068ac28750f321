"""Models as PNG images, which are not implemented."""

from __future__ import annotations

from .._unsupported import unsupported

__all__ = ["PngCompression"]


class PngCompression:
    """Not implemented: raises when it is created. To write a model, use `export_splats` or :mod:`tsplat.scene`."""

    __init__ = unsupported(
        "PngCompression",
        "self",
        dict(use_sort=True, verbose=True),
        instead="write models with export_splats, or with tsplat.scene.write_model",
    )
