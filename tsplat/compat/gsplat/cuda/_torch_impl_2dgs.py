"""The names of ``gsplat.cuda._torch_impl_2dgs``: 2D Gaussians in plain PyTorch, which are not implemented."""

from __future__ import annotations

from .._unsupported import unsupported

__all__ = ["accumulate_2dgs"]

accumulate_2dgs = unsupported(
    "accumulate_2dgs",
    "means2d ray_transforms opacities colors normals gaussian_ids pixel_ids image_ids image_width image_height",
    instead="2D Gaussians cannot be rendered; use 3D Gaussians, with accumulate",
)
_fully_fused_projection_2dgs = unsupported(
    "_fully_fused_projection_2dgs",
    "means quats scales viewmats Ks width height",
    dict(near_plane=0.01, far_plane=1e10, eps=0),
    instead="2D Gaussians cannot be rendered; use 3D Gaussians, with fully_fused_projection",
)
