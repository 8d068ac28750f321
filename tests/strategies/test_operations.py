"""Operations on Gaussians: parameters change as intended, and moments follow their Gaussians."""

import math
import signal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef

from tests.support.strategy_models import check_moments, make_model
from tsplat import ArgumentError, reference
from tsplat.strategies.operations import (
    _update_param_with_optimizer,
    duplicate,
    relocate,
    remove,
    reset_opa,
    rotate,
    sample_add,
    split,
)
from tsplat.strategies.relocation import binomial_table, compute_relocation
from tsplat.strategies.rows import follow_replaced, replace_rows


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


def test_relocated_gaussians_share_the_place_of_live_ones():
    params, optimizers = make_model(51)
    mask = torch.arange(51) % 5 == 0
    before = {name: parameter.detach().clone() for name, parameter in params.items()}
    state = {"grad2d": torch.arange(1.0, 52), "binoms": binomial_table(), "scene_scale": 2.0}
    table = state["binoms"].clone()
    relocate(params, optimizers, state, mask=mask, binoms=table, generator=torch.Generator().manual_seed(0))
    check_moments(params, optimizers)
    ids = params["ids"].detach().long() - 1
    moved = torch.unique(ids[mask])
    assert not mask[moved].any()
    untouched = ~mask
    untouched[moved] = False
    assert 0 < untouched.sum() < 40
    for name, parameter in params.items():
        assert torch.equal(parameter[untouched], before[name][untouched])
        assert torch.equal(parameter[mask], parameter[ids[mask]])
        changed = optimizers[name].state[parameter]["exp_avg"][~untouched]
        assert not changed.any()
    assert torch.equal(params["means"].detach(), before["means"][ids])
    copies = torch.bincount(ids, minlength=51)[moved]
    opacities, scales = compute_relocation(
        before["opacities"][moved].sigmoid(), before["scales"][moved].exp(), copies, table
    )
    torch.testing.assert_close(params["opacities"].detach()[moved].sigmoid(), opacities.clamp(0.005))
    torch.testing.assert_close(params["scales"].detach()[moved].exp(), scales)
    assert torch.equal(state["grad2d"], torch.where(untouched, torch.arange(1.0, 52), 0.0))
    assert torch.equal(state["binoms"], table)
    relocate(params, optimizers, state, torch.zeros(51, dtype=torch.bool), table)
    assert torch.equal(params["ids"].detach().long() - 1, ids)
    with pytest.raises(ArgumentError, match="mask: all 51 Gaussians are dead"):
        relocate(params, optimizers, state, torch.ones(51, dtype=torch.bool), table)


def test_added_gaussians_are_copies_without_moments():
    params, optimizers = make_model(20)
    state = {"grad2d": torch.ones(20)}
    generator = torch.Generator().manual_seed(0)
    sample_add(params, optimizers, state, n=7, binoms=binomial_table(), min_opacity=0.1, generator=generator)
    check_moments(params, optimizers)
    assert state["grad2d"].tolist() == [1] * 20 + [0] * 7
    sources = params["ids"].detach().long()[20:] - 1
    for name, parameter in params.items():
        assert torch.equal(parameter[20:], parameter[sources])
        assert not optimizers[name].state[parameter]["exp_avg"][20:].any()
        assert optimizers[name].state[parameter]["exp_avg"][:20].any()
    assert (params["opacities"].detach()[20:].sigmoid() >= 0.1 - 1e-6).all()


def tensors_of(params, optimizers):
    """Parameters and moments."""
    moments = [optimizers[name].state[p][key] for name, p in params.items() for key in ("exp_avg", "exp_avg_sq")]
    return [*params.values(), *moments]


def test_gaussians_are_relocated_in_the_memory_that_they_have():
    params, optimizers = make_model(20)
    addresses = [tensor.data_ptr() for tensor in tensors_of(params, optimizers)]
    relocate(params, optimizers, {}, torch.arange(20) < 5, binomial_table())
    assert [tensor.data_ptr() for tensor in tensors_of(params, optimizers)] == addresses


def test_gaussians_are_added_one_tensor_after_the_other(monkeypatch):
    params, optimizers = make_model(20)
    storages = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors_of(params, optimizers)]
    alive, cat = [], torch.cat

    def counted(tensors):
        alive.append(sum(not storage.expired() for storage in storages))
        return cat(tensors)

    monkeypatch.setattr(torch, "cat", counted)
    sample_add(params, optimizers, {}, 3, binomial_table())
    assert alive == list(range(len(storages), 0, -1))
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors_of(params, optimizers))


def test_functions_of_clients_replace_parameters_and_moments():
    params, optimizers = make_model(5)
    others = {name: parameter for name, parameter in params.items() if name != "means"}
    keys = []

    def param_fn(name, parameter):
        assert name == "means"
        return torch.nn.Parameter(parameter[:3], requires_grad=parameter.requires_grad)

    def optimizer_fn(key, value):
        keys.append(key)
        return value[:3]

    group = optimizers["means"].param_groups[0]
    group["initial_lr"] = 0.5
    _update_param_with_optimizer(param_fn, optimizer_fn, params, optimizers, names=["means"])
    assert keys == ["exp_avg", "exp_avg_sq"]
    assert params["means"].shape == (3, 3)
    assert params["means"].requires_grad
    assert optimizers["means"].param_groups[0] is group
    assert group["params"] == [params["means"]]
    assert group["initial_lr"] == 0.5
    assert list(optimizers["means"].state) == [params["means"]]
    assert optimizers["means"].state[params["means"]]["step"] == 7
    assert all(params[name] is parameter for name, parameter in others.items())


def test_table_of_binomials_does_not_follow_gaussians():
    state = {"binoms": binomial_table(), "rows": torch.zeros(51, 2), "total": torch.tensor(1.0), "table": torch.ones(3)}
    before = dict(state)
    replace_rows({}, {}, state, 51, lambda _, p: p, lambda rows: rows, lambda rows: rows[:5])
    assert {name: len(state[name]) for name in ("binoms", "rows", "table")} == {"binoms": 51, "rows": 5, "table": 3}
    assert state["total"] is before["total"]


def test_optimizers_follow_replaced_parameters():
    params, optimizers = make_model(6)
    moments = optimizers["means"].state[params["means"]]
    params["means"] = torch.nn.Parameter(torch.ones(6, 3))
    params["quats"] = torch.nn.Parameter(torch.ones(9, 4))
    message = r"those of means \(its moments kept\), quats \(without moments\) had parameters that were replaced"
    with pytest.warns(UserWarning, match=message):
        follow_replaced(params, optimizers)
    assert optimizers["means"].state == {params["means"]: moments}
    assert not optimizers["quats"].state
    for name in ("means", "quats"):
        assert optimizers[name].param_groups[0]["params"][0] is params[name]
    follow_replaced(params, optimizers)
    # An optimizer of another entry is a mistake of the caller, which check_optimizers names.
    optimizers["means"], optimizers["quats"] = optimizers["quats"], optimizers["means"]
    follow_replaced(params, optimizers)
    assert optimizers["means"].param_groups[0]["params"][0] is params["quats"]


def test_ctrl_c_changes_all_rows_or_none():
    params, optimizers = make_model(9, 0)
    state = {"grad2d": torch.arange(9.0)}

    def interrupt(rows):
        signal.raise_signal(signal.SIGINT)
        return rows[:5]

    with pytest.raises(KeyboardInterrupt):
        replace_rows(params, optimizers, state, 9, lambda _, p: interrupt(p), interrupt, interrupt)
    check_moments(params, optimizers)
    lengths = {len(rows) for rows in (*params.values(), *state.values())}
    assert lengths in ({5}, {9})
