"""Stage: front-to-back compositing of the Gaussians of each tile."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

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
)
from ..config import Backend, CameraSettings, NumericsName
from ..data import (
    CompositingSettings,
    GaussianMajor,
    Intersections,
    PartLists,
    Rays,
    RenderBuffers,
    SplatGradients,
    Splats,
    sum_by_id,
)
from ..errors import ArgumentError, ShapeError
from .autograd import once_differentiable
from .backend import full_precision, launchers
from .bundles import flatten, restore, structure
from .compilation import eager, with_plain_tensors
from .memory import INTERSECTIONS_MAX, check_images


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
        rays: Tensor | None,
        origins: Tensor | None,
        n_images: int,
        bands: Iterable[Intersections],
        settings: CompositingSettings,
    ) -> tuple[Tensor, Tensor]:
        splats = _splats(means2d, conics, opacities, colors, color_ids, depths)
        n_features = splats.n_colors + (depths is not None)
        size = (n_images, settings.camera.height, settings.camera.width)
        buffers = RenderBuffers(
            means2d.new_empty(*size, n_features),
            means2d.new_empty(size),
            torch.empty(size, dtype=torch.int32, device=means2d.device) if any(ctx.needs_input_grad) else None,
        )
        n_bands = 0
        whole: Intersections | None = None
        parts: PartLists | None = None
        with full_precision(means2d.device):
            launch = launchers(means2d.device, settings.backend)
            for intersections in bands:
                parts = launch.composite_fwd(
                    splats, backgrounds, masks, intersections, buffers, settings, _rays(rays, origins)
                )
                n_bands += 1
                whole = intersections if n_bands == 1 else None
                del intersections
        inputs = (means2d, conics, opacities, colors, color_ids, depths, backgrounds, rays, origins)
        saved = (inputs, buffers.transmittances, buffers.last_ids, *_needed_lists(whole, parts))
        ctx.save_for_backward(*flatten(saved))
        ctx.saved, ctx.settings, ctx.launch = structure(saved), settings, launch
        # Several bands do not fit together, so the backward pass lists them again.
        ctx.bands = bands if whole is None else None
        # The attribute belongs on the tensor that the caller holds.
        ctx.absgrad_target = means2d if settings.absgrad else None
        return buffers.colors, 1 - buffers.transmittances

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, saved: tuple[Any, ...], v_render_colors: Tensor, v_render_alphas: Tensor
    ) -> tuple[Tensor | None, ...]:
        inputs, transmittances, last_ids, whole, parts = restore(ctx.saved, saved)
        means2d, conics, opacities, colors, color_ids, depths, backgrounds, rays, origins = inputs
        settings: CompositingSettings = ctx.settings
        v_render_colors, v_render_alphas = _dense_pixels(v_render_colors), v_render_alphas.contiguous()
        n_features = v_render_colors.shape[-1]
        splats = _splats(means2d, conics, opacities, colors, color_ids, depths)
        bands: Iterable[Intersections] = ctx.bands or [whole]
        with full_precision(means2d.device):
            # That of the forward pass, as last_ids are its own.
            launch = ctx.launch
            sums = means2d.new_zeros(opacities.numel(), launch.sum_columns(n_features, settings))
            v_rays = None
            if rays is not None and any(ctx.needs_input_grad[8:10]):
                v_rays = rays.new_zeros(rays.shape[0], 6, *rays.shape[2:])
            for intersections in bands:
                if intersections.gaussian_major is None:
                    order = _gaussian_major(intersections.flatten_ids, opacities.numel())
                    intersections = intersections._replace(gaussian_major=order)
                launch.composite_bwd(
                    splats,
                    backgrounds,
                    intersections,
                    transmittances,
                    last_ids,
                    v_render_colors,
                    v_render_alphas,
                    sums,
                    settings,
                    parts,
                    _rays(rays, origins),
                    v_rays,
                )
                del intersections
            v_splats: SplatGradients = launch.composite_gradients(sums, conics, opacities, n_features, settings)
            n_colors = n_features - (depths is not None)
            v_colors, v_depths, v_backgrounds = None, None, None
            if colors is not None:
                v_colors = v_splats.v_features[:, :n_colors]
                if color_ids is not None:
                    v_colors = sum_by_id(v_colors, color_ids, colors.shape[0], unique=len(v_render_alphas) == 1)
                v_colors = v_colors.to(colors.dtype)
            if depths is not None:
                v_depths = v_splats.v_features[:, -1]
            if backgrounds is not None:
                # Contiguous, as the order of PyTorch's sums depends on strides.
                weighted = (transmittances[..., None] * v_render_colors[..., :n_colors]).contiguous()
                v_backgrounds = weighted.sum((1, 2))
            v_origins = None
            if v_rays is not None and origins is not None:
                v_origins, v_rays = v_rays[:, :3].sum((2, 3)), v_rays[:, 3:]
        if ctx.absgrad_target is not None:
            assert v_splats.absgrad is not None
            ctx.absgrad_target.absgrad = v_splats.absgrad.view(means2d.shape)
        v_means2d = v_splats.v_means2d.view(means2d.shape)
        v_inputs = (v_means2d, v_splats.v_conics, v_splats.v_opacities, v_colors, None, v_depths, v_backgrounds)
        return *v_inputs, None, v_rays, v_origins, None, None, None


def _splats(
    means2d: Tensor,
    conics: Tensor,
    opacities: Tensor,
    colors: Tensor | None,
    color_ids: Tensor | None,
    depths: Tensor | None,
) -> Splats:
    if colors is not None and color_ids is not None:
        colors = colors[color_ids]
    return Splats(means2d.reshape(-1, 2).contiguous(), conics, opacities, colors, depths)


def _rays(values: Tensor | None, origins: Tensor | None) -> Rays | None:
    return None if values is None else Rays(values, origins)


def _dense_pixels(image: Tensor) -> Tensor:
    """The image [I, H, W, D] if its pixels are evenly spaced in memory, channel-major or not; otherwise a copy."""
    return image if image.stride(1) == image.shape[2] * image.stride(2) else image.contiguous()


def _needed_lists(
    whole: Intersections | None, parts: PartLists | None
) -> tuple[Intersections | None, PartLists | None]:
    """What the backward pass needs of the lists of a single band; None if there are several bands."""
    if whole is None or parts is None:
        return None if whole is None else whole._replace(keys=None), None
    # Without the ids of entries, which the backward pass lists again with their slots.
    return whole, parts._replace(ids=None)


def _gaussian_major(flatten_ids: Tensor, n_rows: int) -> GaussianMajor:
    """Orders intersections of which only the row is known; all of a row's make up one span."""
    rows, order = flatten_ids.sort(stable=True)
    places = torch.empty_like(rows)
    places[order] = torch.arange(order.numel(), dtype=torch.int32, device=order.device)
    starts = torch.arange(n_rows + 1, dtype=torch.int32, device=order.device)
    place_starts = torch.searchsorted(rows, starts, out_int32=True)
    return GaussianMajor(places, place_starts, starts, starts[:-1], starts[:-1])


def composite(
    splats: Splats,
    feature_ids: Tensor | None,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    n_images: int,
    bands: Iterable[Intersections],
    settings: CompositingSettings,
    rays: Rays | None = None,
) -> tuple[Tensor, Tensor]:
    """Composites projected Gaussians into images.

    Args:
        splats: ``means2d`` may have more leading dimensions, and is the tensor that gets ``.absgrad``. ``colors`` are
            features [G, D]: with ``feature_ids``, not yet gathered.
        feature_ids: [nnz] int64, index of each row's features; None for the identity.
        backgrounds: [I, D] or None; depth has background 0.
        masks: [I, tiles] bool or None; tiles that are false show the background.
        n_images: I.
        bands: The intersections. Iterated again in the backward pass if there are several bands.
        settings: See :class:`CompositingSettings`.
        rays: Of the pixels, if the footprint is evaluated along them. Differentiable.

    Returns:
        Colors [I, H, W, D], with depth as one more channel, and alphas [I, H, W].
    """
    means2d, *rest = splats
    conics, opacities, colors, depths = (None if t is None else t.contiguous() for t in rest)
    images: tuple[Tensor, Tensor] = _Composite.apply(  # type: ignore[no-untyped-call]
        means2d,
        conics,
        opacities,
        colors,
        None if feature_ids is None else feature_ids.contiguous(),
        depths,
        None if backgrounds is None else backgrounds.contiguous(),
        None if masks is None else masks.contiguous(),
        *(None, None) if rays is None else (rays.values.contiguous(), rays.origins),
        n_images,
        bands,
        settings,
    )
    return images


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
    image_width, image_height = check_size("image_width", image_width), check_size("image_height", image_height)
    tile_size = check_tile_size(tile_size)
    packed, absgrad = check_bool("packed", packed), check_bool("absgrad", absgrad)
    check_tensor("isect_offsets", isect_offsets, [..., None, None], "[..., tile_height, tile_width]", dtypes=INTEGERS)
    images = isect_offsets.shape[:-2]
    tiles = (math.ceil(image_height / tile_size), math.ceil(image_width / tile_size))
    if tuple(isect_offsets.shape[-2:]) != tiles:
        raise ShapeError(
            f"isect_offsets: expected [..., {tiles[0]}, {tiles[1]}] tiles of {tile_size} for an image of "
            f"{image_width}x{image_height}, found {list(isect_offsets.shape)}"
        )
    check_tensor(
        "means2d", means2d, [None, 2] if packed else [*images, None, 2], "[nnz, 2] if packed, else [..., N, 2]"
    )
    leading = means2d.shape[:-1]
    check_tensor("conics", conics, [*leading, 3], "[..., N, 3] as means2d")
    check_tensor("opacities", opacities, [*leading], "[..., N] as means2d")
    check_tensor("colors", colors, [*leading, None], "[..., N, D] as means2d")
    channels = colors.shape[-1]
    if channels == 0:
        raise ShapeError(f"colors: expected at least one channel, found {list(colors.shape)}")
    if backgrounds is not None:
        backgrounds = check_backgrounds(backgrounds, images, channels, "[..., D] as colors")
    if masks is not None:
        check_tensor("masks", masks, isect_offsets.shape, "tiles as isect_offsets", dtypes=BOOLS)
    check_tensor("flatten_ids", flatten_ids, [None], "[M]", dtypes=INTEGERS)
    given = dict(means2d=means2d, conics=conics, colors=colors, opacities=opacities, backgrounds=backgrounds)
    check_devices({**given, "masks": masks, "isect_offsets": isect_offsets, "flatten_ids": flatten_ids})
    if flatten_ids.numel() > INTERSECTIONS_MAX:
        raise ArgumentError(
            f"flatten_ids: {flatten_ids.numel():,} intersections are more than 32-bit indices hold; render fewer "
            "images at a time"
        )
    check_tile_lists("isect_offsets", isect_offsets, flatten_ids, math.prod(leading))
    dtype = compute_dtype(*given.values())
    check_images(means2d.device, math.prod(images), image_width, image_height, channels, dtype)
    n_intersections = torch.full((1,), flatten_ids.numel(), dtype=torch.int32, device=flatten_ids.device)
    offsets = torch.cat([isect_offsets.reshape(-1).to(torch.int32), n_intersections])
    splats = Splats(
        means2d.to(dtype),
        conics.to(dtype).reshape(-1, 3),
        opacities.to(dtype).reshape(-1),
        colors.reshape(-1, channels),
        None,
    )
    settings = CompositingSettings(
        camera=CameraSettings(image_width, image_height),
        tile_size=tile_size,
        channel_chunk=channels,
        absgrad=absgrad,
        numerics=check_numerics(numerics),
        backend=backend,
    )
    render_colors, render_alphas = composite(
        splats,
        None,
        None if backgrounds is None else backgrounds.to(dtype).reshape(-1, channels),
        None if masks is None else masks.reshape(-1, tiles[0] * tiles[1]),
        math.prod(images),
        [Intersections(0, offsets, flatten_ids.to(torch.int32).contiguous(), None)],
        settings,
    )
    size = (*images, image_height, image_width)
    return render_colors.view(*size, channels), render_alphas.view(*size, 1)
