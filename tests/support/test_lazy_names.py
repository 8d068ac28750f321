"""Packages whose names are imported at first use."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

import tsplat
import tsplat.scene
import tsplat.strategies
import tsplat.training
import tsplat.viewing

PACKAGES = (tsplat, tsplat.scene, tsplat.strategies, tsplat.training, tsplat.viewing)

INIT = """from tsplat.support.lazy_names import lazy_names

version = 3
__all__, __getattr__, __dir__ = lazy_names(__name__)
"""

STUB = """from .parts.first import one
from .second import two

version: int

__all__ = ["one", "two", "version"]
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "lazy_package"
    (folder / "parts").mkdir(parents=True)
    for name, text in {
        "__init__.py": INIT, "__init__.pyi": STUB, "parts/__init__.py": "", "parts/first.py": "one = 1",
        "second.py": "two = 2", "broken.py": "import a_package_that_does_not_exist",
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("lazy_package")
    for name in [name for name in sys.modules if name.partition(".")[0] == "lazy_package"]:
        del sys.modules[name]


def test_names_are_imported_when_they_are_used(package):
    assert not any(name.startswith("lazy_package.") for name in sys.modules)
    assert package.one == 1
    assert "lazy_package.second" not in sys.modules
    assert vars(package)["one"] == 1  # without __getattr__ from now on
    names = {}
    exec("from lazy_package import *", names)
    assert (names["one"], names["two"], names["version"]) == (1, 2, 3)
    assert {"one", "two", "version"} <= set(dir(package))


def test_modules_are_imported_when_they_are_used(package):
    assert package.parts.__name__ == "lazy_package.parts"
    assert package.second.two == 2
    with pytest.raises(ModuleNotFoundError, match="a_package_that_does_not_exist"):
        _ = package.broken


@pytest.mark.parametrize("name", ["three", "_private", "__wrapped__"])
def test_other_names_are_no_attributes(name, package):
    with pytest.raises(AttributeError, match=f"module 'lazy_package' has no attribute '{name}'"):
        getattr(package, name)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_all_names_exist_and_modules_do_not_hide_them(package):
    for name in package.__all__:
        value = getattr(package, name)
        if importlib.util.find_spec(f"{package.__name__}.{name}") is not None:
            assert importlib.import_module(f"{package.__name__}.{name}") is not value
        assert getattr(package, name) is value


def test_modules_do_not_hide_names_that_were_not_used_before(package):
    (Path(package.__file__).parent / "three.py").write_text("three = 3")
    package.__all__.append("three")
    assert importlib.import_module("lazy_package.three").three == package.three == 3
