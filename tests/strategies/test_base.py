"""The interface of strategies: base class, hooks that subclasses override, and accepted parameters."""

import dataclasses

import pytest
import torch

from tests.support.strategy_models import check_moments, make_info, make_model
from tsplat import ArgumentError
from tsplat.strategies import DefaultStrategy, MCMCStrategy, Strategy


def refine(strategy, params, optimizers, seed=0):
    """Runs 12 steps with random gradients, of which every third refines; returns the numbers of Gaussians."""
    generator = torch.Generator().manual_seed(seed)
    state = strategy.initialize_state()
    numbers = []
    for step in range(1, 13):
        n = len(params["means"])
        gradients = 1e-5 * torch.randn(n, 2, generator=generator)
        radii = torch.randint(0, 30, (n, 2), generator=generator, dtype=torch.int32)
        extra = {"lr": 1e-4} if hasattr(strategy, "noise_lr") else {}
        strategy.step_post_backward(params, optimizers, state, step, make_info(gradients, radii), **extra)
        numbers.append(len(params["means"]))
    return numbers


def make_strategy(cls, seed=0, **settings):
    schedule = dict(refine_start_iter=1, refine_every=3, refine_stop_iter=100)
    if issubclass(cls, DefaultStrategy):
        settings = dict(reset_every=8, grow_scale3d=0.05, prune_scale3d=0.2, prune_opa=0.02) | settings
    return cls(**schedule, **settings, generator=torch.Generator().manual_seed(seed))


def assert_equal_models(model, other):
    for name, parameter in model[0].items():
        successor = other[0][name]
        assert torch.equal(parameter, successor.view_as(parameter)), name
        if name in other[1]:
            states = (optimizers[name].state[p] for (_, optimizers), p in ((model, parameter), (other, successor)))
            for moment, moment_of_other in zip(*(s.values() for s in states), strict=True):
                assert torch.equal(moment, moment_of_other.view_as(moment)), name


def test_base_class_does_nothing_and_strategies_derive_from_it():
    params, optimizers = make_model(3)
    strategy = Strategy()
    strategy.check_sanity(params, optimizers)
    strategy.step_pre_backward(params, optimizers, {}, 0, info={})
    strategy.step_post_backward(params, optimizers, {}, 0, info={}, packed=True)
    check_moments(params, optimizers)
    assert dataclasses.fields(Strategy) == ()
    assert isinstance(DefaultStrategy(), Strategy)
    assert isinstance(MCMCStrategy(), Strategy)


@pytest.mark.parametrize("cls", [Strategy, DefaultStrategy, MCMCStrategy])
def test_check_sanity_compares_names_of_trainable_parameters_and_optimizers(cls):
    params, optimizers = make_model(3)
    cls().check_sanity(params, optimizers)
    other = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(ArgumentError, match="expected one for each of the trainable parameters"):
        cls().check_sanity(params, optimizers | {"camera_opt": other})
    params["ids"].requires_grad_(False)
    with pytest.raises(ArgumentError, match="expected one for each of the trainable parameters"):
        cls().check_sanity(params, optimizers)
    del optimizers["ids"]
    cls().check_sanity(params, optimizers)


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (DefaultStrategy, "_update_state"),
        (DefaultStrategy, "_grow_gs"),
        (DefaultStrategy, "_prune_gs"),
        (MCMCStrategy, "_relocate_gs"),
        (MCMCStrategy, "_add_new_gs"),
    ],
)
def test_overridden_methods_are_called(cls, name):
    calls = []

    def override(self, params, optimizers, *rest, **options):
        found = getattr(cls, name)(self, params, optimizers, *rest, **options)
        calls.append((len(params["means"]), found))
        return found

    model, other = make_model(20), make_model(20)
    for params, _ in (model, other):
        params["opacities"].data[:3] = -9.0
    numbers = refine(make_strategy(dataclasses.dataclass(type("Subclass", (cls,), {name: override}))), *model)
    assert len(calls) == (12 if name == "_update_state" else 4)
    assert numbers == refine(make_strategy(cls), *other)
    assert_equal_models(model, other)
    after = [numbers[step - 1] for step in (3, 6, 9, 12)]
    if name in ("_prune_gs", "_add_new_gs"):
        assert [n for n, _ in calls] == after
        before = [20, *after[:-1]] if name == "_add_new_gs" else None
        assert before is None or [n - added for n, added in calls] == before
    if name == "_relocate_gs":
        assert all(isinstance(moved, int) for _, moved in calls)
        assert calls[0][1] > 0


def test_results_of_overridden_methods_are_used():
    class Frozen(DefaultStrategy):
        def _grow_gs(self, params, optimizers, state, step):
            return 0, 0

        def _prune_gs(self, params, optimizers, state, step):
            return 0

    class Unchanged(MCMCStrategy):
        def _relocate_gs(self, params, optimizers, binoms):
            assert binoms.shape == (51, 51)
            return 0

        def _add_new_gs(self, params, optimizers, binoms):
            return 0

    for cls in (Frozen, Unchanged):
        params, optimizers = make_model(20)
        assert refine(make_strategy(cls), params, optimizers) == [20] * 12
        assert torch.equal(params["scales"], make_model(20)[0]["scales"])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (DefaultStrategy, {}),
        (DefaultStrategy, dict(revised_opacity=True, refine_scale2d_stop_iter=50, cap_max=90)),
        (MCMCStrategy, {}),
    ],
)
def test_opacities_with_a_column_give_equal_results(cls, settings, seed):
    model, other = make_model(60, seed), make_model(60, seed)
    params, optimizers = other
    moments = optimizers["opacities"].state[params["opacities"]]
    params["opacities"] = torch.nn.Parameter(params["opacities"].detach()[:, None])
    optimizers["opacities"] = torch.optim.Adam([params["opacities"]])
    optimizers["opacities"].state[params["opacities"]] = {
        name: value[:, None] if value.dim() else value for name, value in moments.items()
    }
    strategy = make_strategy(cls, seed, **settings)
    strategy.check_sanity(*other)
    numbers = refine(make_strategy(cls, seed, **settings), *model)
    assert refine(strategy, *other) == numbers
    assert len(set(numbers)) > 2
    assert params["opacities"].shape == (numbers[-1], 1)
    check_moments(*other)
    assert_equal_models(model, other)


@pytest.mark.parametrize("cls", [DefaultStrategy, MCMCStrategy])
def test_frozen_parameters_and_other_optimizers_are_carried_along(cls):
    model, other = make_model(40), make_model(40)
    params, optimizers = other
    for name in ("ids", "sh0"):
        params[name].requires_grad_(False)
        del optimizers[name]
    optimizers["camera_opt"] = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    params = torch.nn.ParameterDict(params)
    assert refine(make_strategy(cls), *model) == refine(make_strategy(cls), params, optimizers)
    assert_equal_models(model, (params, optimizers))
    assert [name for name, parameter in params.items() if not parameter.requires_grad] == ["ids", "sh0"]
