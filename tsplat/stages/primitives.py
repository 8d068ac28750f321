"""What a primitive adds to the pipeline: the shapes that compositing evaluates, and the images that it makes of them.

A 3D Gaussian is an ellipse on the image plane, as projection returns it, or with ``with_eval3d`` what a ray crosses in
the world. A 2D Gaussian (surfel) is a disc in the world, with a normal, and has images of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..config import DEPTH_ALPHA_MIN
from ..data import Cameras, Features, Gaussians3D, ProjectedGaussians, Splats
from .call import Call
from .compositing import composite
from .eval3d import composite_along_rays, with_world_shapes
from .intersection import BandedIntersections
from .surfel_pixels import SurfelImages, composite_surfels, with_normals, with_screen_gradient


class Images(NamedTuple):
    """What compositing makes.

    Attributes:
        colors: [..., C, H, W, X], with extra signals behind colors, and depth as the last channel if it is rendered.
        alphas: [..., C, H, W, 1].
        extra: What ``meta`` has of this primitive only.
        surfels: All images of 2D Gaussians, with depth as the last color; None for 3D Gaussians.
    """

    colors: Tensor
    alphas: Tensor
    extra: dict[str, Tensor]
    surfels: SurfelImages | None


def with_shapes(
    call: Call, gaussians: Gaussians3D, projected: ProjectedGaussians, features: Features
) -> tuple[ProjectedGaussians, Features, dict[str, Tensor]]:
    """Returns projected Gaussians with the shapes of their footprint, and normals in front of features if rendered.

    The third is what ``meta`` has of these: of 2D Gaussians zeros ``gradient_2dgs``, for densification.
    """
    extra = {}
    if call.options.with_eval3d:
        projected = with_world_shapes(projected, gaussians, call.settings.compositing)
    elif call.options.surfels:
        densify = extra["gradient_2dgs"] = torch.zeros_like(projected.means2d, requires_grad=True)
        projected = projected._replace(conics=with_screen_gradient(projected.conics, densify.view(-1, 2)))
    if projected.normals is not None:
        features = with_normals(features, projected)
    return projected, features, extra


def composite_images(call: Call, splats: Splats, intersections: BandedIntersections, cameras: Cameras) -> Images:
    """Composites the Gaussians of each tile to images, along the rays of these cameras with ``with_eval3d``."""
    options, settings, size = call.options, call.settings.compositing, call.image_shape
    rest = (call.image_backgrounds(), None, call.grid.n_images, intersections, settings)
    extra, surfels = {}, None
    if options.surfels:
        surfels = composite_surfels(splats, *rest).view(size)
        colors, alphas, extra["render_distort"] = surfels.colors, surfels.alphas, surfels.distortions
    else:
        rays = call.find_rays(cameras)
        if rays is None:
            colors, alphas, _ = composite(splats, *rest)
        else:
            colors, alphas, normals = composite_along_rays(splats, *rest, rays)
            if normals is not None:
                extra["normals"] = normals.reshape(*size, 3)
        if len(call.batch):
            colors, alphas = (image.reshape(*size, image.shape[-1]) for image in (colors, alphas))
    if options.expects_depth:
        depth = colors[..., -1:] / alphas.clamp_min(DEPTH_ALPHA_MIN)
        colors = torch.cat([colors[..., :-1], depth], -1)
    return Images(colors, alphas, extra, surfels)
