"""The contributions of Gaussians to the pixels of tiles, from checked tensors with gsplat's names and shapes."""

import math

import torch
from torch import Tensor

from .... import ShapeError
from ....arguments import (
    INTEGERS,
    check_devices,
    check_size,
    check_tensor,
    check_tile_lists,
    check_tile_size,
    compute_dtype,
)
from ....config import CameraSettings, Numerics
from ....data import CompositingSettings, Intersections, Splats
from ....stages.contributions import Contributions
from ....stages.memory import check_images


def check_splats(means2d: Tensor, shapes: Tensor, opacities: Tensor, footprint: str = "ellipse") -> None:
    """Raises unless means, conics (ray transforms [..., N, 3, 3] of surfels) and opacities match, dense or packed."""
    check_tensor("means2d", means2d, [..., 2], "[..., N, 2] or [nnz, 2]")
    leading = means2d.shape[:-1]
    name, own = ("ray_transforms", (3, 3)) if footprint == "surfel" else ("conics", (3,))
    check_tensor(name, shapes, [*leading, *own], f"[..., N, {', '.join(map(str, own))}] as means2d")
    check_tensor("opacities", opacities, [*leading], "[..., N] as means2d")
    check_devices({"means2d": means2d, name: shapes, "opacities": opacities})


def contributions(
    splats: tuple[Tensor, Tensor, Tensor],
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    places: Tensor,
    n_pixels: int,
    tile_size: int,
    numerics: Numerics,
    footprint: str = "ellipse",
) -> Contributions:
    """Returns the contributions of checked splats to the pixels of `places`; see :class:`Contributions`."""
    means2d, shapes, opacities = (tensor.to(compute_dtype(*splats)).contiguous() for tensor in splats)
    camera = CameraSettings(places.shape[2], places.shape[1])
    offsets, flatten_ids = isect_offsets.flatten().to(torch.int64), flatten_ids.contiguous()
    return Contributions(
        Splats(
            means2d.reshape(-1, 2),
            shapes.reshape(-1, 9 if footprint == "surfel" else 3),
            opacities.flatten(),
            None,
            None,
        ),
        Intersections(0, torch.cat([offsets, offsets.new_tensor([flatten_ids.numel()])]), flatten_ids, None),
        CompositingSettings(camera, tile_size, 1, False, numerics, "torch", footprint),
        places,
        n_pixels,
    )


def dense_contributions(
    name: str,
    splats: tuple[Tensor, Tensor, Tensor],
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    size: tuple[int, int],
    tile_size: int,
    numerics: Numerics,
    footprint: str = "ellipse",
) -> Contributions:
    """Checks the arguments, of which `name` is ``isect_offsets``, and returns the contributions to all pixels.

    `size` is the width and height of the images.
    """
    check_splats(*splats, footprint)
    width, height = size
    check_size("image_width", width)
    check_size("image_height", height)
    check_tile_size(tile_size)
    grid = (math.ceil(height / tile_size), math.ceil(width / tile_size))
    check_tensor(name, isect_offsets, [..., None, None], "[..., tile_height, tile_width]", dtypes=INTEGERS)
    leading = splats[0].shape[:-1]
    images = leading[:-1] if len(leading) > 1 else isect_offsets.shape[:-2]
    if tuple(isect_offsets.shape) != (*images, *grid):
        raise ShapeError(
            f"{name}: expected {[*images, *grid]}, images as those of means2d and tiles of {tile_size} for images of "
            f"{width}×{height}, found {list(isect_offsets.shape)}"
        )
    check_tile_lists(name, isect_offsets, flatten_ids, math.prod(leading))
    n_images, device = math.prod(images), flatten_ids.device
    check_images(device, n_images, width, height, 1, torch.int64)
    places = torch.arange(n_images * height * width, device=device).view(n_images, height, width)
    return contributions(splats, isect_offsets, flatten_ids, places, places.numel(), tile_size, numerics, footprint)
