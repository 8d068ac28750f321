"""The packages that Inria's programs import, under their names."""

import importlib

from ..installation import AlreadyImportedError, install_modules

__all__ = ["AlreadyImportedError", "install"]

PACKAGE = __package__
MODULES = {
    "diff_gaussian_rasterization": PACKAGE,
    "fused_ssim": f"{PACKAGE}.fused_ssim",
    "simple_knn": f"{PACKAGE}.simple_knn",
    "simple_knn._C": f"{PACKAGE}.simple_knn._C",
}
"""Name that is imported -> module of tsplat."""


def install() -> None:
    """Makes ``import diff_gaussian_rasterization``, ``simple_knn`` and ``fused_ssim`` give tsplat, in this process.

    Installing again changes nothing.

    Raises:
        AlreadyImportedError: One of these packages has been imported.
    """
    install_modules({name: importlib.import_module(module) for name, module in MODULES.items()}, PACKAGE)
