"""The MCMC strategy."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.strategy_models import check_moments, make_model
from tsplat.strategies import MCMCStrategy, operations
from tsplat.strategies.operations import inject_noise_to_position
from tsplat.strategies.random_numbers import draw_key, standard_normal


@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(0, 2**31), st.integers(1, 70))
def test_cap_moments_and_determinism(n, seed, cap):
    params, optimizers = make_model(n, seed)
    strategy = MCMCStrategy(cap_max=cap, generator=torch.Generator().manual_seed(seed))
    strategy.check_sanity(params, optimizers)
    state = strategy.initialize_state()
    initial = copy.deepcopy(params)
    for step in (600, 700):
        strategy.step_post_backward(params, optimizers, state, step, {}, lr=1e-4)
        check_moments(params, optimizers)
    grown = min(cap, int(1.05 * min(max(cap, n), int(1.05 * n)))) if cap > n else n
    assert len(params["means"]) == max(n, grown)
    dead = params["opacities"].detach().sigmoid() < 0.99 * strategy.min_opacity
    assert not dead.any() or not (initial["opacities"].detach().sigmoid() > strategy.min_opacity).any()
    repeated, others = make_model(n, seed)
    strategy = MCMCStrategy(cap_max=cap, generator=torch.Generator().manual_seed(seed))
    for step in (600, 700):
        strategy.step_post_backward(repeated, others, state, step, {}, lr=1e-4)
    assert all(torch.equal(params[name], repeated[name]) for name in params)


def test_noise_has_the_covariance_of_transparent_gaussians_and_skips_opaque_ones():
    params, optimizers = make_model(2000)
    with torch.no_grad():
        params["scales"][:] = torch.tensor([-2.0, -12.0, -12.0])
        params["quats"][:] = torch.tensor([1.0, 0.0, 0.0, 0.0])
        params["opacities"][:1000] = -9.0
        params["opacities"][1000:] = 4.0
    before = params["means"].detach().clone()
    strategy = MCMCStrategy(generator=torch.Generator().manual_seed(0))
    strategy.step_post_backward(params, optimizers, {}, 1, {}, lr=1e-6)
    moved = params["means"].detach() - before
    assert not moved[1000:].abs().max() > 1e-6
    gate = 1 / (1 + math.exp(-100 * (1 - 1 / (1 + math.exp(9.0)) - 0.995)))
    assert float(moved[:1000, 0].std()) == pytest.approx(0.5 * gate * math.exp(-4), rel=0.1)
    assert float(moved[:1000, 1:].abs().max()) < 1e-4


def test_noise_ends_at_a_step():
    for stop, step, moves in ((-1, 9, True), (0, 0, False), (5, 4, True), (5, 5, False)):
        params, optimizers = make_model(10)
        before = params["means"].detach().clone()
        strategy = MCMCStrategy(noise_injection_stop_iter=stop)
        strategy.step_post_backward(params, optimizers, {}, step, {}, lr=1e-3)
        assert torch.equal(params["means"], before) != moves


def test_noise_depends_on_opacity():
    settings = dict(noise_opacity_t=0.3, noise_opacity_k=7.0)
    params, optimizers = make_model(10)
    params["scales"].data.fill_(-1.0)
    before = params["means"].detach().clone()
    strategy = MCMCStrategy(**settings, generator=torch.Generator().manual_seed(0))
    strategy.step_post_backward(params, optimizers, {}, 1, {}, lr=1e-6)
    opacities = params["opacities"].detach().sigmoid()
    samples = standard_normal(draw_key(torch.Generator().manual_seed(0)), torch.arange(10), before)
    expected = 0.5 * math.exp(-2) * samples / (1 + torch.exp(-7 * (0.3 - opacities)))[:, None]
    torch.testing.assert_close(params["means"].detach() - before, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.triton
@pytest.mark.parametrize("block", [64, 2**15])
def test_noise_that_moves_nothing_is_not_drawn(block, monkeypatch):
    """The bits are those of noise for all Gaussians."""
    monkeypatch.setattr(operations, "BLOCK", block)
    drawn, normal = [], operations.standard_normal
    monkeypatch.setattr(
        operations, "standard_normal", lambda key, ids, like: drawn.append(len(ids)) or normal(key, ids, like)
    )
    cases = [(100.0, 0.005, 100.0, -6), (1e-3, 0.2, 60.0, -6), (1e6, 0.005, 300.0, -6), (1e-14, 0.005, 100.0, 15)]
    for seed, (scaler, t, k, log_scale) in enumerate(cases):
        params, _ = make_model(1000, seed)
        generator = torch.Generator().manual_seed(seed)
        params["opacities"].data.copy_(12 * torch.rand(1000, generator=generator) - 5)
        params["scales"].data.copy_(0.5 * torch.randn(1000, 3, generator=generator) + log_scale)
        params["means"].data[::50, 1] = 0.0
        params["means"].data[1::50, 2] *= 1e-7
        found = []
        for moved in (operations._rows_moved_by_noise, lambda *arguments: None):
            with monkeypatch.context() as patch:
                patch.setattr(operations, "_rows_moved_by_noise", moved)
                model = {name: torch.nn.Parameter(parameter.detach().clone()) for name, parameter in params.items()}
                drawn.clear()
                operations.add_noise(model, 7, scaler, t, k, 3, "triton")
                found.append((model["means"].detach(), sum(drawn)))
        assert torch.equal(found[0][0], found[1][0]) and not torch.equal(found[0][0], params["means"])
        assert found[0][1] < 500 and found[1][1] == 1000


def test_noise_of_shards_is_that_of_the_whole_scene():
    params, optimizers = make_model(10)
    strategy = MCMCStrategy(generator=torch.Generator().manual_seed(0))
    strategy.step_post_backward(params, optimizers, {}, 1, {}, lr=1e-3)
    for first, last in ((0, 4), (4, 10)):
        shard, optimizers = make_model(10)
        shard = {name: torch.nn.Parameter(parameter.detach()[first:last].clone()) for name, parameter in shard.items()}
        generator = torch.Generator().manual_seed(0)
        inject_noise_to_position(shard, optimizers, {}, 500.0, first=first, generator=generator)
        assert torch.equal(shard["means"], params["means"][first:last])
