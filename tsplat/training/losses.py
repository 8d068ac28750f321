"""What training minimizes and what pictures are judged by; images [..., H, W, C] in [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ShapeError
from ..ops.image_loss import Padding, l1_and_ssim, l1_ssim_loss


def psnr(image: Tensor, truth: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB, -10 log10 of the mean squared error; infinite for equal images. []

    Raises:
        ShapeError: The images differ in shape.
    """
    if image.shape != truth.shape:
        raise ShapeError(f"truth: expected {list(image.shape)} as image, found {list(truth.shape)}")
    return -10 * (image.float() - truth.float()).square().mean().log10()


def ssim(image: Tensor, truth: Tensor, *, padding: Padding = "valid") -> Tensor:
    """Mean structural similarity in at least fp32, by default over windows inside the image; 1 for equal images. []

    Raises:
        ArgumentError: As :func:`tsplat.ops.image_loss.l1_and_ssim`.
    """
    return l1_and_ssim(image, truth, padding=padding)[1]


def loss(image: Tensor, truth: Tensor) -> Tensor:
    """0.8 L1 + 0.2 (1 - SSIM), as in 3D Gaussian Splatting (Kerbl et al., 2023), equation 7. []"""
    return l1_ssim_loss(image, truth)


def depth_error(depth: Tensor, sparse: Tensor) -> Tensor:
    """Mean difference between the inverse expected depth at sparse points and the points' own, 1 / world units. []

    Args:
        depth: [H, W] expected depths along z, camera frame; zero or less where nothing is seen counts as infinitely
            far. Differentiable.
        sparse: [P, 3] pixel x and y of points, with pixel centers at +0.5, and their depths along z, positive.
    """
    size = sparse.new_tensor([depth.shape[1], depth.shape[0]])
    grid = (2 * sparse[:, :2] / size - 1)[None, None]
    found = torch.nn.functional.grid_sample(depth.float()[None, None], grid, align_corners=False)[0, 0, 0]
    inverse = torch.where(found > 0, 1 / torch.where(found > 0, found, 1.0), 0.0)
    return (inverse - 1 / sparse[:, 2]).abs().mean()
