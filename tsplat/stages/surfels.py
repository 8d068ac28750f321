"""The results of ``rasterization_2dgs``."""

from __future__ import annotations

from torch import Tensor

from ..formulas.depth_maps import depth_normals
from ..precision import differentiable, inverse, product
from .call import Call
from .meta import Rendering


def arrange_images(call: Call, rendering: Rendering) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    """Makes the images that ``rasterization_2dgs`` returns from the maps of a rendering."""
    options, maps, leading = call.options, rendering.maps, call.image_shape[:-2]
    colors = maps["colors"]
    assert rendering.cameras is not None
    cameras = call.select_local(rendering.cameras)
    to_world = differentiable(inverse, cameras.viewmats).view(*leading, 4, 4)
    normals = product(maps["normals"], to_world[..., None, :3, :3].transpose(-1, -2))
    surface = None
    if options.renders_depth and options.renders_color:
        depths = maps["medians"] if "median" in options.depth_mode else colors[..., -1:]
        # Recomputed in the backward pass, to save the memory of a dozen images.
        Ks = cameras.Ks.view(*leading, 3, 3)
        surface = differentiable(depth_normals, depths.contiguous(), to_world, Ks).squeeze(0)
    colors = (colors if options.renders_depth else colors[..., :-1]).contiguous()
    return colors, maps["alphas"], normals, surface, maps["distortions"], maps["medians"]
