"""Strategies: counts, moments that go along with their Gaussians, caps, no broken numbers, the same by seed."""

import copy
import math
import runpy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.paths import ROOT
from tsplat import ArgumentError, reference
from tsplat.strategies import DefaultStrategy, MCMCStrategy
from tsplat.strategies.mcmc import share
from tsplat.strategies.operations import duplicate, remove, reset_opacities, rotate, split

DOCS = ROOT / "docs"


def model(n, seed=0):
    """Parameters with an id in each Gaussian, and optimizers whose moments are that id."""
    generator = torch.Generator().manual_seed(seed)
    values = dict(
        means=torch.randn(n, 3, generator=generator),
        scales=0.5 * torch.randn(n, 3, generator=generator) - 3,
        quats=torch.randn(n, 4, generator=generator),
        opacities=3 * torch.randn(n, generator=generator),
        sh0=torch.rand(n, 1, 3, generator=generator),
        ids=torch.arange(1.0, n + 1),
    )
    params = {name: torch.nn.Parameter(value) for name, value in values.items()}
    optimizers = {name: torch.optim.Adam([p], lr=1e-3) for name, p in params.items()}
    for name, p in params.items():
        rows = params["ids"].detach().view(-1, *[1] * (p.dim() - 1)).expand_as(p).clone()
        optimizers[name].state[p] = {"step": torch.tensor(7.0), "exp_avg": rows, "exp_avg_sq": rows.clone()}
    return params, optimizers


def check_moments(params, optimizers):
    """Every row's moments are its own id, or zero where it is new; and optimizers hold the parameters there are."""
    ids = params["ids"].detach()
    for name, p in params.items():
        optimizer = optimizers[name]
        assert optimizer.param_groups[0]["params"] == [p]
        assert list(optimizer.state) == [p]
        assert optimizer.state[p]["step"] == 7
        for key in ("exp_avg", "exp_avg_sq"):
            moment = optimizer.state[p][key]
            assert moment.shape == p.shape
            expected = ids.view(-1, *[1] * (p.dim() - 1)).expand_as(p)
            assert ((moment == expected) | (moment == 0)).all()
        assert p.isfinite().all()
        assert p.shape[0] == len(ids)


@given(st.integers(1, 30), st.integers(0, 2**31))
def test_copies_halves_and_removals_take_their_moments_along(n, seed):
    params, optimizers = model(n, seed)
    generator = torch.Generator().manual_seed(seed)
    state = {"grad2d": torch.arange(1.0, n + 1), "scene_scale": 2.0}
    first = {name: p.detach().clone() for name, p in params.items()}

    def some(count):
        return torch.rand(count, generator=generator) < 0.4

    chosen = some(n)
    duplicate(params, optimizers, state, chosen)
    check_moments(params, optimizers)
    assert len(params["means"]) == n + int(chosen.sum())
    assert torch.equal(params["means"].detach()[n:], first["means"][chosen])
    assert not optimizers["means"].state[params["means"]]["exp_avg"][n:].any()
    chosen = some(len(params["means"]))
    before = len(chosen)
    split(params, optimizers, state, chosen, generator=generator)
    check_moments(params, optimizers)
    assert len(params["means"]) == before + int(chosen.sum())
    ids = params["ids"].detach()
    halves = slice(before - int(chosen.sum()), None)
    torch.testing.assert_close(
        params["scales"].detach()[halves], first["scales"][ids[halves].long() - 1] - math.log(1.6)
    )
    chosen = some(len(ids))
    remove(params, optimizers, state, chosen)
    check_moments(params, optimizers)
    assert torch.equal(params["ids"].detach(), ids[~chosen])
    assert torch.equal(state["grad2d"], params["ids"].detach())
    reset_opacities(params, optimizers, 0.01)
    assert (params["opacities"].detach().sigmoid() <= 0.01 + 1e-6).all()
    assert not optimizers["opacities"].state[params["opacities"]]["exp_avg"].any()


def test_rotation_is_the_rasterizers():
    quats, vectors = torch.randn(9, 4, dtype=torch.float64), torch.randn(9, 3, dtype=torch.float64)
    rotation = reference.quaternion_to_rotation(quats)
    torch.testing.assert_close(rotate(quats, vectors), (rotation @ vectors[..., None])[..., 0])


def info(params, gradients, radii):
    means2d = torch.zeros(1, len(gradients), 2)
    means2d.grad = gradients[None]
    return dict(means2d=means2d, radii=radii[None], width=200, height=100, n_cameras=1, gaussian_ids=None)


def test_default_clones_small_splits_large_prunes_faint_and_resets():
    params, optimizers = model(6)
    with torch.no_grad():
        params["scales"][:] = math.log(0.005)
        params["scales"][1] = math.log(0.05)
        params["opacities"][:] = 2.0
        params["opacities"][4] = -8.0
    strategy = DefaultStrategy(reset_every=700)
    strategy.check_sanity(params, optimizers)
    state = strategy.initialize_state(scene_scale=1.0)
    gradients = torch.zeros(6, 2)
    gradients[0, 0] = gradients[1, 1] = gradients[5, 0] = 1e-5
    gradients[2, 0] = 1e-7
    radii = torch.full((6, 2), 3, dtype=torch.int32)
    radii[5] = 0
    # 1e-5 by pixel is 1e-3 with the screen from -1 to 1 along x, and 5e-4 along y; the last was not seen.
    strategy.step_post_backward(params, optimizers, state, 599, info(params, gradients, radii))
    assert len(params["means"]) == 6
    strategy.step_post_backward(params, optimizers, state, 600, info(params, gradients, radii))
    assert params["ids"].tolist() == [1, 3, 4, 6, 1, 2, 2]
    check_moments(params, optimizers)
    assert state["grad2d"] is None
    gradients, radii = torch.zeros(7, 2), torch.full((7, 2), 3, dtype=torch.int32)
    strategy.step_post_backward(params, optimizers, state, 700, info(params, gradients, radii))
    assert (params["opacities"].detach().sigmoid() <= 0.01 + 1e-6).all()
    params, optimizers = model(3)
    strategy.step_post_backward(params, optimizers, state, 20_000, {})
    assert len(params["means"]) == 3


def test_default_reads_absgrad_and_packed_rows():
    params, optimizers = model(4)
    with torch.no_grad():
        params["opacities"][:] = 2.0
        params["scales"][:] = -6.0
    strategy = DefaultStrategy(absgrad=True)
    state = strategy.initialize_state()
    means2d = torch.zeros(2, 2)
    means2d.absgrad = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    rows = dict(means2d=means2d, radii=torch.ones(2, 2, dtype=torch.int32), width=10, height=10, n_cameras=1)
    rows["gaussian_ids"] = torch.tensor([3, 1])
    strategy.step_post_backward(params, optimizers, state, 600, rows, packed=True)
    assert params["ids"].tolist() == [1, 2, 3, 4, 4]
    del means2d.absgrad
    with pytest.raises(ArgumentError, match=r"info: means2d has no absgrad; .* absgrad=True"):
        strategy.step_post_backward(params, optimizers, state, 601, rows, packed=True)
    with pytest.raises(ArgumentError, match="info: expected means2d, found"):
        strategy.step_pre_backward(params, optimizers, state, 0, {})


def test_a_run_in_which_everything_would_go_is_an_error():
    params, optimizers = model(3)
    with torch.no_grad():
        params["opacities"][:] = -9.0
    still = info(params, torch.zeros(3, 2), torch.ones(3, 2, dtype=torch.int32))
    with pytest.raises(ArgumentError, match="prune_opa: every one of 3 Gaussians would go at step 600"):
        DefaultStrategy().step_post_backward(params, optimizers, DefaultStrategy().initialize_state(), 600, still)


@given(st.floats(0.01, 0.99), st.integers(1, 51))
def test_gaussians_in_one_place_share_what_one_had(opacity, copies):
    o, s = torch.tensor([opacity], dtype=torch.float64), torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    new, scales = share(o, s, torch.tensor([copies]))
    assert float(1 - (1 - new) ** copies) == pytest.approx(opacity, rel=1e-9)
    # Equation 9 as it is written.
    total = sum(
        math.comb(i - 1, j) * (-1) ** j / math.sqrt(j + 1) * float(new) ** (j + 1)
        for i in range(1, copies + 1)
        for j in range(i)
    )
    torch.testing.assert_close(scales, s * opacity / total, rtol=1e-7, atol=0)


@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(0, 2**31), st.integers(1, 70))
def test_mcmc_keeps_its_cap_and_moves_moments(n, seed, cap):
    params, optimizers = model(n, seed)
    strategy = MCMCStrategy(cap_max=cap, generator=torch.Generator().manual_seed(seed))
    strategy.check_sanity(params, optimizers)
    state = strategy.initialize_state()
    other, others = copy.deepcopy(params), None
    for step in (600, 700):
        strategy.step_post_backward(params, optimizers, state, step, {}, lr=1e-4)
        check_moments(params, optimizers)
    grown = min(cap, int(1.05 * min(max(cap, n), int(1.05 * n)))) if cap > n else n
    assert len(params["means"]) == max(n, grown)
    dead = params["opacities"].detach().sigmoid() < 0.99 * strategy.min_opacity
    assert not dead.any() or not (other["opacities"].detach().sigmoid() > strategy.min_opacity).any()
    again, others = model(n, seed)
    strategy = MCMCStrategy(cap_max=cap, generator=torch.Generator().manual_seed(seed))
    for step in (600, 700):
        strategy.step_post_backward(again, others, state, step, {}, lr=1e-4)
    assert all(torch.equal(params[name], again[name]) for name in params)


def test_noise_moves_the_faint_along_their_covariance_and_leaves_the_opaque():
    params, optimizers = model(2000)
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


def test_parameters_and_optimizers_that_do_not_go_together():
    params, optimizers = model(3)
    strategy = DefaultStrategy()
    with pytest.raises(ArgumentError, match="optimizers: expected one for sh0"):
        strategy.check_sanity(params, {k: v for k, v in optimizers.items() if k != "sh0"})
    with pytest.raises(ArgumentError, match="optimizers: the one for means must hold that parameter and no other"):
        strategy.check_sanity(params, optimizers | {"means": optimizers["sh0"]})
    with pytest.raises(ArgumentError, match="params: expected quats among"):
        strategy.check_sanity({k: v for k, v in params.items() if k != "quats"}, optimizers)
    params["ids"].requires_grad_(False)
    with pytest.raises(ArgumentError, match="params: ids does not require a gradient"):
        strategy.check_sanity(params, optimizers)


@pytest.mark.parametrize("strategy", ["default", "mcmc"])
def test_the_gsplat_way_trains(strategy):
    names = runpy.run_path(str(DOCS / "custom_training_loop.py"))
    first, last, n = names["train"](strategy, steps=60)
    assert last > first + 1
    assert n > 300


def test_screen_gradients_are_of_a_screen_from_minus_one_to_one():
    params = {"means": torch.zeros(2, 3)}
    means2d = torch.zeros(2, 2, 2)  # two cameras, two Gaussians
    means2d.grad = torch.tensor([[[3.0, 0.0], [0.0, 1.0]], [[0.0, 4.0], [9.0, 9.0]]])
    radii = torch.tensor([[[2, 2], [1, 1]], [[6, 5], [0, 0]]], dtype=torch.int32)
    info = {"means2d": means2d, "radii": radii, "n_cameras": 2, "width": 40, "height": 20}
    strategy = DefaultStrategy()
    state = strategy.initialize_state()
    strategy.step_post_backward(params, {}, state, 1, info)
    # 3 pixels are 3 / 20 of half the width; a mean over two cameras counts twice; hidden ones do not count.
    assert state["grad2d"].tolist() == [3 * 20 * 2 + 4 * 10 * 2, 1 * 10 * 2]
    assert state["count"].tolist() == [2, 1]
    torch.testing.assert_close(state["radii"], torch.tensor([6 / 40, 1 / 40]))
