"""What strategies are told of a step whose views were rendered one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..scene.capture.views import View


def joined(
    metas: list[dict[str, Any]], view: View, scale: float, n_cameras: int, gather: Callable[[Tensor], Tensor] | None
) -> dict[str, Any]:
    """`meta` of several calls as of one, with gradients as if the loss were not scaled.

    Args:
        metas: Of calls whose rows are not packed, each with its gradients.
        view: The one in whose pixels gradients are.
        scale: By which the loss was multiplied.
        n_cameras: Of all calls, on all ranks.
        gather: Brings together what ranks have of rows by camera, [C, N, ...]; None where they are all here.
    """
    first = metas[0]
    if gather is None and n_cameras == 1 and scale == 1:
        return {**first, "n_cameras": 1}
    size = first["means2d"].new_tensor([view.width, view.height])

    def joined_rows(parts: list[Tensor]) -> Tensor:
        rows = torch.cat(parts)
        return rows if gather is None else gather(rows)

    def gradients(name: str) -> Tensor | None:
        found = [getattr(meta["means2d"], name, None) for meta in metas]
        if any(gradient is None for gradient in found):
            return None
        if scale != 1:
            # What overflows by the scale alone says nothing; the scaler leaves such a step out.
            found = [gradient.nan_to_num(0.0, 0.0, 0.0) for gradient in found if gradient is not None]
        sizes = [size.new_tensor([meta["width"], meta["height"]]) for meta in metas]
        return joined_rows([g * (s / size) / scale for g, s in zip(found, sizes, strict=True)])

    means2d = joined_rows([meta["means2d"].detach() for meta in metas])
    if first["means2d"].retains_grad:
        means2d.grad = gradients("grad")
    if getattr(first["means2d"], "absgrad", None) is not None:
        setattr(means2d, "absgrad", gradients("absgrad"))  # noqa: B010 - no attribute of Tensor's type
    radii = joined_rows([meta["radii"] for meta in metas])
    return {
        **first,
        "means2d": means2d,
        "radii": radii,
        "n_cameras": n_cameras,
        "width": view.width,
        "height": view.height,
    }
