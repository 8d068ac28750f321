"""Checks tile lists that the caller passes, and composites them."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..arguments import (
    BOOLS,
    INTEGERS,
    check_backgrounds,
    check_devices,
    check_tensor,
    check_tile_lists,
    check_tile_size,
)
from ..config import Backend, CameraSettings, Numerics
from ..data import CompositingSettings, Intersections, Rays, Splats
from ..errors import ArgumentError, ShapeError
from ..formulas.pixel_centers import pixel_centers
from ..output_maps import Output
from ..runtime.memory import INTERSECTIONS_MAX, check_images
from ..scalars import check_size
from ..stages.compositing import composite_once

CHANNEL_CHUNK = 32
"""Maximum number of channels that one walk over the lists accumulates."""


class TileLists(NamedTuple):
    """Checked tile lists, with the size of images and tiles in pixels, and the leading dimensions of the images."""

    width: int
    height: int
    tile_size: int
    images: torch.Size
    isect_offsets: Tensor
    flatten_ids: Tensor
    masks: Tensor | None

    @classmethod
    def check(
        cls,
        image_width: int,
        image_height: int,
        tile_size: int,
        isect_offsets: Tensor,
        flatten_ids: Tensor,
        masks: Tensor | None,
        name: str = "isect_offsets",
    ) -> "TileLists":
        """Checks everything except the number of rows. ``name`` is the name of the offsets in messages."""
        width, height = check_size("image_width", image_width), check_size("image_height", image_height)
        tile_size = check_tile_size(tile_size)
        meaning = "[..., tile_height, tile_width]"
        check_tensor(name, isect_offsets, [..., None, None], meaning, dtypes=INTEGERS)
        tiles = (math.ceil(height / tile_size), math.ceil(width / tile_size))
        if tuple(isect_offsets.shape[-2:]) != tiles:
            raise ShapeError(
                f"{name}: expected [..., {tiles[0]}, {tiles[1]}] tiles of {tile_size} for an image of "
                f"{width}×{height}, found {list(isect_offsets.shape)}"
            )
        if masks is not None:
            check_tensor("masks", masks, isect_offsets.shape, "tiles as isect_offsets", dtypes=BOOLS)
        check_tensor("flatten_ids", flatten_ids, [None], "[M]", dtypes=INTEGERS)
        if flatten_ids.numel() > INTERSECTIONS_MAX:
            raise ArgumentError(
                f"flatten_ids: {flatten_ids.numel():,} intersections are more than 32-bit indices allow; render fewer "
                "images at a time"
            )
        return cls(width, height, tile_size, isect_offsets.shape[:-2], isect_offsets, flatten_ids, masks)

    @property
    def size(self) -> tuple[int, ...]:
        """The shape of the images without channels, [..., H, W]."""
        return (*self.images, self.height, self.width)

    def check_means(self, means2d: Tensor, *, packed: bool) -> torch.Size:
        """Checks the means, and returns their leading dimensions."""
        shape = [None, 2] if packed else [*self.images, None, 2]
        check_tensor("means2d", means2d, shape, "[nnz, 2] if packed, else [..., N, 2]")
        return means2d.shape[:-1]

    def check_rows(
        self, leading: torch.Size, colors: Tensor, opacities: Tensor, backgrounds: Tensor | None
    ) -> Tensor | None:
        """Checks colors, opacities and backgrounds of rows with these leading dimensions, and the lists of the rows.

        Returns:
            The backgrounds [..., D].
        """
        check_tensor("opacities", opacities, [*leading], "[..., N] as means2d")
        check_tensor("colors", colors, [*leading, None], "[..., N, D] as means2d")
        channels = colors.shape[-1]
        if channels == 0:
            raise ShapeError(f"colors: expected at least one channel, found {list(colors.shape)}")
        if backgrounds is not None:
            backgrounds = check_backgrounds(backgrounds, self.images, channels, "[..., D] as colors")
        check_tile_lists("isect_offsets", self.isect_offsets, self.flatten_ids, math.prod(leading))
        first = self.isect_offsets.flatten()[:1]
        if first.device.type == "cpu" and bool(first.any()):  # kernels look up the tile of each intersection
            raise ArgumentError(
                f"isect_offsets: expected offsets that begin with 0, found {int(first)}; pass the offsets of sorted ids"
            )
        return backgrounds

    def arrange(self, rows: dict[str, Tensor | None], channels: int) -> tuple[Tensor | None, int, list[Intersections]]:
        """Checks devices and memory. Returns masks, the number of images and intersections, for ``composite``.

        ``rows`` holds the other tensors by name; its ``means2d`` is in the compute dtype.
        """
        lists = dict(masks=self.masks, isect_offsets=self.isect_offsets, flatten_ids=self.flatten_ids)
        check_devices(rows | lists)
        means2d, n_images = rows["means2d"], math.prod(self.images)
        assert means2d is not None
        check_images(means2d.device, n_images, self.width, self.height, channels, means2d.dtype)
        n_intersections = self.isect_offsets.new_full((1,), self.flatten_ids.numel(), dtype=torch.int32)
        offsets = torch.cat([self.isect_offsets.reshape(-1).to(torch.int32), n_intersections])
        masks = None if self.masks is None else self.masks.reshape(n_images, -1)
        return masks, n_images, [Intersections(0, offsets, self.flatten_ids.to(torch.int32).contiguous(), None)]

    def settings(
        self,
        numerics: Numerics,
        backend: Backend,
        *,
        camera: CameraSettings | None = None,
        absgrad: bool = False,
        footprint: str = "ellipse",
        outputs: tuple[Output, ...] = (),
    ) -> CompositingSettings:
        """Returns the settings of compositing. Only footprints along rays use the camera."""
        camera = camera or CameraSettings(self.width, self.height)
        return CompositingSettings(
            camera, self.tile_size, CHANNEL_CHUNK, absgrad, numerics, backend, footprint, outputs
        )

    @torch.no_grad()
    def positions(self, subpixel_offset: Tensor, dtype: torch.dtype) -> Rays:
        """Checks offsets [..., H, W, 2] from pixel centers, and returns the sample positions of the pixels."""
        check_tensor("subpixel_offset", subpixel_offset, [*self.size, 2], "[..., image_height, image_width, 2]")
        check_devices(dict(isect_offsets=self.isect_offsets, subpixel_offset=subpixel_offset))
        offset = subpixel_offset.to(dtype).reshape(-1, self.height, self.width, 2)
        if not bool((offset.abs() <= 0.5).all()):
            largest = float(offset.abs().max())
            raise ArgumentError(f"subpixel_offset: expected offsets of at most 0.5 pixels, found {largest:g}")
        x, y = pixel_centers(self.width, self.height, offset)
        positions = torch.ones_like(offset[:, None, :, :, 0]).repeat(1, 3, 1, 1)
        positions[:, 0] = x + offset[..., 0]
        positions[:, 1] = y[:, None] + offset[..., 1]
        return Rays(positions, positions.new_zeros(len(positions), 3))

    def composite(
        self,
        means2d: Tensor,
        shapes: Tensor,
        colors: Tensor,
        opacities: Tensor,
        backgrounds: Tensor | None,
        settings: CompositingSettings,
        rays: Rays | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Composites checked rows. Returns colors [..., H, W, D] and alphas [..., H, W, 1].

        Means [..., 2] and shapes [nnz, S] are in the compute dtype. Colors and opacities have the leading dimensions of
        the means.
        """
        dtype, channels = means2d.dtype, colors.shape[-1]
        given = dict(means2d=means2d, shapes=shapes, colors=colors, opacities=opacities, backgrounds=backgrounds)
        lists = self.arrange(given, channels)
        maps = composite_once(
            Splats(means2d, shapes, opacities.to(dtype).reshape(-1), colors.reshape(-1, channels)),
            None if backgrounds is None else backgrounds.to(dtype).reshape(-1, channels),
            *lists,
            settings,
            rays,
        )
        return maps["colors"].view(*self.size, channels), maps["alphas"].view(*self.size, 1)
