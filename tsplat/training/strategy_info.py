"""The ``info`` that strategies receive for a step whose views were rendered one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..scene.capture.views import View


def merge_info(
    metas: list[dict[str, Any]],
    view: View,
    loss_scale: float,
    n_cameras: int,
    gather: Callable[[Tensor], Tensor] | None,
) -> dict[str, Any]:
    """Merges the ``meta`` of several rasterization calls into that of one call with all their cameras.

    Args:
        metas: ``meta`` of unpacked calls, with the gradients of their ``means2d``.
        view: The view whose pixels are the unit of the merged gradients.
        loss_scale: Factor by which the loss was multiplied, which is divided out.
        n_cameras: Number of cameras of all calls on all ranks.
        gather: Concatenates [C, N, ...] over ranks; None if this rank has all cameras.
    """
    first = metas[0]
    if gather is None and n_cameras == 1 and loss_scale == 1:
        return first if first["n_cameras"] == 1 else {**first, "n_cameras": 1}
    size = first["means2d"].new_tensor([view.width, view.height])

    def concatenate(tensors: list[Tensor]) -> Tensor:
        tensor = torch.cat(tensors)
        return tensor if gather is None else gather(tensor)

    def gradients(name: str) -> Tensor | None:
        found = [getattr(meta["means2d"], name, None) for meta in metas]
        if any(gradient is None for gradient in found):
            return None
        if loss_scale != 1:
            # Values that overflow because of the scale carry no information; the scaler skips such a step.
            found = [gradient.nan_to_num(0.0, 0.0, 0.0) for gradient in found if gradient is not None]
        sizes = [size.new_tensor([meta["width"], meta["height"]]) for meta in metas]
        return concatenate([g * (s / size) / loss_scale for g, s in zip(found, sizes, strict=True)])

    means2d = concatenate([meta["means2d"].detach() for meta in metas])
    if first["means2d"].retains_grad:
        means2d.grad = gradients("grad")
    if getattr(first["means2d"], "absgrad", None) is not None:
        setattr(means2d, "absgrad", gradients("absgrad"))  # noqa: B010 - not an attribute of Tensor's type
    return {
        **first,
        "means2d": means2d,
        "radii": concatenate([meta["radii"] for meta in metas]),
        "n_cameras": n_cameras,
        "width": view.width,
        "height": view.height,
    }
