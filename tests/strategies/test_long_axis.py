"""The strategy that splits Gaussians along their longest axis."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef

from tests.support.strategy_models import check_moments, make_model
from tsplat import ArgumentError
from tsplat.strategies import LongAxisStrategy
from tsplat.strategies.long_axis import split_long_axis
from tsplat.strategies.operations import rotate

SCHEDULE = dict(refine_start_iter=0, refine_every=10, refine_stop_iter=101)


def refined(params, optimizers, strategy, steps, state=None):
    """Takes steps of a strategy without noise; returns the numbers of Gaussians and the state."""
    state = strategy.initialize_state() if state is None else state
    counts = []
    for step in steps:
        strategy.step_post_backward(params, optimizers, state, step, {}, lr=0.0)
        counts.append(len(params["means"]))
    return counts, state


def test_halves_lie_on_both_sides_along_the_longest_axis():
    params, optimizers = make_model(6)
    before = {name: p.detach().clone() for name, p in params.items()}
    chosen, replaced = torch.tensor([4, 1, 3]), torch.tensor([2])
    state = {"score": torch.ones(6)}
    split_long_axis(params, optimizers, state, chosen, replaced)
    check_moments(params, optimizers)
    after = {name: p.detach() for name, p in params.items()}
    second = torch.tensor([2, 6, 7])
    assert after["ids"].tolist() == [1, 2, 5, 4, 5, 6, 2, 4]
    axis = before["scales"][chosen].argmax(-1)
    across = torch.nn.functional.one_hot(axis, 3).bool()
    offsets = after["means"][chosen] - before["means"][chosen]
    torch.testing.assert_close(after["means"][second] + after["means"][chosen], 2 * before["means"][chosen])
    inverse = before["quats"][chosen] * torch.tensor([1.0, -1, -1, -1])
    local = rotate(inverse, offsets)
    torch.testing.assert_close(local[across], 1.35 * before["scales"][chosen][across].exp())
    assert local[~across].abs().max() < 1e-6
    for rows in (chosen, second):
        factors = (after["scales"][rows] - before["scales"][chosen]).exp()
        torch.testing.assert_close(factors[across], torch.full((3,), 0.55))
        torch.testing.assert_close(factors[~across], torch.full((6,), 0.893))
        torch.testing.assert_close(after["opacities"][rows].sigmoid(), 0.6 * before["opacities"][chosen].sigmoid())
        assert not optimizers["means"].state[params["means"]]["exp_avg"][rows].any()
        assert not state["score"][rows].any()
    assert torch.equal(after["means"][[0, 5]], before["means"][[0, 5]])
    assert state["score"][[0, 5]].tolist() == [1, 1]


def tensors_of(params, optimizers):
    """Returns parameters and moments by name."""
    states = {name: optimizers[name].state[p] for name, p in params.items() if name in optimizers}
    moments = {f"{name} {key}": state[key] for name, state in states.items() for key in ("exp_avg", "exp_avg_sq")}
    return {**params, **moments}


def test_tensors_are_moved_one_after_the_other_and_end_in_storages_of_their_own(monkeypatch):
    params, optimizers = make_model(6)
    storages = {name: StorageWeakRef(t.untyped_storage()) for name, t in tensors_of(params, optimizers).items()}
    old, alive, cat = params["means"], [], torch.cat

    def counted(tensors):
        alive.append(sum(not storage.expired() for storage in storages.values()))
        return cat(tensors)

    monkeypatch.setattr(torch, "cat", counted)
    values = old.detach().clone()
    split_long_axis(params, optimizers, {}, torch.tensor([4, 1]), torch.tensor([], dtype=torch.int64))
    assert torch.equal(old, values)  # who kept a parameter has what it was
    # That of the kept parameter, and each once for all others.
    assert alive == sorted(alive, reverse=True)
    assert alive[-1] <= 2
    for name, tensor in tensors_of(params, optimizers).items():
        assert len(tensor) == 8, name
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, name


@pytest.mark.parametrize("failing", range(1, 18, 4))
def test_too_little_memory_changes_no_value(failing, monkeypatch):
    params, optimizers = make_model(6)
    before = {name: tensor.detach().clone() for name, tensor in tensors_of(params, optimizers).items()}
    calls, cat = [], torch.cat

    def fails(tensors):
        calls.append(None)
        if len(calls) == failing:
            raise MemoryError
        return cat(tensors)

    monkeypatch.setattr(torch, "cat", fails)
    with pytest.raises(MemoryError):
        split_long_axis(params, optimizers, {}, torch.tensor([4, 1]), torch.tensor([], dtype=torch.int64))
    monkeypatch.undo()
    check_moments(params, optimizers)
    for name, tensor in tensors_of(params, optimizers).items():
        assert torch.equal(tensor, before[name]), name


def test_budget_grows_with_the_root_of_the_progress():
    params, optimizers = make_model(100)
    params["opacities"].data.fill_(1.0)
    strategy = LongAxisStrategy(growth=1.75, min_opacity=0.0, **SCHEDULE)
    steps = list(range(10, 101, 10))
    counts, _ = refined(params, optimizers, strategy, steps)
    expected = [int(100 + 75 * math.sqrt(min(1.0, (step + 10) / 50.5))) for step in steps]
    assert counts == expected
    assert counts[4] == counts[-1] == 175


def test_cap_limits_the_budget_and_never_removes_gaussians():
    params, optimizers = make_model(40)
    params["opacities"].data.fill_(1.0)
    counts, _ = refined(params, optimizers, LongAxisStrategy(cap_max=50, **SCHEDULE), [10, 100])
    assert counts == [40 + int(10 * math.sqrt(20 / 50.5)), 50]
    assert refined(params, optimizers, LongAxisStrategy(cap_max=30, **SCHEDULE), [90])[0] == [50]


@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(0, 2**31), st.floats(1.0, 4.0))
def test_transparent_gaussians_are_replaced_and_runs_are_deterministic(n, seed, growth):
    results = []
    for _ in range(2):
        params, optimizers = make_model(n, seed)
        strategy = LongAxisStrategy(
            growth=growth, min_opacity=0.2, generator=torch.Generator().manual_seed(seed), **SCHEDULE
        )
        dead = params["opacities"].detach().sigmoid() <= 0.2
        alive = set(params["ids"].detach()[~dead].tolist())
        counts, _ = refined(params, optimizers, strategy, [50])
        check_moments(params, optimizers)
        budget = int(growth * n)
        assert counts == [n if dead.all() else min(budget, n + max(0, len(alive) - int(dead.sum())))]
        if 2 * len(alive) >= n and alive:
            assert set(params["ids"].detach().tolist()) == alive
        results.append(params)
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_budget_continues_after_a_resume():
    params, optimizers = make_model(50)
    strategy = LongAxisStrategy(generator=torch.Generator().manual_seed(1), **SCHEDULE)
    _, state = refined(params, optimizers, strategy, [10])
    assert state["n_initial"] == 50
    resumed = LongAxisStrategy(generator=torch.Generator().manual_seed(1), **SCHEDULE)
    saved = {name: value for name, value in state.items() if name != "binoms"}
    counts, _ = refined(params, optimizers, resumed, [30], {**resumed.initialize_state(), **saved})
    assert counts == [int(50 + 110 * math.sqrt(40 / 50.5))]


def test_invalid_growth_changes_nothing():
    params, optimizers = make_model(5)
    before = {name: p.detach().clone() for name, p in params.items()}
    for growth in (0.5, math.inf, math.nan):
        with pytest.raises(ArgumentError, match="growth: expected a number of at least 1"):
            refined(params, optimizers, LongAxisStrategy(growth=growth, **SCHEDULE), [10])
    assert all(torch.equal(params[name].detach(), before[name]) for name in before)


def test_one_refinement_at_most_doubles_the_number():
    params, optimizers = make_model(10)
    params["opacities"].data.fill_(1.0)
    counts, _ = refined(params, optimizers, LongAxisStrategy(growth=3.5, **SCHEDULE), [60, 70, 80])
    assert counts == [20, 35, 35]
