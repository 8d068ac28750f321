"""What training minimises and what pictures are judged by; images [..., H, W, C] in [0, 1]."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import conv2d, l1_loss

from ..backend import full_precision
from ..checks import ArgumentError, ShapeError

WINDOW, SIGMA = 11, 1.5
"""The Gaussian window of SSIM: taps along each edge, and standard deviation in pixels."""

K1, K2 = 0.01, 0.03
"""What keeps the quotients of SSIM from dividing by zero, squared, for a data range of 1."""

SSIM_WEIGHT = 0.2


def psnr(image: Tensor, truth: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB, -10 log10 of the mean squared error; infinite for equal images. []

    Raises:
        ShapeError: The images differ in shape.
    """
    _check_alike(image, truth)
    return -10 * (image.float() - truth.float()).square().mean().log10()


def ssim(image: Tensor, truth: Tensor, *, padding: str = "valid") -> Tensor:
    """Mean structural similarity (Wang et al., "Image quality assessment", 2004) in fp32; 1 for equal images. []

    Args:
        image, truth: [..., H, W, C].
        padding: ``"valid"``, the mean over windows inside the image, as metrics have it; ``"same"``, over a window
            around each pixel with zeros outside, which leaves no pixel without a gradient.

    Raises:
        ArgumentError: The images differ in shape, are smaller than the window, or there is no such padding.
    """
    _check_alike(image, truth)
    if padding not in ("valid", "same"):
        raise ArgumentError(f"padding: expected 'valid' or 'same', found {padding!r}")
    if padding == "valid" and min(image.shape[-3:-1]) < WINDOW:
        raise ShapeError(
            f"image: SSIM needs at least {WINDOW} pixels along each edge, found {list(image.shape)}; "
            "use larger pictures"
        )
    with full_precision(image.device):
        x, y = (rearrange(i.float(), "... h w c -> (...) c h w") for i in (image, truth))
        maps = torch.cat([x, y, x * x, y * y, x * y], 1)
        mean_x, mean_y, xx, yy, xy = _blur(maps, 0 if padding == "valid" else WINDOW // 2).chunk(5, 1)
        c1, c2 = K1**2, K2**2
        luminance = (2 * mean_x * mean_y + c1) / (mean_x * mean_x + mean_y * mean_y + c1)
        variance_x, variance_y, covariance = xx - mean_x * mean_x, yy - mean_y * mean_y, xy - mean_x * mean_y
        structure = (2 * covariance + c2) / (variance_x + variance_y + c2)
        return (luminance * structure).mean()


def loss(image: Tensor, truth: Tensor) -> Tensor:
    """0.8 L1 + 0.2 (1 - SSIM), as in 3D Gaussian Splatting (Kerbl et al., 2023), equation 7. []"""
    similarity = ssim(image, truth, padding="same")
    return (1 - SSIM_WEIGHT) * l1_loss(image.float(), truth.float()) + SSIM_WEIGHT * (1 - similarity)


def _blur(maps: Tensor, padding: int) -> Tensor:
    """Gaussian-weighted means around pixels, [B, M, H, W]."""
    taps = torch.arange(WINDOW, dtype=torch.float32, device=maps.device) - WINDOW // 2
    window = torch.exp(-0.5 * (taps / SIGMA) ** 2)
    window = (window / window.sum()).expand(maps.shape[1], 1, 1, -1)
    # One group a channel: PyTorch's own kernel, which unlike cuDNN's never rounds to TF32.
    maps = conv2d(maps.contiguous(), window, padding=(0, padding), groups=maps.shape[1])
    return conv2d(maps, window.mT, padding=(padding, 0), groups=maps.shape[1])


def _check_alike(image: Tensor, truth: Tensor) -> None:
    if image.shape != truth.shape:
        raise ShapeError(f"truth: expected {list(image.shape)} as image, found {list(truth.shape)}")
