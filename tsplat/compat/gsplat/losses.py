"""Names of ``gsplat.losses`` of gsplat 1.6: image losses and regularizers of Gaussians, in plain PyTorch.

Functions whose docstring ends with [] return a scalar. The others return a value per element.
"""

import torch
from torch import Tensor

from ... import ArgumentError, ShapeError, UnsupportedError, l1_and_ssim
from ...arguments import check_tensor
from ...config import SSIM_TAPS

__all__ = [
    "depth_l1_loss",
    "gaussian_density_reg",
    "gaussian_scale_reg",
    "gaussian_z_scale_reg",
    "l1_loss",
    "mse_loss",
    "opacity_reg_loss",
    "out_of_bound_loss",
    "scale_reg_loss",
    "ssim_loss",
    "total_variation_loss",
]


def l1_loss(pred: Tensor, target: Tensor) -> Tensor:
    """Computes ``|pred - target|``, elementwise."""
    return (pred - target).abs()


def mse_loss(pred: Tensor, target: Tensor) -> Tensor:
    """Computes (pred - target)^2, elementwise."""
    return (pred - target).square()


def ssim_loss(img1: Tensor, img2: Tensor, window_size: int = len(SSIM_TAPS)) -> Tensor:
    """Computes 1 - SSIM of the windows that lie inside the images, as gsplat does with ``fused_ssim`` on GPUs. []

    Args:
        img1, img2: [B, C, H, W], data range [0, 1]. Only ``img1`` is differentiable.
        window_size: Only 11 is implemented.

    Raises:
        ArgumentError: The images differ in shape or are smaller than the window.
        NotImplementedError: Another window size; or ``img2`` requires a gradient.
    """
    if window_size != len(SSIM_TAPS):
        raise UnsupportedError(f"window_size: only {len(SSIM_TAPS)} is implemented, found {window_size}")
    images = [
        check_tensor(name, image, [None] * 4, "[B, C, H, W]").movedim(1, -1)
        for name, image in (("img1", img1), ("img2", img2))
    ]
    return 1 - l1_and_ssim(images[0], images[1], padding="valid")[1]


def depth_l1_loss(pred_depth: Tensor, gt_depth: Tensor, scene_scale: float = 1.0) -> Tensor:
    """Computes the mean difference of disparities, times the size of the scene. []

    The disparity is 1 / depth, or 0 where the depth is not positive.
    """
    return (_disparity(pred_depth) - _disparity(gt_depth)).abs().mean() * scene_scale


def _disparity(depth: Tensor) -> Tensor:
    valid = depth > 0
    return torch.where(valid, 1 / torch.where(valid, depth, 1.0), 0.0)


def opacity_reg_loss(opacities: Tensor) -> Tensor:
    """Computes the mean opacity of logits. []"""
    return opacities.sigmoid().mean()


def scale_reg_loss(log_scales: Tensor) -> Tensor:
    """Computes the mean scale of logarithmic scales. []"""
    return log_scales.exp().mean()


def total_variation_loss(x: Tensor) -> Tensor:
    """Computes the mean squared difference of neighbors, summed over the spatial dimensions and averaged over B. []

    `x` is [B, C, ...]; every dimension after the second is spatial, and there has to be one.
    """
    if x.dim() < 3 or not len(x):
        raise ArgumentError(f"x: expected [B, C, ...] with at least one spatial dimension, found {list(x.shape)}")
    total = x.new_zeros(())
    for axis in range(2, x.dim()):
        squares = x.diff(dim=axis).square()
        total = total + squares.sum() / max(squares[0].numel(), 1)
    return total / len(x)


def gaussian_scale_reg(scales: Tensor, visibility: Tensor | None = None) -> Tensor:
    """Computes ``|scales|`` [N, 3], times visibility, which is [N] or [N, 1], or None for 1."""
    return _weighted("scales", scales, visibility)


def gaussian_density_reg(densities: Tensor, visibility: Tensor | None = None) -> Tensor:
    """Computes ``|densities|``, [N] or [N, 1], times visibility, which is [N] or [N, 1], or None for 1."""
    return _weighted("densities", densities, visibility)


def _weighted(name: str, values: Tensor, visibility: Tensor | None) -> Tensor:
    if visibility is None:
        return values.abs()
    n = len(values)
    if tuple(visibility.shape) not in ((n,), (n, 1)):
        raise ShapeError(f"visibility: expected [N] as {name}, here [{n}], found {list(visibility.shape)}")
    return values.abs() * visibility.reshape(-1, *[1] * (values.dim() - 1))


def gaussian_z_scale_reg(z_scales: Tensor, threshold: float) -> Tensor:
    """Computes max(z_scales - threshold, 0), elementwise."""
    return (z_scales - threshold).relu()


def out_of_bound_loss(positions: Tensor, cuboid_dims: Tensor) -> Tensor:
    """Computes how far positions [N, 3] lie outside cuboids with edges [N, 3] around the origin, along each axis."""
    return (positions.abs() - cuboid_dims / 2).relu()
