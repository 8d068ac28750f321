"""What PyTorch may do to an operation: call it with plain tensors, and neither trace nor transform it."""

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

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

REASON = "tsplat launches kernels, which are not traced: fullgraph=True and torch.export are not implemented"


def eager(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Excludes a function, and all that it calls, from ``torch.compile``: a graph break instead of dozens of graphs.

    ``torch.compiler.disable`` imports ``torch._dynamo``, which takes seconds, so it is applied once something else has
    imported that: nothing is compiled before.
    """
    disabled: list[Callable[Parameters, Result]] = []

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function, reason=REASON))  # type: ignore[no-untyped-call]
        return disabled[0](*args, **kwargs)

    return run


def plain_all(names: Iterable[str], values: Iterable[Any]) -> list[Any]:
    """Returns the arguments of an operation, with its tensors, and those of its bundles, as :func:`plain` returns them.

    Raises:
        UnsupportedError, DeviceError: As :func:`plain`.
        UnsupportedError: PyTorch transforms or traces the operation, which it cannot do to kernels.
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
    if torch._C._are_functorch_transforms_active():
        raise UnsupportedError(TRANSFORMS)
    if torch._C._get_tracing_state() is not None:
        raise UnsupportedError("torch.jit.trace is not implemented; call the function without tracing it")
    if torch._C._len_torch_dispatch_stack():
        kinds = torch._C._TorchDispatchModeKey
        if any(torch._C._get_dispatch_mode(kind) for kind in (kinds.FAKE, kinds.PROXY, kinds.FUNCTIONAL)):
            raise UnsupportedError(
                "tracing (FakeTensorMode, make_fx, torch.export) is not implemented; call the function outside of it"
            )
    return resolved


def with_plain_tensors(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Passes arguments through :func:`plain_all` before a function gets them."""
    names = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        n = len(args)
        if n > len(names):
            return function(*args, **kwargs)  # raises
        values = plain_all(chain(names[:n], kwargs), chain(args, kwargs.values()))
        return function(*values[:n], **dict(zip(kwargs, values[n:])))

    return run
