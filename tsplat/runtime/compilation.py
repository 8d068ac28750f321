"""Excludes functions from ``torch.compile`` and other tracing, except for calls that become operators of a graph."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..arguments import TRANSFORMS, plain
from ..errors import UnsupportedError
from ..precision import full_precision
from .operators import Operator, Results

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

REASON = (
    "tsplat launches kernels, which are not traced; graphs contain rasterization() with packed=False and an integer "
    "capacity, and the image losses, of plain tensors and without objects such as lidar_coeffs; torch.export is not "
    "implemented"
)


def eager(function: Callable[Parameters, Result], operator: Operator | None = None) -> Callable[Parameters, Result]:
    """Excludes a function and all that it calls from ``torch.compile``: one graph break instead of dozens of graphs.

    With an operator, calls that the operator supports become part of the graph. ``torch.compiler.disable`` imports
    ``torch._dynamo``, which takes seconds. It is therefore applied only after something else has imported
    ``torch._dynamo``; nothing is compiled before.
    """
    disabled: list[Callable[Parameters, Result]] = []

    def disable() -> bool:
        """Fills `disabled`: the functions for calls that are not traced, and for calls in traced code."""
        if not disabled:
            outside = function if operator is None else operator.call_outside
            disabled.extend(torch.compiler.disable(each, reason=REASON) for each in (function, outside))  # type: ignore[no-untyped-call]
        return True

    disable._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compile calls it instead of tracing it

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        is_traced = torch.compiler.is_compiling()
        if is_traced and operator is not None and (arguments := operator.bind(args, kwargs)) is not None:
            return operator.call(arguments)  # type: ignore[no-any-return]
        disable()
        return disabled[int(is_traced)](*args, **kwargs)

    return run


def in_graphs(results: Results) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorates a function like :func:`eager`; calls that the operator supports become part of a graph."""
    return lambda function: eager(function, Operator(function, results))


def plain_all(names: Iterable[str], values: Iterable[Any]) -> list[Any]:
    """Applies :func:`plain` to the tensors among the arguments of an operation, and to those in bundles.

    Raises:
        UnsupportedError, DeviceError: As :func:`plain`.
        UnsupportedError: PyTorch transforms or traces the operation, which kernels do not support.
    """
    unpack: Any = forward_ad.unpack_dual if forward_ad._current_level >= 0 else None
    resolved = []
    for name, value in zip(names, values):
        if isinstance(value, Tensor):
            value = plain(name, value)
            if unpack is not None and unpack(value).tangent is not None:
                raise UnsupportedError(
                    f"{name}: forward-mode differentiation is not implemented; use torch.autograd.grad"
                )
        elif hasattr(value, "_fields"):
            value = value._make(plain_all(value._fields, value))
        resolved.append(value)
    refuse_transforms()
    return resolved


def is_transformed() -> bool:
    """Returns whether PyTorch transforms or traces operations, or a ``TorchDispatchMode`` is active."""
    transforms: bool = torch._C._are_functorch_transforms_active() or torch._C._get_tracing_state() is not None
    return transforms or torch._C._len_torch_dispatch_stack() > 0


def is_plain_call() -> bool:
    """Returns whether no mode of PyTorch affects this thread.

    Returns False during compilation, transforms, forward-mode differentiation and anomaly detection, and with hooks for
    saved tensors.
    """
    if torch.compiler.is_compiling() or is_transformed() or forward_ad._current_level >= 0:
        return False
    if torch.is_anomaly_enabled():
        return False
    # Hooks store saved tensors elsewhere, or recompute them.
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def refuse_transforms() -> None:
    """Raises UnsupportedError if PyTorch transforms or traces operations."""
    if not is_transformed():
        return
    if torch._C._are_functorch_transforms_active():
        raise UnsupportedError(TRANSFORMS)
    if torch._C._get_tracing_state() is not None:
        raise UnsupportedError("torch.jit.trace is not implemented; call the function without tracing it")
    keys = torch._C._TorchDispatchModeKey
    if any(torch._C._get_dispatch_mode(key) for key in (keys.FAKE, keys.PROXY, keys.FUNCTIONAL)):
        raise UnsupportedError(
            "tracing (FakeTensorMode, make_fx, torch.export) is not implemented; call the function outside of it"
        )


def with_plain_tensors(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a function to apply :func:`plain_all` to its arguments, and to turn autocast off."""
    names = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        n = len(args)
        if n > len(names):
            return function(*args, **kwargs)  # raises
        with full_precision():
            values = plain_all(chain(names[:n], kwargs), chain(args, kwargs.values()))
            return function(*values[:n], **dict(zip(kwargs, values[n:])))

    return run
