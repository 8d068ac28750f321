"""The names of ``gsplat.losses`` of gsplat 1.6: image losses and regularizers of Gaussians, in plain PyTorch.

Functions whose docstring ends with [] return a scalar. The others return a value per element.
"""

import os
from collections.abc import Callable

import torch
from torch import Tensor

from ... import ArgumentError, ShapeError, UnsupportedError, l1_and_ssim
from ...arguments import check_devices, check_tensor, compute_dtype
from ...config import SSIM_K1, SSIM_K2, SSIM_TAPS
from ...precision import in_full_precision
from ...scalars import check_size
from ._loss_terms import (
    ContractError,
    LinearLambdaScheduler,
    bce_clipped,
    bce_loss,
    bce_with_logits_loss,
    bilateral_grid_drift_loss,
    binocular_disparity_l1,
    check_shapes,
    cross_entropy_loss,
    depth_inverse_mse,
    huber_loss,
    identity_distance,
    log_l1,
    masked_l1,
    pearson_depth_loss,
    reduce_mean,
    reduce_quantile,
    reduce_sum,
    relu_sum,
    smooth_l1_loss,
    total_variation_temporal,
    weights_reg,
)

__all__ = [
    "LinearLambdaScheduler",
    "bce_clipped",
    "bce_loss",
    "bce_with_logits_loss",
    "bilateral_grid_drift_loss",
    "binocular_disparity_l1",
    "create_ssim_window",
    "cross_entropy_loss",
    "depth_inverse_mse",
    "depth_l1_loss",
    "gaussian_density_reg",
    "gaussian_scale_reg",
    "gaussian_z_scale_reg",
    "huber_loss",
    "identity_distance",
    "l1_loss",
    "lidar_background_loss",
    "lidar_distance_loss",
    "lidar_intensity_loss",
    "lidar_raydrop_loss",
    "log_l1",
    "masked_l1",
    "masked_ssim",
    "mse_loss",
    "normal_cosine_loss",
    "opacity_reg_loss",
    "out_of_bound_loss",
    "pearson_depth_loss",
    "reduce_mean",
    "reduce_quantile",
    "reduce_sum",
    "relu_sum",
    "scale_reg_loss",
    "smooth_l1_loss",
    "ssim_loss",
    "torch_ssim_loss",
    "total_variation_loss",
    "total_variation_temporal",
    "weights_reg",
]

ENFORCE_CONTRACTS = os.environ.get("GSPLAT_ENFORCE_CONTRACTS") == "1" or os.environ.get("PYTHONOPTIMIZE") == "0"
"""Whether losses check values, which waits for the GPU. Losses read it in each call."""


def _check_values(name: str, values: Tensor, valid: Tensor, expected: str) -> None:
    """Raises ContractError if any value is not valid."""
    if not bool(valid.all()):
        raise ContractError(f"{name}: values {expected}, found {float(values.min()):.4g} to {float(values.max()):.4g}")


def l1_loss(pred: Tensor, target: Tensor) -> Tensor:
    """Computes ``|pred - target|``, elementwise."""
    return (pred - target).abs()


def mse_loss(pred: Tensor, target: Tensor) -> Tensor:
    """Computes (pred - target)^2, elementwise."""
    return (pred - target).square()


def ssim_loss(img1: Tensor, img2: Tensor, window_size: int = len(SSIM_TAPS)) -> Tensor:
    """Computes 1 - SSIM over the windows that lie inside the images, as gsplat does with ``fused_ssim`` on GPUs. []

    Args:
        img1, img2: [B, C, H, W], data range [0, 1]. Only ``img1`` is differentiable.
        window_size: Only 11 is implemented.

    Raises:
        ArgumentError: The images differ in shape or are smaller than the window.
        ContractError: ``ENFORCE_CONTRACTS`` is set, and values are not in [0, 1].
        NotImplementedError: The window size is not 11, or ``img2`` requires a gradient.
    """
    if ENFORCE_CONTRACTS:
        for name, image in (("img1", img1), ("img2", img2)):
            _check_values(name, image, (image >= 0) & (image <= 1), "must be in [0, 1]")
    if window_size != len(SSIM_TAPS):
        raise UnsupportedError(f"window_size: only {len(SSIM_TAPS)} is implemented, found {window_size}")
    images = [
        check_tensor(name, image, [None] * 4, "[B, C, H, W]").movedim(1, -1)
        for name, image in (("img1", img1), ("img2", img2))
    ]
    return 1 - l1_and_ssim(images[0], images[1], padding="valid")[1]


def create_ssim_window(window_size: int, channel: int, device: torch.device | str = "cpu") -> Tensor:
    """Creates the window of :func:`torch_ssim_loss`: Gaussian weights with standard deviation 1.5 and sum 1.

    Returns:
        [channel, 1, window_size, window_size] float32, equal for all channels.

    Raises:
        ArgumentError: A size is not a positive integer.
    """
    window_size, channel = check_size("window_size", window_size), check_size("channel", channel)
    offsets = torch.arange(window_size, dtype=torch.float64) - window_size // 2
    weights = torch.softmax(-0.5 * (offsets / 1.5).square(), 0)
    return torch.outer(weights, weights).to(device, torch.float32).repeat(channel, 1, 1, 1)


@in_full_precision
def torch_ssim_loss(img1: Tensor, img2: Tensor, window: Tensor, window_size: int = 11, channel: int = 3) -> Tensor:
    """Computes the map of structural similarity (Wang et al., 2004). Despite its name, it is 1 where images are equal.

    Args:
        img1, img2: [B, channel, H, W], data range [0, 1]; padded with zeros. Both are differentiable.
        window: [channel, 1, window_size, window_size], from :func:`create_ssim_window`.
        window_size, channel: Odd size of the window, and number of channels.

    Returns:
        [B, channel, H, W], with values in [-1, 1].

    Raises:
        ArgumentError: A shape or size is invalid.
    """
    window_size, channel = check_size("window_size", window_size), check_size("channel", channel)
    if window_size % 2 == 0:
        raise ArgumentError(f"window_size: expected an odd number, as its middle is a pixel, found {window_size}")
    check_tensor("img1", img1, [None, channel, None, None], "[B, channel, H, W]")
    check_tensor("img2", img2, img1.shape, "[B, channel, H, W] as img1")
    check_tensor("window", window, [channel, 1, window_size, window_size], "[channel, 1, window_size, window_size]")
    check_devices(dict(img1=img1, img2=img2, window=window))

    dtype = compute_dtype(img1, img2, window)
    one, two = img1.to(dtype), img2.to(dtype)

    def mean(values: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(values, window.to(dtype), padding=window_size // 2, groups=channel)

    x, y = mean(one), mean(two)
    variances = mean(one.square()) - x.square() + mean(two.square()) - y.square()
    covariances = mean(one * two) - x * y
    c1, c2 = SSIM_K1**2, SSIM_K2**2
    return (2 * x * y + c1) * (2 * covariances + c2) / ((x.square() + y.square() + c1) * (variances + c2))


def masked_ssim(pred: Tensor, gt: Tensor, mask: Tensor) -> Tensor:
    """Computes :func:`ssim_loss` of images [B, C, H, W] multiplied by a mask that is broadcast to them. []"""
    check_shapes("gt", gt, "pred", pred)
    return ssim_loss(pred * mask, gt * mask)


def depth_l1_loss(pred_depth: Tensor, gt_depth: Tensor, scene_scale: float = 1.0) -> Tensor:
    """Computes the mean absolute difference of disparities, times the scale of the scene. []

    The disparity is 1 / depth, or 0 where the depth is not positive.
    """
    return (_disparity(pred_depth) - _disparity(gt_depth)).abs().mean() * scene_scale


def _disparity(depth: Tensor) -> Tensor:
    valid = depth > 0
    return torch.where(valid, 1 / torch.where(valid, depth, 1.0), 0.0)


def normal_cosine_loss(pred_normal: Tensor, gt_normal: Tensor) -> Tensor:
    """Computes 1 minus the cosine of the angle between unit vectors [..., 3]. [...]"""
    if ENFORCE_CONTRACTS:
        for name, normals in (("pred_normal", pred_normal), ("gt_normal", gt_normal)):
            lengths = normals.norm(dim=-1)
            _check_values(f"lengths of {name}", lengths, (lengths - 1).abs() <= 1e-3, "must be unit-normalized")
    return 1 - (pred_normal * gt_normal).sum(-1)


def opacity_reg_loss(opacities: Tensor) -> Tensor:
    """Computes the mean opacity, given logits. []"""
    return opacities.sigmoid().mean()


def scale_reg_loss(log_scales: Tensor) -> Tensor:
    """Computes the mean scale, given logarithms. []"""
    return log_scales.exp().mean()


def total_variation_loss(x: Tensor) -> Tensor:
    """Computes the mean squared difference of neighbors, summed over the spatial dimensions and averaged over B. []

    `x` is [B, C, ...]; all dimensions after the second are spatial, and at least one is required.
    """
    if x.dim() < 3 or not len(x):
        raise ArgumentError(f"x: expected [B, C, ...] with at least one spatial dimension, found {list(x.shape)}")
    total = x.new_zeros(())
    for axis in range(2, x.dim()):
        squares = x.diff(dim=axis).square()
        total = total + squares.sum() / max(squares[0].numel(), 1)
    return total / len(x)


def gaussian_scale_reg(scales: Tensor, visibility: Tensor | None = None) -> Tensor:
    """Computes ``|scales|`` [N, 3] times the visibility [N] or [N, 1]; None means 1."""
    if ENFORCE_CONTRACTS:
        _check_values("scales", scales, scales >= 0, "must be post-activation, at least 0: pass exp(log_scales)")
    return _weighted("scales", scales, visibility)


def gaussian_density_reg(densities: Tensor, visibility: Tensor | None = None) -> Tensor:
    """Computes ``|densities|`` [N] or [N, 1] times the visibility [N] or [N, 1]; None means 1."""
    if ENFORCE_CONTRACTS:
        expected = "must be post-activation, at least 0: pass sigmoid(logits)"
        _check_values("densities", densities, densities >= 0, expected)
    return _weighted("densities", densities, visibility)


def _weighted(name: str, values: Tensor, visibility: Tensor | None) -> Tensor:
    if visibility is None:
        return values.abs()
    n = len(values)
    if tuple(visibility.shape) not in ((n,), (n, 1)):
        raise ShapeError(f"visibility: expected [{n}], one value per row of {name}, found {list(visibility.shape)}")
    return values.abs() * visibility.reshape(-1, *[1] * (values.dim() - 1))


def gaussian_z_scale_reg(z_scales: Tensor, threshold: float) -> Tensor:
    """Computes max(z_scales - threshold, 0), elementwise."""
    if ENFORCE_CONTRACTS:
        _check_values("z_scales", z_scales, z_scales >= 0, "must be post-activation, at least 0")
    return (z_scales - threshold).relu()


def out_of_bound_loss(positions: Tensor, cuboid_dims: Tensor) -> Tensor:
    """Computes the distances along each axis by which positions [N, 3] lie outside of cuboids around the origin.

    `cuboid_dims` [N, 3] are the edge lengths of the cuboids.
    """
    if ENFORCE_CONTRACTS:
        _check_values("cuboid_dims", cuboid_dims, cuboid_dims > 0, "must be positive")
    return (positions.abs() - cuboid_dims / 2).relu()


PER_ELEMENT: dict[str, Callable[..., Tensor]] = {
    "l1": l1_loss,
    "mse": mse_loss,
    "huber": huber_loss,
    "smooth_l1": smooth_l1_loss,
    "bce": bce_loss,
    "bce_with_logits": bce_with_logits_loss,
    "bce_clipped": bce_clipped,
}
"""Values of ``loss_fn`` -> elementwise losses. ``bce_clipped`` clamps probabilities to [0.001, 0.999]."""

LossOfElements = str | Callable[[Tensor, Tensor], Tensor]


def lidar_distance_loss(
    pred_distance: Tensor, gt_distance: Tensor, valid_mask: Tensor | None = None, loss_fn: LossOfElements = "l1"
) -> Tensor:
    """Computes the mean loss of distances along lidar rays over the elements in ``valid_mask``. []

    Args:
        pred_distance, gt_distance: Rendered and measured distances with equal shapes.
        valid_mask: Mask of the elements that count, of the same shape; None for all. If it is empty, the loss is 0.
        loss_fn: A key of :data:`PER_ELEMENT`, or a function of two tensors [n] that returns a loss per element.

    Raises:
        ArgumentError: Shapes differ, or ``loss_fn`` is unknown or does not return a loss per element.
    """
    return _element_loss("pred_distance", pred_distance, "gt_distance", gt_distance, valid_mask, loss_fn)


def lidar_intensity_loss(
    pred_intensity: Tensor, gt_intensity: Tensor, valid_mask: Tensor | None = None, loss_fn: LossOfElements = "l1"
) -> Tensor:
    """Computes the mean loss of intensities; see :func:`lidar_distance_loss`. []"""
    return _element_loss("pred_intensity", pred_intensity, "gt_intensity", gt_intensity, valid_mask, loss_fn)


def lidar_raydrop_loss(
    pred_raydrop: Tensor, gt_raydrop: Tensor, valid_mask: Tensor | None = None,
    loss_fn: LossOfElements = "bce_with_logits",
) -> Tensor:  # fmt: skip
    """Computes the mean loss of ray drop, which is 1 for rays without a return; see :func:`lidar_distance_loss`. []

    Predictions are logits or probabilities, depending on ``loss_fn``.
    """
    target = gt_raydrop.to(pred_raydrop.dtype)
    return _element_loss("pred_raydrop", pred_raydrop, "gt_raydrop", target, valid_mask, loss_fn)


def lidar_background_loss(
    pred_opacity: Tensor, background_mask: Tensor, valid_mask: Tensor | None = None, loss_fn: LossOfElements = "bce"
) -> Tensor:
    """Computes the mean loss of opacities, clamped to [0, 1]; see :func:`lidar_distance_loss`. []

    The target is 0 where ``background_mask`` is True, as in the sky, and 1 elsewhere.
    """
    target = (~background_mask.bool()).to(pred_opacity.dtype)
    return _element_loss("pred_opacity", pred_opacity.clamp(0, 1), "background_mask", target, valid_mask, loss_fn)


@in_full_precision
def _element_loss(
    name: str, pred: Tensor, other: str, target: Tensor, mask: Tensor | None, loss_fn: LossOfElements
) -> Tensor:
    """Implements :func:`lidar_distance_loss`; ``name`` and ``other`` are the names of the tensors for messages. []"""
    for given, tensor in ((other, target), ("valid_mask", mask)):
        if tensor is not None:
            check_shapes(given, tensor, name, pred)
    function = PER_ELEMENT.get(loss_fn) if isinstance(loss_fn, str) else loss_fn
    if function is None:
        names = ", ".join(map(repr, PER_ELEMENT))
        raise ArgumentError(f"loss_fn: expected one of {names}, or a function, found {loss_fn!r}")
    if mask is not None:
        pred, target = pred[mask.bool()], target[mask.bool()]
    pred, target = pred.flatten(), target.flatten()
    if not len(pred):
        return pred.sum()
    loss = function(pred, target)
    if loss.shape != pred.shape:
        raise ShapeError(f"loss_fn: expected a per-element loss {list(pred.shape)}, found {list(loss.shape)}")
    return loss.mean()
