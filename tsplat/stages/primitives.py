"""The primitives, 3D and 2D Gaussians: selects the shapes, features and maps of compositing.

A 3D Gaussian is composited as an ellipse on the image plane, or with ``with_eval3d`` evaluated along rays. A 2D
Gaussian (surfel) is a disc in the world with a normal, and renders further maps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import DEPTH_ALPHA_MIN
from ..data import Cameras, CompositingSettings, Features, Gaussians3D, ProjectedGaussians, Splats
from .call import Call
from .compositing import composite
from .eval3d import with_world_shapes
from .inputs import gather_features
from .intersection import BandedIntersections
from .lens_models import u_periods
from .surfel_pixels import composite_surfels, with_screen_gradient


def prepare_rows(
    call: Call, gaussians: Gaussians3D, cameras: Cameras, projected: ProjectedGaussians, features: Features
) -> tuple[ProjectedGaussians, Features, dict[str, Tensor]]:
    """Adds the shapes of the footprint to projected Gaussians, and the features of outputs to features.

    Returns both, and further values of ``meta``: for 2D Gaussians ``gradient_2dgs``, zeros whose gradient densification
    uses.
    """
    extra = {}
    if call.options.with_eval3d:
        projected = with_world_shapes(projected, gaussians, call.settings.compositing)
    elif call.options.surfels:
        densify = extra["gradient_2dgs"] = torch.zeros_like(projected.means2d, requires_grad=True)
        projected = projected._replace(shapes=with_screen_gradient(projected.shapes, densify.view(-1, 2)))
    elif (periods := u_periods(projected, cameras, call.options.camera_model)) is not None:
        projected = projected._replace(shapes=torch.cat([projected.shapes, periods[:, None]], -1))
    return projected, with_outputs(features, projected, call.settings.compositing), extra


def with_outputs(features: Features, projected: ProjectedGaussians, settings: CompositingSettings) -> Features:
    """Prepends the features of outputs to the features of each row."""
    front = [output.features(projected) for output in settings.outputs if output.features is not None]
    if not front:
        return features
    if features.values is None:
        return Features(front[0] if len(front) == 1 else torch.cat(front, -1), None)
    values = gather_features(features.values.to(front[0].dtype), features.ids, settings.backend)
    return Features(torch.cat([*front, values], -1), None)


def composite_maps(
    call: Call, splats: Splats, intersections: BandedIntersections, cameras: Cameras
) -> dict[str, Tensor]:
    """Composites the Gaussians of each tile, with ``with_eval3d`` along the rays of the cameras.

    Returns:
        Maps [..., C, H, W, channels] by name: ``colors``, then extra signals, then depth (always for surfels) in one
        map; ``alphas``; and the outputs of the call.
    """
    options, settings, leading = call.options, call.settings.compositing, call.image_shape[:-2]
    arguments = (splats, call.image_backgrounds(), None, call.grid.n_images, intersections, settings)
    maps = composite_surfels(*arguments) if options.surfels else composite(*arguments, call.find_rays(cameras))
    if call.lidar is not None:
        maps = {name: call.lidar.range_image(values) for name, values in maps.items()}
    if len(call.batch):
        maps = {name: values.reshape(*leading, *values.shape[1:]) for name, values in maps.items()}
    if options.expects_depth:
        colors, alphas = maps["colors"], maps["alphas"]
        maps["colors"] = torch.cat([colors[..., :-1], colors[..., -1:] / alphas.clamp_min(DEPTH_ALPHA_MIN)], -1)
    return maps
