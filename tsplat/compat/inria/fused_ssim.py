"""The function of the package ``fused_ssim``: the structural similarity of images."""

from typing import Literal

import torch
from torch import Tensor

from ... import l1_and_ssim
from ...arguments import check_tensor

__all__ = ["fused_ssim"]


def fused_ssim(img1: Tensor, img2: Tensor, padding: Literal["same", "valid"] = "same", train: bool = True) -> Tensor:
    """Computes the mean structural similarity of images, like :func:`tsplat.l1_and_ssim` but for images [B, C, H, W].

    Args:
        img1, img2: [B, C, H, W], data range [0, 1]. Only ``img1`` is differentiable.
        padding: ``"same"`` or ``"valid"``, as for :func:`tsplat.l1_and_ssim`.
        train: Whether the result is differentiable.

    Returns:
        SSIM [].

    Raises:
        ArgumentError: The images differ in shape or device, are empty, or are smaller than the window with
            ``padding="valid"``; or the padding is unknown.
        NotImplementedError: ``img2`` requires a gradient and ``train`` is set.
    """
    images = [
        check_tensor(name, image, [None] * 4, "[B, C, H, W]").movedim(1, -1)
        for name, image in (("img1", img1), ("img2", img2))
    ]
    with torch.set_grad_enabled(train and torch.is_grad_enabled()):
        _, ssim = l1_and_ssim(images[0], images[1], padding=padding)
    return ssim
