"""Merged Gaussians keep the moments of their parts."""

import dataclasses

import pytest
import torch

from tests.support.model_files import random_gaussians
from tests.support.training_scenes import make_gaussians
from tsplat.reference import covariances
from tsplat.scene.editing.moments import merge_into_neighbors

pytest.importorskip("scipy")


def close_ends():
    """Three Gaussians, of which the last one is close to the first, of equal color."""
    gaussians = random_gaussians(n=3, degree=1).map(torch.Tensor.double)
    means = torch.tensor([[0.0, 0, 0], [50, 0, 0], [0.01, 0.02, -0.01]], dtype=torch.float64)
    return dataclasses.replace(gaussians, means=means, sh0=gaussians.sh0[:1].repeat(3, 1, 1))


def test_moments_of_two_gaussians_are_kept():
    gaussians, kept, weights = close_ends(), torch.tensor([True, True, False]), torch.tensor([3.0, 1, 1]).double()
    merged = merge_into_neighbors(gaussians, kept, weights)
    assert len(merged) == 2
    a, b = gaussians.means[0], gaussians.means[2]
    mean = 0.75 * a + 0.25 * b
    shapes = covariances(gaussians.quats, gaussians.scales)
    spread = 0.75 * (shapes[0] + torch.outer(a - mean, a - mean)) + 0.25 * (shapes[2] + torch.outer(b - mean, b - mean))
    torch.testing.assert_close(merged.means[0], mean)
    torch.testing.assert_close(covariances(merged.quats, merged.scales)[0], spread)
    torch.testing.assert_close(merged.shN[0], 0.75 * gaussians.shN[0] + 0.25 * gaussians.shN[2])
    area = [model.scales.sort(-1).values[0, 1:].prod() for model in (gaussians, merged)]
    torch.testing.assert_close(merged.opacities[0] * area[1], 4 / 3 * gaussians.opacities[0] * area[0])
    for name, tensor in merged.tensors().items():
        assert torch.equal(tensor[1], getattr(gaussians, name)[1]), name


@pytest.mark.parametrize("change", [dict(weights=[1.0, 1, 0]), dict(weights=[0.0, 1, 1]), dict(far=True)])
def test_what_is_invisible_or_far_changes_nothing(change):
    gaussians, kept = close_ends(), torch.tensor([True, True, False])
    if "far" in change:
        gaussians.means[2] = 1000.0
    merged = merge_into_neighbors(gaussians, kept, torch.tensor(change.get("weights", [1.0, 1, 1])).double())
    for name, tensor in merged.tensors().items():
        assert torch.equal(tensor, getattr(gaussians, name)[:2]), name


def test_the_neighbor_of_similar_color_is_chosen():
    gaussians = make_gaussians(n=3)
    gaussians.means[:] = torch.tensor([[0.0, 0, 0], [0.02, 0, 0], [0.01, 0, 0]])
    gaussians.sh0[:] = torch.tensor([-1.0, 1.0, 0.9])[:, None, None]
    merged = merge_into_neighbors(gaussians, torch.tensor([True, True, False]), torch.ones(3))
    assert torch.equal(merged.means[0], gaussians.means[0])
    assert float(merged.means[1, 0]) == pytest.approx(0.015)


def test_extreme_gaussians_stay_valid():
    gaussians = random_gaussians(n=60, degree=2)
    gaussians.means[:20] = gaussians.means[20:40]
    gaussians.log_scales[::3] = torch.tensor([-200.0, -1, -1])
    gaussians.log_scales[1::3] = -80.0
    gaussians.opacity_logits[::5] = torch.inf
    gaussians.opacity_logits[1::5] = -torch.inf
    merged = merge_into_neighbors(gaussians, torch.arange(60) % 4 == 0, torch.rand(60) + 0.01)
    assert len(merged) == 15
    assert merged.valid.all()
