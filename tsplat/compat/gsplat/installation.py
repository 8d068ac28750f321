"""``import gsplat`` without gsplat: puts this package in the place of the package ``gsplat``.

gsplat's trainers also import ``fused_ssim``. If it is not installed, tsplat's replaces it.
"""

import importlib
import importlib.util
import pkgutil
import sys

from ..installation import AlreadyImportedError, install_modules

__all__ = ["AlreadyImportedError", "install"]

NAME = "gsplat"
PACKAGE = __package__
SSIM = "fused_ssim"
NOT_MIRRORED = ("__main__", "installation")
"""Modules that gsplat does not have."""


def install() -> None:
    """Makes ``import gsplat`` and the import of its modules give this package, in this process.

    If ``fused_ssim`` is not installed, importing it gives :mod:`tsplat.compat.inria.fused_ssim`.
    Installing again changes nothing.

    Raises:
        AlreadyImportedError: gsplat itself has been imported.
    """
    package = sys.modules[PACKAGE]
    names = [
        module.name.removeprefix(f"{PACKAGE}.") for module in pkgutil.walk_packages(package.__path__, f"{PACKAGE}.")
    ]
    modules = {
        f"{NAME}.{name}": importlib.import_module(f"{PACKAGE}.{name}") for name in names if name not in NOT_MIRRORED
    }
    install_modules({NAME: package, **modules}, PACKAGE)
    if SSIM not in sys.modules and importlib.util.find_spec(SSIM) is None:
        install_modules({SSIM: importlib.import_module(f"tsplat.compat.inria.{SSIM}")}, PACKAGE)
