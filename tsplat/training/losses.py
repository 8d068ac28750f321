"""Training losses and image metrics; images are [..., H, W, C] with values in [0, 1]."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import ShapeError
from ..ops.image_loss import l1_and_ssim, l1_ssim_loss

NORMAL_START, DISTORTION_START = 7 / 30, 1 / 10
"""Fractions of the run after which 2DGS adds its losses: 7,000 and 3,000 of 30,000 steps."""


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


@dataclasses.dataclass(frozen=True)
class SurfaceLoss:
    """The losses of 2D Gaussians (Huang et al., "2D Gaussian Splatting", 2024, section 5.2), as means over pixels.

    Attributes:
        normal_weight: Weight of 1 - n . N alpha, for rendered normals n and those of the depth map N; not before
            :data:`NORMAL_START`.
        distortion_weight: Weight of the distortion, in 1 / world units; not before :data:`DISTORTION_START`.
    """

    normal_weight: float
    distortion_weight: float

    def needs_depth(self, progress: float) -> bool:
        """Whether depth must be rendered, after a fraction of the run."""
        return self.normal_weight > 0 and progress >= NORMAL_START

    def __call__(self, progress: float, alphas: Tensor, meta: dict[str, Any], mask: Tensor | None) -> Tensor | float:
        """The loss of a view, [], after a fraction of the run; 0.0 if there is none.

        Args:
            progress: From 0 to 1.
            alphas, meta: Of :func:`tsplat.rendering.render_views`, for one view. There is no gradient of alphas.
            mask: [H, W] bool, false for pixels that count as zero; or None.
        """
        terms = []
        if self.needs_depth(progress):
            cosines = (meta["render_normals"][0] * meta["surf_normals"]).sum(-1) * alphas[0, ..., 0].detach()
            terms.append(self.normal_weight * (1 - cosines))
        if self.distortion_weight > 0 and progress >= DISTORTION_START:
            terms.append(self.distortion_weight * meta["render_distort"][0, ..., 0])
        masked = [term if mask is None else torch.where(mask, term, 0.0) for term in terms]
        return sum((term.mean() for term in masked), 0.0)


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
