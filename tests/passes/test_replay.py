"""Recorded calls compute again what the function did, with what its memory holds then."""

import threading

import numpy as np
import pytest
import torch

from tests.support import scenes
from tests.support.launch_recorder import LaunchRecorder
from tsplat import UnsupportedError, rasterization
from tsplat.passes.arenas import (
    DTYPES,
    ArenaSlots,
    Bases,
    Lifetime,
    View,
    add_arena_with_tail,
    assign_offsets,
    live_steps,
)
from tsplat.runtime.tracing import Trace
from tsplat.stages.overflow_checks import deferred
from tsplat.stages.sorting import stable_argsort

pytestmark = pytest.mark.triton


def values(n=6):
    return torch.arange(float(n)).flip(0)


def test_operators():
    x, kept = values(), values()

    def function():
        kept.add_(x.view(2, 3).flatten())  # in place
        sums = x[:4].cumsum(0) + kept[2:].sum()
        zeros = torch.zeros(2)
        zeros += sums[0]
        zeros += torch.tensor([1.0, 2.0]).mul_(sums[1])
        return {"sums": sums, "sorted": x.sort(stable=True), "zeros": zeros, "view": x[1:], "order": stable_argsort(x)}

    found, replay = LaunchRecorder().record(function)
    for _ in range(2):
        x.copy_(torch.randn(6))
        expected_kept = kept + x
        replay()
        assert torch.equal(kept, expected_kept)
        assert torch.equal(found["sums"], x[:4].cumsum(0) + kept[2:].sum())
        assert torch.equal(found["sorted"].values, x.sort().values) and torch.equal(found["order"], x.argsort())
        assert torch.equal(found["zeros"], found["sums"][0] + found["sums"][1] * torch.tensor([1.0, 2.0]))
        assert torch.equal(found["view"], x[1:])


@pytest.mark.parametrize("tile_size", [4, 16])
def test_launches_of_both_passes(tile_size):
    scene = scenes.leaves(scenes.make(scenes.Structure(n=30, width=40, height=30, size=0.5), torch.float32))
    options = dict(packed=False, capacity=20_000, tile_size=tile_size, backend="triton")
    recorder = LaunchRecorder()
    with deferred():
        (image, alpha, meta), forward = recorder.record(lambda: rasterization(**scene, **options))
        overflow, read = recorder.record(lambda: meta["overflow"])
    v = torch.ones_like(image)
    (found,), backward = recorder.record(lambda: torch.autograd.grad(image, scene["means"], v))
    for i in range(2):
        with torch.no_grad():
            scene["means"] += 0.1
            scene["scales"] *= 3.0  # Gaussians become large, see ``large`` of slots
            v.fill_(i + 0.5)
        forward()
        read()
        backward()
        expected, expected_alpha, _ = rasterization(**scene, packed=False, tile_size=tile_size, backend="triton")
        assert torch.equal(image, expected) and torch.equal(alpha, expected_alpha) and not overflow
        assert torch.equal(found, torch.autograd.grad(expected, scene["means"], v)[0])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x.numpy().sum(),
        lambda x: x.tolist(),
        lambda x: np.asarray(x),
        lambda x: x.int().bincount(),
        lambda x: x[x > 2],
    ],
)
def test_what_depends_on_values_is_refused(function):
    x = values()
    with pytest.raises(UnsupportedError, match="results that depend on values cannot be traced"):
        LaunchRecorder().record(lambda: function(x))
    assert function(x) is not None  # not recorded


def test_other_threads_are_not_recorded():
    x, y = values(), values()
    scene = scenes.make(scenes.Structure(n=9, width=20, height=20), torch.float32)
    image = torch.zeros(2, 20, 20, 3)

    def elsewhere():
        y.add_(1.0)
        image.copy_(rasterization(**scene, backend="triton")[0])

    def function():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return x + 1

    found, replay = LaunchRecorder().record(function)
    expected = image.clone()
    scene["means"] += 1.0
    x.fill_(5.0)
    replay()
    assert torch.equal(found, torch.full((6,), 6.0)) and torch.equal(y, values() + 1) and torch.equal(image, expected)


def test_the_tail_of_an_arena_is_behind_all_that_is_needed_at_the_same_time():
    lifetimes = [Lifetime(0, 64, 0, 1), Lifetime(1, 640, 0, 2), Lifetime(2, 64, 2, 3), Lifetime(3, 6400, 4, 4)]
    bases = Bases()
    arena, offset = add_arena_with_tail(bases, lifetimes, Lifetime(4, 10**6, 2, 3))
    assert arena == (0, 6400) and offset == 704
    offsets, _ = assign_offsets(lifetimes)
    assert offsets[3] == 0  # other arenas have the largest first


def test_an_arena_for_a_part_of_its_slots_has_views_of_any_dtype():
    n = View(0, 0, torch.Size([]), (), torch.int64)
    for n_rows in range(5):
        size = ArenaSlots(n, fixed_size=36, offset=64, slot_size=12).arena_size(n_rows)
        assert size >= max(36, 64 + 12 * n_rows)
        arena = torch.empty(size, dtype=torch.uint8)
        for dtype in DTYPES:
            View(0, 0, torch.Size([4]), (1,), dtype).of(arena)


def test_operators_whose_results_nothing_reads_are_no_steps():
    x, trace = values(), Trace()

    def compute():
        unread = x.exp().neg()  # nor is what only these read
        changed = x.sin().cos().mul_(2)
        return unread, changed.abs()

    unread, wanted = trace.record(compute)
    assert len(trace.steps) == 6
    names = [step.function.overloadpacket.__name__ for step in trace.steps]
    for storages, expected in (
        ([wanted], ["sin", "cos", "mul_", "abs"]),
        ([unread], ["exp", "neg", "sin", "cos", "mul_"]),
    ):
        is_live = live_steps(trace.steps, {tensor.untyped_storage()._cdata for tensor in storages})
        assert [name for name, live in zip(names, is_live, strict=True) if live] == expected
