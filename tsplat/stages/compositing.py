"""Stage: blending the Gaussians of each tile front to back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..arguments import check_devices, check_numerics, check_size, check_tensor, check_tile_size, compute_dtype
from ..config import Numerics
from ..data import GaussianMajor, Pairs, sum_rows
from ..errors import ArgumentError, ShapeError
from .autograd import once_differentiable
from .backend import full_precision, launchers


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

    def bytes_per_intersection(self, features: int, dtype: torch.dtype) -> int:
        """What the backward pass keeps for a pair: its moments and its gradients of features."""
        return (6 + features + 2 * self.absgrad) * dtype.itemsize


def _gaussian_major(flatten_ids: Tensor, n_rows: int) -> GaussianMajor:
    """For pairs of which only the row is known; each row is one item."""
    rows, order = flatten_ids.sort(stable=True)
    slots = torch.empty_like(order)
    slots[order] = torch.arange(order.numel(), device=order.device)
    starts = torch.arange(n_rows + 1, dtype=rows.dtype, device=order.device)
    every = torch.arange(n_rows + 1, device=order.device)
    return GaussianMajor(slots, torch.searchsorted(rows, starts), every, every[:-1])


class _Composite(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        means2d: Tensor,
        conics: Tensor,
        opacities: Tensor,
        colors: Tensor | None,
        color_ids: Tensor | None,
        depths: Tensor | None,
        backgrounds: Tensor | None,
        masks: Tensor | None,
        n_images: int,
        bands: Iterable[Pairs],
        settings: CompositingSettings,
    ) -> tuple[Tensor, Tensor]:
        flat_means = means2d.reshape(-1, 2).contiguous()
        features = (0 if colors is None else colors.shape[-1]) + (depths is not None)
        render_colors = means2d.new_empty(n_images, settings.height, settings.width, features)
        transmittances = means2d.new_empty(n_images, settings.height, settings.width)
        last_ids = torch.empty_like(transmittances, dtype=torch.int32) if any(ctx.needs_input_grad) else None
        n_bands = 0
        whole: Pairs | None = None
        with full_precision(means2d.device):
            launch = launchers(means2d.device, settings.backend)
            for pairs in bands:
                launch.composite_fwd(
                    flat_means,
                    conics,
                    opacities,
                    _take(colors, color_ids),
                    depths,
                    backgrounds,
                    masks,
                    pairs.isect_offsets,
                    pairs.flatten_ids,
                    render_colors,
                    transmittances,
                    last_ids,
                    first_tile=pairs.first_tile,
                    tile_size=settings.tile_size,
                    channel_chunk=settings.channel_chunk,
                    numerics=settings.numerics,
                )
                n_bands += 1
                whole = pairs if n_bands == 1 else None
                del pairs
        kept = (None, None) if whole is None else (whole.isect_offsets, whole.flatten_ids)
        order = (whole and whole.gaussian_major) or (None,) * 4
        ctx.save_for_backward(
            means2d, conics, opacities, colors, color_ids, depths, backgrounds, transmittances, last_ids, *kept, *order
        )
        ctx.settings = settings
        # Several bands are listed again, as they did not fit together.
        ctx.bands = bands if whole is None else None
        # The attribute belongs on the very tensor that the caller holds.
        ctx.absgrad_target = means2d if settings.absgrad else None
        return render_colors, 1 - transmittances

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, saved: tuple[Tensor, ...], v_render_colors: Tensor, v_render_alphas: Tensor
    ) -> tuple[Tensor | None, ...]:
        means2d, conics, opacities, colors, color_ids, depths, backgrounds, *rest = saved
        transmittances, last_ids, isect_offsets, flatten_ids, *order = rest
        settings: CompositingSettings = ctx.settings
        v_render_colors, v_render_alphas = v_render_colors.contiguous(), v_render_alphas.contiguous()
        features = v_render_colors.shape[-1]
        bands: Iterable[Pairs] = ctx.bands
        if ctx.bands is None:
            bands = [Pairs(0, isect_offsets, flatten_ids, None if order[0] is None else GaussianMajor(*order))]
        with full_precision(means2d.device):
            launch = launchers(means2d.device, settings.backend)
            sums = means2d.new_zeros(opacities.numel(), launch.sum_columns(features, settings.absgrad))
            for pairs in bands:
                launch.composite_bwd(
                    means2d.reshape(-1, 2).contiguous(),
                    conics,
                    opacities,
                    _take(colors, color_ids),
                    depths,
                    backgrounds,
                    pairs.isect_offsets,
                    pairs.flatten_ids,
                    *(pairs.gaussian_major or _gaussian_major(pairs.flatten_ids, opacities.numel())),
                    transmittances,
                    last_ids,
                    v_render_colors,
                    v_render_alphas,
                    sums,
                    first_tile=pairs.first_tile,
                    tile_size=settings.tile_size,
                    absgrad=settings.absgrad,
                    numerics=settings.numerics,
                )
                del pairs
            v_means2d, v_conics, v_opacities, v_features, v_absgrad = launch.composite_gradients(
                sums, conics, opacities, features=features, absgrad=settings.absgrad
            )
            n_colors = features - (depths is not None)
            v_colors, v_depths, v_backgrounds = None, None, None
            if colors is not None:
                v_colors = _put(v_features[:, :n_colors], color_ids, colors)
            if depths is not None:
                v_depths = v_features[:, -1]
            if backgrounds is not None:
                v_backgrounds = (transmittances[..., None] * v_render_colors[..., :n_colors]).sum((1, 2))
        if ctx.absgrad_target is not None:
            ctx.absgrad_target.absgrad = v_absgrad.view(means2d.shape)
        v_means2d = v_means2d.view(means2d.shape)
        return v_means2d, v_conics, v_opacities, v_colors, None, v_depths, v_backgrounds, None, None, None, None


def _take(colors: Tensor | None, color_ids: Tensor | None) -> Tensor | None:
    return colors if colors is None or color_ids is None else colors[color_ids]


def _put(v_rows: Tensor, color_ids: Tensor | None, colors: Tensor) -> Tensor:
    """Gradients of rows [R, D] summed for each of the colors [G, D] they were taken from, in a fixed order."""
    if color_ids is not None:
        v_rows = sum_rows(v_rows, color_ids, colors.shape[0])
    return v_rows.to(colors.dtype)


def composite(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    colors: Tensor | None,
    color_ids: Tensor | None,
    depths: Tensor | None,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    n_images: int,
    bands: Iterable[Pairs],
    settings: CompositingSettings,
) -> tuple[Tensor, Tensor]:
    """Images of rows of projected Gaussians: colors [I, H, W, D], one more channel with depths, and alphas [I, H, W].

    Args:
        means2d, conics, opacities: [R, 2], [R, 3], [R]; means2d may have more leading dimensions, and is the tensor
            that gets `.absgrad`.
        colors: [G, D] of any float type, or None; read as they are, and their gradients summed in the compute dtype.
        color_ids: [R] int64, which of the G colors a row has, or None where G = R.
        depths: [R], the last channel, or None.
        backgrounds: [I, D] or None; depth has background 0.
        masks: [I, tiles] bool or None.
        bands: The pairs, band by band; asked for again in the backward pass if they are more than one.
    """
    inputs = (conics, opacities, colors, color_ids, depths, backgrounds, masks)
    images: tuple[Tensor, Tensor] = _Composite.apply(  # type: ignore[no-untyped-call]
        means2d,
        *(None if t is None else t.contiguous() for t in inputs),
        n_images,
        bands,
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
    offsets = torch.cat([isect_offsets.reshape(-1).to(torch.int64), ends])
    render_colors, render_alphas = composite(
        means2d.to(dtype),
        conics.to(dtype).reshape(-1, 3),
        opacities.to(dtype).reshape(-1),
        colors.reshape(-1, channels),
        None,
        None,
        None if backgrounds is None else backgrounds.to(dtype).reshape(-1, channels),
        None if masks is None else masks.reshape(-1, tiles[0] * tiles[1]),
        math.prod(images),
        [Pairs(0, offsets, flatten_ids, None)],
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
