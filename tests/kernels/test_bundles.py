"""Bundles as arguments of kernels: NamedTuples of tensors, None, integers and other bundles."""

from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from emulator.package import tsplat_emulated
from tests.emulator.targets import each_target, needs_emulator
from tsplat.kernels import launch
from tsplat.kernels.launch import kernel

pytestmark = pytest.mark.triton


class Range(NamedTuple):
    start: Any
    end: Any


class Rows(NamedTuple):
    data: Any  # [n, stride], or None for zeros
    range: Range
    stride: Any


class Rule(NamedTuple):
    of: Any
    NEGATED: bool


@triton.jit
def squared(x):
    return x * x


@kernel(strided=("rows.data",))
def _apply_kernel(rows: "Rows", out, RULE: tl.constexpr, BLOCK: tl.constexpr):
    """Applies a rule to the first value of each row."""
    i = tl.arange(0, BLOCK)
    inside = (i >= rows.range.start) & (i < rows.range.end)
    x = tl.zeros([BLOCK], tl.float32)
    if rows.data is not None:
        x = tl.load(rows.data + i * rows.stride, mask=inside, other=0.0)
    x = RULE.of(x)
    if RULE.NEGATED:
        x = -x
    tl.store(out + i, x, mask=inside)


def applied(values, start=0, end=4, negated=False):
    out = torch.full((4,), -1.0)
    rows = Rows(values, Range(start, end), 1 if values is None else values.stride(0))
    _apply_kernel.launch(1, rows=rows, out=out, RULE=Rule(squared, negated), BLOCK=4)
    return out.tolist()


@pytest.fixture
def prepared(monkeypatch):
    found = {}
    monkeypatch.setattr(launch, "compiled", found)
    return found


def check_bundles(prepared):
    values = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert applied(values) == [1, 4, 9, 16]
    assert applied(values, 1, 3) == [-1, 4, 9, -1]  # integers are not compiled in, whatever they are
    assert applied(values[:, None].repeat(1, 16)) == [1, 4, 9, 16]
    assert len(prepared) == 1
    assert applied(None) == [0, 0, 0, 0]
    assert applied(values, negated=True) == [-1, -4, -9, -16]
    assert len(prepared) == 3


def test_bundles_on_the_cpu(prepared):
    check_bundles(prepared)


@needs_emulator
@each_target
def test_bundles_on_emulated_gpus(target, code, prepared):
    with tsplat_emulated(target, code):
        check_bundles(prepared)


def test_tensors_of_bundles_are_checked(prepared):
    out = torch.zeros(8)[::2]
    rows = Rows(torch.ones(4), Range(0, 4), 1)
    with pytest.raises(ValueError, match=r"_apply_kernel: out \(4,\) has strides \(2,\)"):
        _apply_kernel.launch(1, rows=rows, out=out, RULE=Rule(squared, False), BLOCK=4)
