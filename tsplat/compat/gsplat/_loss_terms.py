"""More functions of ``gsplat.losses`` of gsplat 1.6: elementwise and masked losses, reductions, and a schedule.

Functions whose docstring ends with [] return a scalar. The others return a value per element.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ... import ArgumentError, ShapeError
from ...precision import in_full_precision


class ContractError(ArgumentError, AssertionError):
    """Values are outside of a loss's domain. It is also an AssertionError, which gsplat raises."""


@in_full_precision
def huber_loss(pred: Tensor, target: Tensor, delta: float = 1.0) -> Tensor:
    """Computes the Huber loss: half the squared difference below `delta`, linear above."""
    return functional.huber_loss(pred, target, reduction="none", delta=delta)


@in_full_precision
def smooth_l1_loss(pred: Tensor, target: Tensor, beta: float = 1.0) -> Tensor:
    """Computes the Huber loss with threshold `beta`, divided by `beta`."""
    return functional.smooth_l1_loss(pred, target, reduction="none", beta=beta)


@in_full_precision
def bce_loss(pred: Tensor, target: Tensor) -> Tensor:
    """Computes the binary cross entropy of probabilities."""
    return functional.binary_cross_entropy(pred, target, reduction="none")


@in_full_precision
def bce_with_logits_loss(pred: Tensor, target: Tensor) -> Tensor:
    """Computes the binary cross entropy of logits."""
    return functional.binary_cross_entropy_with_logits(pred, target, reduction="none")


def bce_clipped(input: Tensor, target: Tensor, eps: float = 0.001) -> Tensor:
    """Computes the binary cross entropy of probabilities clamped to [`eps`, 1 - `eps`]."""
    return bce_loss(input.float().clamp(eps, 1 - eps), target.float())


@in_full_precision
def cross_entropy_loss(pred: Tensor, target: Tensor) -> Tensor:
    """Computes the cross entropy of logits [N, C] and classes [N]. [N]"""
    return functional.cross_entropy(pred, target, reduction="none")


def depth_inverse_mse(pred: Tensor, target: Tensor, eps: float = 1e-6) -> Tensor:
    """Computes (1 / pred - 1 / target)^2 for depths clamped to at least `eps`."""
    return (1 / pred.clamp_min(eps) - 1 / target.clamp_min(eps)).square()


def log_l1(pred: Tensor, target: Tensor) -> Tensor:
    """Computes log(1 + ``|pred - target|``)."""
    return (pred - target).abs().log1p()


def relu_sum(value: Tensor, eps: float) -> Tensor:
    """Computes the sum of max(value - eps, 0). []"""
    return (value - eps).relu().sum()


def weights_reg(weights_list: Sequence[Tensor], dim: int = 1) -> Tensor:
    """Computes the mean of squared norms along `dim`, over all tensors. []"""
    return torch.cat([weights.square().sum(dim) for weights in weights_list]).mean()


def identity_distance(grid: Tensor, num_rows: int = 3, num_cols: int = 4) -> Tensor:
    """Computes the norm of (matrix - identity) for each matrix in a grid [B, rows * columns, ...]. [B, ...]"""
    one = torch.eye(num_rows, num_cols, dtype=grid.dtype, device=grid.device).flatten()
    distance: Tensor = (grid - one.view(-1, *[1] * (grid.dim() - 2))).norm(dim=1)
    return distance


def bilateral_grid_drift_loss(grids: Sequence[Tensor], num_rows: int = 3, num_cols: int = 4) -> Tensor:
    """Concatenates :func:`identity_distance` of several grids; empty without grids."""
    distances = [identity_distance(grid, num_rows, num_cols).flatten() for grid in grids]
    return torch.cat(distances) if distances else torch.empty(0)


def total_variation_temporal(x: Tensor, loss_mask: Tensor) -> Tensor:
    """Computes the masked mean squared differences of consecutive frames [B, C, D, H, W]. [B - 1], or a zero [1]"""
    if len(x) <= 1:
        return x.new_zeros(1)
    return x.diff(dim=0).square().flatten(1).mean(1) * loss_mask


def reduce_mean(value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Computes the mean of values; with a mask, the sum of masked values divided by max(mask.sum(), 1). []

    Raises:
        ContractError: The mask has a floating-point type.
    """
    if mask is None:
        return value.mean()
    if mask.is_floating_point():
        raise ContractError(f"mask: must be bool or integer, found {mask.dtype}; pass mask > 0")
    return (value * mask).sum() / mask.sum().clamp_min(1)


def reduce_quantile(value: Tensor, quantile: float) -> Tensor:
    """Computes the mean of the smallest values, where `quantile` is their share; 0 if there are none. []

    Raises:
        ContractError: `quantile` is not in (0, 1].
    """
    if not 0 < quantile <= 1:
        raise ContractError(f"quantile must be in (0, 1], found {quantile}")
    count = int(quantile * value.numel())
    return value.flatten().topk(count, largest=False).values.sum() / max(count, 1)


def reduce_sum(value: Tensor) -> Tensor:
    """Computes the sum of values. []"""
    return value.sum()


def masked_l1(pred: Tensor, gt: Tensor, mask: Tensor) -> Tensor:
    """Computes the mean absolute difference where a mask, broadcast to `pred`, is nonzero; 0 if it is empty. []"""
    check_shapes("gt", gt, "pred", pred)
    chosen = (pred - gt).abs()[(mask != 0).expand_as(pred)]
    return chosen.sum() / max(chosen.numel(), 1)


def binocular_disparity_l1(
    pred_depth: Tensor, gt_depth: Tensor, mask: Tensor | None = None, eps: float = 1e-7
) -> Tensor:
    """Computes the mean absolute difference of 1 / depth where the mask is nonzero and both depths exceed `eps`. []"""
    check_shapes("gt_depth", gt_depth, "pred_depth", pred_depth)
    valid = (pred_depth.abs() > eps) & (gt_depth.abs() > eps)
    pred, target = (1 / torch.where(valid, depth, 1.0) for depth in (pred_depth, gt_depth))
    return masked_l1(pred, target, valid if mask is None else valid & (mask != 0))


def pearson_depth_loss(pred_depth: Tensor, gt_depth: Tensor, mask: Tensor | None = None) -> Tensor:
    """Computes 1 minus Pearson's correlation of depths where the mask is nonzero; 0 for fewer than two depths. []"""
    check_shapes("gt_depth", gt_depth, "pred_depth", pred_depth)
    chosen = torch.ones_like(pred_depth, dtype=torch.bool) if mask is None else (mask != 0).expand_as(pred_depth)
    pred, target = pred_depth[chosen], gt_depth[chosen]
    if pred.numel() < 2:
        return 0 * pred.sum()
    pred, target = pred - pred.mean(), target - target.mean()
    return 1 - (pred * target).sum() / (pred.square().sum() * target.square().sum()).clamp_min(1e-12).sqrt()


def check_shapes(name: str, tensor: Tensor, other: str, expected: Tensor) -> None:
    """Raises `ShapeError` if the shapes differ."""
    if tensor.shape != expected.shape:
        raise ShapeError(f"{name}: expected the shape {list(expected.shape)} as {other}, found {list(tensor.shape)}")


class LinearLambdaScheduler:
    """A weight that changes in equal stages from `lambda_init` at `start` to `lambda_end` at `end`.

    Args:
        start, end: First and last step or epoch.
        lambda_init, lambda_end: First and last weight.
        update_interval: Unit of the other arguments, ``"step"`` or ``"epoch"``.
        update_frequency: Number of steps or epochs per stage.

    Raises:
        ArgumentError: There is no complete stage.
    """

    def __init__(
        self, start: int, end: int, lambda_init: float, lambda_end: float = 0.0, update_interval: str = "step",
        update_frequency: int = 1,
    ) -> None:  # fmt: skip
        if update_frequency <= 0:
            raise ArgumentError(f"update_frequency must be > 0, found {update_frequency}")
        if end <= start:
            raise ArgumentError(f"end must be > start, {start}, found {end}")
        self.start, self.end, self.lambda_init, self.lambda_end = start, end, lambda_init, lambda_end
        self.update_interval, self.update_frequency = update_interval, update_frequency
        self.total_stages = (end - start) // update_frequency
        if self.total_stages == 0:
            raise ArgumentError(
                f"total_stages must be > 0: update_frequency is {update_frequency}, more than all steps"
            )

    def __call__(self, epoch: int, global_step: int) -> float:
        """Returns the weight at an epoch or a step."""
        now = global_step if self.update_interval == "step" else epoch
        share = min(max((now - self.start) // self.update_frequency / self.total_stages, 0.0), 1.0)
        return self.lambda_init + share * (self.lambda_end - self.lambda_init)
