"""Losses per element, masked losses, means and the schedule of gsplat 1.6, against formulas."""

import math

import pytest
import torch

from tests.support.closeness import assert_exact
from tsplat import ArgumentError, ShapeError
from tsplat.compat.gsplat import losses


def random(*shape, low=0.05, high=0.95, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)


PRED, TARGET = random(4, 5), random(4, 5, seed=1)
DIFFERENCE = PRED - TARGET
ENTROPY = -(TARGET * PRED.log() + (1 - TARGET) * (1 - PRED).log())
ELEMENTWISE = {
    "huber_loss": (
        dict(delta=0.3),
        torch.where(DIFFERENCE.abs() < 0.3, DIFFERENCE**2 / 2, 0.3 * (DIFFERENCE.abs() - 0.15)),
    ),
    "smooth_l1_loss": (
        dict(beta=0.3),
        torch.where(DIFFERENCE.abs() < 0.3, DIFFERENCE**2 / 0.6, DIFFERENCE.abs() - 0.15),
    ),
    "bce_loss": ({}, ENTROPY),
    "bce_with_logits_loss": ({}, torch.log(1 + torch.exp(PRED)) - TARGET * PRED),
    "depth_inverse_mse": (dict(eps=0.2), (1 / PRED.clamp(min=0.2) - 1 / TARGET.clamp(min=0.2)) ** 2),
    "log_l1": ({}, torch.log(1 + torch.maximum(DIFFERENCE, -DIFFERENCE))),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_losses_of_elements(name):
    options, expected = ELEMENTWISE[name]
    assert_exact(name, getattr(losses, name)(PRED, TARGET, **options), expected)


def test_clipped_probabilities_and_classes():
    clipped = losses.bce_clipped(torch.tensor([0.0, 1.0, 0.5]), torch.tensor([1.0, 1.0, 0.0]), eps=0.01)
    torch.testing.assert_close(clipped, -torch.tensor([0.01, 0.99, 0.5]).log())
    classes = torch.tensor([0, 4, 2, 2])
    expected = PRED.exp().sum(1).log() - PRED[torch.arange(4), classes]
    assert_exact("cross entropy", losses.cross_entropy_loss(PRED, classes), expected)


def test_masked_ssim():
    images, mask = (random(2, 3, 15, 14), random(2, 3, 15, 14, seed=1)), random(2, 1, 15, 14, seed=2) > 0.5
    assert_exact("masked", losses.masked_ssim(*images, mask), losses.ssim_loss(images[0] * mask, images[1] * mask))
    with pytest.raises(ShapeError, match=r"gt: expected the shape"):
        losses.masked_ssim(images[0], images[1][:1], mask)


def test_sums_and_means():
    assert_exact("relu", losses.relu_sum(PRED, 0.4), sum((v - 0.4 for v in PRED.flatten() if v > 0.4), torch.zeros(())))
    assert_exact("weights", losses.weights_reg([PRED, 2 * TARGET]), (PRED**2).sum() / 8 + (TARGET**2).sum() / 2)
    assert_exact("sum", losses.reduce_sum(PRED), PRED.flatten().cumsum(0)[-1])
    assert_exact("mean", losses.reduce_mean(PRED), PRED.sum() / 20)
    mask = TARGET > 0.4
    assert_exact("masked mean", losses.reduce_mean(PRED, mask), PRED[mask].sum() / mask.sum())
    assert losses.reduce_mean(PRED, torch.zeros_like(mask)) == 0
    assert_exact("quantile", losses.reduce_quantile(PRED, 0.3), PRED.flatten().sort().values[:6].sum() / 6)
    assert losses.reduce_quantile(PRED, 0.01) == 0
    with pytest.raises(ArgumentError, match=r"mask: must be bool or integer, found torch\.float64"):
        losses.reduce_mean(PRED, TARGET)
    with pytest.raises(ArgumentError, match=r"quantile must be in \(0, 1\], found 0"):
        losses.reduce_quantile(PRED, 0)


def test_normals_grids_and_frames():
    angle = torch.tensor(0.3, dtype=torch.float64)
    normals = torch.stack([angle.cos(), angle.sin(), 0 * angle])
    assert_exact("normals", losses.normal_cosine_loss(normals, torch.eye(3, dtype=torch.float64)[0]), 1 - angle.cos())
    grid = random(2, 12, 3, 2)
    expected = (
        torch.stack([(grid[:, 4 * i + j] - float(i == j)) ** 2 for i in range(3) for j in range(4)]).sum(0).sqrt()
    )
    assert_exact("grid", losses.identity_distance(grid), expected)
    flat = torch.cat([expected.flatten(), expected[:, 0].flatten()])
    assert_exact("grids", losses.bilateral_grid_drift_loss([grid, grid[:, :, 0]]), flat)
    assert losses.bilateral_grid_drift_loss([]).shape == (0,)
    frames, mask = random(3, 2, 1, 4, 5), torch.tensor([0.0, 2.0])
    expected = torch.stack([0 * angle, (frames[2] - frames[1]).square().sum() / 40 * 2])
    assert_exact("frames", losses.total_variation_temporal(frames, mask), expected)
    assert losses.total_variation_temporal(frames[:1], mask[:0]).tolist() == [0]


def test_masked_depths():
    mask = TARGET > 0.5
    assert_exact("l1", losses.masked_l1(PRED, TARGET, mask), DIFFERENCE[mask].abs().sum() / mask.sum())
    assert losses.masked_l1(PRED, TARGET, torch.zeros(1)) == 0
    pred = torch.where(PRED > 0.3, PRED, 0.0)
    both = mask & (pred > 0)
    expected = (1 / pred[both] - 1 / TARGET[both]).abs().mean()
    leaf = pred.clone().requires_grad_()
    loss = losses.binocular_disparity_l1(leaf, TARGET, mask)
    assert_exact("disparity", loss, expected)
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert gradient[both].all() and not gradient[~both].any()
    correlation = torch.corrcoef(torch.stack([PRED[mask], TARGET[mask]]))[0, 1]
    assert_exact("correlation", losses.pearson_depth_loss(PRED, TARGET, mask), 1 - correlation)
    assert losses.pearson_depth_loss(PRED, TARGET, torch.zeros_like(mask)) == 0
    for loss in (losses.binocular_disparity_l1, losses.pearson_depth_loss):
        with pytest.raises(ShapeError, match=r"gt_depth: expected the shape \[4, 5\] as pred_depth, found \[4\]"):
            loss(PRED, TARGET[:, 0])


def test_the_schedule_has_stages():
    schedule = losses.LinearLambdaScheduler(10, 30, 4.0, 0.0, update_frequency=5)
    assert [schedule(0, step) for step in (0, 10, 14, 15, 20, 29, 30, 99)] == [4, 4, 4, 3, 2, 1, 0, 0]
    epochs = losses.LinearLambdaScheduler(0, 2, 0.0, 1.0, update_interval="epoch")
    assert math.isclose(epochs(1, 1000), 0.5)
    for wrong, message in (
        (dict(update_frequency=0), "update_frequency must be > 0"),
        (dict(end=10), "end must be > start"),
        (dict(update_frequency=21), "total_stages must be > 0"),
    ):
        with pytest.raises(ArgumentError, match=message):
            losses.LinearLambdaScheduler(**dict(start=10, end=30, lambda_init=1.0) | wrong)
