"""The names of ``gsplat.rendering``."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from ... import ArgumentError, rasterization
from ...config import RasterizeMode
from ._unsupported import unsupported, unsupported_class
from .cuda._wrapper import (
    FThetaCameraDistortionParameters,
    FThetaPolynomialType,
    RollingShutterType,
    fully_fused_projection,
    fully_fused_projection_2dgs,
    fully_fused_projection_with_ut,
    isect_offset_encode,
    isect_tiles,
    rasterize_to_pixels,
    rasterize_to_pixels_2dgs,
    rasterize_to_pixels_eval3d,
    spherical_harmonics,
)
from .utils import depth_to_normal, get_projection_matrix

__all__ = [
    "FThetaCameraDistortionParameters",
    "FThetaPolynomialType",
    "RasterizeMode",
    "RenderMode",
    "RendererConfig",
    "RendererConfig_MixedBatch",
    "RendererConfig_ParallelBatch",
    "RollingShutterType",
    "depth_to_normal",
    "fully_fused_projection",
    "fully_fused_projection_2dgs",
    "fully_fused_projection_with_ut",
    "get_projection_matrix",
    "isect_offset_encode",
    "isect_tiles",
    "rasterization",
    "rasterization_2dgs",
    "rasterization_2dgs_inria_wrapper",
    "rasterization_inria_wrapper",
    "rasterize_to_pixels",
    "rasterize_to_pixels_2dgs",
    "rasterize_to_pixels_eval3d",
    "spherical_harmonics",
]

RenderMode = Literal["RGB", "d", "Ed", "D", "ED", "RGB-d", "RGB-Ed", "RGB+D", "RGB+ED"]

RendererConfig = unsupported_class("RendererConfig", "", instead="use the argument backend of rasterization")
RendererConfig_MixedBatch, RendererConfig_ParallelBatch = (
    unsupported_class(name, "", instead="use the argument backend of rasterization", base=RendererConfig)
    for name in ("RendererConfig_MixedBatch", "RendererConfig_ParallelBatch")
)

_SCENE = "means quats scales opacities colors viewmats Ks width height"

rasterization_2dgs = unsupported(
    "rasterization_2dgs",
    _SCENE,
    dict(
        near_plane=0.01, far_plane=1e10, radius_clip=0.0, eps2d=0.3, sh_degree=None, packed=False, tile_size=16,
        backgrounds=None, render_mode="RGB", sparse_grad=False, absgrad=False, distloss=False, depth_mode="expected",
    ),
    instead="2D Gaussians cannot be rendered; use 3D Gaussians, with rasterization",
)  # fmt: skip
rasterization_2dgs_inria_wrapper = unsupported(
    "rasterization_2dgs_inria_wrapper",
    _SCENE,
    {
        "near_plane": 0.01, "far_plane": 100.0, "eps2d": 0.3, "sh_degree": None, "backgrounds": None, "depth_ratio": 0,
        "**kwargs": None,
    },
    instead="2D Gaussians cannot be rendered; use 3D Gaussians, with rasterization",
)  # fmt: skip


def rasterization_inria_wrapper(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    colors: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    near_plane: float = 0.01,
    far_plane: float = 100.0,
    eps2d: float = 0.3,
    sh_degree: int | None = None,
    backgrounds: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None, dict[str, Any]]:
    """Renders with the constants of Inria's rasterizer: :func:`tsplat.rasterization` with ``numerics="inria"``.

    Args:
        means, quats, scales, opacities, colors, viewmats, Ks, width, height, eps2d, sh_degree, backgrounds: As for
            :func:`tsplat.rasterization`.
        near_plane, far_plane: As for :func:`tsplat.rasterization`; nothing closer than 0.2 is rendered.
        kwargs: None is implemented.

    Returns:
        Colors [..., C, H, W, D], None, and an empty dictionary.

    Raises:
        ArgumentError: An argument is invalid, or there are others.
    """
    if kwargs:
        raise ArgumentError(f"kwargs: expected none, found {sorted(kwargs)}; pass them to rasterization")
    render_colors, _, _ = rasterization(
        means, quats, scales, opacities, colors, viewmats, Ks, width, height, near_plane, far_plane, eps2d=eps2d,
        sh_degree=sh_degree, backgrounds=backgrounds, numerics="inria",
    )  # fmt: skip
    return render_colors, None, {}
