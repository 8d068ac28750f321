"""What training minimises and what pictures are judged by; images [..., H, W, C] in [0, 1]."""

from __future__ import annotations

from torch import Tensor

from ..checks import ShapeError
from ..photometric import l1_and_ssim, l1_ssim_loss


def psnr(image: Tensor, truth: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB, -10 log10 of the mean squared error; infinite for equal images. []

    Raises:
        ShapeError: The images differ in shape.
    """
    if image.shape != truth.shape:
        raise ShapeError(f"truth: expected {list(image.shape)} as image, found {list(truth.shape)}")
    return -10 * (image.float() - truth.float()).square().mean().log10()


def ssim(image: Tensor, truth: Tensor, *, padding: str = "valid") -> Tensor:
    """Mean structural similarity in at least fp32, by default over windows inside the image; 1 for equal images. []

    Raises:
        ArgumentError: As :func:`tsplat.photometric.l1_and_ssim`.
    """
    return l1_and_ssim(image, truth, padding=padding)[1]


def loss(image: Tensor, truth: Tensor) -> Tensor:
    """0.8 L1 + 0.2 (1 - SSIM), as in 3D Gaussian Splatting (Kerbl et al., 2023), equation 7. []"""
    return l1_ssim_loss(image, truth)
