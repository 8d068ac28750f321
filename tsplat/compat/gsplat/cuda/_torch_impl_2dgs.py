"""The names of ``gsplat.cuda._torch_impl_2dgs``: 2D Gaussians in plain PyTorch."""

from torch import Tensor

from .... import fully_fused_projection_2dgs
from ._contributions import accumulate_2dgs

__all__ = ["accumulate_2dgs"]


def _fully_fused_projection_2dgs(
    means: Tensor, quats: Tensor, scales: Tensor, viewmats: Tensor, Ks: Tensor, width: int, height: int,
    near_plane: float = 0.01, far_plane: float = 1e10, eps: float = 0,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Projects 2D Gaussians; see :func:`tsplat.fully_fused_projection_2dgs`. ``eps`` is its ``eps2d``."""
    return fully_fused_projection_2dgs(
        means, quats, scales, viewmats, Ks, width, height, eps, near_plane=near_plane, far_plane=far_plane
    )
