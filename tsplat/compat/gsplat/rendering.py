"""The names of ``gsplat.rendering``."""

from typing import Any

import torch
from torch import Tensor

from ... import ArgumentError, rasterization, rasterization_2dgs
from ...arguments import check_number
from ...config import (
    RasterizeMode,
    RendererConfig,
    RendererConfig_MixedBatch,
    RendererConfig_ParallelBatch,
    RenderMode,
)
from ...precision import differentiable, inverse
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


def rasterization_inria_wrapper(
    means: Tensor, quats: Tensor, scales: Tensor, opacities: Tensor, colors: Tensor,
    viewmats: Tensor, Ks: Tensor, width: int, height: int,
    near_plane: float = 0.01, far_plane: float = 100.0, eps2d: float = 0.3,
    sh_degree: int | None = None, backgrounds: Tensor | None = None, **kwargs: Any,
) -> tuple[Tensor, None, dict[str, Any]]:  # fmt: skip
    """Renders with the constants of Inria's rasterizer: :func:`tsplat.rasterization` with ``numerics="inria"``.

    Args:
        means, quats, scales, opacities, colors, viewmats, Ks, width, height, eps2d, sh_degree, backgrounds: As for
            :func:`tsplat.rasterization`.
        near_plane, far_plane: As for :func:`tsplat.rasterization`; nothing closer than 0.2 is rendered.
        kwargs: Must be empty.

    Returns:
        Colors [..., C, H, W, D], None, and an empty dictionary.

    Raises:
        ArgumentError: An argument is invalid, or `kwargs` is not empty.
    """
    if kwargs:
        raise ArgumentError(f"kwargs: expected none, found {sorted(kwargs)}; pass them to rasterization")
    render_colors, _, _ = rasterization(
        means, quats, scales, opacities, colors, viewmats, Ks, width, height, near_plane, far_plane, eps2d=eps2d,
        sh_degree=sh_degree, backgrounds=backgrounds, numerics="inria",
    )  # fmt: skip
    return render_colors, None, {}


RENDERED_2DGS: dict[str, tuple[object, ...]] = {
    "packed": (False,), "absgrad": (False,), "sparse_grad": (False,), "render_mode": ("RGB+D", "RGB+ED"),
    "distloss": (False, True),
}  # fmt: skip
"""Option of :func:`rasterization_2dgs` -> values that agree with what the wrapper renders."""


def rasterization_2dgs_inria_wrapper(
    means: Tensor, quats: Tensor, scales: Tensor, opacities: Tensor, colors: Tensor,
    viewmats: Tensor, Ks: Tensor, width: int, height: int,
    near_plane: float = 0.01, far_plane: float = 100.0, eps2d: float = 0.3,
    sh_degree: int | None = None, backgrounds: Tensor | None = None, depth_ratio: float = 0, **kwargs: Any,
) -> tuple[tuple[Tensor, Tensor], dict[str, Any]]:  # fmt: skip
    """Renders 2D Gaussians with the constants of Inria's rasterizer: ``rasterization_2dgs(numerics="inria")``.

    gsplat calls the package of the 2DGS authors instead, whose distortion uses squared differences of depths in [0, 1].

    Args:
        means, quats, scales, opacities, colors, viewmats, Ks, width, height, eps2d, sh_degree, backgrounds: As for
            :func:`tsplat.rasterization_2dgs`.
        near_plane, far_plane: As for :func:`tsplat.rasterization`; nothing closer than 0.2 is rendered.
        depth_ratio: Weight of the median in the depth, from 0 to 1; expected depth has the remaining weight.
        kwargs: Arguments that gsplat's trainer passes, with values that agree with the rendering: ``packed``,
            ``absgrad`` and ``sparse_grad`` False, ``render_mode`` ``"RGB+D"`` or ``"RGB+ED"``, and any ``distloss``.

    Returns:
        Colors with depth as the last channel, and alphas, as a tuple; and a dictionary of ``normals_rend``,
        ``normals_surf``, ``render_distloss``, ``means2d``, ``width``, ``height``, ``radii``, ``n_cameras``,
        ``gaussian_ids`` (None) and, for densification, ``gradient_2dgs``.

    Raises:
        ArgumentError: An argument is invalid, or `kwargs` contains others.
    """
    others = sorted(name for name, value in kwargs.items() if value not in RENDERED_2DGS.get(name, ()))
    if others:
        raise ArgumentError(f"kwargs: found {', '.join(others)}; pass them to rasterization_2dgs")
    check_number("depth_ratio", depth_ratio, 0.0, finite=True)
    images, alphas, normals, _, distortions, medians, meta = rasterization_2dgs(
        means, quats, scales, opacities, colors, viewmats, Ks, width, height, near_plane, far_plane, eps2d=eps2d,
        sh_degree=sh_degree, backgrounds=backgrounds, render_mode="RGB+ED", numerics="inria",
    )  # fmt: skip
    depths = (1 - depth_ratio) * images[..., -1:] + depth_ratio * medians
    surface = depth_to_normal(depths, differentiable(inverse, viewmats.to(depths.dtype)), Ks.to(depths.dtype))
    names = ("means2d", "width", "height", "radii", "n_cameras", "gradient_2dgs")
    info = {name: meta[name] for name in names} | {"gaussian_ids": None}
    maps = {"normals_rend": normals, "normals_surf": surface * alphas.detach(), "render_distloss": distortions}
    return (torch.cat([images[..., :-1], depths], -1), alphas), maps | info
