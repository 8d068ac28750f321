"""Checks projected Gaussians and tile lists in gsplat's form, and converts them to `Contributions`."""

import math

from torch import Tensor

from .... import ShapeError
from ....arguments import check_devices, check_tensor, check_tile_lists, compute_dtype
from ....config import Numerics
from ....data import Splats
from ....functional.tile_lists import TileLists
from ...contributions import Contributions

Projected = tuple[Tensor, Tensor, Tensor]
"""Projected means, conics (ray transforms for surfels) and opacities."""


def check_splats(means2d: Tensor, shapes: Tensor, opacities: Tensor, footprint: str = "ellipse") -> None:
    """Raises an error if means, conics (ray transforms [..., N, 3, 3] for surfels) and opacities do not match."""
    check_tensor("means2d", means2d, [..., 2], "[..., N, 2] or [nnz, 2]")
    leading = means2d.shape[:-1]
    name, own = ("ray_transforms", (3, 3)) if footprint == "surfel" else ("conics", (3,))
    check_tensor(name, shapes, [*leading, *own], f"[..., N, {', '.join(map(str, own))}] as means2d")
    check_tensor("opacities", opacities, [*leading], "[..., N] as means2d")
    check_devices({"means2d": means2d, name: shapes, "opacities": opacities})


def contributions(
    splats: Projected, lists: TileLists, numerics: Numerics, footprint: str = "ellipse", chosen: Tensor | None = None
) -> Contributions:
    """Returns the contributions of checked Gaussians to all or to chosen pixels; see `Contributions.of`."""
    means2d, shapes, opacities = (tensor.to(compute_dtype(*splats)).contiguous() for tensor in splats)
    rows = Splats(means2d.flatten(0, -2), shapes.flatten(opacities.dim()).flatten(0, -2), opacities.flatten(), None)
    return Contributions.of(rows, lists, numerics, footprint, chosen)


def dense_contributions(
    name: str, splats: Projected, isect_offsets: Tensor, flatten_ids: Tensor, size: tuple[int, int, int],
    numerics: Numerics, footprint: str = "ellipse",
) -> Contributions:  # fmt: skip
    """Checks the arguments, and returns the contributions to all pixels.

    `name` is the name of ``isect_offsets`` for messages; `size` is the width and height of the images, and the tile
    size.
    """
    check_splats(*splats, footprint)
    lists = TileLists.check(*size, isect_offsets, flatten_ids, None, name)
    *images, n_rows = splats[0].shape[:-1]
    if images and lists.images != tuple(images):
        raise ShapeError(
            f"{name}: expected {[*images, *isect_offsets.shape[-2:]]}, the same images as in means2d, found "
            f"{list(isect_offsets.shape)}"
        )
    check_tile_lists(name, isect_offsets, flatten_ids, math.prod(images) * n_rows)
    return contributions(splats, lists, numerics, footprint)
