"""Refinement on shards gives what a single process gives, and no rank has a tensor with a row per Gaussian."""

import functools
import threading

import pytest
import torch

from tests.strategies.test_rows import same, values
from tests.support.allocations import FailingAllocation, RowLimit
from tests.support.slow import slow_after
from tests.support.strategy_models import check_moments, make_info, make_model
from tests.support.thread_ranks import on_ranks
from tsplat import ArgumentError, PeerError
from tsplat.runtime.process_group import RankGroup
from tsplat.strategies import DefaultStrategy, LongAxisStrategy, MCMCStrategy, sharding
from tsplat.strategies.operations import duplicate
from tsplat.strategies.sharding import RowOrder, Shard, reshard, select_smallest

SCHEDULE = dict(refine_start_iter=0, refine_every=2, refine_stop_iter=100)
STRATEGIES = {
    "default": DefaultStrategy(
        grow_grad2d=150.0, prune_opa=0.05, reset_every=4, prune_scale2d=0.053, refine_scale2d_stop_iter=7, **SCHEDULE
    ),
    "capped": DefaultStrategy(grow_grad2d=150.0, prune_opa=0.02, reset_every=4, **SCHEDULE),
    "mcmc": MCMCStrategy(cap_max=10**6, **SCHEDULE),
    "long-axis": LongAxisStrategy(growth=1.3, min_opacity=0.02, **SCHEDULE),
}


def model_of_rows(n, rows):
    params, optimizers = make_model(n)
    for name in params:
        state = optimizers[name].state.pop(params[name])
        params[name] = torch.nn.Parameter(params[name].detach()[rows].clone())
        moments = {key: value[rows].clone() for key, value in state.items() if key != "step"}
        optimizers[name].state[params[name]] = {"step": state["step"], **moments}
        optimizers[name].param_groups[0]["params"] = [params[name]]
    return params, optimizers


def refine(kind, n, ranks, limit):
    """Takes steps of a strategy with a rank's rows of n Gaussians. Returns them with moments and statistics."""
    strategy = STRATEGIES[kind]
    strategy.generator = None
    strategy = type(strategy)(**{**vars(strategy), "generator": torch.Generator().manual_seed(3)})
    params, optimizers = model_of_rows(n, ranks.shard_rows(n))
    state = strategy.initialize_state(1.0)
    shard, counts = Shard(ranks, n), []
    for step in range(1, 9):
        generator = torch.Generator().manual_seed(step)
        gradients = torch.randn(shard.n_total, 2, generator=generator).round(decimals=1)  # with equal ones
        radii = torch.randint(0, 8, (shard.n_total, 2), generator=generator, dtype=torch.int32) ** 3 // 30
        rows = ranks.shard_rows(shard.n_total)
        info = make_info(gradients[rows].clone(), radii[rows].clone())
        if kind == "capped":
            strategy.cap_max = shard.n_total + n // 20
        extra = dict(lr=1e-6) if isinstance(strategy, MCMCStrategy) else {}
        limited = RowLimit(min(n, shard.n_total)) if limit else torch.no_grad()
        given = shard if ranks.world_size > 1 else None
        with limited:
            strategy.step_post_backward(params, optimizers, state, step, info, shard=given, **extra)
        shard = Shard(ranks, sum(ranks.all_gather_object(len(params["means"]))))
        assert len(params["means"]) == len(range(shard.n_total)[ranks.shard_rows(shard.n_total)])
        counts.append(shard.n_total)
    check_moments(params, optimizers)
    moments = {f"{name} {key}": optimizers[name].state[p][key] for name, p in params.items() for key in ("exp_avg",)}
    statistics = {name: value for name, value in state.items() if isinstance(value, torch.Tensor) and name != "binoms"}
    return {name: p.detach() for name, p in params.items()} | moments | statistics, counts


@pytest.mark.parametrize("kind", STRATEGIES)
@pytest.mark.parametrize(("n", "world_size"), slow_after(2, [(203, 2), (3, 4), (203, 5), (5_003, 3)]))
def test_shards_are_refined_as_a_single_process_does(kind, n, world_size, monkeypatch):
    monkeypatch.setattr(sharding, "COLUMNS", 2)
    expected, counts = refine(kind, n, RankGroup(), False)
    assert n < 10 or len(set(counts)) > 2
    ranks = on_ranks(world_size, lambda rank: refine(kind, n, rank, n > 5_000))
    for found, counts_of_rank in ranks:
        assert counts_of_rank == counts
        assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        # Vector instructions round differently from those for what is left at the end of a tensor.
        exact = dict(rtol=0, atol=0) if name in ("ids", "sh0", "count") else dict(rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(torch.cat([found[name] for found, _ in ranks]), tensor, **exact)


@pytest.mark.parametrize("kind", ["default", "mcmc"])
def test_all_ranks_raise_what_is_wrong_on_one(kind):
    def attempt(ranks):
        strategy = STRATEGIES[kind]
        params, optimizers = model_of_rows(40, ranks.shard_rows(40))
        if kind == "mcmc" and ranks.rank == 1:
            params["opacities"].data[3] = torch.nan
        if kind == "default":
            params["opacities"].data.fill_(-9.0)
        info = make_info(torch.zeros(len(params["means"]), 2), torch.ones(len(params["means"]), 2, dtype=torch.int32))
        extra = dict(lr=1e-6) if kind == "mcmc" else {}
        state = strategy.initialize_state(1.0)
        match = "1 opacities are NaN" if kind == "mcmc" else "all 40 Gaussians would be pruned"
        with pytest.raises(ArgumentError, match=match):
            strategy.step_post_backward(params, optimizers, state, 2, info, shard=Shard(ranks, 40), **extra)
        return True

    assert on_ranks(3, attempt) == [True] * 3


def resharded(ranks, k=None):
    """Duplicates other numbers of rows on each rank, and reshards them; the k-th allocation of rank 1 fails.

    Returns the rows before and after, by name, the number of allocations, the error, and whether the rank said that it
    has failed.
    """
    params, optimizers = model_of_rows(40, ranks.shard_rows(40))
    state = {"count": torch.arange(40.0)[ranks.shard_rows(40)]}
    order = RowOrder(len(params["means"]), torch.device("cpu"))
    mask = torch.arange(len(params["means"])) % 5 < (3, 0, 1)[ranks.rank]
    duplicate(params, optimizers, state, mask, order)
    before, error, told, gather = values(params, optimizers, state), None, [], ranks.all_gather_object
    ranks.all_gather_object = lambda value: told.append(value) or gather(value)
    with FailingAllocation(k if ranks.rank == 1 else None) as failing:
        try:
            reshard(params, optimizers, state, order, ranks)
        except (torch.OutOfMemoryError, PeerError, threading.BrokenBarrierError) as raised:
            error = raised
            if ranks.rank == 1 and not any(value is True for value in told):
                ranks._barrier.abort()  # the others wait
    return before, values(params, optimizers, state), failing.n, error, any(value is True for value in told)


def test_resharding_changes_all_ranks_or_none_if_memory_runs_out():
    done = on_ranks(3, resharded)
    assert all(error is None for _, _, _, error, _ in done)
    n, n_told = done[1][2], 0
    for k in range(1, n + 1):
        results = on_ranks(3, functools.partial(resharded, k=k))
        told = results[1][-1]
        of_others = PeerError if told else threading.BrokenBarrierError
        n_told += told
        for rank, (before, after, _, error, _) in enumerate(results):
            assert same(before, after), (k, rank)
            assert type(error) is (torch.OutOfMemoryError if rank == 1 else of_others), (k, rank)
    assert 10 < n_told < n


def select_rows(keys, sizes, room, ranks):
    rows = ranks.shard_rows(len(keys))
    return select_smallest(keys[rows], sizes[rows], room, ranks)


def test_selection_is_the_beginning_of_the_sorted_order():
    generator = torch.Generator().manual_seed(0)
    for largest in (20, 2**62):
        keys = torch.randint(0, largest, (999,), generator=generator)
        sizes = torch.randint(0, 3, (999,), generator=generator)
        order = keys.argsort(stable=True)
        for room in (0, 1, 17, 400, 401, 402, 5000):
            expected = torch.zeros(999, dtype=torch.bool)
            expected[order] = sizes[order].cumsum(0) <= room
            expected &= sizes > 0
            assert torch.equal(select_smallest(keys, sizes, room, None), expected)
            assert torch.equal(torch.cat(on_ranks(3, functools.partial(select_rows, keys, sizes, room))), expected)
