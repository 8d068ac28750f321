"""Full precision under autocast, in forward and backward passes.

Autocast computes matrix products in half precision, also in backward passes that run inside of it. Forward passes turn
autocast off by :func:`full_precision` or :func:`in_full_precision`. Backward passes turn it off by
``once_differentiable`` of ``runtime/autograd.py``. Differentiable products outside of a ``torch.autograd.Function`` use
:func:`product` or :func:`matrix_product`.
:func:`fp64` and :func:`identity` ignore PyTorch's default dtype and device.
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
    """Returns a context manager that turns autocast off for all device types."""
    return _without_autocast() if torch._C._is_any_autocast_enabled() else _nothing


@contextlib.contextmanager
def _without_autocast() -> Iterator[None]:
    device_types = [t for t in torch._C._autocast_supported_devices() if torch.is_autocast_enabled(t)]
    with contextlib.ExitStack() as stack:
        for device_type in device_types:
            stack.enter_context(torch.autocast(device_type, enabled=False))
        yield


def in_full_precision(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Runs the decorated function with autocast off. Its backward pass runs in the autocast state of its caller."""

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with full_precision():
            return function(*args, **kwargs)

    return run


def fp64(values: Any) -> Tensor:
    """Converts numbers, or nested sequences of numbers, to an fp64 tensor on the CPU."""
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def fp32(values: Any) -> Tensor:
    """Converts numbers, or nested sequences of numbers, to an fp32 tensor on the CPU."""
    return torch.tensor(values, dtype=torch.float32, device="cpu")


def identity(n: int) -> Tensor:
    """Returns the identity matrix [n, n] in fp64 on the CPU."""
    return torch.eye(n, dtype=torch.float64, device="cpu")


def matrix_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiplies small matrices [..., i, j] and [..., j, k] by elementwise operations, which autocast leaves alone."""
    return (a[..., :, :, None] * b[..., None, :, :]).sum(-2)


def inverse(matrices: Tensor) -> Tensor:
    """Inverts matrices without waiting for the device. The result is undefined for singular matrices."""
    inverses: Tensor = torch.linalg.inv_ex(matrices).inverse
    return inverses


def differentiable(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Calls a function of tensors with autocast off in the forward pass and in backward passes of any order.

    Backward passes call the function again. It must return one tensor; only its arguments get gradients.
    """
    result: Tensor = _Call.apply(function, *tensors)  # type: ignore[no-untyped-call]
    return result


def product(a: Tensor, b: Tensor) -> Tensor:
    """Computes ``a @ b`` in full precision in all passes."""
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
    """The vector-Jacobian product of a function: maps its arguments and v to the gradients of the arguments."""

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
