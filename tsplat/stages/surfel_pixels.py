"""Compositing of 2D Gaussians: colors, normals, distortion and median."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..data import CompositingSettings, Features, Intersections, ProjectedGaussians, Splats
from ..errors import UnsupportedError
from ..runtime.autograd import take_rows, zeros_for
from .compositing import WALKED_MAX, composite


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
