"""Full precision whatever the state of autocast, in the forward and in the backward pass.

Autocast computes products of matrices in half precision, also in the backward passes of PyTorch's operations, if these
run inside of it. Code that is not differentiated only needs autocast off while it runs: :func:`full_precision` or
:func:`in_full_precision`. Differentiable products are those of this module, or part of a ``torch.autograd.Function``
that turns autocast off in its backward pass. :func:`fp64` and :func:`identity` do not depend on PyTorch's default dtype
and device.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_nothing = contextlib.nullcontext()


def full_precision() -> contextlib.AbstractContextManager[object]:
    """Returns a context in which autocast is off, for every kind of device."""
    return _without_autocast() if torch._C._is_any_autocast_enabled() else _nothing


@contextlib.contextmanager
def _without_autocast() -> Iterator[None]:
    kinds = [kind for kind in torch._C._autocast_supported_devices() if torch.is_autocast_enabled(kind)]
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def in_full_precision(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Calls a function with autocast off. Backward passes of what it computes run in the state of their caller."""

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with full_precision():
            return function(*args, **kwargs)

    return run


def fp64(values: Any) -> Tensor:
    """Returns numbers, or nested sequences of numbers, as a tensor in fp64 on the CPU."""
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def identity(n: int) -> Tensor:
    """Returns the identity [n, n] in fp64 on the CPU."""
    return torch.eye(n, dtype=torch.float64, device="cpu")


def matrix_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiplies small matrices, elementwise, which autocast leaves alone in every pass. [..., i, j], [..., j, k]"""
    return (a[..., :, :, None] * b[..., None, :, :]).sum(-2)


def inverse(matrices: Tensor) -> Tensor:
    """Inverts matrices, without a wait for the device; the result of those that are singular is not defined."""
    inverses: Tensor = torch.linalg.inv_ex(matrices).inverse
    return inverses


def differentiable(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Calls a function of tensors with autocast off, also in the backward passes of all orders, which call it again.

    The function returns one tensor. What it reads besides its arguments has no gradient.
    """
    result: Tensor = _Call.apply(function, *tensors)  # type: ignore[no-untyped-call]
    return result


def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiplies matrices as ``a @ b``, in full precision in all passes."""
    return differentiable(torch.matmul, a, b)


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *tensors: Tensor) -> Any:
        ctx.save_for_backward(*tensors)
        ctx.function = function
        with full_precision():
            return function(*tensors)

    @staticmethod
    def backward(ctx: Any, *v: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        needs = ctx.needs_input_grad[1:]
        gradients = iter(_Call.apply(_Gradients(ctx.function, needs), *tensors, *v))  # type: ignore[no-untyped-call]
        return None, *[next(gradients) if need else None for need in needs]


class _Gradients:
    """The function of arguments, and of gradients of the results, that returns the gradients of some arguments."""

    def __init__(self, function: Callable[..., Any], needs: tuple[bool, ...]) -> None:
        self._function, self._needs = function, needs

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        n, higher = len(self._needs), torch.is_grad_enabled()
        with torch.enable_grad():
            tensors = [
                (t.view_as(t) if higher and t.requires_grad else t.detach().requires_grad_()) if need else t
                for t, need in zip(given[:n], self._needs)
            ]
            results = self._function(*tensors)
            results = results if isinstance(results, tuple) else (results,)
            wanted = [t for t, need in zip(tensors, self._needs) if need]
            return torch.autograd.grad(
                results, wanted, given[n:], create_graph=higher, allow_unused=True, materialize_grads=True
            )
