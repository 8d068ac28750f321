"""Launches that call a compiled GPU kernel directly."""

import pytest
import torch
import triton
from triton.runtime.jit import JITFunction

from emulator.package import tsplat_emulated
from tsplat.kernels.intersection import _tile_lists_kernel

from .targets import each_target, one_target

N = 5


def lists(misaligned=False, **options):
    """Launches a small kernel; returns its outputs."""
    flatten_ids = torch.arange(N + misaligned, dtype=torch.int32)[int(misaligned) :]
    listed, places = (torch.full((N,), -1, dtype=torch.int32) for _ in range(2))
    isect_offsets = torch.full((3,), -1, dtype=torch.int32)
    keys, indices = torch.tensor([0] * 2 + [1] * (N - 2), dtype=torch.int16), torch.arange(N).flip(0)
    _tile_lists_kernel.launch(
        1, keys=keys, indices=indices, flatten_ids=flatten_ids, listed=listed, places=places,
        isect_offsets=isect_offsets, n=N, n_tiles=2, first_key=0, steps=3, BLOCK=16, **options,
    )  # fmt: skip
    return listed, places, isect_offsets


@pytest.fixture
def by_triton(monkeypatch):
    """A list that grows with each launch that goes through `kernel[grid](...)`; nothing is prepared before."""
    launches = []
    run = JITFunction.run
    monkeypatch.setattr("tsplat.kernels.launch.prepared", {})
    monkeypatch.setattr(JITFunction, "run", lambda *args, **kwargs: (launches.append(args[0]), run(*args, **kwargs))[1])
    return launches


@each_target
def test_prepared_launches_equal_those_of_triton(target, code, by_triton):
    with tsplat_emulated(target, code):
        expected = [lists(misaligned=bad) for bad in (False, True)]
        found = [lists(misaligned=bad) for bad in (False, True)]
        assert len(by_triton) == 2
        found.append(lists(num_warps=2))
        assert len(by_triton) == 3
    for outputs, wanted in zip(found, (*expected, expected[0])):
        assert all(map(torch.equal, outputs, wanted))


@one_target
def test_profilers_hook_launches(target, code, by_triton):
    hooks, launched = triton.knobs.runtime.launch_enter_hook, []

    def enter(metadata):
        launched.append(metadata.get()["name"])

    with tsplat_emulated(target, code):
        expected = lists()
        hooks.add(enter)
        try:
            found = lists()
        finally:
            hooks.remove(enter)
        lists()
    assert all(map(torch.equal, found, expected))
    assert len(by_triton) == 1
    assert launched == [by_triton[0].__name__]
