"""Backward passes that cannot be differentiated again, and rows of tensors."""

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
    """Turns ``backward(ctx, saved, *v)`` into a backward pass of plain gradients, whose own derivative raises.

    Autocast is off in it, also where a program calls its backward pass inside of autocast.

    PyTorch's decorator of the same name disconnects gradients from the inputs, so that ``torch.autograd.grad`` with
    ``allow_unused`` silently returns None for second derivatives.
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
    """Calls a function as its ``apply`` does, which first unwraps tensors of torch.func; checks have refused those."""
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


class _TakeRows(torch.autograd.Function):
    """Rows of a tensor, whose gradients are summed in a fixed order."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, ids: Tensor, unique: bool) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.n, ctx.unique = len(values), unique
        return values[ids]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Tensor, ...], v: Tensor) -> tuple[Tensor, None, None]:
        return sum_by_id(v, saved[0], ctx.n, unique=ctx.unique), None, None


def take_rows(values: Tensor, ids: Tensor, *, unique: bool = False) -> Tensor:
    """Takes rows [R, ...] of values [n, ...] by ids [R] int64, no two of which are equal if unique. Differentiable."""
    rows: Tensor = _TakeRows.apply(values, ids, unique)  # type: ignore[no-untyped-call]
    return rows


class _Zeros(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor)

    @staticmethod
    def backward(_ctx: Any, v: Tensor) -> Tensor:
        return v


def zeros_for(tensor: Tensor) -> Tensor:
    """Returns zeros whose gradient is that of a tensor. Its values, which may be NaN, are not read."""
    zeros: Tensor = apply(_Zeros, tensor)
    return zeros
