"""2D Gaussians: the arguments and images of a call that renders them."""

from __future__ import annotations

from torch import Tensor

from ..arguments import check_bool, check_choice
from ..errors import ArgumentError
from ..formulas.depth_maps import normals_of, points_of
from ..precision import differentiable, inverse, product
from .meta import Rendering
from .request import Request
from .settings import Options


def check_modes(options: Options, distloss: bool, depth_mode: str) -> None:
    """Checks what only 2D Gaussians have, and that the backend renders them."""
    check_choice("depth_mode", depth_mode, ("expected", "median"))
    check_choice("backend", options.backend, ("auto", "triton", "torch"))
    if check_bool("distloss", distloss) and not options.renders_depth:
        raise ArgumentError(f"render_mode: expected one with depth, as distloss is True, found {options.render_mode!r}")


def arrange_images(
    request: Request, rendering: Rendering, *, median_depth: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    """The images as ``rasterization_2dgs`` returns them."""
    options, images, colors, leading = request.options, rendering.surfels, rendering.colors, request.image_shape[:-2]
    assert images is not None and rendering.cameras is not None
    cameras = request.own(rendering.cameras)
    to_world = differentiable(inverse, cameras.viewmats).view(*leading, 4, 4)
    normals = product(images.normals, to_world[..., None, :3, :3].transpose(-1, -2))
    surface = None
    if options.renders_depth and options.renders_color:
        depths = images.medians if median_depth else colors[..., -1:]
        surface = normals_of(points_of(depths, to_world, cameras.Ks.view(*leading, 3, 3))).squeeze(0)
    colors = (colors if options.renders_depth else colors[..., :-1]).contiguous()
    return colors, images.alphas, normals, surface, images.distortions, images.medians
