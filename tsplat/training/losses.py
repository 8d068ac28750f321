"""Training losses and image metrics; images are [..., H, W, C] with values in [0, 1]."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..errors import ShapeError
from ..ops.image_loss import l1_and_ssim, l1_ssim_loss


def psnr(image: Tensor, target: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB: -10 log10 of the mean squared error; infinite for equal images. []

    Raises:
        ShapeError: The images differ in shape.
    """
    if image.shape != target.shape:
        raise ShapeError(f"target: expected {list(image.shape)} as image, found {list(target.shape)}")
    return -10 * (image.float() - target.float()).square().mean().log10()


def ssim(image: Tensor, target: Tensor, *, padding: Literal["same", "valid"] = "valid") -> Tensor:
    """Mean structural similarity, computed in fp32 or fp64; 1 for equal images. []

    Args:
        padding: "valid" for windows inside the image only, "same" for zero padding.

    Raises:
        ArgumentError: See :func:`tsplat.ops.image_loss.l1_and_ssim`.
    """
    return l1_and_ssim(image, target, padding=padding)[1]


def loss(image: Tensor, target: Tensor) -> Tensor:
    """0.8 L1 + 0.2 (1 - SSIM), the loss of 3D Gaussian Splatting (Kerbl et al., 2023, equation 7). []"""
    return l1_ssim_loss(image, target)


def depth_error(depth: Tensor, sparse: Tensor) -> Tensor:
    """Mean absolute difference between inverse expected depths and those of sparse points, in 1 / world units. []

    Args:
        depth: [H, W] expected depth along z in the camera frame. Values of zero or less, where nothing was rendered,
            count as infinitely far. Differentiable.
        sparse: [P, 3] x and y of points in pixels, with pixel centers at +0.5, and their positive depth along z.
    """
    size = sparse.new_tensor([depth.shape[1], depth.shape[0]])
    grid = (2 * sparse[:, :2] / size - 1)[None, None]
    sampled = torch.nn.functional.grid_sample(depth.float()[None, None], grid, align_corners=False)[0, 0, 0]
    inverse = torch.where(sampled > 0, 1 / torch.where(sampled > 0, sampled, 1.0), 0.0)
    return (inverse - 1 / sparse[:, 2]).abs().mean()
