"""Reductions and scans against NumPy."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tsplat.triton_cpu import launch

SHAPES = [(4, 4), (2, 16), (16, 16), (16, 4), (8, 64), (32, 2)]

pytestmark = pytest.mark.usefixtures("cpu")


@triton.jit
def _reduce_kernel(a, out, whole, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    x = tl.load(a + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    K: tl.constexpr = N if AXIS == 0 else M
    k = tl.arange(0, K)
    tl.store(out + k, tl.sum(x, AXIS))
    tl.store(out + K + k, tl.max(x, AXIS))
    tl.store(out + 2 * K + k, tl.min(x, AXIS))
    tl.store(out + 3 * K + k, tl.argmax(x, AXIS).to(x.dtype))
    tl.store(whole, tl.sum(x))
    tl.store(whole + 1, tl.max(x))


def halving_sum(x, axis):
    """The order of additions that `emit_reduce` promises."""
    while x.shape[axis] > 1:
        first, second = np.split(x, 2, axis)
        x = first + second
    return x.squeeze(axis)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reduce(shape, axis, dtype):
    a = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    kept = shape[1 - axis]
    out, whole = torch.zeros(4, kept, dtype=dtype), torch.zeros(2, dtype=dtype)
    launch(_reduce_kernel, (1,), (a, out, whole, *shape, axis))
    x = a.numpy()
    np.testing.assert_array_equal(out[0].numpy(), halving_sum(x, axis))
    np.testing.assert_array_equal(out[1].numpy(), x.max(axis))
    np.testing.assert_array_equal(out[2].numpy(), x.min(axis))
    np.testing.assert_array_equal(out[3].numpy(), x.argmax(axis))
    assert whole[0] == halving_sum(x.reshape(-1), 0)
    assert whole[1] == x.max()


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def _scaled_maximum(a, b):
    return tl.maximum(a, b) * 1.0 + 0.0


@triton.jit
def _custom_kernel(a, f, out, scaled, M: tl.constexpr, N: tl.constexpr):
    x = tl.load(a + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out + tl.arange(0, N), tl.reduce(x, 0, _or))
    tl.store(scaled, tl.reduce(tl.load(f + tl.arange(0, N)), 0, _scaled_maximum))


def test_reduce_by_functions_of_the_kernel():
    a = torch.randint(0, 2**30, (8, 32), dtype=torch.int32)
    f = torch.randn(32)
    out, scaled = torch.zeros(32, dtype=torch.int32), torch.zeros(1)
    launch(_custom_kernel, (1,), (a, f, out, scaled, 8, 32))
    np.testing.assert_array_equal(out.numpy(), np.bitwise_or.reduce(a.numpy(), 0))
    assert scaled[0] == f.max()


@triton.jit
def _scan_kernel(a, out, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    place = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + place, tl.cumsum(tl.load(a + place), AXIS, reverse=REVERSE))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(4, 4), (16, 16), (2, 32)])
def test_scan(shape, axis, reverse):
    for dtype in (torch.float32, torch.int64):
        a = (torch.randn(shape) * 10).to(dtype)
        out = torch.zeros_like(a)
        launch(_scan_kernel, (1,), (a, out, *shape, axis, reverse))
        x = np.flip(a.numpy(), axis) if reverse else a.numpy()
        expected = np.cumsum(x, axis, dtype=x.dtype)
        np.testing.assert_array_equal(out.numpy(), np.flip(expected, axis) if reverse else expected)
