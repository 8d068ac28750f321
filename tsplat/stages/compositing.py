"""Stage: front-to-back compositing of the Gaussians of each tile."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arguments import set_absgrad
from ..config import FEATURES_MIN
from ..data import (
    CompositingSettings,
    GaussianMajor,
    Images,
    Intersections,
    PartLists,
    Rays,
    SavedImages,
    SplatGradients,
    Splats,
)
from ..output_maps import leading_channels, split_channels
from ..precision import full_precision
from ..runtime.autograd import apply, once_differentiable
from ..runtime.backend import launchers
from ..runtime.bundles import flatten, restore, split, structure
from .inputs import contiguous

WALKED_MAX = FEATURES_MIN - 1
"""Maximum number of features that are composited by walks, which distortion, normals and hits require. More features
are composited by matrix products."""


class _Inputs(NamedTuple):
    """Tensor arguments of :func:`composite`."""

    splats: Splats
    backgrounds: Tensor | None
    masks: Tensor | None
    rays: Rays | None

    def flat_splats(self) -> Splats:
        """Flattens means2d to [nnz, 2]."""
        means2d = self.splats.means2d
        if means2d.dim() == 2 and means2d.is_contiguous():
            return self.splats
        return self.splats._replace(means2d=means2d.reshape(-1, 2).contiguous())


N_ARGUMENTS = 4
"""Number of arguments of ``_Composite`` before the tensors."""


class _Composite(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs_structure: _Inputs,
        n_images: int,
        bands: Iterable[Intersections],
        settings: CompositingSettings,
        *input_tensors: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        inputs: _Inputs = restore(inputs_structure, input_tensors)
        splats, means2d = inputs.flat_splats(), inputs.splats.means2d
        size = (n_images, settings.camera.height, settings.camera.width)
        integers = functools.partial(torch.empty, dtype=torch.int32, device=means2d.device)
        images = Images(
            colors=means2d.new_empty(*size, splats.n_features + settings.distortion),
            transmittances=means2d.new_empty(size),
            pixel_ends=integers(size) if any(ctx.needs_input_grad) else None,
            median_rows=integers(size) if settings.distortion else None,
            alphas=means2d.new_empty(*size, 1),
        )
        n_bands = 0
        whole: Intersections | None = None
        lists: PartLists | None = None
        with full_precision():
            kernels = launchers(means2d.device, settings.backend)
            for intersections in bands:
                lists = kernels.composite_fwd(
                    splats, inputs.backgrounds, inputs.masks, intersections, images, settings, inputs.rays
                )
                n_bands += 1
                whole = intersections if n_bands == 1 else None
                del intersections  # frees memory before the next band is listed
        pixel_ends: Any = images.pixel_ends  # None without gradients
        # A copy, as the caller may modify the image in place.
        depth_sums = images.colors[..., -2].clone() if settings.distortion else None
        saved_images = SavedImages(images.transmittances, pixel_ends, depth_sums)
        if whole is None:
            lists = None
        elif lists is None:
            whole = whole._replace(keys=None)  # only lists of parts need keys
        ctx.saved, tensors = split((inputs, saved_images, whole, lists))
        ctx.save_for_backward(*tensors)
        ctx.settings, ctx.kernels = settings, kernels
        # Several bands do not fit into memory together, so the backward pass lists them again.
        ctx.bands = bands if whole is None else None
        # `.absgrad` is set on the tensor that the caller holds.
        ctx.absgrad_target = means2d if settings.absgrad else None
        ctx.set_materialize_grads(False)
        if images.median_rows is not None:
            ctx.mark_non_differentiable(images.median_rows)
        assert images.alphas is not None
        return images.colors, images.alphas, images.median_rows

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        saved: tuple[Any, ...],
        v_render_colors: Tensor | None,
        v_render_alphas: Tensor | None,
        _v_median_rows: None,
    ) -> tuple[Tensor | None, ...]:
        inputs: _Inputs
        images: SavedImages
        inputs, images, whole, lists = restore(ctx.saved, saved)
        needs: _Inputs = restore(structure(inputs), ctx.needs_input_grad[N_ARGUMENTS:])  # booleans
        splats, backgrounds, rays = inputs.flat_splats(), inputs.backgrounds, inputs.rays
        means2d = inputs.splats.means2d
        settings: CompositingSettings = ctx.settings
        v_render_colors = _spaced_gradients(v_render_colors, images, splats.n_features + settings.distortion)
        v_render_alphas = None if v_render_alphas is None else v_render_alphas.contiguous()
        bands: Iterable[Intersections] = ctx.bands or [whole]
        if rays is not None and any(needs.rays or ()):
            n_images, _, height, width = rays.per_pixel.shape
            rays = rays._replace(v_per_pixel=rays.per_pixel.new_zeros(n_images, 6, height, width))
        kernels = ctx.kernels  # the backend of the forward pass: pixel_ends refer to its lists
        v_splats: SplatGradients | None = None
        for intersections in bands:
            if intersections.gaussian_major is None:
                gaussian_major = _gaussian_major(intersections.flatten_ids, splats.opacities.numel())
                intersections = intersections._replace(gaussian_major=gaussian_major)
            v_splats = kernels.composite_bwd(
                splats,
                backgrounds,
                intersections,
                images,
                v_render_colors,
                v_render_alphas,
                v_splats,
                settings,
                lists,
                rays,
            )
            del intersections
        assert v_splats is not None
        v_colors, v_depths = _feature_gradients(v_splats.v_features, splats, kernels)
        v_backgrounds = None
        if backgrounds is not None and needs.backgrounds:
            v_backgrounds = _background_gradients(images.transmittances, v_render_colors[..., : splats.n_colors])
        if ctx.absgrad_target is not None:
            assert v_splats.absgrad is not None
            set_absgrad(ctx.absgrad_target, v_splats.absgrad.view(means2d.shape))
        v_means2d = v_splats.v_means2d if means2d.dim() == 2 else v_splats.v_means2d.view(means2d.shape)
        v_ids = None if splats.color_ids is None else structure(splats.color_ids)
        v_inputs = _Inputs(
            Splats(v_means2d, v_splats.v_shapes, v_splats.v_opacities, v_colors, v_depths, v_ids),
            backgrounds=v_backgrounds,
            masks=None,
            rays=None if rays is None else _ray_gradients(rays),
        )
        return *(None,) * N_ARGUMENTS, *flatten(v_inputs)


def _spaced_gradients(v_channels: Tensor | None, images: SavedImages, n_channels: int) -> Tensor:
    """Returns the gradient [I, H, W, channels] of channels with evenly spaced pixels, which kernels require."""
    if v_channels is None:
        return images.transmittances.new_zeros(*images.transmittances.shape, n_channels)
    is_spaced = v_channels.stride(1) == v_channels.shape[2] * v_channels.stride(2)
    return v_channels if is_spaced else v_channels.contiguous()


def _feature_gradients(v_features: Tensor, splats: Splats, kernels: Any) -> tuple[Tensor | None, Tensor | None]:
    """Splits the gradient of features into those of colors, in their dtype and summed by color id, and of depths."""
    colors, depths = splats.colors, splats.depths
    v_colors = None
    if colors is not None:
        v_colors = v_features if depths is None else v_features[:, :-1]
        if splats.color_ids is not None:
            v_colors = kernels.sum_feature_gradients(v_colors, splats.color_ids, colors.shape[0])
        if v_colors.dtype != colors.dtype:
            v_colors = v_colors.to(colors.dtype)
    return v_colors, None if depths is None else v_features[:, -1]


def _background_gradients(transmittances: Tensor, v_colors: Tensor) -> Tensor:
    """Sums T v over the pixels of each image. Returns [I, D]."""
    # Contiguous and image by image, as the order of PyTorch's sums depends on strides and, on a GPU, on the number of
    # sums.
    weighted = (transmittances[..., None] * v_colors).contiguous()
    sums = [of_image.sum((0, 1)) for of_image in weighted]
    return torch.stack(sums) if sums else weighted.new_zeros(0, v_colors.shape[-1])


def _ray_gradients(rays: Rays) -> Rays:
    """Splits the gradients [I, 6, H, W] of origins and directions; sums the gradients of a common origin."""
    v: Any = rays.v_per_pixel  # None if not needed
    return Rays(v, None) if v is None or rays.origins is None else Rays(v[:, 3:], v[:, :3].sum((2, 3)))


def _gaussian_major(flatten_ids: Tensor, n_rows: int) -> GaussianMajor:
    """Orders intersections by row, given their rows only. The intersections of a row count as one span."""
    rows, order = flatten_ids.sort(stable=True)
    indices = torch.empty_like(rows)
    indices[order] = torch.arange(order.numel(), dtype=torch.int32, device=order.device)
    span_starts = torch.arange(n_rows + 1, dtype=torch.int32, device=order.device)
    isect_starts = torch.searchsorted(rows, span_starts, out_int32=True)
    return GaussianMajor(
        indices=indices,
        isect_starts=isect_starts,
        span_starts=span_starts,
        rows=span_starts[:-1],
        positions=span_starts[:-1],
    )


def composite_once(
    splats: Splats,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    n_images: int,
    bands: Iterable[Intersections],
    settings: CompositingSettings,
    rays: Rays | None = None,
) -> dict[str, Tensor]:
    """Composites projected Gaussians into maps, all channels together.

    Args:
        splats: ``means2d`` may have more leading dimensions; ``.absgrad`` is set on it. ``colors`` starts with the
            features of ``settings.outputs``.
        backgrounds: [I, D] or None; depth has background 0.
        masks: [I, tiles] bool or None; false tiles show the background.
        n_images: I.
        bands: The intersections. Iterated again in the backward pass if there are several bands.
        settings: See :class:`CompositingSettings`.
        rays: The rays of pixels, if the footprint is evaluated along rays. Differentiable.

    Returns:
        Maps [I, H, W, channels] by name: ``alphas``, and the maps of :func:`split_channels`, with ``colors`` ending in
        depth if rendered. With distortion also ``median_rows`` [I, H, W] int32, see :class:`Images`.
    """
    dense = contiguous(splats)
    inputs = _Inputs(
        dense if dense.means2d is splats.means2d else dense._replace(means2d=splats.means2d),
        None if backgrounds is None else backgrounds.contiguous(),
        None if masks is None else masks.contiguous(),
        None if rays is None else rays._replace(per_pixel=rays.per_pixel.contiguous()),
    )
    inputs_structure, tensors = split(inputs)
    channels, alphas, rows = apply(_Composite, inputs_structure, n_images, bands, settings, *tensors)
    maps = split_channels(channels, settings.outputs) | {"alphas": alphas}
    return maps if rows is None else maps | {"median_rows": rows}


def composite(
    splats: Splats,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    n_images: int,
    bands: Iterable[Intersections],
    settings: CompositingSettings,
    rays: Rays | None = None,
) -> dict[str, Tensor]:
    """Composites projected Gaussians into maps, with any number of channels and any outputs.

    Same as :func:`composite_once`, unless there are too many channels for a walk. Then the outputs that require a walk
    are composited separately.

    Args:
        backgrounds: [I, D] backgrounds of the colors without outputs, or None. D may be 0.
    """
    n_leading, rest = leading_channels(settings.outputs), (masks, n_images, bands)
    if settings.hits and not settings.planes:
        assert splats.depths is not None
        splats = splats._replace(depths=splats.depths.detach())  # replaced by distances along rays
    is_walked = settings.normals or settings.hits or settings.distortion
    if splats.n_features <= WALKED_MAX or not is_walked:
        if backgrounds is not None and n_leading:
            backgrounds = torch.nn.functional.pad(backgrounds, (n_leading, 0))
        if backgrounds is not None and not backgrounds.shape[-1]:
            backgrounds = None
        return composite_once(splats, backgrounds, *rest, settings, rays)
    # With a view, autograd adds the gradients of both compositions first, in the order of passes. Not for means2d with
    # absgrad: the view would get `.absgrad`.
    means2d = splats.means2d if settings.absgrad else splats.means2d.view_as(splats.means2d)
    shapes, opacities = splats.shapes.view_as(splats.shapes), splats.opacities.view_as(splats.opacities)
    splats = splats._replace(means2d=means2d, shapes=shapes, opacities=opacities)
    assert splats.colors is not None
    walked = splats._replace(colors=splats.colors[:, :n_leading] if n_leading else None)
    others = splats._replace(colors=splats.colors[:, n_leading:])
    if settings.hits:
        others = others._replace(depths=None)
    elif not settings.distortion:
        walked = walked._replace(depths=None)
    assert walked.n_features <= WALKED_MAX
    footprint = "surfel" if settings.planes else settings.footprint
    plain = dataclasses.replace(settings, outputs=(), footprint=footprint)
    maps = composite_once(walked, None, *rest, settings, rays)
    of_others = composite_once(others, backgrounds, *rest, plain, rays)
    colors = torch.cat([of_others["colors"], maps["colors"]], -1) if settings.hits else of_others["colors"]
    # The gradient of distortion depends on the alphas of its walk.
    alphas = (maps if settings.distortion else of_others)["alphas"]
    return maps | {"colors": colors, "alphas": alphas}
