"""Training losses and image metrics; images are [..., H, W, C] with values in [0, 1]."""

import dataclasses
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ..errors import ShapeError
from ..ops.depth_maps import depth_to_normals
from ..ops.image_loss import l1_and_ssim, l1_ssim_loss
from ..precision import differentiable, inverse
from ..scene.capture.views import View
from .configuration import Config, PriorKind


def psnr(image: Tensor, target: Tensor) -> Tensor:
    """Returns the peak signal-to-noise ratio in dB: -10 log10 of the mean squared error; infinite for equal images. []

    Raises:
        ShapeError: The images differ in shape.
    """
    if image.shape != target.shape:
        raise ShapeError(f"target: expected {list(image.shape)} as image, found {list(target.shape)}")
    return -10 * (image.float() - target.float()).square().mean().log10()


def ssim(image: Tensor, target: Tensor, *, padding: Literal["same", "valid"] = "valid") -> Tensor:
    """Returns the mean structural similarity, computed in fp32 or fp64; 1 for equal images. []

    Args:
        padding: "valid" for windows inside the image only, "same" for zero padding.

    Raises:
        ArgumentError: See :func:`tsplat.ops.image_loss.l1_and_ssim`.
    """
    return l1_and_ssim(image, target, padding=padding)[1]


def loss(image: Tensor, target: Tensor) -> Tensor:
    """Returns 0.8 L1 + 0.2 (1 - SSIM), the loss of 3D Gaussian Splatting (Kerbl et al., 2023, equation 7). []"""
    return l1_ssim_loss(image, target)


class Loss(Protocol):
    """An additional term of the loss of a view. :func:`view_losses` lists all of them.

    Attributes:
        weight: Weight of the term, which is left out unless the weight is positive.
        start: Fraction of the run after which the term is added.
        needs_depth: Whether the term reads expected depth, which is then rendered for all views on all ranks.
    """

    weight: float
    start: float = 0.0
    needs_depth: bool = False

    def __call__(self, images: Tensor, alphas: Tensor, meta: dict[str, Any], view: View) -> Any:
        """Returns the weighted term of a view, []; 0.0 if the view has no prior for it.

        `images`, `alphas` and `meta` are returned by :func:`tsplat.rendering.render_views` for this view alone, with
        depth as the last channel if a term needs it. Pixels that the view masks out count as zero.
        """


def view_losses(config: Config, extent: float, surfels: bool, prior_scales: dict[str, Tensor]) -> list[Loss]:
    """Returns the terms whose weight is positive, in the order in which they are added.

    Args:
        config: Settings with the weights.
        extent: Extent of the scene, in world units.
        surfels: Whether Gaussians are 2D.
        prior_scales: Filled by :class:`DepthLoss`.
    """
    depth, normal, distortion = config.depth_weight * extent, config.normal_weight, config.distortion_weight / extent
    losses: list[Loss] = [
        DepthLoss(depth, config.depth_kind, prior_scales),
        NormalConsistencyLoss(normal if surfels else 0.0),
        PriorNormalLoss(normal, surfels),
        DistortionLoss(distortion),
    ]
    return [loss for loss in losses if loss.weight > 0]


@dataclasses.dataclass
class DepthLoss(Loss):
    """Sum of :func:`depth_error` for sparse points and :func:`prior_depth_error`, with a weight in world units.

    Attributes:
        kind: `depth_kind` of :class:`.configuration.Config`.
        prior_scales: The last scale fitted to the prior of each view, by the view's name; empty for metric priors.
    """

    weight: float
    kind: PriorKind
    prior_scales: dict[str, Tensor]
    needs_depth = True

    def __call__(self, images: Tensor, alphas: Tensor, meta: dict[str, Any], view: View) -> Any:
        total: Any = 0.0
        depth = images[0, ..., 3]
        if view.sparse is not None and len(view.sparse):
            total = total + self.weight * depth_error(depth, view.sparse)
        if view.depth_prior is not None:
            covered = alphas[0, ..., 0].detach() > 0.5
            covered = covered if view.mask is None else covered & view.mask
            error, scale = prior_depth_error(depth, view.depth_prior, covered, self.kind, view.depth_confidence)
            if scale is not None:
                self.prior_scales[view.name] = scale
            total = total + self.weight * error
        return total


@dataclasses.dataclass
class NormalConsistencyLoss(Loss):
    """Mean of 1 - n . N alpha, with rendered normals n of 2D Gaussians and normals N of the depth map.

    Huang et al., "2D Gaussian Splatting", 2024, section 5.2. Alpha has no gradient.
    """

    weight: float
    start = 7 / 30  # 7,000 of 30,000 steps
    needs_depth = True

    def __call__(self, images: Tensor, alphas: Tensor, meta: dict[str, Any], view: View) -> Any:
        alpha = alphas[0].detach()
        cosines = (meta["render_normals"][0] * meta["surf_normals"] * alpha).sum(-1)
        return _masked_mean(self.weight * (1 - cosines), view)


@dataclasses.dataclass
class PriorNormalLoss(Loss):
    """Mean of 1 - n . N, with a normal prior N. n are rendered normals; for 3D Gaussians, normals of the depth map."""

    weight: float
    surfels: bool

    def __post_init__(self) -> None:
        self.needs_depth = not self.surfels

    def __call__(self, images: Tensor, alphas: Tensor, meta: dict[str, Any], view: View) -> Any:
        if view.normal_prior is None:
            return 0.0
        # Rotates to the world frame without a matrix product, which autocast would round.
        prior = (view.normal_prior[..., None] * view.camera.viewmat[:3, :3]).sum(-2)
        if self.surfels:
            normals = meta["render_normals"][0]
        else:
            camtoworld = differentiable(inverse, view.camera.viewmat)
            normals = depth_to_normals(images[0, ..., 3:], camtoworld, view.camera.K) * alphas[0].detach()
        known = prior.square().sum(-1) > 0
        return _masked_mean(self.weight * torch.where(known, 1 - (normals * prior).sum(-1), 0.0), view)


@dataclasses.dataclass
class DistortionLoss(Loss):
    """Mean distortion of 2D Gaussians (Huang et al., 2024, section 5.1), with a weight in 1 / world units."""

    weight: float
    start = 1 / 10  # 3,000 of 30,000 steps

    def __call__(self, images: Tensor, alphas: Tensor, meta: dict[str, Any], view: View) -> Any:
        return _masked_mean(self.weight * meta["render_distort"][0, ..., 0], view)


def _masked_mean(term: Tensor, view: View) -> Tensor:
    """Returns the mean over pixels [H, W]; pixels that the view masks out count as zero. []"""
    return (term if view.mask is None else torch.where(view.mask, term, 0.0)).mean()


def prior_depth_error(
    depth: Tensor, prior: Tensor, covered: Tensor, kind: PriorKind = "inverse", confidence: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Returns the mean absolute difference between inverse expected depth and a depth prior, and the prior's scale.

    Args:
        depth: [H, W] expected depth in world units.
        prior: [H, W] inverse depth, NaN where it is unknown; in 1 / world units if it is metric.
        covered: [H, W] bool, the pixels to compare.
        kind: "inverse" if the prior is known up to scale and shift, "disparity" if up to scale, or "metric". Scale and
            shift are fitted by least squares, without gradient.
        confidence: [H, W] weights of pixels; None for 1.

    Returns:
        The difference, [] in 1 / world units; and the scale, [] fp64, None if the prior is metric.
    """
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
    """Returns the mean absolute difference between inverse expected depth and inverse depth of sparse points.

    The result, [], is in 1 / world units. `depth` [H, W] is along z in the camera frame; values of zero or less mean
    infinity. `sparse` [P, 3] has x and y of points in pixels, with pixel centers at +0.5, and their positive depth
    along z.
    """
    size = sparse.new_tensor([depth.shape[1], depth.shape[0]])
    grid = (2 * sparse[:, :2] / size - 1)[None, None]
    sampled = torch.nn.functional.grid_sample(depth.float()[None, None], grid, align_corners=False)[0, 0, 0]
    inverse = torch.where(sampled > 0, 1 / torch.where(sampled > 0, sampled, 1.0), 0.0)
    return (inverse - 1 / sparse[:, 2]).abs().mean()
