"""Imports of other packages without those packages: modules under other names, and scripts that import them."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Mapping
from types import ModuleType


class AlreadyImportedError(RuntimeError):
    """A package has been imported already, so that it cannot be replaced in this process."""


def install_modules(modules: Mapping[str, ModuleType], package: str) -> None:
    """Makes imports of other names give these modules, in this process. Installs all of them or none.

    Installing again changes nothing.

    Args:
        modules: Modules by their new names, such as ``"gsplat.utils"``; includes the packages that contain them.
        package: Name of the package that installs them, for the message.

    Raises:
        AlreadyImportedError: A package of one of the names has been imported.
    """
    replaced = sorted(name for name in modules if "." not in name and sys.modules.get(name) is not modules[name])
    for name in replaced:
        foreign = [loaded for loaded in sys.modules if loaded == name or loaded.startswith(f"{name}.")]
        if foreign:
            where = getattr(sys.modules.get(name), "__file__", None)
            raise AlreadyImportedError(
                f"{name}: {len(foreign)} of its modules are imported already{f' from {where}' if where else ''}; call "
                f"{package}.install() before anything imports {name}, or run python -m {package} SCRIPT"
            )
    sys.modules.update({name: module for name, module in modules.items() if name.partition(".")[0] in replaced})


def run_script(arguments: list[str], install: Callable[[], None], usage: str) -> int:
    """Runs a Python script after an installation.

    Args:
        arguments: The path of the script and its arguments, or ``--help``.
        install: Called before the script.
        usage: Printed for ``--help``, and if there is no script to run.

    Returns:
        The exit status: 0 if the script ends, 2 if there is none to run.
    """
    if arguments[:1] in (["-h"], ["--help"]):
        print(usage)
        return 0
    if not arguments:
        print(f"{usage}\n\nerror: SCRIPT is missing", file=sys.stderr)
        return 2
    script = arguments[0]
    if not os.path.isfile(script):
        print(f"{usage}\n\nerror: SCRIPT: {script!r} is not a file", file=sys.stderr)
        return 2
    install()
    sys.argv = arguments
    # As for `python SCRIPT`, modules beside the script can be imported.
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")
    return 0
