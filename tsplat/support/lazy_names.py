"""Packages whose names are imported at first use, so that the command line prints help without importing PyTorch."""

import ast
import importlib
import importlib.util
import pkgutil
import sys
import types
from collections.abc import Callable
from typing import Any


class _Package(types.ModuleType):
    """A package in which a submodule does not hide the name that it is imported for, as ``tsplat.rasterization``."""

    def __setattr__(self, name: str, value: Any) -> None:
        # After a submodule is imported, Python makes it an attribute of its package.
        if isinstance(value, types.ModuleType) and name in self.__all__:
            value = getattr(value, name)
        super().__setattr__(name, value)


def lazy_names(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Returns ``__all__``, ``__getattr__`` and ``__dir__`` of a package that has a stub ``__init__.pyi``.

    The stub, which type checkers read, imports the names and lists them in ``__all__``. Names and modules of the
    package are imported when they are first used.

    Args:
        package: Name of the package, ``__name__`` in its ``__init__.py``.
    """
    tree = ast.parse(pkgutil.get_data(package, "__init__.pyi") or b"")
    sources = {
        alias.name: "." * node.level + (node.module or "")
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (names,) = (ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))

    sys.modules[package].__class__ = _Package

    def load(name: str) -> Any:
        if name in sources:
            value = getattr(importlib.import_module(sources[name], package), name)
        elif not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}"):
            value = importlib.import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return names, load, lambda: sorted({*vars(sys.modules[package]), *names})
