"""Backward passes that can be run, but not differentiated again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError

Gradients = tuple[Tensor | None, ...]


def once_differentiable(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Makes `backward(ctx, saved, *v)` the backward pass of a function, whose own derivative is an error.

    PyTorch's `once_differentiable` loses the way from a gradient to the inputs, so that `torch.autograd.grad` with
    `allow_unused` finds no second derivative where it should fail.
    """

    @functools.wraps(backward)
    def once(ctx: Any, *v: Tensor | None) -> Gradients:
        # Unpacked here once: gradient checkpointing allows no second time.
        saved = ctx.saved_tensors
        with torch.no_grad():
            gradients = backward(ctx, saved, *v)
        causes = [t for t in (*saved, *v) if t is not None and t.requires_grad]
        if not torch.is_grad_enabled() or not causes:
            return gradients
        given = [gradient for gradient in gradients if gradient is not None]
        ends = iter(_NoSecondDerivative.apply(len(given), *given, *causes))  # type: ignore[no-untyped-call]
        return tuple(None if gradient is None else next(ends) for gradient in gradients)

    return once


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
