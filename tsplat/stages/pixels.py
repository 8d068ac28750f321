"""Compositing of lists of tiles that the caller made, on the image plane and in 3D."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..arguments import (
    BOOLS,
    INTEGERS,
    check_backgrounds,
    check_bool,
    check_devices,
    check_numerics,
    check_size,
    check_tensor,
    check_tile_lists,
    check_tile_size,
    compute_dtype,
    standing_for,
)
from ..config import Backend, CameraSettings, Numerics, NumericsName
from ..data import CompositingSettings, Intersections, Rays, Splats
from ..errors import ArgumentError, ShapeError
from .compilation import eager, with_plain_tensors
from .compositing import composite
from .memory import INTERSECTIONS_MAX, check_images

CHANNEL_CHUNK = 32
"""Most channels accumulated in one pass."""


class TileLists(NamedTuple):
    """Checked lists of tiles as passed, with the size of images and tiles in pixels, and the images' leading
    dimensions."""

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
        """Checks all but the number of rows. Messages call the offsets `name`."""
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
                f"flatten_ids: {flatten_ids.numel():,} intersections are more than 32-bit indices hold; render fewer "
                "images at a time"
            )
        return cls(width, height, tile_size, isect_offsets.shape[:-2], isect_offsets, flatten_ids, masks)

    def check_rows(
        self, leading: torch.Size, colors: Tensor, opacities: Tensor, backgrounds: Tensor | None
    ) -> Tensor | None:
        """Checks what belongs to rows with leading dimensions, and returns the backgrounds [..., D]."""
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
                f"isect_offsets: expected offsets that begin with 0, found {int(first)}; pass those of sorted ids"
            )
        return backgrounds

    def arrange(self, rows: dict[str, Tensor | None], channels: int) -> tuple[Tensor | None, int, list[Intersections]]:
        """Checks devices and memory for so many channels, and returns masks, I and intersections for ``composite``.
        Rows are what else is composited, by name; ``means2d`` is in the compute dtype."""
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
        distortion: bool = False,
    ) -> CompositingSettings:
        """Settings of compositing for these images. The camera matters to footprints along rays only."""
        camera = camera or CameraSettings(self.width, self.height)
        return CompositingSettings(
            camera, self.tile_size, CHANNEL_CHUNK, absgrad, numerics, backend, footprint, distortion
        )

    @torch.no_grad()
    def positions(self, subpixel_offset: Tensor, dtype: torch.dtype) -> Rays:
        """Checks offsets [..., H, W, 2] from pixel centers, and returns where pixels are evaluated."""
        size = (*self.images, self.height, self.width)
        check_tensor("subpixel_offset", subpixel_offset, [*size, 2], "[..., image_height, image_width, 2]")
        check_devices(dict(isect_offsets=self.isect_offsets, subpixel_offset=subpixel_offset))
        offset = subpixel_offset.to(dtype).reshape(-1, self.height, self.width, 2)
        if not bool((offset.abs() <= 0.5).all()):
            most = float(offset.abs().max())
            raise ArgumentError(f"subpixel_offset: expected offsets of at most 0.5 pixels, found {most:g}")
        y, x = (torch.arange(n, dtype=dtype, device=offset.device) + 0.5 for n in (self.height, self.width))
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
        """Composites rows that were checked; returns images [..., H, W, D] and [..., H, W, 1].

        Means [..., 2] and shapes [nnz, S] are in the compute dtype; colors and opacities have the leading dimensions of
        means.
        """
        dtype, channels = means2d.dtype, colors.shape[-1]
        given = dict(means2d=means2d, shapes=shapes, colors=colors, opacities=opacities, backgrounds=backgrounds)
        lists = self.arrange(given, channels)
        render_colors, render_alphas, _ = composite(
            Splats(means2d, shapes, opacities.to(dtype).reshape(-1), colors.reshape(-1, channels)),
            None if backgrounds is None else backgrounds.to(dtype).reshape(-1, channels),
            *lists,
            settings,
            rays,
        )
        size = (*self.images, self.height, self.width)
        return render_colors.view(*size, channels), render_alphas.view(*size, 1)


@eager
@with_plain_tensors
def rasterize_to_pixels(
    means2d: Tensor,
    conics: Tensor,
    colors: Tensor,
    opacities: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    backgrounds: Tensor | None = None,
    masks: Tensor | None = None,
    packed: bool = False,
    absgrad: bool = False,
    *,
    subpixel_offset: Tensor | None = None,
    backend: Backend = "auto",
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:
    """Composites projected Gaussians into images. Same as gsplat 1.5.3, for any number of channels.

    Args:
        means2d: [..., N, 2] pixels, or [nnz, 2] if packed.
        conics: [..., N, 3] upper triangles of the inverse screen covariances, or [nnz, 3]. Gaussians whose conic is not
            positive semidefinite are not rendered.
        colors: [..., N, D], or [nnz, D].
        opacities: [..., N] after sigmoid, or [nnz].
        image_width, image_height: Image size in pixels.
        tile_size: Edge of a tile in pixels: 4, 8 or 16.
        isect_offsets, flatten_ids: From :func:`isect_tiles` and :func:`isect_offset_encode`, [..., tile_height,
            tile_width] and [M].
        backgrounds: [..., D]; of a single image also [D].
        masks: [..., tile_height, tile_width] bool; tiles that are false show the background.
        packed: Whether inputs are packed.
        absgrad: Whether the backward pass sets ``means2d.absgrad``, the sum over pixels of absolute gradients.
        subpixel_offset: [..., image_height, image_width, 2] where to evaluate each pixel, relative to its center, up to
            0.5 pixels along each axis, as in Mip-Splatting (arXiv 2311.16493). Lists should then come from
            :func:`isect_tiles` without `conics`; with them, it leaves out Gaussians that miss all centers of a tile.
            None for centers. Not differentiable.
        backend, numerics: As in :func:`tsplat.rasterization`.

    Returns:
        ``render_colors`` [..., image_height, image_width, D] and ``render_alphas`` [..., image_height, image_width, 1],
        in at least fp32. Differentiable with respect to means2d, conics, colors, opacities and backgrounds.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: A tile size that is not implemented.

    Example::

        import math

        import torch
        from tsplat import fully_fused_projection, isect_offset_encode, isect_tiles, rasterize_to_pixels

        n, width, height, tile_size = 100, 80, 60, 16
        opacities, colors = torch.full((n,), 0.8), torch.rand(1, n, 3)
        K = torch.tensor([[100.0, 0, 40], [0, 100, 30], [0, 0, 1]])
        radii, means2d, depths, conics, _ = fully_fused_projection(
            torch.randn(n, 3) + torch.tensor([0, 0, 5.0]), None, torch.randn(n, 4), torch.full((n, 3), 0.1),
            torch.eye(4)[None], K[None], width, height,
        )
        tile_width, tile_height = math.ceil(width / tile_size), math.ceil(height / tile_size)
        _, isect_ids, flatten_ids = isect_tiles(means2d, radii, depths, tile_size, tile_width, tile_height)
        offsets = isect_offset_encode(isect_ids, 1, tile_width, tile_height)
        image, alpha = rasterize_to_pixels(
            means2d, conics, colors, opacities[None], width, height, tile_size, offsets, flatten_ids
        )
        assert image.shape == (1, height, width, 3)
    """
    lists = TileLists.check(image_width, image_height, tile_size, isect_offsets, flatten_ids, masks)
    packed, absgrad = check_bool("packed", packed), check_bool("absgrad", absgrad)
    check_tensor(
        "means2d", means2d, [None, 2] if packed else [*lists.images, None, 2], "[nnz, 2] if packed, else [..., N, 2]"
    )
    check_tensor("conics", conics, [*means2d.shape[:-1], 3], "[..., N, 3] as means2d")
    backgrounds = lists.check_rows(means2d.shape[:-1], colors, opacities, backgrounds)
    check_devices(dict(means2d=means2d, conics=conics))
    dtype = compute_dtype(means2d, conics, colors, opacities, backgrounds)
    rays = None if subpixel_offset is None else lists.positions(subpixel_offset, dtype)
    footprint = "ellipse" if rays is None else "shifted"
    settings = lists.settings(check_numerics(numerics), backend, absgrad=absgrad, footprint=footprint)
    centers = standing_for(means2d.to(dtype), means2d)
    return lists.composite(centers, conics.to(dtype).reshape(-1, 3), colors, opacities, backgrounds, settings, rays)
