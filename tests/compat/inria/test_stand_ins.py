"""The functions of simple_knn and fused_ssim, and the optimizer, against plain PyTorch."""

import math

import pytest
import torch

from tests.support.closeness import assert_exact
from tsplat import ArgumentError, UnsupportedError
from tsplat.compat.inria import SparseGaussianAdam
from tsplat.compat.inria.fused_ssim import fused_ssim
from tsplat.compat.inria.simple_knn._C import distCUDA2


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("n", [4, 50])
def test_distances_are_squared_and_averaged_over_three_neighbors(n):
    points = random(n, 3)
    squared = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    assert_exact("distances", distCUDA2(points), squared.sort(1).values[:, 1:4].mean(1))
    found = distCUDA2(points.float())
    assert found.dtype == torch.float32


def test_coincident_points_have_distance_zero():
    points = torch.cat([torch.zeros(4, 3), torch.ones(1, 3)])
    assert distCUDA2(points).tolist() == [0, 0, 0, 0, 3]


def test_points_are_checked():
    with pytest.raises(ArgumentError, match="points: expected at least 4, found 3"):
        distCUDA2(torch.zeros(3, 3))
    with pytest.raises(ArgumentError, match="points: expected finite values"):
        distCUDA2(torch.full((5, 3), math.nan))
    with pytest.raises(ArgumentError, match=r"points: expected \[N, 3\]"):
        distCUDA2(torch.zeros(5, 2))


def ssim(one, other, padding):
    """Mean SSIM (Wang et al., 2004) by convolutions."""
    window = torch.exp(-0.5 * ((torch.arange(11, dtype=torch.float64) - 5) / 1.5) ** 2)
    window = torch.outer(window, window) / window.sum() ** 2
    channels = one.shape[1]

    def mean(image):
        kernel = window.expand(channels, 1, 11, 11)
        return torch.nn.functional.conv2d(image, kernel, groups=channels, padding=5 if padding == "same" else 0)

    mu1, mu2 = mean(one), mean(other)
    var1, var2 = mean(one**2) - mu1**2, mean(other**2) - mu2**2
    covariance = mean(one * other) - mu1 * mu2
    c1, c2 = 0.01**2, 0.03**2
    return ((2 * mu1 * mu2 + c1) * (2 * covariance + c2) / ((mu1**2 + mu2**2 + c1) * (var1 + var2 + c2))).mean()


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_ssim_and_its_gradient_match_convolutions(padding):
    one, other = (random(2, 3, 15, 20, seed=seed).sigmoid() for seed in (0, 1))
    expected, found = one.clone().requires_grad_(), one.clone().requires_grad_()
    want, have = ssim(expected, other, padding), fused_ssim(found, other, padding=padding)
    assert_exact("ssim", have, want)
    want.backward()
    have.backward()
    assert_exact("gradient", found.grad, expected.grad)


def test_ssim_without_training_has_no_gradient():
    image = random(1, 3, 12, 13).sigmoid().requires_grad_()
    value = fused_ssim(image, image, train=False)
    assert not value.requires_grad
    assert float(value) == pytest.approx(1)


def test_arguments_of_ssim_are_checked():
    image = torch.rand(1, 3, 12, 13)
    with pytest.raises(ArgumentError, match=r"img1: expected \[B, C, H, W\]"):
        fused_ssim(image[0], image[0])
    with pytest.raises(ArgumentError, match="padding: expected one of 'same', 'valid'"):
        fused_ssim(image, image, padding="reflect")
    with pytest.raises(UnsupportedError, match="its gradient is not implemented"):
        fused_ssim(image, image.clone().requires_grad_())


N, EPS = 7, 1e-15


@pytest.mark.parametrize("shape", [(N, 1), (N, 3), (N, 15, 3), (N, 0, 3)])
def test_optimizer_steps_match_plain_pytorch(shape):
    parameter = torch.nn.Parameter(random(*shape))
    optimizer = SparseGaussianAdam([{"params": [parameter], "lr": 0.03, "name": "xyz"}], lr=0.0, eps=EPS)
    expected, first, second = parameter.detach().clone(), torch.zeros(shape), torch.zeros(shape)
    first, second = first.double(), second.double()
    gradients, masks = random(4, *shape, seed=1), random(4, N, seed=2) > 0
    for gradient, visible in zip(gradients, masks):
        parameter.grad = gradient.clone()
        optimizer.step(visible, N)
        first[visible] += 0.1 * (gradient - first)[visible]
        second[visible] += 0.001 * (gradient.square() - second)[visible]
        expected[visible] -= (0.03 * first / (second.sqrt() + EPS))[visible]
    assert_exact("parameter", parameter, expected)


def test_optimizer_has_a_learning_rate_for_groups_without_one():
    parameter = torch.nn.Parameter(random(N, 3))
    before = parameter.detach().clone()
    optimizer = SparseGaussianAdam([parameter], lr=0.25, eps=EPS)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step(torch.ones(N, dtype=torch.bool), N)
    assert_exact("parameter", parameter, before - 0.25 * 0.1 / math.sqrt(0.001))


def test_number_of_gaussians_is_checked():
    parameter = torch.nn.Parameter(random(N, 3))
    optimizer = SparseGaussianAdam([parameter], lr=0.1, eps=EPS)
    parameter.grad = torch.ones_like(parameter)
    with pytest.raises(ArgumentError, match=r"visibility: expected \[8\] as N, found \[7\]"):
        optimizer.step(torch.ones(N, dtype=torch.bool), N + 1)
