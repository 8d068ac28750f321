"""Operations on Gaussians if memory runs out: they change all rows or none."""

import dataclasses

import pytest
import torch

from tests.support.allocations import FailingAllocation
from tests.support.slow import slow_after
from tests.support.strategy_models import check_moments, make_info, make_model
from tsplat.strategies import CompactStrategy, DefaultStrategy, LongAxisStrategy, MCMCStrategy, rows
from tsplat.strategies.long_axis import split_long_axis
from tsplat.strategies.operations import duplicate, relocate, remove, sample_add, split
from tsplat.strategies.relocation import binomial_table

N = 20
MASK = torch.arange(N) % 3 == 1
OPERATIONS = {
    "split_long_axis": lambda *model: split_long_axis(*model, torch.arange(8, 18), torch.arange(3)),
    "remove": lambda *model: remove(*model, MASK),
    "split": lambda *model: split(*model, MASK, generator=torch.Generator().manual_seed(1)),
    "duplicate": lambda *model: duplicate(*model, MASK),
    "relocate": lambda *model: relocate(*model, MASK, TABLE, generator=torch.Generator().manual_seed(1)),
    "sample_add": lambda *model: sample_add(*model, 7, TABLE, generator=torch.Generator().manual_seed(1)),
}
TABLE = binomial_table()
EACH_STEP = dict(refine_start_iter=1, refine_every=1)
MOVED = dict(**EACH_STEP, cap_max=30, min_opacity=0.3, noise_injection_stop_iter=0)
STRATEGIES = {
    "long axis": LongAxisStrategy(**MOVED, growth=2.0),
    "default": DefaultStrategy(**EACH_STEP, prune_opa=0.3),
    "compact": CompactStrategy(**MOVED, growth=2.0, prune_start_iter=3, prune_stop_iter=9, prunings=2),
    "mcmc": MCMCStrategy(**MOVED),
}


def values(params, optimizers, state):
    """Copies of parameters, moments and statistics by name."""
    found = {name: value.clone() for name, value in state.items() if isinstance(value, torch.Tensor)}
    for name, p in params.items():
        found[name] = p.detach().clone()
        found |= {f"{name} {key}": value.clone() for key, value in optimizers[name].state[p].items()}
    return found


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", ["duplicate", "split", "remove"])
def test_graphs_of_replaced_parameters_remain_valid(name):
    """Programs with `retain_graph=True` differentiate an earlier rendering again, as a test of gsplat does."""
    params, optimizers = make_model(N)
    replaced = dict(params)
    loss = sum(p.square().sum() for p in params.values())
    first = torch.autograd.grad(loss, list(replaced.values()), retain_graph=True)
    OPERATIONS[name](params, optimizers, {})
    again = torch.autograd.grad(loss, list(replaced.values()))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert len(params["means"]) != N


@pytest.mark.parametrize("name", slow_after(2, OPERATIONS))
def test_operations_change_all_rows_or_none_if_memory_runs_out(name, monkeypatch):
    monkeypatch.setattr(rows, "BLOCK", 4)
    operation = OPERATIONS[name]

    def model():
        return *make_model(N), {"grad2d": torch.arange(1.0, N + 1)}

    before, done = values(*model()), model()
    operation(*done)
    after, n_failed, k = values(*done), 0, 0
    assert not same(before, after)
    while True:
        k += 1
        changed, expected = model(), after
        with FailingAllocation(k) as failing:
            try:
                operation(*changed)
            except torch.OutOfMemoryError:
                expected = before
        assert same(values(*changed), expected), f"allocation {k}"
        n_failed += expected is before
        check_moments(*changed[:2])
        if failing.n < k:
            break
    assert n_failed >= 5 and k > 10


@pytest.mark.parametrize("name", slow_after(2, STRATEGIES))
def test_strategies_leave_a_valid_model_if_memory_runs_out(name):
    def model():
        params, optimizers = make_model(N)
        strategy = dataclasses.replace(STRATEGIES[name], generator=torch.Generator().manual_seed(0))
        return params, optimizers, strategy, strategy.initialize_state()

    def refine(params, optimizers, strategy, state):
        arguments = {"lr": 0.0} if "lr" in strategy.arguments else {}
        if "importance" in strategy.arguments:
            arguments["importance"] = lambda: torch.arange(float(len(params["means"])))
        info = make_info(torch.linspace(0, 0.01, N)[:, None].expand(N, 2), torch.ones(N, 2, dtype=torch.int32))
        strategy.step_post_backward(params, optimizers, state, 3, info, **arguments)

    before, numbers, k = values(*model()[:2], {}), set(), 0
    while True:
        k += 1
        params, optimizers, strategy, state = model()
        has_failed = False
        with FailingAllocation(k) as failing:
            try:
                refine(params, optimizers, strategy, state)
            except torch.OutOfMemoryError:
                has_failed = True
        if has_failed:
            numbers.add(len(params["means"]))
            # The others have several operations.
            assert name != "long axis" or same(values(params, optimizers, {}), before), f"allocation {k}"
        check_moments(params, optimizers)
        lengths = {len(value) for key, value in state.items() if isinstance(value, torch.Tensor) and key != "binoms"}
        assert lengths <= {len(params["means"])}
        if failing.n < k:
            break
    assert N in numbers and k > 30
