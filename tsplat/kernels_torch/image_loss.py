"""L1 and SSIM of two images in vectorized PyTorch; see ``kernels/image_loss.py``."""

from collections.abc import Sequence

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import conv2d, pad

from ..config import SSIM_K1, SSIM_K2, SSIM_TAPS

RADIUS = len(SSIM_TAPS) // 2


def _blur(maps: Tensor, padding: int) -> Tensor:
    """Convolves maps [B, M, H, W] with the Gaussian window of SSIM."""
    window = torch.tensor(SSIM_TAPS, dtype=maps.dtype, device=maps.device).expand(maps.shape[1], 1, 1, -1)
    # One group per channel selects PyTorch's own kernel, which unlike cuDNN's never rounds to TF32.
    maps = conv2d(maps.contiguous(), window, padding=(0, padding), groups=maps.shape[1])
    return conv2d(maps, window.mT, padding=(padding, 0), groups=maps.shape[1])


def l1_ssim_fwd(
    image: Tensor, target: Tensor, *, valid: bool, n_windows: int, ssim_weight: float, dtype: torch.dtype
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    # Contiguous, because the order of summation depends on strides.
    x, y = (rearrange(i.contiguous().to(dtype), "b h w c -> b c h w") for i in (image, target))
    stacked = torch.cat([x, y, x * x, y * y, x * y], 1)
    mean_x, mean_y, mean_xx, mean_yy, mean_xy = _blur(stacked, 0 if valid else RADIUS).chunk(5, 1)
    d_luminance = mean_x * mean_x + mean_y * mean_y + SSIM_K1**2
    d_structure = (mean_xx - mean_x * mean_x) + (mean_yy - mean_y * mean_y) + SSIM_K2**2
    luminance = (2 * mean_x * mean_y + SSIM_K1**2) / d_luminance
    structure = (2 * (mean_xy - mean_x * mean_y) + SSIM_K2**2) / d_structure
    ssim = luminance * structure
    by_mean = 2 * structure * (mean_y - mean_x * luminance) / d_luminance
    by_mean += 2 * (mean_x * ssim - mean_y * luminance) / d_structure
    maps = torch.stack([by_mean, -ssim / d_structure, 2 * luminance / d_structure])
    means = (x - y).abs().sum() / x.numel(), ssim.sum() / n_windows
    loss = (1 - ssim_weight) * means[0] + ssim_weight * (1 - means[1])
    return (*means, loss), (image, target, pad(maps, (RADIUS,) * 4) if valid else maps)


def l1_ssim_bwd(saved: tuple[Tensor, ...], v: Sequence[Tensor | None], *, n_windows: int, ssim_weight: float) -> Tensor:
    image, target, maps = saved
    v_l1, v_ssim, v_loss = (maps.new_zeros(()) if of_mean is None else of_mean for of_mean in v)
    l1_scale = (v_l1 + v_loss * (1 - ssim_weight)) / maps[0].numel()
    ssim_scale = (v_ssim - v_loss * ssim_weight) / n_windows
    x, y = (rearrange(i.to(maps.dtype), "b h w c -> b c h w") for i in (image, target))
    by_mean, by_square, by_product = _blur(rearrange(maps, "m b c h w -> b (m c) h w"), RADIUS).chunk(3, 1)
    v_image = l1_scale * (x - y).sign() + ssim_scale * (by_mean + 2 * x * by_square + y * by_product)
    return rearrange(v_image, "b c h w -> b h w c")
