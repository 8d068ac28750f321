"""How far a picture is from another: L1 and SSIM in one pass, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from einops import pack
from torch import Tensor

from ..arguments import check_choice, check_devices, check_tensor, compute_dtype
from ..config import SSIM_TAPS
from ..errors import ArgumentError, ShapeError, UnsupportedError
from ..stages.autograd import once_differentiable
from ..stages.backend import full_precision, launchers

SSIM_WEIGHT = 0.2


class _L1Ssim(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, truth: Tensor, valid: bool, backend: str) -> tuple[Tensor, Tensor]:
        with full_precision(image.device):
            l1, ssim, maps = launchers(image.device, backend).l1_ssim_fwd(
                image, truth, valid=valid, dtype=compute_dtype(image, truth)
            )
        ctx.save_for_backward(image, truth, maps)
        ctx.backend = backend
        return l1, ssim

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Tensor, ...], v_l1: Tensor, v_ssim: Tensor) -> tuple[Tensor | None, ...]:
        image, truth, maps = saved
        with full_precision(image.device):
            scales = torch.stack([v_l1, v_ssim])
            v_image = launchers(image.device, ctx.backend).l1_ssim_bwd(image, truth, maps, scales)
        return v_image.to(image.dtype), None, None, None


def l1_and_ssim(image: Tensor, truth: Tensor, *, padding: str = "same", backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Mean absolute error and mean structural similarity (Wang et al., 2004); window of 11 taps, deviation 1.5 pixels.

    Args:
        image, truth: [..., H, W, C], data range [0, 1], any float type; computed in fp32 (fp64 if either is), whatever
            the autocast state. Only ``image`` is differentiable.
        padding: ``"same"``, SSIM over a window around each pixel, with zeros outside; ``"valid"``, over windows inside
            the image.
        backend: As in :func:`tsplat.rasterization`.

    Returns:
        L1 [] and SSIM [], differentiable once.

    Raises:
        ArgumentError: The images differ in shape or device, are empty or smaller than the window where it must fit, or
            there is no such padding.
        NotImplementedError: ``truth`` requires a gradient.
    """
    check_choice("padding", padding, ("same", "valid"))
    check_tensor("image", image, [None] * image.dim(), "[..., H, W, C]")
    check_tensor("truth", truth, [None] * truth.dim(), "[..., H, W, C]")
    check_devices(dict(image=image, truth=truth))
    if image.dim() < 3 or not image.numel():
        raise ArgumentError(f"image: expected [..., H, W, C] with at least one pixel, found {list(image.shape)}")
    if image.shape != truth.shape:
        raise ShapeError(f"truth: expected {list(image.shape)} as image, found {list(truth.shape)}")
    if padding == "valid" and min(image.shape[-3:-1]) < len(SSIM_TAPS):
        raise ShapeError(
            f"image: SSIM needs at least {len(SSIM_TAPS)} pixels along each edge, found {list(image.shape)}; "
            "use larger pictures"
        )
    if truth.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError("truth: its gradient is not implemented; pass truth.detach(), or swap the two")
    x, y = (pack([i], "* h w c")[0] for i in (image, truth))
    l1, ssim = _L1Ssim.apply(x, y, padding == "valid", backend)  # type: ignore[no-untyped-call]
    lost = 0 if padding == "same" else len(SSIM_TAPS) - 1
    n_batch, height, width, channels = x.shape
    return l1 / x.numel(), ssim / (n_batch * (height - lost) * (width - lost) * channels)


def l1_ssim_loss(
    image: Tensor, truth: Tensor, *, ssim_weight: float = SSIM_WEIGHT, padding: str = "same", backend: str = "auto"
) -> Tensor:
    """(1 - w) L1 + w (1 - SSIM), by default 0.8 L1 + 0.2 (1 - SSIM), as in 3D Gaussian Splatting, equation 7. []

    Args and errors as :func:`l1_and_ssim`.
    """
    l1, ssim = l1_and_ssim(image, truth, padding=padding, backend=backend)
    return (1 - ssim_weight) * l1 + ssim_weight * (1 - ssim)
