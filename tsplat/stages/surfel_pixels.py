"""Compositing of 2D Gaussians: colors, normals, distortion and median."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..arguments import check_bool, check_numerics, check_tensor, compute_dtype, standing_for
from ..config import Backend, NumericsName
from ..data import CompositingSettings, Features, Intersections, ProjectedGaussians, Splats
from ..errors import UnsupportedError
from .autograd import take_rows, zeros_for
from .compilation import eager, with_plain_tensors
from .compositing import WALKED_MAX, composite
from .pixels import TileLists


class SurfelImages(NamedTuple):
    """Images [I, H, W, D], [I, H, W, 1], [I, H, W, 3], [I, H, W, 1] and [I, H, W, 1]."""

    colors: Tensor
    alphas: Tensor
    normals: Tensor
    distortions: Tensor
    medians: Tensor

    def view(self, shape: Sequence[int]) -> SurfelImages:
        """The images with other dimensions in place of I, H, W."""
        return SurfelImages(*(image.reshape(*shape, image.shape[-1]) for image in self))


def with_normals(features: Features, projected: ProjectedGaussians) -> Features:
    """Puts the normals of Gaussians in front of the features of each row."""
    normals = projected.normals
    assert normals is not None
    if features.values is None:
        return Features(normals, None)
    values = features.values.to(normals.dtype)
    if features.ids is not None:
        values = take_rows(values, features.ids, unique=projected.n_cameras == 1)
    return Features(torch.cat([normals, values], -1), None)


def composite_surfels(
    splats: Splats,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    n_images: int,
    bands: Iterable[Intersections],
    settings: CompositingSettings,
) -> SurfelImages:
    """Composites projected surfels, and the distortion and the median of their depths.

    Args:
        splats: With ray transforms as ``conics``, normals in front of the colors of each row, and depths.
        backgrounds: Of the colors, [I, D], or also of the depths, [I, D + 1]; or None.
        masks, n_images, bands: As for ``composite``.
        settings: With distortion, and the footprint of surfels.
    """
    features, depths = splats.colors, splats.depths
    assert features is not None and depths is not None
    depths = depths.view_as(depths)  # sums what images give to it before callers add to that
    splats = splats._replace(depths=depths)
    together = splats.n_features <= WALKED_MAX
    if settings.absgrad and not together:
        raise UnsupportedError(  # absolute values of two sums over features do not add up to those of their sum
            f"absgrad: not implemented for 2D Gaussians with more than {WALKED_MAX - 3} channels of colors and depth, "
            f"found {splats.n_features - 3}; render further channels by another call"
        )
    rest = (masks, n_images, bands)
    own = splats if together else splats._replace(colors=features[:, :3])
    images, alphas, rows = composite(own, None, *rest, settings)
    assert rows is not None
    if together:
        render_colors = images[..., 3:-1]
    else:
        plain = dataclasses.replace(settings, distortion=False)
        render_colors, _, _ = composite(splats._replace(colors=features[:, 3:]), None, *rest, plain)
    if backgrounds is not None:
        backgrounds = torch.nn.functional.pad(backgrounds, (0, render_colors.shape[-1] - backgrounds.shape[-1]))
        render_colors = render_colors + (1 - alphas) * backgrounds[:, None, None]
    # The row behind the last has z = 0.
    z = torch.nn.functional.pad(depths, (0, 1))
    medians = take_rows(z, torch.where(rows >= 0, rows, len(depths)).flatten().to(torch.int64), unique=False)
    # In memory of its own, so that programs can change it in place.
    distortions = images[..., -1:].contiguous()
    return SurfelImages(render_colors, alphas, images[..., :3], distortions, medians.view(alphas.shape))


def with_screen_gradient(transforms: Tensor, densify: Tensor) -> Tensor:
    """Returns ray transforms [nnz, 9], so that densify [nnz, 2] gets z times the gradients of their M_02 and M_12.

    These are the gradients of the projected centers, in pixels, that densification takes.
    """
    shift = zeros_for(densify) * transforms.detach()[:, 8:]
    zero = torch.zeros_like(shift)
    return transforms + torch.cat([zero, shift[:, :1], zero, shift[:, 1:], zero, zero[:, :1]], -1)


@eager
@with_plain_tensors
def rasterize_to_pixels_2dgs(
    means2d: Tensor,
    ray_transforms: Tensor,
    colors: Tensor,
    opacities: Tensor,
    normals: Tensor,
    densify: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    backgrounds: Tensor | None = None,
    masks: Tensor | None = None,
    packed: bool = False,
    absgrad: bool = False,
    distloss: bool = False,
    *,
    backend: Backend = "auto",
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, ...]:
    """Composites projected 2D Gaussians (Huang et al., arXiv 2403.17888). Same as gsplat 1.5.3, for any channels.

    Args:
        means2d: [..., N, 2] pixels, or [nnz, 2] if packed, centers of bounding boxes, around which the low-pass filter
            is.
        ray_transforms: [..., N, 3, 3], or [nnz, 3, 3], from :func:`fully_fused_projection_2dgs`. Those that are not
            finite, or whose last entry is zero, are not rendered.
        colors: [..., N, D], or [nnz, D]. Distortion and median are those of the last channel: append depths.
        opacities: [..., N] after sigmoid, or [nnz].
        normals: [..., N, 3], or [nnz, 3].
        densify: Zeros [..., N, 2], or [nnz, 2]. Its gradient is that of the projected centers, in pixels, for
            densification. Values are not read.
        image_width, image_height, tile_size: As :func:`rasterize_to_pixels`.
        isect_offsets, flatten_ids, backgrounds, masks, packed: As :func:`rasterize_to_pixels`.
        absgrad: Whether the backward pass sets ``means2d.absgrad``, the sum over pixels of absolute gradients, where
            the low-pass filter applies. Of up to 12 channels.
        distloss: Must be True or False. As in gsplat, distortion is rendered in any case.
        backend, numerics: As in :func:`tsplat.rasterization`.

    Returns:
        ``render_colors`` [..., H, W, D]; ``render_alphas`` [..., H, W, 1]; ``render_normals`` [..., H, W, 3], sums
        weighted like colors, without a background; ``render_distort`` [..., H, W, 1], the sum of w_i w_j abs(z_i - z_j)
        over all i and j, for z that ascend; ``render_median`` [..., H, W, 1], z of the last Gaussian in front of
        which more than half of the light is left, or 0. Differentiable with respect to means2d, ray_transforms, colors,
        opacities, normals and backgrounds; the median with respect to colors only.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: A tile size that is not implemented, or ``absgrad`` with more channels.

    Example::

        import torch
        from tsplat import fully_fused_projection_2dgs, isect_offset_encode, isect_tiles, rasterize_to_pixels_2dgs

        n, width, height = 100, 80, 48
        means = torch.randn(n, 3) + torch.tensor([0, 0, 5.0])
        camera = torch.eye(4)[None], torch.tensor([[[100.0, 0, 40], [0, 100, 24], [0, 0, 1]]])
        radii, means2d, depths, transforms, normals = fully_fused_projection_2dgs(
            means, torch.randn(n, 4), torch.full((n, 3), 0.1), *camera, width, height
        )
        _, isect_ids, flatten_ids = isect_tiles(means2d, radii, depths, 16, 5, 3)
        colors = torch.cat([torch.rand(1, n, 3), depths[..., None]], -1)
        images = rasterize_to_pixels_2dgs(
            means2d, transforms, colors, torch.full((1, n), 0.8), normals, torch.zeros_like(means2d), width, height, 16,
            isect_offset_encode(isect_ids, 1, 5, 3), flatten_ids,
        )
        assert [image.shape[-1] for image in images] == [4, 1, 3, 1, 1]
    """
    lists = TileLists.check(image_width, image_height, tile_size, isect_offsets, flatten_ids, masks)
    packed, absgrad = check_bool("packed", packed), check_bool("absgrad", absgrad)
    check_bool("distloss", distloss)
    meaning = "[nnz, 2] if packed, else [..., N, 2]"
    check_tensor("means2d", means2d, [None, 2] if packed else [*lists.images, None, 2], meaning)
    leading = means2d.shape[:-1]
    check_tensor("ray_transforms", ray_transforms, [*leading, 3, 3], "[..., N, 3, 3] as means2d")
    check_tensor("normals", normals, [*leading, 3], "[..., N, 3] as means2d")
    check_tensor("densify", densify, [*leading, 2], "[..., N, 2] as means2d")
    backgrounds = lists.check_rows(leading, colors, opacities, backgrounds)
    dtype = compute_dtype(means2d, ray_transforms, colors, opacities, normals, backgrounds)
    n_colors = colors.shape[-1]
    given = dict(
        means2d=means2d.to(dtype), ray_transforms=ray_transforms, colors=colors, opacities=opacities, normals=normals,
        densify=densify, backgrounds=backgrounds,
    )  # fmt: skip
    arranged = lists.arrange(given, n_colors + 5)
    transforms = with_screen_gradient(ray_transforms.to(dtype).reshape(-1, 9), densify.to(dtype).reshape(-1, 2))
    preset = check_numerics(numerics)
    settings = lists.settings(preset, backend, absgrad=absgrad, footprint="surfel", distortion=True)
    features = torch.cat([normals.to(dtype), colors.to(dtype)], -1).reshape(-1, n_colors + 3)
    centers = standing_for(means2d.to(dtype), means2d)
    flat = Splats(centers, transforms, opacities.to(dtype).reshape(-1), features[:, :-1], features[:, -1])
    backgrounds = None if backgrounds is None else backgrounds.to(dtype).reshape(-1, n_colors)
    images = composite_surfels(flat, backgrounds, *arranged, settings)
    return tuple(image.contiguous() for image in images.view((*lists.images, lists.height, lists.width)))
