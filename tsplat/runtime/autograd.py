"""Helpers for autograd functions: backward passes without second derivatives, and differentiable rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..arguments import plain
from ..data import sum_by_id
from ..errors import UnsupportedError
from ..precision import in_full_precision

Gradients = tuple[Tensor | None, ...]


def once_differentiable(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Decorates ``backward(ctx, saved, *v)`` of an autograd function. Second derivatives raise UnsupportedError.

    Incoming gradients are made plain, and autocast is turned off.

    PyTorch's decorator of the same name disconnects gradients from the inputs, so that ``torch.autograd.grad`` with
    ``allow_unused`` silently returns None for second derivatives. Save all inputs for the backward pass, to detect
    which of them require gradients.
    """

    @functools.wraps(backward)
    @in_full_precision
    def once(ctx: Any, *v: Tensor | None) -> Gradients:
        v = tuple([None if t is None else plain("gradient of an output", t) for t in v])
        # Unpack once: gradient checkpointing does not allow a second access.
        saved = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return backward(ctx, saved, *v)
        with torch.no_grad():
            gradients = backward(ctx, saved, *v)
        causes = [t for t in (*saved, *v) if t is not None and t.requires_grad]
        if not causes:
            return gradients
        given = [gradient for gradient in gradients if gradient is not None]
        outputs = iter(_NoSecondDerivative.apply(len(given), *given, *causes))  # type: ignore[no-untyped-call]
        return tuple(None if gradient is None else next(outputs) for gradient in gradients)

    return once


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Same as ``function.apply``, without the slow support of torch.func. Checks have excluded torch.func before."""
    return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]


class _NoSecondDerivative(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, n: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors[:n])

    @staticmethod
    def backward(_ctx: Any, *_v: Tensor) -> Gradients:
        raise UnsupportedError(
            "create_graph: second derivatives of rasterization are not implemented; differentiate once, or use "
            'backend="reference" on small scenes'
        )


_MEMORY_OF_GRADIENT = "_memory_of_gradient"
"""Attribute of tensors for :func:`let_gradient_overwrite`: the function `refill`, or None."""


def let_gradient_overwrite(tensor: Tensor, refill: Callable[[], object] | None = None) -> None:
    """Lets the only backward pass of a call write the gradient of an input to its memory, so that its values are lost.

    If `refill` is given, the call may also release the memory after its forward pass. The backward pass allocates it
    again, and calls `refill`, which must write the same values.
    """
    setattr(tensor, _MEMORY_OF_GRADIENT, refill)


def release_until_backward(tensor: Tensor | None) -> None:
    """Releases the memory of an input after the forward pass, if :func:`let_gradient_overwrite` permits it."""
    if tensor is not None and getattr(tensor, _MEMORY_OF_GRADIENT, None) is not None:
        tensor.untyped_storage().resize_(0)


def memory_of_gradient(tensor: Tensor | None) -> Tensor | None:
    """Returns an input, with its values, as memory for its gradient; None without :func:`let_gradient_overwrite`."""
    if tensor is None or not hasattr(tensor, _MEMORY_OF_GRADIENT):
        return None
    refill = getattr(tensor, _MEMORY_OF_GRADIENT)
    if refill is not None and not tensor.untyped_storage().nbytes():
        tensor.untyped_storage().resize_(tensor.nbytes)
        refill()
    return tensor.detach()


class _TakeRows(torch.autograd.Function):
    """Gathers rows of a tensor, and sums their gradients in a fixed order."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.n = len(values)
        return values[ids]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Tensor, ...], v: Tensor) -> tuple[Tensor, None]:
        return sum_by_id(v, saved[0], ctx.n), None


def take_rows(values: Tensor, ids: Tensor) -> Tensor:
    """Gathers rows [R, ...] of values [n, ...] by ids [R] int64. Differentiable."""
    rows: Tensor = _TakeRows.apply(values, ids)  # type: ignore[no-untyped-call]
    return rows


class _Zeros(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor)

    @staticmethod
    def backward(_ctx: Any, v: Tensor) -> Tensor:
        return v


def zeros_for(tensor: Tensor) -> Tensor:
    """Returns zeros in the shape of a tensor, whose gradient is passed on to the tensor. Does not read its values."""
    zeros: Tensor = apply(_Zeros, tensor)
    return zeros
