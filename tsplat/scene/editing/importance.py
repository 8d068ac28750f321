"""Computes the importance of Gaussians: how much images change without them, and their weight in the images."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...config import Backend
from ..cameras import Camera
from ..gaussians import Gaussians
from ..rendered_views import render_views

WEIGHT_PROBE = 1e-6
"""Factor of an image of ones whose gradient is the weight; it is too small to change the gradient of the opacities."""


def importance(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    *,
    backend: Backend,
    generator: torch.Generator,
    on_view: Callable[[], object] = lambda: None,
) -> tuple[Tensor, Tensor]:
    """Computes the image error without each Gaussian, and the weight of each Gaussian, [N] each, summed over the
    cameras.

    A pixel is affine in each opacity o, so removing a Gaussian changes the pixel by exactly o dC/do. The error is the
    sum of the squared changes over pixels and channels. It is estimated with one backward pass of the pixels with
    random signs: the expectation of the squared derivative is this sum (Hutchinson, 1989). The weight is the sum of
    alpha times transmittance over pixels. Every view has a random background color, because the background of a model
    is unknown. `on_view` is called after each view.
    """
    opacities = gaussians.opacities.detach().requires_grad_()
    ones = torch.ones_like(opacities)[:, None].requires_grad_()
    errors, weights = torch.zeros_like(opacities), torch.zeros_like(opacities)
    for camera in cameras:
        (image,), (alpha,), meta = render_views(
            gaussians, [camera], background=None, backend=backend, opacities=opacities, extra_signals=ones
        )
        probe = _probe(image, alpha, generator)
        probe = probe + WEIGHT_PROBE * meta["render_extra_signals"].sum()
        v_opacities, v_ones = torch.autograd.grad(probe, (opacities, ones))
        errors += (opacities.detach() * v_opacities).square()
        weights += v_ones[:, 0] / WEIGHT_PROBE
        on_view()
    return errors.detach(), weights


@torch.enable_grad()
def removal_errors(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    masks: Sequence[Tensor | None],
    *,
    backend: Backend,
    generator: torch.Generator,
) -> Tensor:
    """Computes only the errors of :func:`importance`, [N], in the pixels of masks [H, W] bool; of all pixels for None.

    Gaussians may be 2D.
    """
    opacities = gaussians.opacities.detach().requires_grad_()
    errors = torch.zeros_like(opacities, requires_grad=False)
    for camera, mask in zip(cameras, masks, strict=True):
        (image,), (alpha,), _ = render_views(gaussians, [camera], background=None, backend=backend, opacities=opacities)
        (v_opacities,) = torch.autograd.grad(_probe(image, alpha, generator, mask), opacities)
        errors += (opacities.detach() * v_opacities).square()
    return errors


def _probe(image: Tensor, alpha: Tensor, generator: torch.Generator, mask: Tensor | None = None) -> Tensor:
    """Returns the sum of the pixels, with random signs, of an image [H, W, 3] on a background of random color."""
    background = torch.rand(3, generator=generator, dtype=torch.float32, device="cpu").to(image.device)
    signs = torch.randint(0, 2, image.shape, generator=generator, device="cpu").to(image) * 2 - 1
    if mask is not None:
        signs = signs * mask[..., None]
    return (signs * (image + (1 - alpha) * background)).sum()
