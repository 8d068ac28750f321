"""Loops, conditionals, and kernels that return early."""

import pytest
import torch
import triton
import triton.language as tl

from tsplat.triton_cpu import launch

pytestmark = pytest.mark.usefixtures("cpu")


@triton.jit
def _for_kernel(a, out, start, end, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    last = start - 1
    for k in range(start, end, 2):
        total += tl.load(a + k * BLOCK + i) * k
        for j in range(k):
            total += j
        last = k
    tl.store(out + i, total)
    tl.store(out + BLOCK, last)


@pytest.mark.parametrize("bounds", [(0, 7), (3, 4), (5, 5), (6, 2)])
def test_for(bounds):
    a = torch.randn(8, 16)
    out = torch.zeros(17)
    launch(_for_kernel, (1,), (a, out, *bounds, 16))
    total, last = torch.zeros(16), bounds[0] - 1
    for k in range(*bounds, 2):
        total = total + a[k] * k
        for j in range(k):
            total = total + j
        last = k
    assert torch.equal(out[:16], total)
    assert out[16] == last


@triton.jit
def _while_kernel(a, out, limit, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    steps = 0
    while (tl.max(total) < limit) & (steps < 50):
        total += tl.load(a + i)
        steps += 1
    tl.store(out + i, total)
    tl.store(out + BLOCK, steps)


@pytest.mark.parametrize("limit", [-1.0, 5.0, 1e9])
def test_while(limit):
    a = torch.rand(32)
    out = torch.zeros(33)
    launch(_while_kernel, (1,), (a, out, limit, 32))
    total, steps = torch.zeros(32), 0
    while total.max() < limit and steps < 50:
        total, steps = total + a, steps + 1
    assert torch.equal(out[:32], total)
    assert out[32] == steps


@triton.jit
def _if_kernel(a, out, n, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(a + i)
    if program % 3 == 0:
        y = x * 2
        k = 1
    elif program % 3 == 1:
        y = -x
        k = program
    else:
        y = x
        k = 7
    if program > n:
        tl.store(out + program * BLOCK + i, y + k)


def test_if():
    a = torch.randn(16)
    out = torch.zeros(9, 16)
    launch(_if_kernel, (9,), (a, out, 1, 16))
    for p in range(9):
        expected = (a * 2 + 1, -a + p, a + 7)[p % 3] if p > 1 else torch.zeros(16)
        assert torch.equal(out[p], expected)


@triton.jit
def _return_kernel(a, out, n, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(a + i)
    if program >= n:
        return
    if program == 1:
        tl.store(out + program * BLOCK + i, -x)
        return
    tl.store(out + program * BLOCK + i, x * program)


def test_early_return():
    a = torch.randn(16)
    out = torch.zeros(6, 16)
    launch(_return_kernel, (6,), (a, out, 4, 16))
    expected = a * torch.arange(6)[:, None]
    expected[1], expected[4:] = -a, 0
    assert torch.equal(out, expected)


@triton.jit
def _moving_pointers_kernel(a, out, steps, BLOCK: tl.constexpr):
    pointers = a + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for _ in range(steps):
        total += tl.load(pointers)
        pointers += BLOCK
    tl.store(out + tl.arange(0, BLOCK), total + tl.load(pointers))


def test_pointers_carried_through_a_loop():
    a = torch.randint(0, 100, (6, 32)).float()
    out = torch.zeros(32)
    launch(_moving_pointers_kernel, (1,), (a, out, 5, 32))
    assert torch.equal(out, a.sum(0))


@triton.jit
def _carried_mask_kernel(out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    seen = tl.zeros([BLOCK], tl.int1)
    count = tl.zeros([BLOCK], tl.int64)
    for k in range(n):
        seen = seen | (i == 3 * k)
        count += tl.where(seen, 1, 0)
    tl.store(out + i, count)


@pytest.mark.parametrize("block", [4, 16, 64])
def test_masks_carried_through_a_loop(block):
    out = torch.zeros(block, dtype=torch.int64)
    launch(_carried_mask_kernel, (1,), (out, 5, block))
    expected = [5 - i // 3 if i % 3 == 0 and i // 3 < 5 else 0 for i in range(block)]
    assert out.tolist() == expected
