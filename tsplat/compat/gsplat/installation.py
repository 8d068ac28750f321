"""``import gsplat`` without gsplat: puts this package in the place of the package ``gsplat``."""

from __future__ import annotations

import importlib
import pkgutil
import sys

NAME = "gsplat"
PACKAGE = __package__
NOT_MIRRORED = ("__main__", "installation")
"""Modules that gsplat does not have."""


class AlreadyImportedError(RuntimeError):
    """The package gsplat has been imported already, so that it cannot be replaced in this process."""


def install() -> None:
    """Makes ``import gsplat`` and the import of its modules give this package, in this process.

    Installing again changes nothing.

    Raises:
        AlreadyImportedError: gsplat itself has been imported.
    """
    package = sys.modules[PACKAGE]
    found = sys.modules.get(NAME)
    if found is package:
        return
    foreign = sorted(name for name in sys.modules if name == NAME or name.startswith(f"{NAME}."))
    if foreign:
        where = getattr(found, "__file__", None)
        raise AlreadyImportedError(
            f"gsplat: {len(foreign)} of its modules are imported already{f' from {where}' if where else ''}; call "
            f"{PACKAGE}.install() before anything imports gsplat, or run python -m {PACKAGE} SCRIPT"
        )
    names = [
        module.name.removeprefix(f"{PACKAGE}.") for module in pkgutil.walk_packages(package.__path__, f"{PACKAGE}.")
    ]
    modules = {name: importlib.import_module(f"{PACKAGE}.{name}") for name in names if name not in NOT_MIRRORED}
    sys.modules[NAME] = package
    for name, module in modules.items():
        sys.modules[f"{NAME}.{name}"] = module
