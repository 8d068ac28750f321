"""Operations on Gaussians: parameters change as intended, and moments follow their Gaussians."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.strategy_models import check_moments, make_model
from tsplat import ArgumentError, reference
from tsplat.strategies.operations import (
    _multinomial_sample,
    duplicate,
    remove,
    reset_opa,
    rotate,
    split,
)
from tsplat.strategies.parameters import check_parameters


@given(st.integers(1, 30), st.integers(0, 2**31))
def test_moments_follow_duplicated_split_and_removed_gaussians(n, seed):
    params, optimizers = make_model(n, seed)
    generator = torch.Generator().manual_seed(seed)
    state = {"grad2d": torch.arange(1.0, n + 1), "scene_scale": 2.0}
    first = {name: p.detach().clone() for name, p in params.items()}

    def random_mask(count):
        return torch.rand(count, generator=generator) < 0.4

    chosen = random_mask(n)
    duplicate(params, optimizers, state, chosen)
    check_moments(params, optimizers)
    assert len(params["means"]) == n + int(chosen.sum())
    assert torch.equal(params["means"].detach()[n:], first["means"][chosen])
    assert not optimizers["means"].state[params["means"]]["exp_avg"][n:].any()
    chosen = random_mask(len(params["means"]))
    before = len(chosen)
    split(params, optimizers, state, chosen, generator=generator)
    check_moments(params, optimizers)
    assert len(params["means"]) == before + int(chosen.sum())
    ids = params["ids"].detach()
    halves = slice(before - int(chosen.sum()), None)
    torch.testing.assert_close(
        params["scales"].detach()[halves], first["scales"][ids[halves].long() - 1] - math.log(1.6)
    )
    chosen = random_mask(len(ids))
    remove(params, optimizers, state, chosen)
    check_moments(params, optimizers)
    assert torch.equal(params["ids"].detach(), ids[~chosen])
    assert torch.equal(state["grad2d"], params["ids"].detach())
    reset_opa(params, optimizers, state, 0.01)
    assert (params["opacities"].detach().sigmoid() <= 0.01 + 1e-6).all()
    assert not optimizers["opacities"].state[params["opacities"]]["exp_avg"].any()


def test_rotate_matches_reference():
    quats, vectors = torch.randn(9, 4, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    rotation = reference.quaternion_to_rotation(quats)
    torch.testing.assert_close(rotate(quats, vectors), (rotation @ vectors[..., None])[..., 0])


def test_samples_follow_the_weights():
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0])
    indices = _multinomial_sample(weights, 4000, generator=torch.Generator().manual_seed(1))
    counts = torch.bincount(indices, minlength=4)
    assert counts[[0, 3]].tolist() == [0, 0]
    assert float(counts[2]) == pytest.approx(3000, abs=120)


def test_check_parameters_names_the_problem():
    params, optimizers = make_model(3)
    with pytest.raises(ArgumentError, match="optimizers: expected one for sh0"):
        check_parameters(params, {k: v for k, v in optimizers.items() if k != "sh0"})
    with pytest.raises(ArgumentError, match="optimizers: the one for means must have exactly this parameter"):
        check_parameters(params, optimizers | {"means": optimizers["sh0"]})
    with pytest.raises(ArgumentError, match="params: expected quats among"):
        check_parameters({k: v for k, v in params.items() if k != "quats"}, optimizers)
