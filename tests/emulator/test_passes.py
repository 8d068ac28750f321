"""Calls that replay passes on emulated GPUs have the bits of the stages there."""

import dataclasses

import pytest
import torch

from emulator.package import tsplat_emulated
from tests.support import lenses, scenes
from tests.support.call_kinds import STAGES, CallKind, differences
from tsplat import rasterization, rasterization_2dgs
from tsplat.passes import calls

from .targets import each_target, one_target

pytestmark = pytest.mark.slow

STRUCTURE = scenes.Structure(n=14, cameras=1, width=13, height=9, seed=3, sh_degree=1, backgrounds=False)


@pytest.fixture
def replays(monkeypatch):
    """Returns a list with an entry for each replayed call."""
    made, original = [], calls.ReplayedCall.results

    def results(self, **options):
        made.append(self)
        return original(self, **options)

    monkeypatch.setattr(calls.ReplayedCall, "results", results)
    return made


def make(function, **options):
    scene = scenes.make(STRUCTURE, torch.float32)
    tensors = {n: t.requires_grad_(n != "Ks") for n, t in scene.items() if isinstance(t, torch.Tensor)}
    sizes = dict(width=STRUCTURE.width, height=STRUCTURE.height, sh_degree=STRUCTURE.sh_degree, backend="triton")
    return CallKind(function, tensors, sizes | options, 1, (True,), centers=True, twice=False, enabled=True)


def outcome(kind, function=None):
    """Returns all but the memory of lists, whose budget is kept for a device, here of several targets."""
    found = kind.outcome(function)
    del found["meta memory"]
    return found


def assert_replayed(kind, replays):
    """What is tracked of memory would see each operation, and nothing be replayed."""
    for call in (kind, kind.moved(1.01)):
        expected = outcome(call, STAGES[kind.function])
        for _ in range(2):
            assert not differences(outcome(call), expected)
    assert len(replays) == 3


@each_target
@pytest.mark.parametrize("packed", [False, True])
def test_calls(target, code, packed, replays):
    with tsplat_emulated(target, code, uninitialized=False):
        assert_replayed(make(rasterization, packed=packed, render_mode="RGB+ED"), replays)
    assert all(len(call._runner.traced.forward.parts) == 2 for call in replays)  # what lists need is read between them


@one_target
@pytest.mark.parametrize(
    ("function", "options"),
    [
        (rasterization, dict(packed=False, capacity=3000)),
        (rasterization_2dgs, dict()),
        (rasterization, dict(absgrad=True)),
    ],
)
def test_kinds(target, code, function, options, replays):
    with tsplat_emulated(target, code, uninitialized=False):
        assert_replayed(make(function, **options), replays)


@one_target
@pytest.mark.parametrize(
    ("lens", "readout", "options"),
    [
        ("equirectangular", "GLOBAL", dict(Ks=None)),
        ("pinhole", "ROLLING_TOP_TO_BOTTOM", dict(with_eval3d=True)),
        ("ftheta", "GLOBAL", dict(packed=False)),
    ],
)
def test_kinds_of_lenses(target, code, lens, readout, options, replays):
    scene = lenses.make(lens, readout, dtype=torch.float32, n=12, width=13, height=9) | options
    tensors = {n: t.requires_grad_(n != "Ks") for n, t in scene.items() if isinstance(t, torch.Tensor)}
    others = {n: value for n, value in scene.items() if n not in tensors} | {"backend": "triton"}
    kind = CallKind(rasterization, tensors, others, 1, (True,), centers=False, twice=False, enabled=True)
    with tsplat_emulated(target, code, uninitialized=False):
        assert_replayed(kind, replays)


@one_target
def test_backward_passes_allocate_slots_for_entries_that_pixels_passed(target, code, replays, monkeypatch):
    from tsplat.kernels import launch

    monkeypatch.setattr(launch, "UNREAD_MAX", 0)  # of few entries, all have room
    sizes, original = [], calls.acquire_scratch
    monkeypatch.setattr(calls, "acquire_scratch", lambda n, device: (sizes.append(n), original(n, device))[1])
    with tsplat_emulated(target, code, uninitialized=False):
        kind = make(rasterization, packed=False)
        assert_replayed(kind, replays)
        hidden = kind.moved(1.0)
        hidden.tensors["opacities"].data.zero_()
        assert not differences(outcome(hidden), outcome(hidden, STAGES[rasterization]))
    backward = replays[0]._runner.traced.images_backward
    assert backward.slots.fixed_size in sizes  # for no entries
    assert backward.slots.fixed_size < max(sizes) < backward.scratch.size


@pytest.mark.long
@one_target
def test_alignment_is_part_of_a_kind(target, code, replays):
    """Kernels of aligned addresses load 16 bytes at a time."""
    kind = make(rasterization, packed=False)
    with tsplat_emulated(target, code, uninitialized=False):
        expected = outcome(kind, STAGES[rasterization])
        for _ in range(3):
            assert not differences(outcome(kind), expected)
        shifted = dict(kind.tensors)
        for name in ("means", "colors"):
            memory = torch.empty(shifted[name].numel() + 1)
            shifted[name] = memory[1:].view(shifted[name].shape).copy_(shifted[name].detach()).requires_grad_()
        other = dataclasses.replace(kind, tensors=shifted)
        assert not differences(outcome(other), expected) and len(replays) == 2
        for _ in range(2):
            assert not differences(outcome(other), expected)
    assert len(replays) == 4
