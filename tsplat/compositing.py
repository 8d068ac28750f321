"""Stage: blending the Gaussians of each tile front to back."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .backend import full_precision, launchers
from .checks import (
    ArgumentError,
    ShapeError,
    check_devices,
    check_numerics,
    check_size,
    check_tensor,
    check_tile_size,
    compute_dtype,
)
from .config import Numerics
from .rows import GaussianMajor


@dataclasses.dataclass(frozen=True)
class CompositingSettings:
    """Everything about compositing that is not a tensor; sizes in pixels."""

    width: int
    height: int
    tile_size: int
    channel_chunk: int
    absgrad: bool
    numerics: Numerics
    backend: str


def _gaussian_major(flatten_ids: Tensor, n_rows: int) -> GaussianMajor:
    """For pairs of which only the row is known."""
    rows, order = flatten_ids.sort(stable=True)
    slots = torch.empty_like(order)
    slots[order] = torch.arange(order.numel(), device=order.device)
    segment_rows = torch.arange(n_rows, device=order.device)
    bounds = torch.arange(n_rows + 1, dtype=rows.dtype, device=order.device)
    return GaussianMajor(slots, torch.searchsorted(rows, bounds), segment_rows)


class _Composite(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        means2d: Tensor,
        conics: Tensor,
        opacities: Tensor,
        colors: Tensor,
        backgrounds: Tensor | None,
        masks: Tensor | None,
        isect_offsets: Tensor,
        flatten_ids: Tensor,
        gaussian_major: GaussianMajor | None,
        settings: CompositingSettings,
    ) -> tuple[Tensor, Tensor]:
        rows = (means2d.reshape(-1, 2).contiguous(), conics, opacities, colors)
        with full_precision(means2d.device):
            render_colors, transmittances, last_ids = launchers(means2d.device, settings.backend).composite_fwd(
                *rows,
                backgrounds,
                masks,
                isect_offsets,
                flatten_ids,
                width=settings.width,
                height=settings.height,
                tile_size=settings.tile_size,
                channel_chunk=settings.channel_chunk,
                numerics=settings.numerics,
                needs_backward=any(ctx.needs_input_grad),
            )
        ctx.save_for_backward(
            means2d,
            conics,
            opacities,
            colors,
            backgrounds,
            isect_offsets,
            flatten_ids,
            *(gaussian_major or (None, None, None)),
            transmittances,
            last_ids,
        )
        ctx.settings = settings
        # The attribute belongs on the very tensor that the caller holds.
        ctx.absgrad_target = means2d if settings.absgrad else None
        return render_colors, 1 - transmittances

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v_render_colors: Tensor, v_render_alphas: Tensor) -> tuple[Tensor | None, ...]:
        means2d, conics, opacities, colors, backgrounds, offsets, flatten_ids, *order, transmittances, last_ids = (
            ctx.saved_tensors
        )
        settings: CompositingSettings = ctx.settings
        gaussian_major = order if order[0] is not None else _gaussian_major(flatten_ids, opacities.numel())
        with full_precision(means2d.device):
            v_means2d, v_conics, v_opacities, v_colors, v_absgrad = launchers(
                means2d.device, settings.backend
            ).composite_bwd(
                means2d.reshape(-1, 2).contiguous(),
                conics,
                opacities,
                colors,
                backgrounds,
                offsets,
                flatten_ids,
                *gaussian_major,
                transmittances,
                last_ids,
                v_render_colors.contiguous(),
                v_render_alphas.contiguous(),
                width=settings.width,
                height=settings.height,
                tile_size=settings.tile_size,
                absgrad=settings.absgrad,
                numerics=settings.numerics,
            )
            v_backgrounds = None
            if ctx.needs_input_grad[4]:
                v_backgrounds = (transmittances[..., None] * v_render_colors).sum((1, 2))
        if ctx.absgrad_target is not None:
            ctx.absgrad_target.absgrad = v_absgrad.view(means2d.shape)
        return (
            v_means2d.view(means2d.shape),
            v_conics,
            v_opacities,
            v_colors,
            v_backgrounds,
            None,
            None,
            None,
            None,
            None,
        )


def composite(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    colors: Tensor,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    gaussian_major: GaussianMajor | None,
    settings: CompositingSettings,
) -> tuple[Tensor, Tensor]:
    """Images of rows of projected Gaussians: `render_colors` [I, H, W, D] and `render_alphas` [I, H, W].

    Args:
        means2d, conics, opacities, colors: [R, 2], [R, 3], [R], [R, D]; means2d may have more leading dimensions, and
            is the tensor that gets `.absgrad`.
        backgrounds: [I, D] or None.
        masks: [I, tiles] bool or None.
        isect_offsets, flatten_ids: [I * tiles + 1] int64 and [M], the pairs; see :class:`tsplat.rows.Pairs`.
        gaussian_major: Their other order, or None to work it out when the backward pass needs it.
    """
    inputs = (conics, opacities, colors, backgrounds, masks)
    images: tuple[Tensor, Tensor] = _Composite.apply(  # type: ignore[no-untyped-call]
        means2d,
        *(None if t is None else t.contiguous() for t in inputs),
        isect_offsets,
        flatten_ids,
        gaussian_major,
        settings,
    )
    return images


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
    backend: str = "auto",
    numerics: str = "gsplat-1.5",
) -> tuple[Tensor, Tensor]:
    """Composites projected Gaussians into images; same as gsplat 1.5.3's, for any number of channels.

    Args:
        means2d: [..., N, 2] pixels, or [nnz, 2] if packed.
        conics: [..., N, 3] upper triangle of the inverse screen covariance, or [nnz, 3]; not positive semidefinite ones
            are not drawn.
        colors: [..., N, D], or [nnz, D].
        opacities: [..., N] after sigmoid, or [nnz].
        image_width, image_height: Pixels.
        tile_size: Pixels along a tile's edge: 4, 8 or 16.
        isect_offsets, flatten_ids: From :func:`isect_tiles` and :func:`isect_offset_encode`, [..., tile_height,
            tile_width] and [M].
        backgrounds: [..., D].
        masks: [..., tile_height, tile_width] bool; tiles that are false show the background alone.
        packed: Whether inputs are packed.
        absgrad: Whether the backward pass sets ``means2d.absgrad``, the sum over pixels of the absolute gradients.
        backend, numerics: As in :func:`tsplat.rasterization`.

    Returns:
        ``render_colors`` [..., image_height, image_width, D] and ``render_alphas`` [..., image_height, image_width, 1],
        in at least fp32. Differentiable with respect to means2d, conics, colors, opacities and backgrounds.

    Raises:
        ArgumentError: A shape, element type or value that has no meaning.
        NotImplementedError: A tile size that is not implemented.
    """
    check_size("image_width", image_width)
    check_size("image_height", image_height)
    check_tile_size(tile_size)
    images = isect_offsets.shape[:-2]
    tiles = (-(-image_height // tile_size), -(-image_width // tile_size))
    if tuple(isect_offsets.shape[-2:]) != tiles:
        raise ShapeError(
            f"isect_offsets: expected [..., {tiles[0]}, {tiles[1]}] tiles of {tile_size} for an image of "
            f"{image_width}x{image_height}, found {list(isect_offsets.shape)}"
        )
    check_tensor(
        "means2d", means2d, [None, 2] if packed else [*images, None, 2], "[nnz, 2] if packed, else [..., N, 2]"
    )
    rows = means2d.shape[:-1]
    check_tensor("conics", conics, [*rows, 3], "[..., N, 3] as means2d")
    check_tensor("opacities", opacities, [*rows], "[..., N] as means2d")
    check_tensor("colors", colors, [*rows, None], "[..., N, D] as means2d")
    channels = colors.shape[-1]
    if channels == 0:
        raise ShapeError(f"colors: expected at least one channel, found {list(colors.shape)}")
    if backgrounds is not None:
        check_tensor("backgrounds", backgrounds, [*images, channels], "[..., D] as colors")
    if masks is not None and masks.shape != isect_offsets.shape:
        raise ShapeError(f"masks: expected {list(isect_offsets.shape)} as isect_offsets, found {list(masks.shape)}")
    given = dict(means2d=means2d, conics=conics, colors=colors, opacities=opacities, backgrounds=backgrounds)
    check_devices({**given, "masks": masks, "isect_offsets": isect_offsets, "flatten_ids": flatten_ids})
    if flatten_ids.dim() != 1 or flatten_ids.is_floating_point():
        raise ArgumentError(f"flatten_ids: expected integers [M], found {flatten_ids.dtype} {list(flatten_ids.shape)}")
    dtype = compute_dtype(*given.values())
    ends = torch.full((1,), flatten_ids.numel(), dtype=torch.int64, device=flatten_ids.device)
    render_colors, render_alphas = composite(
        means2d.to(dtype),
        conics.to(dtype).reshape(-1, 3),
        opacities.to(dtype).reshape(-1),
        colors.to(dtype).reshape(-1, channels),
        None if backgrounds is None else backgrounds.to(dtype).reshape(-1, channels),
        None if masks is None else masks.reshape(-1, tiles[0] * tiles[1]),
        torch.cat([isect_offsets.reshape(-1).to(torch.int64), ends]),
        flatten_ids,
        None,
        CompositingSettings(
            width=image_width,
            height=image_height,
            tile_size=tile_size,
            channel_chunk=channels,
            absgrad=absgrad,
            numerics=check_numerics(numerics),
            backend=backend,
        ),
    )
    size = (*images, image_height, image_width)
    return render_colors.view(*size, channels), render_alphas.view(*size, 1)
