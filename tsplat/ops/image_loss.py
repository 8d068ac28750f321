"""Image losses: L1 and SSIM in one kernel, forward and backward."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..arguments import check_devices, check_number, check_tensor, compute_dtype
from ..config import SSIM_TAPS, Backend
from ..errors import ArgumentError, ShapeError, UnsupportedError
from ..precision import full_precision
from ..runtime.autograd import apply, once_differentiable
from ..runtime.backend import launchers
from ..runtime.compilation import in_graphs, with_plain_tensors
from ..runtime.operators import Results
from ..scalars import check_choice

Padding = Literal["same", "valid"]
PADDINGS = get_args(Padding)

SSIM_WEIGHT = 0.2
"""Weight of SSIM in the loss of 3D Gaussian Splatting."""

CHANNELS_FIRST, CHANNELS_LAST = 4, 16
"""An image with at most CHANNELS_FIRST rows and more than CHANNELS_LAST channels is taken for [..., C, H, W]."""


class _L1Ssim(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, image: Tensor, target: Tensor, ssim_weight: float, valid: bool, backend: Backend
    ) -> tuple[Tensor, ...]:
        margin = len(SSIM_TAPS) - 1 if valid else 0
        n_batch, height, width, channels = image.shape
        ctx.weights = dict(n_windows=n_batch * (height - margin) * (width - margin) * channels, ssim_weight=ssim_weight)
        outputs: tuple[Tensor, ...]
        with full_precision():
            outputs, kept = launchers(image.device, backend).l1_ssim_fwd(
                image, target, valid=valid, dtype=compute_dtype(image, target), **ctx.weights
            )
        ctx.save_for_backward(image, *kept)
        ctx.set_materialize_grads(False)
        ctx.backend = backend
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Tensor, ...], *v: Tensor | None) -> tuple[Tensor | None, ...]:
        image, *kept = saved
        if all(of_mean is None for of_mean in v):
            return (None,) * 5
        v_image = launchers(image.device, ctx.backend).l1_ssim_bwd(kept, v, **ctx.weights)
        return v_image.to(image.dtype), None, None, None, None


OUTPUTS = ("l1", "ssim", "loss")

RESULTS = Results(
    sizes_are_known=lambda _arguments: True,
    names=lambda _arguments: (OUTPUTS, ()),
    unpack=lambda outputs: dict(zip(OUTPUTS, outputs)),
    pack=lambda outputs, _arguments: tuple(outputs.values()),
)


@in_graphs(RESULTS)
@with_plain_tensors
def _l1_ssim_and_loss(
    image: Tensor, target: Tensor, ssim_weight: float, padding: Padding, backend: Backend
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes L1, SSIM and the loss; see :func:`l1_and_ssim` and :func:`l1_ssim_loss`."""
    check_choice("padding", padding, PADDINGS)
    check_tensor("image", image, [...], "[..., H, W, C]")
    check_tensor("target", target, [...], "[..., H, W, C]")
    check_devices(dict(image=image, target=target))
    if image.dim() < 3 or not image.numel():
        raise ArgumentError(f"image: expected [..., H, W, C] with at least one pixel, found {list(image.shape)}")
    if image.shape[-1] > CHANNELS_LAST and image.shape[-3] <= CHANNELS_FIRST:
        raise ShapeError(
            f"image: expected [..., H, W, C], found {list(image.shape)}, which looks like [..., C, H, W]; pass "
            "image.movedim(-3, -1) and target.movedim(-3, -1)"
        )
    if image.shape != target.shape:
        raise ShapeError(f"target: expected {list(image.shape)} as image, found {list(target.shape)}")
    if padding == "valid" and min(image.shape[-3:-1]) < len(SSIM_TAPS):
        raise ShapeError(
            f"image: SSIM needs at least {len(SSIM_TAPS)} pixels along each edge, found {list(image.shape)}; "
            "use larger images"
        )
    if target.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError("target: its gradient is not implemented; pass target.detach(), or swap the images")
    if image.dim() != 4:
        image, target = (images.reshape(-1, *images.shape[-3:]) for images in (image, target))
    outputs: tuple[Tensor, Tensor, Tensor] = apply(_L1Ssim, image, target, ssim_weight, padding == "valid", backend)
    return outputs


def l1_and_ssim(
    image: Tensor, target: Tensor, *, padding: Padding = "same", backend: Backend = "auto"
) -> tuple[Tensor, Tensor]:
    """Computes the mean absolute error and the mean structural similarity (Wang et al., 2004) of images.

    The window of SSIM has 11 taps and a standard deviation of 1.5 pixels.

    Args:
        image, target: [..., H, W, C], data range [0, 1], any float dtype. Computed in fp32 (fp64 if either is fp64),
            regardless of autocast. Only ``image`` is differentiable. Images with at most 4 rows and more than 16
            channels are rejected, as their channels are probably first.
        padding: Windows of SSIM: around every pixel, with zeros outside of the image (``"same"``), or only inside the
            image (``"valid"``).
        backend: As in :func:`tsplat.rasterization`.

    Returns:
        L1 [] and SSIM [], differentiable once.

    Raises:
        ArgumentError: The images differ in shape or device, are empty, seem to have their channels first, or are
            smaller than the window with ``padding="valid"``; or the padding is unknown.
        NotImplementedError: ``target`` requires a gradient.
    """
    l1, ssim, _ = _l1_ssim_and_loss(image, target, SSIM_WEIGHT, padding, backend)
    return l1, ssim


def l1_ssim_loss(
    image: Tensor,
    target: Tensor,
    *,
    ssim_weight: float = SSIM_WEIGHT,
    padding: Padding = "same",
    backend: Backend = "auto",
) -> Tensor:
    """Computes (1 - w) L1 + w (1 - SSIM), by default 0.8 L1 + 0.2 (1 - SSIM) (3D Gaussian Splatting, equation 7). []

    Args:
        ssim_weight: w.
        image, target: [..., H, W, C], data range [0, 1], any float dtype; see :func:`l1_and_ssim`, which raises the
            same errors.
        padding, backend: As for :func:`l1_and_ssim`.

    Example::

        import torch
        from tsplat import l1_ssim_loss

        image, target = torch.rand(60, 80, 3, requires_grad=True), torch.rand(60, 80, 3)
        l1_ssim_loss(image, target).backward()
    """
    ssim_weight = check_number("ssim_weight", ssim_weight, finite=True)
    return _l1_ssim_and_loss(image, target, ssim_weight, padding, backend)[2]
