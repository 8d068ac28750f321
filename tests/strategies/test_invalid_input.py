"""Strategies and operations that raise leave parameters, optimizers and statistics as they were."""

import copy
import itertools
import math

import pytest
import torch

from tests.support.identity import assert_identical
from tests.support.strategy_models import check_moments, make_info, make_model
from tsplat import ArgumentError
from tsplat.strategies import DefaultStrategy, MCMCStrategy, operations
from tsplat.strategies.relocation import binomial_table

N = 12
MASK = torch.arange(N) % 3 == 0
SETTINGS = dict(refine_start_iter=1, refine_every=2, refine_stop_iter=99)


def make_case(cls):
    """Returns a model, and the arguments of a step that adds and removes Gaussians, and resets opacities."""
    params, optimizers = make_model(N)
    params["opacities"].data[:3] = -9.0
    strategy = cls(**SETTINGS, **(dict(reset_every=4) if cls is DefaultStrategy else {}))
    state = strategy.initialize_state()
    arguments = dict(step=4, info=make_info(torch.ones(N, 2), torch.full((N, 2), 3, dtype=torch.int32)))
    if cls is DefaultStrategy:
        state |= {name: torch.arange(float(N)) for name in ("grad2d", "count", "radii")}
    else:
        arguments["lr"] = 1e-4
    return strategy, params, optimizers, state, arguments


def snapshot(params, optimizers, state):
    """Values and identities of parameters, and copies of the states of optimizers and strategy."""
    values = {name: (id(p), p.requires_grad, p.detach().clone()) for name, p in params.items()}
    states = {}
    for name, optimizer in optimizers.items():
        groups = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
        states[name] = groups, {id(p): copy.deepcopy(entries) for p, entries in optimizer.state.items()}
    return values, states, copy.deepcopy(state)


def assert_raises_and_changes_nothing(call, model, match):
    before = snapshot(*model)
    with pytest.raises(ArgumentError, match=match):
        call()
    assert_identical(snapshot(*model), before)


def replace(params, optimizers, name, value):
    """Replaces a parameter and its optimizer."""
    params[name] = torch.nn.Parameter(value, requires_grad=value.is_floating_point())
    optimizers.pop(name)
    if value.is_floating_point():
        optimizers[name] = torch.optim.Adam([params[name]])


def drop_optimizer(params, optimizers):
    del optimizers["sh0"]


def add_group(params, optimizers):
    optimizers["sh0"].add_param_group({"params": [torch.nn.Parameter(torch.zeros(N))]})


def replace_parameter_only(params, optimizers):
    params["sh0"] = torch.nn.Parameter(params["sh0"].detach().clone())


def move_state_to_another_tensor(params, optimizers):
    state = optimizers["sh0"].state
    state[torch.nn.Parameter(torch.zeros(N, 1, 3))] = state.pop(params["sh0"])


def shorten_moment(params, optimizers):
    entries = optimizers["ids"].state[params["ids"]]
    entries["exp_avg_sq"] = entries["exp_avg_sq"][1:]


def drop_quats(params, optimizers):
    del params["quats"], optimizers["quats"]


INVALID_MODELS = {
    "missing optimizer": (drop_optimizer, "optimizers: expected one for sh0"),
    "two groups": (add_group, "optimizers: the one for sh0 must have exactly this parameter, in one group"),
    "other parameter": (replace_parameter_only, "optimizers: the one for sh0 must have exactly this parameter"),
    "missing state": (move_state_to_another_tensor, "the state of the one for sh0 belongs to another tensor"),
    "short moment": (shorten_moment, "optimizers: exp_avg_sq of ids has 11 rows, ids has 12"),
    "missing parameter": (drop_quats, "params: expected quats among"),
    "scales [N, 2]": (lambda *m: replace(*m, "scales", torch.zeros(N, 2)), "params: scales: expected"),
    "opacities [N, 2]": (lambda *m: replace(*m, "opacities", torch.zeros(N, 2)), "params: opacities: expected"),
    "short parameter": (lambda *m: replace(*m, "sh0", torch.zeros(N - 1, 3)), "params: sh0 has 11 rows; expected 12"),
    "scalar parameter": (lambda *m: replace(*m, "sh0", torch.tensor(1.0)), "params: sh0 is a scalar"),
    "integers": (lambda *m: replace(*m, "quats", torch.ones(N, 4, dtype=torch.int64)), "quats: expected a floating"),
}


@pytest.mark.parametrize("cls", [DefaultStrategy, MCMCStrategy])
def test_valid_step_changes_the_number_of_gaussians(cls):
    strategy, params, optimizers, state, arguments = make_case(cls)
    strategy.cap_max = 100
    strategy.step_post_backward(params, optimizers, state, **arguments)
    check_moments(params, optimizers)
    assert params["ids"].detach().tolist() != list(range(1, N + 1)) or len(params["ids"]) != N


@pytest.mark.parametrize("cls", [DefaultStrategy, MCMCStrategy])
@pytest.mark.parametrize("case", INVALID_MODELS)
def test_invalid_model(cls, case):
    change, match = INVALID_MODELS[case]
    strategy, params, optimizers, state, arguments = make_case(cls)
    change(params, optimizers)
    model = params, optimizers, state
    assert_raises_and_changes_nothing(lambda: strategy.step_post_backward(*model, **arguments), model, match)


def info_without(name):
    return lambda strategy, params, state, arguments: arguments["info"].pop(name)


def drop_gradient(strategy, params, state, arguments):
    arguments["info"]["means2d"].grad = None


def shorten_radii(strategy, params, state, arguments):
    arguments["info"]["radii"] = arguments["info"]["radii"][:, 1:]


def fade(strategy, params, state, arguments):
    params["opacities"].data[:] = -9.0


def enlarge(strategy, params, state, arguments):
    # Also after being split.
    params["scales"].data[:] = 1.0
    arguments["step"] = 8


def fade_by_splitting(strategy, params, state, arguments):
    strategy.revised_opacity, strategy.prune_opa = True, 0.3
    params["opacities"].data[:] = 0.0
    params["scales"].data[:] = 0.0


DEFAULT_CASES = {
    "no radii": (info_without("radii"), "info: expected radii"),
    "no cameras": (info_without("n_cameras"), "info: expected n_cameras"),
    "no gradient": (drop_gradient, "info: means2d has no gradient"),
    "short radii": (shorten_radii, r"info: expected radii \[..., N, 2\] with 12 rows, found \[1, 11, 2\]"),
    "short statistics": (lambda s, p, state, a: state.update(count=torch.ones(N + 1)), r"state: expected count \[12\]"),
    "no statistics": (lambda s, p, state, a: state.pop("grad2d"), "state: expected grad2d"),
    "no scene scale": (lambda s, p, state, a: state.pop("scene_scale"), "state: expected scene_scale"),
    "opacity of resets": (lambda s, p, state, a: setattr(s, "prune_opa", 0.5), "twice prune_opa: expected"),
    "all transparent": (fade, "prune_opa: all 12 Gaussians would be pruned at step 4"),
    "all large": (enlarge, "prune_opa: all 12 Gaussians would be pruned at step 8"),
    "all halves transparent": (fade_by_splitting, "prune_opa: all 12 Gaussians would be pruned at step 4"),
}


@pytest.mark.parametrize("case", DEFAULT_CASES)
def test_invalid_step_of_default_strategy(case):
    change, match = DEFAULT_CASES[case]
    strategy, params, optimizers, state, arguments = make_case(DefaultStrategy)
    change(strategy, params, state, arguments)
    model = params, optimizers, state
    assert_raises_and_changes_nothing(lambda: strategy.step_post_backward(*model, **arguments), model, match)


def make_invalid_opacity(strategy, params, state, arguments):
    params["opacities"].data[7] = math.nan


MCMC_CASES = {
    "NaN": (make_invalid_opacity, "params: 1 opacities are NaN"),
    "zero weights": (lambda s, p, *_: p["opacities"].data.fill_(-math.inf), "as no weight is positive"),
    "no binoms": (lambda s, p, state, a: state.clear(), "state: expected binoms"),
    "shape of binoms": (lambda s, p, state, a: state.update(binoms=torch.ones(51, 50)), "binoms: expected"),
    "learning rate": (lambda s, p, state, a: a.update(lr=math.inf), "lr: expected a finite learning rate"),
    "opacity of noise": (lambda s, p, state, a: setattr(s, "noise_opacity_t", math.nan), "noise_opacity_t: expected"),
    "steepness of noise": (lambda s, p, state, a: setattr(s, "noise_opacity_k", math.inf), "noise_opacity_k: expected"),
    "minimum opacity": (lambda s, p, state, a: setattr(s, "min_opacity", 1.5), "min_opacity: expected at least 0"),
}


@pytest.mark.parametrize("case", MCMC_CASES)
def test_invalid_step_of_mcmc_strategy(case):
    change, match = MCMC_CASES[case]
    strategy, params, optimizers, state, arguments = make_case(MCMCStrategy)
    strategy.cap_max, params["opacities"].data[3:] = 100, 2.0
    change(strategy, params, state, arguments)
    # 5 % of 12 is less than one Gaussian.
    strategy._add_new_gs = lambda *model_and_binoms: add_three(strategy, *model_and_binoms)
    model = params, optimizers, state
    assert_raises_and_changes_nothing(lambda: strategy.step_post_backward(*model, **arguments), model, match)


def add_three(strategy, params, optimizers, binoms):
    operations.sample_add(params, optimizers, {}, 3, binoms, strategy.min_opacity)
    return 3


OPERATIONS = {
    "duplicate": lambda *model, mask: operations.duplicate(*model, mask),
    "split": lambda *model, mask: operations.split(*model, mask, revised_opacity=True),
    "remove": lambda *model, mask: operations.remove(*model, mask),
    "relocate": lambda *model, mask: operations.relocate(*model, mask, binomial_table()),
    "sample_add": lambda *model, mask: operations.sample_add(*model, 4, binomial_table()),
    "reset_opa": lambda *model, mask: operations.reset_opa(*model, 0.01),
    "inject_noise": lambda *model, mask: operations.inject_noise_to_position(*model, 1e6),
}
READ = {
    "split": ("quats", "scales"),
    "relocate": ("scales", "opacities"),
    "sample_add": ("scales", "opacities"),
    "reset_opa": ("opacities",),
    "inject_noise": ("quats", "scales", "opacities"),
}
"""Parameters whose shapes matter to an operation."""


def is_checked(operation, case):
    """Whether an operation reads what is invalid; it treats other parameters alike, whatever their shape."""
    if case in ("missing optimizer", "two groups", "other parameter", "missing state", "short moment"):
        return operation not in ("reset_opa", "inject_noise")
    name = {"missing parameter": "quats", "integers": "quats"}.get(case, case.split()[0])
    return name not in ("quats", "scales", "opacities") or name in READ.get(operation, ())


@pytest.mark.parametrize(
    ("operation", "case"), [case for case in itertools.product(OPERATIONS, INVALID_MODELS) if is_checked(*case)]
)
def test_invalid_model_of_operation(operation, case):
    change, match = INVALID_MODELS[case]
    params, optimizers = make_model(N)
    change(params, optimizers)
    model = params, optimizers, {"grad2d": torch.arange(float(N))}
    assert_raises_and_changes_nothing(lambda: OPERATIONS[operation](*model, mask=MASK), model, match)


@pytest.mark.parametrize("operation", ["duplicate", "split", "remove", "relocate"])
@pytest.mark.parametrize(
    ("mask", "match"),
    [
        (MASK[1:], "rows; expected 11"),
        (MASK.long(), r"mask: expected a bool tensor, found torch.int64"),
        (MASK[:, None], r"mask: expected \[N\], here .*, found \[12, 1\]"),
    ],
)
def test_invalid_mask(operation, mask, match):
    model = *make_model(N), {"grad2d": torch.arange(float(N))}
    assert_raises_and_changes_nothing(lambda: OPERATIONS[operation](*model, mask=mask), model, match)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda *model: operations.reset_opa(*model, 0.0), "value: expected an opacity above 0 and below 1"),
        (lambda *model: operations.reset_opa(*model, math.nan), "value: expected an opacity above 0 and below 1"),
        (lambda *model: operations.inject_noise_to_position(*model, math.inf), "scaler: expected a finite number"),
        (lambda *model: operations.inject_noise_to_position(*model, 1.0, t=math.nan), "t: expected a finite number"),
        (
            lambda *model: operations.relocate(*model, MASK, binomial_table()),
            "weights: expected finite, nonnegative values",
        ),
        (
            lambda *model: operations.sample_add(*model, 2, binomial_table()),
            "weights: expected finite, nonnegative values",
        ),
        (lambda *model: operations.sample_add(*model, -1, binomial_table()), "n: expected 0 or more"),
        (lambda *model: operations.sample_add(*model, 2, torch.ones(3, 4)), "binoms: expected"),
        (lambda *model: operations.sample_add(*model, 2, binomial_table(), 1.0), "min_opacity: expected"),
    ],
)
def test_invalid_values(call, match):
    model = *make_model(N), {"grad2d": torch.arange(float(N))}
    model[0]["opacities"].data[1] = math.nan
    assert_raises_and_changes_nothing(lambda: call(*model), model, match)


@pytest.mark.parametrize("failing", ["param_fn", "optimizer_fn"])
def test_functions_that_raise_midway(failing):
    model = *make_model(N), {}
    calls = []

    def fail_at_the_fourth_call(_, value):
        calls.append(value)
        if len(calls) == 4:
            raise ArgumentError("out of memory")
        return value[:5]

    functions = {"param_fn": lambda _, p: p[:5], "optimizer_fn": lambda _, moment: moment[:5]}
    functions[failing] = fail_at_the_fourth_call
    assert_raises_and_changes_nothing(
        lambda: operations._update_param_with_optimizer(**functions, params=model[0], optimizers=model[1]),
        model, "out of memory",
    )  # fmt: skip
    assert len(calls) == 4


def test_gaussians_that_only_survive_split_are_kept():
    strategy, params, optimizers, state, arguments = make_case(DefaultStrategy)
    params["opacities"].data[:] = 2.0
    params["scales"].data[:] = math.log(0.12)
    arguments["step"] = 6
    strategy.step_post_backward(params, optimizers, state, **arguments)
    assert len(params["means"]) == 2 * N
