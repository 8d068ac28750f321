"""The name of ``gsplat.losses_fused`` of gsplat 1.6."""

import torch
from torch import Tensor

from .losses import gaussian_density_reg, gaussian_scale_reg, gaussian_z_scale_reg, out_of_bound_loss

__all__ = ["FusedGaussianLosses"]


class FusedGaussianLosses(torch.nn.Module):
    """Computes four regularizers of Gaussians, each with its own function: there is no fused kernel.

    Args:
        z_scale_threshold: See :func:`gaussian_z_scale_reg`.
    """

    def __init__(self, z_scale_threshold: float = 0.0) -> None:
        super().__init__()
        self.z_scale_threshold = z_scale_threshold

    def forward(
        self,
        scales: Tensor,
        densities: Tensor,
        z_scales: Tensor,
        positions: Tensor,
        cuboid_dims: Tensor,
        visibility: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the unreduced regularizers of scale [N, 3], density [N], z scale [N] and bounds [N, 3].

        Args:
            scales, positions, cuboid_dims: [N, 3]; see :func:`out_of_bound_loss`.
            densities, z_scales: [N].
            visibility: [N] weights of the first two regularizers; None for 1.
        """
        return (
            gaussian_scale_reg(scales, visibility),
            gaussian_density_reg(densities, visibility),
            gaussian_z_scale_reg(z_scales, self.z_scale_threshold),
            out_of_bound_loss(positions, cuboid_dims),
        )
