"""Installs modules under the names of other packages, and runs scripts that import these packages."""

import importlib.util
import os
import runpy
import sys
from collections.abc import Callable, Mapping
from types import ModuleType


class AlreadyImportedError(RuntimeError):
    """A package has already been imported and cannot be replaced in this process."""


def install_modules(modules: Mapping[str, ModuleType], package: str) -> None:
    """Makes imports of the given names return these modules, in this process. Installs all of them or none.

    The names must include the packages that contain the modules; `package` is the calling package. Repeated calls have
    no effect. Raises AlreadyImportedError if another package with one of the names has been imported.
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
    """Calls `install`, and runs a Python script or module like ``python SCRIPT`` or ``python -m MODULE``.

    Prints the usage for ``--help``, or if there is nothing to run. Returns the exit status: 0 after the script has
    ended, 2 if there is nothing to run.
    """
    if arguments[:1] in (["-h"], ["--help"]):
        print(usage)
        return 0
    is_module = arguments[:1] == ["-m"]
    arguments = arguments[is_module:]
    if not arguments:
        return _refuse(usage, "MODULE is missing" if is_module else "SCRIPT is missing")
    script = arguments[0]
    if is_module:
        package = script.partition(".")[0]
        if not package or importlib.util.find_spec(package) is None:
            return _refuse(usage, f"MODULE: no module is named {script!r}")
    elif not os.path.isfile(script):
        return _refuse(usage, f"SCRIPT: {script!r} is not a file")
    install()
    sys.argv = arguments
    if is_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return 0
    # As with `python SCRIPT`, modules beside the script can be imported.
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")
    return 0


def _refuse(usage: str, problem: str) -> int:
    print(f"{usage}\n\nerror: {problem}", file=sys.stderr)
    return 2
