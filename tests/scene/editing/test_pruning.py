"""Pruned models: what is kept, and what NaN does."""

import dataclasses
import math

import pytest
import torch

from tests.support.model_files import random_gaussians
from tests.support.training_scenes import make_gaussians
from tsplat import ArgumentError
from tsplat.scene import prune_gaussians


def with_nan():
    gaussians = random_gaussians(n=40, degree=1)
    for i, tensor in enumerate(gaussians.tensors().values()):
        tensor[i] = math.nan
    return gaussians


def test_faint_and_large_gaussians_are_removed():
    gaussians = random_gaussians(n=200)
    opacity, scale = float(gaussians.opacities.median()), float(gaussians.scales.amax(-1).median())
    expected = (gaussians.opacities >= opacity) & (gaussians.scales.amax(-1) <= scale)
    assert 0 < expected.sum() < 200
    kept = prune_gaussians(gaussians, min_opacity=opacity, max_scale=scale)
    assert torch.equal(kept.quats, gaussians.quats[expected])


@pytest.mark.parametrize(
    "condition", [dict(min_opacity=0.0), dict(max_scale=1e9), dict(max_isolation=1e9), dict(drop_invalid=True)]
)
def test_nan_meets_no_condition(condition):
    gaussians = with_nan()
    kept = prune_gaussians(gaussians, **condition)
    assert len(prune_gaussians(gaussians)) == 40
    name = {"min_opacity": "opacity_logits", "max_scale": "log_scales", "max_isolation": "means"}
    lost = 6 if "drop_invalid" in condition else 1
    assert len(kept) == 40 - lost
    checked = kept.tensors() if lost == 6 else [name[next(iter(condition))]]
    assert all(getattr(kept, one).isfinite().all() for one in checked)


def test_isolated_gaussians_are_removed():
    gaussians = make_gaussians(n=300)
    gaussians.means[7] = torch.tensor([30.0, 0, 0])
    kept = prune_gaussians(gaussians, max_isolation=10)
    assert torch.equal(kept.means, torch.cat([gaussians.means[:7], gaussians.means[8:]]))


@pytest.mark.parametrize("n", [0, 1, 2])
def test_isolation_in_small_models(n):
    gaussians = random_gaussians(n=max(n, 1)).map(lambda tensor: tensor[:n])
    assert len(prune_gaussians(gaussians, max_isolation=1)) == n


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        (dict(min_opacity=1.5), "min_opacity: expected a number from 0 to 1, found 1.5"),
        (dict(min_opacity=math.nan), "min_opacity: .* found nan"),
        (dict(max_scale=0), "max_scale: expected a number above 0, found 0"),
        (dict(max_isolation=0.5), "max_isolation: expected a number of at least 1, found 0.5"),
        (dict(max_isolation=math.inf), "max_isolation: .* found inf"),
    ],
)
def test_invalid_limits(condition, problem):
    with pytest.raises(ArgumentError, match=problem):
        prune_gaussians(random_gaussians(), **condition)


def test_conditions_keep_the_flag():
    gaussians = dataclasses.replace(random_gaussians(n=9), antialiased=True)
    assert prune_gaussians(gaussians, min_opacity=0.1).antialiased
