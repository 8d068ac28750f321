"""The table of options: it has all arguments of the rendering functions, and the documentation has what it says."""

import inspect

import pytest

import tsplat
from tests.support.paths import ROOT
from tsplat.data import Cameras
from tsplat.stages.call import ARGUMENTS
from tsplat.stages.lens_models import LensArguments
from tsplat.stages.options import OPTIONS, WHERE, Options

PAGE = ROOT / "docs" / "api" / "rasterization.md"
TENSORS = {*ARGUMENTS, *Cameras._fields[:2], *LensArguments._fields}
OWN_DEFAULTS = {"rasterization": {"tile_size": 16}, "rasterization_2dgs": {"packed": False}}
"""Defaults that differ from those of the table; ``tile_size=None`` of ``rasterization`` is that of the table, too."""


@pytest.mark.parametrize("function", [tsplat.rasterization, tsplat.rasterization_2dgs])
def test_arguments_are_tensors_or_options_with_their_defaults(function):
    parameters = inspect.signature(function).parameters
    assert parameters.keys() <= TENSORS | OPTIONS.keys() | {"group"}
    expected = Options._field_defaults | {"rolling_shutter": tsplat.RollingShutterType.GLOBAL}
    expected |= OWN_DEFAULTS[function.__name__]
    options = [p for p in parameters.values() if p.name in OPTIONS and p.default is not p.empty]
    assert len(options) > 10
    assert {p.name: p.default for p in options} == {p.name: expected[p.name] for p in options}


def test_options_are_arguments_of_a_rendering_function():
    functions = tsplat.rasterization, tsplat.rasterization_2dgs
    arguments = set().union(*(inspect.signature(function).parameters for function in functions))
    assert OPTIONS.keys() - arguments == {"surfels"}


def test_options_that_ranks_may_differ_in():
    local = {name for name, option in OPTIONS.items() if option.is_local}
    of_images = {"distloss", "depth_mode"}
    assert local == of_images | {
        "channel_chunk", "memory_budget", "sparse_grad", "segmented", "capacity", "distributed", "renderer_config",
    }  # fmt: skip


def test_documentation_has_what_is_supported():
    rows = [
        f"| `{name}` | {words} | {supported} | {supported.why} |"
        for where, words in WHERE.items()
        for name, option in OPTIONS.items()
        if (supported := option.supported.get(where)) is not None
    ]
    section = PAGE.read_text().split("## Options that are not supported everywhere\n")[1].split("\n## ")[0]
    found = [line for line in section.splitlines() if line.startswith("| `")]
    assert found == rows, "\n".join(rows)
