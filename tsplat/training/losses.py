"""Training losses and image metrics; images are [..., H, W, C] with values in [0, 1]."""

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import ShapeError
from ..ops.image_loss import l1_and_ssim, l1_ssim_loss
from ..precision import differentiable, inverse
from ..scene.capture.views import View
from ..stages.depth_maps import depth_to_normals
from .configuration import DepthKind

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
class GeometryLoss:
    """Losses of depths and normals, as means over pixels, where those that a view masks out count as zero.

    Normal consistency and distortion are those of 2D Gaussians (Huang et al., "2D Gaussian Splatting", 2024, section
    5.2).

    Attributes:
        depth_weight: Weight of :func:`depth_error` and :func:`prior_depth_error`, in world units.
        normal_weight: Weight of 1 - n . N alpha, for rendered normals n and those of the depth map N, of 2D Gaussians
            and not before :data:`NORMAL_START`; and of 1 - n . N for the normals N of a prior.
        distortion_weight: Weight of the distortion, in 1 / world units; not before :data:`DISTORTION_START`.
        surfels: Whether Gaussians are 2D. The normals of 3D Gaussians are those of the depth map.
        depth_kind: What priors of depth are, see :class:`.configuration.Config`.
        prior_scales: By the names of views, the last scale with which their priors of depth fit; none for metric ones.
    """

    depth_weight: float
    normal_weight: float
    distortion_weight: float
    surfels: bool
    depth_kind: DepthKind = "inverse"
    prior_scales: dict[str, Tensor] = dataclasses.field(default_factory=dict, compare=False)

    def needs_depth(self, progress: float) -> bool:
        """Whether expected depth must be rendered, after a fraction of the run: on all ranks, whatever their views."""
        return self.depth_weight > 0 or (self.normal_weight > 0 and (not self.surfels or progress >= NORMAL_START))

    def __call__(self, progress: float, images: Tensor, alphas: Tensor, meta: dict[str, Any], view: View) -> Any:
        """The loss of a view, [], after a fraction of the run from 0 to 1; 0.0 if there is none.

        Images, alphas and meta are those of :func:`tsplat.rendering.render_views` for the view alone, with depth behind
        colors if it is needed. There is no gradient of alphas.
        """
        total: Any = 0.0
        terms = []
        alpha = alphas[0].detach()
        if self.depth_weight > 0:
            depth = images[0, ..., 3]
            if view.sparse is not None and len(view.sparse):
                total = total + self.depth_weight * depth_error(depth, view.sparse)
            if view.depth_prior is not None:
                covered = alpha[..., 0] > 0.5 if view.mask is None else (alpha[..., 0] > 0.5) & view.mask
                confidence = view.depth_confidence
                error, scale = _fit_prior(depth, view.depth_prior, covered, self.depth_kind, confidence)
                if scale is not None:
                    self.prior_scales[view.name] = scale
                total = total + self.depth_weight * error
        if self.normal_weight > 0 and self.surfels and progress >= NORMAL_START:
            terms.append(self.normal_weight * (1 - (meta["render_normals"][0] * meta["surf_normals"] * alpha).sum(-1)))
        if self.normal_weight > 0 and view.normal_prior is not None:
            # To the world frame, without a product of matrices, which autocast would round.
            prior = (view.normal_prior[..., None] * view.camera.viewmat[:3, :3]).sum(-2)
            if self.surfels:
                normals = meta["render_normals"][0]
            else:
                camtoworld = differentiable(inverse, view.camera.viewmat)
                normals = depth_to_normals(images[0, ..., 3:], camtoworld, view.camera.K) * alpha
            known = prior.square().sum(-1) > 0
            terms.append(self.normal_weight * torch.where(known, 1 - (normals * prior).sum(-1), 0.0))
        if self.distortion_weight > 0 and progress >= DISTORTION_START:
            terms.append(self.distortion_weight * meta["render_distort"][0, ..., 0])
        for term in terms:
            total = total + (term if view.mask is None else torch.where(view.mask, term, 0.0)).mean()
        return total


def prior_depth_error(
    depth: Tensor,
    prior: Tensor,
    covered: Tensor,
    kind: DepthKind = "inverse",
    confidence: Tensor | None = None,
) -> Tensor:
    """Mean absolute difference between inverse expected depths [H, W] and a prior, in 1 / world units. []

    The prior [H, W] is NaN where it is unknown, and inverse depth up to scale and shift, or of the kind "disparity" up
    to scale. These are those of least squares, and have no gradient. Of the kind "metric" it is in 1 / world units.
    Pixels are compared where `covered` [H, W] is true, with the weights `confidence` [H, W], 1 if None.
    """
    return _fit_prior(depth, prior, covered, kind, confidence)[0]


def _fit_prior(
    depth: Tensor, prior: Tensor, covered: Tensor, kind: DepthKind, confidence: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Returns :func:`prior_depth_error`, and the scale of the prior, [] fp64, None if it is metric."""
    known = covered & prior.isfinite() & (depth > 0)
    n = known.sum().clamp_min(1)
    inverse = 1 / torch.where(known, depth, 1.0)
    weights = known.double() if confidence is None else torch.where(known, confidence, 0.0).double()
    scale = None
    with torch.no_grad():
        x, y = (torch.where(known, values, 0.0).double() for values in (prior, inverse))
        if kind == "inverse":
            total = weights.sum().clamp_min(1e-30)
            x_mean, y_mean = (weights * x).sum() / total, (weights * y).sum() / total
            dx, dy = torch.where(known, x - x_mean, 0.0), torch.where(known, y - y_mean, 0.0)
            scale = (weights * dx * dy).sum() / (weights * dx * dx).sum().clamp_min(1e-30)
            x = y_mean + scale * dx
        elif kind == "disparity":
            scale = (weights * x * y).sum() / (weights * x * x).sum().clamp_min(1e-30)
            x = scale * x
        fitted = x.to(depth.dtype)
    errors = torch.where(known, inverse - fitted, 0.0).abs()
    if confidence is not None:
        errors = weights.to(errors.dtype) * errors
    return errors.sum() / n, scale


def depth_error(depth: Tensor, sparse: Tensor) -> Tensor:
    """Mean absolute difference between inverse expected depths and those of sparse points, in 1 / world units. []

    `depth` [H, W] is along z in the camera frame, infinitely far where it is zero or less. `sparse` [P, 3] has x and y
    of points in pixels, with pixel centers at +0.5, and their positive depth along z.
    """
    size = sparse.new_tensor([depth.shape[1], depth.shape[0]])
    grid = (2 * sparse[:, :2] / size - 1)[None, None]
    sampled = torch.nn.functional.grid_sample(depth.float()[None, None], grid, align_corners=False)[0, 0, 0]
    inverse = torch.where(sampled > 0, 1 / torch.where(sampled > 0, sampled, 1.0), 0.0)
    return (inverse - 1 / sparse[:, 2]).abs().mean()
