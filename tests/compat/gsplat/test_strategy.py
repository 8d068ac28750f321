"""Strategies, and operations on Gaussians and their optimizers, under gsplat's names."""

import dataclasses
import math

import pytest
import torch

from benchmarks.gpu_timing import gsplat_kernels
from tests.support.closeness import assert_exact
from tests.support.strategy_models import check_moments, make_model
from tsplat import ArgumentError, quat_scale_to_covar_preci, strategies
from tsplat.compat.gsplat.relocation import compute_relocation
from tsplat.compat.gsplat.strategy import DefaultStrategy, MCMCStrategy, Strategy, ops
from tsplat.strategies import operations
from tsplat.strategies.random_numbers import draw_key, standard_normal

BINOMS = torch.tensor([[math.comb(n, k) for k in range(51)] for n in range(51)], dtype=torch.float32)
N = 30


def state_of(params):
    return {"grad2d": params["ids"].detach().clone(), "scene_scale": 1.0, "count": None}


def every(n, step):
    return torch.arange(n) % step == 0


def test_operations_are_those_of_tsplat():
    names = ("duplicate", "split", "remove", "reset_opa", "relocate", "sample_add", "inject_noise_to_position")
    for name in (*names, "_update_param_with_optimizer"):
        assert getattr(ops, name) is getattr(operations, name)


def test_split_revises_opacities():
    params, optimizers = make_model(N)
    before = params["opacities"].detach().sigmoid()
    ops.split(params=params, optimizers=optimizers, state={}, mask=every(N, 3), revised_opacity=True)
    halves = params["opacities"].detach().sigmoid()[-20:]
    assert (1 - (1 - halves) ** 2 - before[every(N, 3)].repeat(2)).abs().max() < 1e-5


def test_reset_opa_limits_opacities():
    params, optimizers = make_model(N)
    before = params["opacities"].detach().sigmoid()
    ops.reset_opa(params=params, optimizers=optimizers, state={}, value=0.01)
    assert torch.allclose(params["opacities"].detach().sigmoid(), before.clamp_max(0.01))
    assert not optimizers["opacities"].state[params["opacities"]]["exp_avg"].any()
    check_moments(params, optimizers)


def test_relocated_gaussians_are_copies_of_live_ones():
    params, optimizers = make_model(N)
    state, mask = state_of(params), every(N, 4)
    before = {name: p.detach().clone() for name, p in params.items()}
    torch.manual_seed(0)
    ops.relocate(params=params, optimizers=optimizers, state=state, mask=mask, binoms=BINOMS, min_opacity=0.005)
    # Ids are copied too, so that they tell which Gaussian was chosen.
    chosen = params["ids"].detach()[mask].long() - 1
    assert not mask[chosen].any()
    ratios = torch.bincount(chosen, minlength=N)[chosen] + 1
    opacities, scales = compute_relocation(
        before["opacities"].sigmoid()[chosen], before["scales"].exp()[chosen], ratios, BINOMS
    )
    opacities = opacities.clamp(0.005, 1 - torch.finfo(torch.float32).eps)
    for rows in (mask.nonzero().squeeze(1), chosen):
        assert torch.allclose(params["opacities"].detach()[rows].sigmoid(), opacities, rtol=1e-5)
        assert torch.allclose(params["scales"].detach()[rows].exp(), scales, rtol=1e-5)
        for name in ("means", "quats", "sh0"):
            assert torch.equal(params[name].detach()[rows], before[name][chosen])
    untouched = ~mask
    untouched[chosen] = False
    assert untouched.any()
    for name, p in params.items():
        assert torch.equal(p.detach()[untouched], before[name][untouched])
        moments = optimizers[name].state[p]["exp_avg"]
        assert not moments[chosen].any()
        assert moments[untouched].all()
    assert not state["grad2d"][chosen].any()
    assert torch.equal(state["grad2d"][untouched], before["ids"][untouched])


def test_added_gaussians_are_copies():
    params, optimizers = make_model(N)
    state = state_of(params)
    before = {name: p.detach().clone() for name, p in params.items()}
    torch.manual_seed(0)
    ops.sample_add(params=params, optimizers=optimizers, state=state, n=12, binoms=BINOMS, min_opacity=0.005)
    assert all(len(p) == N + 12 for p in params.values())
    assert torch.equal(params["means"].detach()[:N], before["means"])
    chosen = params["ids"].detach()[N:].long() - 1
    ratios = torch.bincount(chosen, minlength=N)[chosen] + 1
    opacities, scales = compute_relocation(
        before["opacities"].sigmoid()[chosen], before["scales"].exp()[chosen], ratios, BINOMS
    )
    opacities = opacities.clamp(0.005, 1 - torch.finfo(torch.float32).eps)
    for rows in (torch.arange(N, N + 12), chosen):
        assert torch.allclose(params["opacities"].detach()[rows].sigmoid(), opacities, rtol=1e-5)
        assert torch.allclose(params["scales"].detach()[rows].exp(), scales, rtol=1e-5)
    check_moments(params, optimizers)
    for name, p in params.items():
        assert not optimizers[name].state[p]["exp_avg"][N:].any()
    assert torch.equal(state["grad2d"], torch.cat([before["ids"], torch.zeros(12)]))


def test_new_opacities_have_a_lower_bound():
    params, optimizers = make_model(N)
    params["opacities"].data.fill_(-9.0)
    ops.sample_add(params, optimizers, {}, N, BINOMS, min_opacity=0.25)
    assert torch.allclose(params["opacities"].detach()[N:].sigmoid(), torch.tensor(0.25))


def test_noise_has_the_covariance_of_nearly_transparent_gaussians():
    n = 20_000
    params = dict(
        means=torch.nn.Parameter(torch.zeros(n, 3, dtype=torch.float64)),
        quats=torch.tensor([[0.9, 0.3, -0.2, 0.1]], dtype=torch.float64).expand(n, 4),
        scales=torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64).log().expand(n, 3),
        opacities=torch.full((n, 1), 0.001, dtype=torch.float64).logit(),
    )
    torch.manual_seed(0)
    ops.inject_noise_to_position(params=params, optimizers={}, state={}, scaler=0.5)
    covariance = quat_scale_to_covar_preci(params["quats"], params["scales"].exp())[0][0]
    factor = 0.5 / (1 + math.exp(-100 * (0.999 - 0.995)))
    torch.manual_seed(0)
    samples = standard_normal(draw_key(None), torch.arange(n), covariance)
    expected = factor * samples @ covariance
    assert_exact("means", params["means"], expected)
    opaque = {**params, "opacities": torch.full((n,), 0.5, dtype=torch.float64).logit()}
    before = params["means"].detach().clone()
    ops.inject_noise_to_position(opaque, {}, {}, scaler=0.5)
    assert torch.equal(params["means"], before)


def test_parameters_and_states_are_updated_by_functions():
    params, optimizers = make_model(N)
    frozen = torch.nn.Parameter(torch.arange(float(N)), requires_grad=False)
    params["frozen"] = frozen
    before = params["means"].detach().clone()
    keys = []

    def halve(key, value):
        keys.append(key)
        return 0.5 * value[:5]

    old = params["means"]
    ops._update_param_with_optimizer(
        lambda name, p: torch.nn.Parameter(p[:5] + 1), halve, params, optimizers, ["means"]
    )
    assert torch.equal(params["means"], before[:5] + 1)
    state = optimizers["means"].state
    assert keys == ["exp_avg", "exp_avg_sq"]
    assert torch.equal(state[params["means"]]["exp_avg"][:, 0], 0.5 * torch.arange(1.0, 6))
    assert state[params["means"]]["step"] == 7
    assert old not in state
    assert len(params["scales"]) == N
    ops._update_param_with_optimizer(lambda name, p: p[:5], lambda key, value: value[:5], params, optimizers)
    assert all(len(p) == 5 for p in params.values())
    assert not params["frozen"].requires_grad
    assert params["scales"].requires_grad


def test_samples_follow_the_weights():
    torch.manual_seed(0)
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0])
    counts = torch.bincount(ops._multinomial_sample(weights, 4000), minlength=4)
    assert counts[0] == counts[3] == 0
    assert abs(int(counts[1]) - 1000) < 5 * math.sqrt(4000 * 0.25 * 0.75)
    assert sorted(ops._multinomial_sample(weights, 2, replacement=False).tolist()) == [1, 2]


def test_samples_without_replacement_are_distinct_and_follow_the_weights():
    torch.manual_seed(1)
    weights = torch.tensor([0.0, 1.0, 3.0, 2.0])
    draws = torch.stack([ops._multinomial_sample(weights, 2, False) for _ in range(2000)])
    assert (draws > 0).all()
    assert (draws[:, 0] != draws[:, 1]).all()
    # The first of two is distributed as a single sample.
    assert float((draws[:, 0] == 2).float().mean()) == pytest.approx(3 / 6, abs=0.04)
    # P(1 is left out) = P(2, 3) + P(3, 2)
    expected = 3 / 6 * 2 / 3 + 2 / 6 * 3 / 4
    assert float((draws != 1).all(1).float().mean()) == pytest.approx(expected, abs=0.04)
    assert sorted(ops._multinomial_sample(weights, 3, False).tolist()) == [1, 2, 3]


@pytest.mark.parametrize("weights", [[1.0, math.nan], [1.0, math.inf], [1.0, -1.0], [0.0, 0.0], []])
@pytest.mark.parametrize("replacement", [True, False])
def test_invalid_weights_are_refused(weights, replacement):
    with pytest.raises(ArgumentError, match=r"weights: expected finite|positive weights"):
        ops._multinomial_sample(torch.tensor(weights), 1, replacement)
    assert ops._multinomial_sample(torch.tensor([0.0, 2.0]), 0, replacement).tolist() == []


def test_more_samples_than_positive_weights_need_replacement():
    with pytest.raises(ArgumentError, match="n: expected 0 to 2 samples of 2 positive weights, found 3"):
        ops._multinomial_sample(torch.tensor([1.0, 0.0, 1.0]), 3, replacement=False)
    assert len(ops._multinomial_sample(torch.tensor([1.0, 0.0, 1.0]), 3)) == 3


def test_strategies_are_those_of_tsplat():
    assert DefaultStrategy is strategies.DefaultStrategy
    assert MCMCStrategy is strategies.MCMCStrategy
    assert isinstance(DefaultStrategy(), Strategy)
    assert isinstance(MCMCStrategy(), Strategy)
    assert not isinstance(object(), Strategy)


def test_strategies_can_be_derived_from():
    @dataclasses.dataclass
    class Own(Strategy):
        rate: float = 0.5

    @dataclasses.dataclass
    class OwnDefault(DefaultStrategy):
        rate: float = 0.5

    params, optimizers = make_model(N)
    own = Own(rate=0.25)
    own.check_sanity(params, optimizers)
    assert own.step_pre_backward(params, optimizers, {}, 0, {}) is None
    assert own.step_post_backward(params, optimizers, {}, step=0, info={}) is None
    assert isinstance(OwnDefault(prune_opa=0.1), Strategy)


def test_check_sanity_compares_names_and_groups():
    params, optimizers = make_model(N)
    params["frozen"] = torch.nn.Parameter(torch.zeros(N), requires_grad=False)
    Strategy().check_sanity(params, optimizers)
    with pytest.raises(ArgumentError, match=r"optimizers: .*one.*frozen"):
        Strategy().check_sanity(params, {**optimizers, "frozen": optimizers["means"]})
    optimizers["means"].add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    with pytest.raises(ArgumentError, match=r"optimizers: .*one.* means"):
        Strategy().check_sanity(params, optimizers)


WHEEL_COMPARISON = """
import sys
import torch
from tests.strategies.test_base import refine
from tests.support.strategy_models import make_model
from tsplat import quat_scale_to_covar_preci
from tsplat.strategies import DefaultStrategy, MCMCStrategy
from tsplat.strategies.relocation import compute_relocation
sys.path.insert(0, sys.argv[1])
import gsplat.strategy.ops
from gsplat import strategy
# These two need a GPU.
gsplat.strategy.ops.compute_relocation = compute_relocation
gsplat.strategy.ops.quat_scale_to_covar_preci = quat_scale_to_covar_preci
schedule = dict(refine_start_iter=1, refine_every=3, refine_stop_iter=100)
# gsplat 1.5.3 never resets opacities.
default = schedule | dict(reset_every=50, grow_scale3d=0.05, prune_opa=0.02)
cases = [
    (DefaultStrategy, strategy.DefaultStrategy, default),
    (DefaultStrategy, strategy.DefaultStrategy, default | dict(revised_opacity=True, refine_scale2d_stop_iter=50)),
    (MCMCStrategy, strategy.MCMCStrategy, schedule),
]
assert strategy.DefaultStrategy.__module__ == "gsplat.strategy.default"
for ours, theirs, settings in cases:
    for seed in range(3):
        results = []
        for cls in (ours, theirs):
            params, optimizers = make_model(60, seed)
            torch.manual_seed(seed)
            numbers = refine(cls(**settings), params, optimizers, seed)
            results.append((numbers, params))
        (found, params), (expected, expected_params) = results
        assert found == expected, (ours, found, expected)
        assert len(set(found)) > 2
        if ours is DefaultStrategy:
            # Means of halves are drawn with other random numbers.
            for name in params.keys() - {"means"}:
                torch.testing.assert_close(params[name], expected_params[name], rtol=1e-5, atol=1e-6, msg=name)
        print(ours.__name__, found[-1])
"""


@pytest.mark.slow
def test_numbers_of_gaussians_are_those_of_the_wheel(forks):
    try:
        wheel = gsplat_kernels.find_wheel()
    except gsplat_kernels.UnavailableError as error:
        pytest.skip(str(error))
    result = forks.run(WHEEL_COMPARISON, wheel)
    if "No module named" in result.stderr:
        pytest.skip(f"gsplat cannot be imported: {result.stderr.strip().splitlines()[-1]}")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("Strategy ") == 9
