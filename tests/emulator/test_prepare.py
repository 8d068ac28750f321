"""Launches that are prepared once, on emulated GPUs: equal to Triton's own, and observed by profilers."""

import pytest
import torch
import triton

from emulator.package import tsplat_emulated
from tsplat import gpu_driver
from tsplat.kernels.intersection import _tile_lists_kernel

from .targets import each_target, one_target

N = 5


def launch_by_tsplat(**arguments):
    _tile_lists_kernel.launch(1, **arguments)


def launch_by_triton(**arguments):
    _tile_lists_kernel[(1,)](**arguments)


def lists(launch=launch_by_tsplat, misaligned=False, **options):
    """Launches a small kernel; returns its outputs."""
    flatten_ids = torch.arange(N + misaligned, dtype=torch.int32)[int(misaligned) :]
    sorted_ids, gaussian_major_indices = (torch.full((N,), -1, dtype=torch.int32) for _ in range(2))
    isect_offsets = torch.full((3,), -1, dtype=torch.int32)
    keys, indices = torch.tensor([0] * 2 + [1] * (N - 2), dtype=torch.int16), torch.arange(N).flip(0)
    launch(
        keys=keys, indices=indices, flatten_ids=flatten_ids, sorted_ids=sorted_ids,
        gaussian_major_indices=gaussian_major_indices,
        isect_offsets=isect_offsets, n=N, n_tiles=2, first_key=0, search_steps=3, BLOCK=16, **options,
    )  # fmt: skip
    return sorted_ids, gaussian_major_indices, isect_offsets


@pytest.fixture
def prepared(monkeypatch):
    """A list that grows with each kernel that is compiled and loaded; none is before."""
    found, prepare = [], gpu_driver.prepare
    monkeypatch.setattr("tsplat.kernels.launch.compiled", {})
    monkeypatch.setattr(gpu_driver, "prepare", lambda *args: (found.append(prepare(*args)), found[-1])[1])
    return found


@each_target
def test_prepared_launches_equal_those_of_triton(target, code, prepared):
    with tsplat_emulated(target, code):
        expected = [lists(launch_by_triton, misaligned=bad) for bad in (False, True)]
        found = [lists(misaligned=bad) for bad in (False, True, False, True)]
        assert len(prepared) == 2
        found.append(lists(num_warps=2))
        assert len(prepared) == 3
    for outputs, wanted in zip(found, (*expected, *expected, expected[0])):
        assert all(map(torch.equal, outputs, wanted))


@one_target
def test_profilers_hook_launches(target, code, prepared):
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
    assert launched == [_tile_lists_kernel.__name__]
    assert len(prepared) == 1
