"""Autocast changes no bit: every public function, in the forward pass, the backward pass, or both, bf16 and fp16.

`CASES` and `FOLDER_CASES` have a call of each public function that computes. `EXEMPT` has the other public names, by
reason. A name that is in none of them fails.
"""

import dataclasses
import enum
import functools
import importlib
import inspect
import pkgutil
import shutil

import numpy as np
import pytest
import torch
from torch import Tensor

import tsplat
import tsplat.ops
import tsplat.scene
import tsplat.strategies
import tsplat.training
import tsplat.viewing
from tests.compat.gsplat.signatures import SIGNATURES, SIGNATURES_1_6, find
from tests.support import model_files, scenes
from tests.support.autocast_cases import CASES, EXEMPT, FOLDER_CASES, PLAIN
from tsplat.compat import gsplat, inria

HALVES = (torch.bfloat16, torch.float16)
PASSES = {"forward": (True, False), "backward": (False, True), "both": (True, True)}


def modules(package):
    """A package and its modules that have public names."""
    found = [package]
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not info.name.endswith("__main__"):
            found.append(importlib.import_module(info.name))
    return [module for module in found if hasattr(module, "__all__")]


def public():
    """Functions and classes of tsplat by a public name."""
    packages = (tsplat, tsplat.ops, tsplat.scene, tsplat.strategies, tsplat.training, tsplat.viewing)
    names = [f"{module.__name__}.{name}" for module in packages for name in module.__all__]
    for package in (gsplat, inria):
        prefix = package.__name__.removeprefix("tsplat.compat.")
        for module in modules(package):
            names += [f"{module.__name__.replace(package.__name__, prefix)}.{name}" for name in module.__all__]
    names += [f"gsplat.{path}" for path in (*SIGNATURES, *SIGNATURES_1_6)]
    found = {name: resolve(name) for name in names}
    return {name: value for name, value in found.items() if is_own(value)}


def is_own(value):
    """Whether a value is a function, or a class with code of its own."""
    is_class = isinstance(value, type)
    has_code = not (is_class and issubclass(value, (BaseException, enum.Enum)))
    return callable(value) and has_code and str(getattr(value, "__module__", "")).startswith("tsplat")


def resolve(name):
    root, _, rest = name.partition(".")
    return find("tsplat" if root == "tsplat" else f"tsplat.compat.{root}", rest)


def test_every_public_name_is_in_the_matrix_or_exempt():
    covered = {id(resolve(name.split(" ")[0])): name for name in (*CASES, *FOLDER_CASES)}
    exempt = [name for names in EXEMPT.values() for name in names]
    excused = {id(resolve(name)): name for name in exempt}
    found = public()
    methods = {name for name in found if name.split(".")[-2][0].isupper()}
    missing = [n for n, v in found.items() if n not in methods and id(v) not in covered.keys() | excused.keys()]
    assert not missing, "add a case to CASES, or the name to EXEMPT with its reason"
    assert not covered.keys() & excused.keys()
    assert len(exempt) == len(set(exempt))
    assert set(excused) <= {id(value) for value in found.values()}, "names of EXEMPT that are not public any more"


def values_of(result):
    """Tensors and other values of a result, in order."""
    if isinstance(result, dict):
        return [value for name, entry in result.items() if name != "memory" for value in values_of(entry)]
    if isinstance(result, (list, tuple)):
        return [value for entry in result for value in values_of(entry)]
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return values_of([getattr(result, field.name) for field in dataclasses.fields(result)])
    return [result]


def evaluate(make, backend, dtype=torch.bfloat16, forward=False, backward=False):
    """The results of a call, and the gradients of all inputs that have one."""
    function, arguments, fixed = make(backend)
    leaves = {
        name: value.detach().clone().requires_grad_()
        for name, value in arguments.items()
        if isinstance(value, Tensor) and value.is_floating_point() and name not in fixed
    }
    with torch.autocast("cpu", dtype, enabled=forward):
        outputs = values_of(function(**(arguments | leaves)))
    roots = [t for t in outputs if isinstance(t, Tensor) and t.requires_grad and t.grad_fn is not None]
    assert bool(roots) == bool(leaves), "a differentiable call has results with gradients"
    if not roots:
        return outputs
    v = scenes.random_like(roots, 1)
    with torch.autocast("cpu", dtype, enabled=backward):
        return outputs + list(torch.autograd.grad(roots, list(leaves.values()), v, allow_unused=True))


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for i, (one, other) in enumerate(zip(found, expected)):
        if isinstance(one, Tensor):
            assert one.dtype == other.dtype, f"value {i}: {one.dtype} for {other.dtype}"
            if one.is_floating_point():
                one, other = one.nan_to_num(nan=1e30), other.nan_to_num(nan=1e30)
            assert torch.equal(one, other), f"value {i}: off by {float((one.double() - other.double()).abs().max())}"
        elif isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, other)
        else:
            assert one == other or one is other, f"value {i}: {one} for {other}"


SLOW = {
    "gsplat.rasterization_2dgs_inria_wrapper", "gsplat.rasterization_inria_wrapper",
    "tsplat.rasterization ['absgrad', 'backgrounds', 'extra_signals', 'packed']",
    "tsplat.rasterization ['render_mode', 'return_normals', 'with_eval3d', 'with_ut']",
    "tsplat.rasterization ['render_mode', 'with_eval3d', 'with_ut']", "tsplat.rasterization lenses",
    "tsplat.rasterization reference", "tsplat.scene.decimate_gaussians", "tsplat.scene.write_sog",
    "tsplat.training.Trainer", "tsplat.training.Trainer of surfels",
}  # fmt: skip
"""Cases of about a second or more."""


def matrix():
    """Cases with the backends that they take: those that do not have one run with the default."""
    for name, make in CASES.items():
        takes = "backend" in inspect.signature(make).parameters
        for backend in ("torch", "triton") if takes else ("auto",):
            marks = [pytest.mark.triton] if backend == "triton" else []
            marks += [pytest.mark.slow] if name in SLOW else []
            yield pytest.param(name, backend, marks=marks, id=f"{name}-{backend}")


@pytest.mark.parametrize(("name", "backend"), list(matrix()))
def test_autocast_changes_no_bit(name, backend):
    expected = evaluate(CASES[name], backend)
    differentiable = any(isinstance(t, Tensor) and t.requires_grad for t in expected)
    for kind, (forward, backward) in PASSES.items():
        if kind == "backward" and not differentiable:
            continue
        for dtype in HALVES:
            assert_equal(evaluate(CASES[name], backend, dtype, forward, backward), expected)


HALF = [name for name in CASES if name not in PLAIN and name != "tsplat.scene.Camera differentiated"]
"""Cases with inputs that may be in half precision; cameras are in fp32."""


@pytest.mark.slow
@pytest.mark.parametrize("name", HALF)
def test_inputs_of_the_other_half_precision(name):
    """Autocast refuses to join tensors of the other one, in either pass."""

    def make(backend, dtype):
        function, arguments, fixed = CASES[name](backend)
        cast = {
            name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
            for name, value in arguments.items()
        }
        return function, cast, fixed

    for dtype, other in (HALVES, HALVES[::-1]):
        own = functools.partial(make, dtype=dtype)
        assert_equal(evaluate(own, "torch", other, True, True), evaluate(own, "torch"))


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in FOLDER_CASES])
def test_autocast_changes_no_file(name, tmp_path):
    if name.endswith("_usd"):
        model_files.skip_without("usda")
    folder = tmp_path / "files"

    def write():
        shutil.rmtree(folder, ignore_errors=True)  # files of a folder that is written again have other names
        folder.mkdir()
        return values_of(FOLDER_CASES[name](folder))

    expected = write()
    for dtype in HALVES:
        with torch.autocast("cpu", dtype):
            assert_equal(write(), expected)
