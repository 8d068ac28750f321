"""Makes ``import gsplat`` import this package instead of gsplat.

gsplat's trainers also import ``fused_ssim``. If it is not installed, tsplat's version replaces it.
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
    """Makes ``import gsplat`` and imports of its modules return this package, in this process.

    If ``fused_ssim`` is not installed, importing it returns :mod:`tsplat.compat.inria.fused_ssim`. Repeated calls have
    no effect.

    Raises:
        AlreadyImportedError: The real gsplat has already been imported.
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
