"""Installs tsplat's modules under the names of the packages that Inria's programs and forks import."""

import importlib
import importlib.util
import sys
from types import ModuleType

from ..installation import AlreadyImportedError, install_modules
from .forks import MODULES as NOT_IMPLEMENTED
from .forks import refuse_module

__all__ = ["AlreadyImportedError", "install"]

PACKAGE = __package__
MODULES = {
    "diff_gaussian_rasterization": PACKAGE,
    "fused_ssim": f"{PACKAGE}.fused_ssim",
    "simple_knn": f"{PACKAGE}.simple_knn",
    "simple_knn._C": f"{PACKAGE}.simple_knn._C",
}
"""Imported name -> module of tsplat."""


def install() -> None:
    """Makes imports of ``diff_gaussian_rasterization``, ``simple_knn`` and ``fused_ssim`` return tsplat, in this
    process.

    The same holds for the modules of forks that :mod:`.variants` lists. Repeated calls have no effect.

    Raises:
        AlreadyImportedError: One of these packages has already been imported.
    """
    from . import variants

    modules = {name: importlib.import_module(module) for name, module in MODULES.items()}
    install_modules(modules | variants.MODULES, PACKAGE)
    for name in NOT_IMPLEMENTED:
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            sys.modules[name] = _Missing(name)


class _Missing(ModuleType):
    """A module of a fork that is neither installed nor implemented: importing names from it raises a
    ForkImportError."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        refuse_module(self.__name__)
