"""The strategy that grows, and then keeps the Gaussians that images need most."""

import dataclasses

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from tests.support.strategy_models import check_moments, make_model
from tsplat import ArgumentError
from tsplat.strategies import CompactStrategy, LongAxisStrategy

SCHEDULE = dict(refine_start_iter=0, refine_every=10, refine_stop_iter=101, min_opacity=0.0)
PRUNED = dict(prune_start_iter=52, prune_stop_iter=80, prunings=4)


def take(params, optimizers, strategy, steps, state=None):
    """Takes steps in which the importance of a Gaussian is its id; returns the numbers of Gaussians and the state."""
    state = strategy.initialize_state() if state is None else state
    counts = {}
    for step in steps:
        strategy.step_post_backward(
            params, optimizers, state, step, {}, lr=0.0, importance=lambda: params["ids"].detach().clone()
        )
        counts[step] = len(params["means"])
    return counts, state


def test_number_grows_as_that_of_the_base_class_and_shrinks_to_a_quarter():
    params, optimizers = make_model(100)
    counts, state = take(params, optimizers, CompactStrategy(growth=2.0, **SCHEDULE, **PRUNED), range(1, 100))
    other, moments = make_model(100)
    base, strategy = LongAxisStrategy(growth=2.0, **SCHEDULE), {}
    grown = []
    strategy = base.initialize_state()
    for step in range(1, 52):
        base.step_post_backward(other, moments, strategy, step, {}, lr=0.0)
        grown.append(len(other["means"]))
    assert [counts[step] for step in range(1, 52)] == grown and grown[-1] == 200
    factor = (50 / 200) ** 0.25
    assert [counts[step] for step in (52, 61, 70, 80)] == [round(200 * factor**k) for k in (1, 2, 3, 4)]
    assert counts[60] == counts[52] and counts[99] == counts[80] == 50
    assert (state["n_before"], state["n_after"]) == (200, 50)
    check_moments(params, optimizers)


def test_the_most_important_gaussians_stay():
    params, optimizers = make_model(40)
    strategy = CompactStrategy(growth=1.0, **SCHEDULE, **PRUNED | dict(prunings=1))
    assert [step for step in range(100) if strategy.pruning_at(step)] == [52]
    take(params, optimizers, strategy, [52])
    assert params["ids"].detach().tolist() == list(range(31, 41))
    check_moments(params, optimizers)


@pytest.mark.parametrize("kept", [0.01, 1.0])
def test_numbers_stay_between_one_and_those_before(kept):
    params, optimizers = make_model(7)
    counts, _ = take(params, optimizers, CompactStrategy(growth=1.0, kept=kept, **SCHEDULE, **PRUNED), range(50, 90))
    assert counts[89] == (1 if kept < 1 else 7)


def test_prunings_at_the_same_step_count_once():
    strategy = CompactStrategy(prune_start_iter=3, prune_stop_iter=5, prunings=8)
    assert [strategy.pruning_at(step) for step in range(7)] == [0, 0, 0, 4, 7, 8, 0]


def test_resumed_strategies_prune_to_the_same_number():
    results = []
    for breaks in ([], [57], [65, 71]):
        params, optimizers = make_model(60)
        make = dataclasses.replace(CompactStrategy(growth=2.0, **SCHEDULE, **PRUNED), generator=None)
        state, ends = None, [*breaks, 100]
        first = 1
        for end in ends:
            strategy = dataclasses.replace(make, generator=torch.Generator().manual_seed(first))
            counts, state = take(params, optimizers, strategy, range(first, end), state)
            first = end
        results.append(counts[99])
    assert results == [30, 30, 30]


def test_prunings_release_one_tensor_after_the_other():
    params, optimizers = make_model(50)
    tensors = [
        *params.values(),
        *[m for name, p in params.items() for m in list(optimizers[name].state[p].values())[1:]],
    ]
    storages = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]
    del tensors
    alive = []

    class CountAlive(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            alive.append(sum(not storage.expired() for storage in storages))
            return function(*args, **kwargs or {})

    with CountAlive():
        take(params, optimizers, CompactStrategy(growth=1.0, **SCHEDULE, **PRUNED), [52])
    assert set(range(1, len(storages) + 1)) <= set(alive)


@pytest.mark.parametrize(
    ("changes", "importance", "match"),
    [
        (dict(kept=0.0), torch.zeros, "kept: expected a number above 0 and at most 1, found 0.0"),
        (dict(kept=1.5), torch.zeros, "kept: expected"),
        ({}, None, "importance: expected a function in step 52"),
        (
            dict(prune_start_iter=52, prune_stop_iter=51, prunings=1),
            torch.zeros,
            "prune_stop_iter: expected .* found 51",
        ),
    ],
)
def test_invalid_settings(changes, importance, match):
    params, optimizers = make_model(9)
    strategy = CompactStrategy(**SCHEDULE | PRUNED | changes)
    with pytest.raises(ArgumentError, match=match):
        strategy.step_post_backward(
            params, optimizers, strategy.initialize_state(), 52, {}, lr=0.0, importance=importance
        )
    assert len(params["means"]) == 9
