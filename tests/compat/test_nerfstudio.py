"""The method of nerfstudio, with modules that stand in for nerfstudio."""

import dataclasses
import importlib
import sys
import tomllib
import types

import pytest

import tsplat.compat.nerfstudio
from tests.support.paths import ROOT
from tsplat.compat.gsplat.rendering import rasterization
from tsplat.compat.gsplat.strategy import DefaultStrategy


class SplatfactoModel:
    def __init__(self, config):
        self.config = config
        self.populate_modules()

    def populate_modules(self):
        module = sys.modules["nerfstudio.models.splatfacto"]
        self.used = module.rasterization, module.DefaultStrategy


@dataclasses.dataclass
class SplatfactoModelConfig:
    _target: type = dataclasses.field(default_factory=lambda: SplatfactoModel)
    sh_degree: int = 3


@dataclasses.dataclass
class MethodSpecification:
    config: object
    description: str


@pytest.fixture
def nerfstudio(monkeypatch):
    """The names of nerfstudio that the method needs."""
    model = SplatfactoModelConfig(sh_degree=2)
    config = types.SimpleNamespace(method_name="splatfacto", pipeline=types.SimpleNamespace(model=model))
    contents = {
        "nerfstudio": {},
        "nerfstudio.configs": {},
        "nerfstudio.configs.method_configs": {"method_configs": {"splatfacto": config}},
        "nerfstudio.models": {},
        "nerfstudio.models.splatfacto": {
            "SplatfactoModel": SplatfactoModel, "SplatfactoModelConfig": SplatfactoModelConfig,
            "rasterization": None, "DefaultStrategy": None,
        },
        "nerfstudio.plugins": {},
        "nerfstudio.plugins.types": {"MethodSpecification": MethodSpecification},
    }  # fmt: skip
    for name, values in contents.items():
        module = types.ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    yield config
    for name in tsplat.compat.nerfstudio.NAMES:
        vars(tsplat.compat.nerfstudio).pop(name, None)


def test_entry_point_is_a_method_that_renders_with_tsplat(nerfstudio):
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, name = groups["nerfstudio.method_configs"]["tsplat-splatfacto"].partition(":")
    method = getattr(importlib.import_module(module), name)
    assert isinstance(method, MethodSpecification)
    assert (method.config.method_name, nerfstudio.method_name) == ("tsplat-splatfacto", "splatfacto")
    settings = method.config.pipeline.model
    assert isinstance(settings, SplatfactoModelConfig) and settings.sh_degree == 2
    assert settings._target(settings).used == (rasterization, DefaultStrategy)
    # config.yml names classes by module and name.
    for defined in (type(settings), settings._target):
        assert getattr(importlib.import_module(defined.__module__), defined.__qualname__) is defined


def test_other_names_are_attribute_errors_without_nerfstudio():
    with pytest.raises(AttributeError, match="has no attribute 'nerfacto'"):
        _ = tsplat.compat.nerfstudio.nerfacto
