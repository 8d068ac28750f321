"""The rasterization pipeline: project, shade, (exchange between ranks,) intersect, composite."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..config import DEPTH_ALPHA_MIN
from ..data import Cameras, Features, Splats
from .backend import full_precision
from .capacity import note_need
from .compositing import composite
from .eval3d import with_world_shapes
from .exchange import exchange, gather_cameras
from .intersection import intersect
from .meta import describe_render
from .projection import project
from .request import Request
from .shading import concatenate, shade
from .surfel_pixels import SurfelImages, composite_surfels, with_normals, with_screen_gradient


class Rendering(NamedTuple):
    """What a call renders.

    Attributes:
        colors: [..., C, H, W, X], with extra signals behind colors, and depth as the last channel if it is rendered.
        alphas: [..., C, H, W, 1].
        meta: See :func:`tsplat.rasterization`.
        cameras: Those of all ranks, with invalid ones replaced.
        surfels: The images of 2D Gaussians, with depth as the last color; None for 3D Gaussians.
    """

    colors: Tensor
    alphas: Tensor
    meta: dict[str, Any]
    cameras: Cameras
    surfels: SurfelImages | None


def render(request: Request) -> Rendering:
    """Renders the Gaussians of a request by the stages, in their order."""
    options, settings = request.options, request.settings
    with full_precision(request.device):
        cameras = gather_cameras(request.ranks, request.cameras, request.device)
        gaussians, cameras, centers = request.prepare(cameras)
        projected = project(gaussians, cameras, settings.projection, request.batch)
        if request.sparse_gradients is not None:
            request.sparse_gradients.set_visible(projected)
        features = Features(None, None)
        if options.renders_color:
            features = shade(gaussians.means, request.colors, centers, projected, options.sh_degree, options.backend)
        if request.extra_signals is not None:
            degree = options.extra_signals_sh_degree
            extra = shade(
                gaussians.means, request.extra_signals, centers, projected, degree, options.backend, clamp=False
            )
            features = concatenate(features, extra)
        shaped, densify = projected, None
        if options.with_eval3d:
            shaped = with_world_shapes(projected, gaussians)
        elif options.surfels:
            densify = torch.zeros_like(projected.means2d, requires_grad=True)
            shaped = projected._replace(conics=with_screen_gradient(projected.conics, densify.view(-1, 2)))
            features = with_normals(features, projected)
        received, features = exchange(request.ranks, shaped, features, absgrad=options.absgrad)
        splats = Splats.of(received, features, with_depths=options.renders_depth or options.surfels)
        budget = request.memory_budget(splats.n_features)
        intersections = intersect(received, request.grid, settings.intersection, budget, request.explain_memory)
        surfels = None
        rest = (request.backgrounds, None, request.grid.n_images, intersections, settings.compositing)
        if options.surfels:
            surfels = composite_surfels(splats, *rest).view(request.image_shape)
            colors, alphas = surfels.colors, surfels.alphas
        else:
            colors, alphas, _ = composite(splats, *rest, request.find_rays(cameras))
            colors, alphas = colors.view(*request.image_shape, splats.n_features), alphas.view(*request.image_shape, 1)
        note_need(intersections.whole, options.capacity, request.grid)
        if options.expects_depth:
            expected_depth = colors[..., -1:] / alphas.clamp_min(DEPTH_ALPHA_MIN)
            colors = torch.cat([colors[..., :-1], expected_depth], -1)
        meta = describe_render(request, gaussians.valid, projected, received, intersections)
        if surfels is not None:
            meta["gradient_2dgs"], meta["render_distort"] = densify, surfels.distortions
    return Rendering(colors, alphas, meta, cameras, surfels)
