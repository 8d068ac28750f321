"""Elementwise arithmetic and comparisons against NumPy, edge values included."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tsplat.triton_cpu import launch

BLOCK = 64
FLOATS = {torch.float64: np.float64, torch.float32: np.float32}
INTEGERS = {torch.int64: np.int64, torch.int32: np.int32, torch.int16: np.int16, torch.int8: np.int8}

pytestmark = pytest.mark.usefixtures("cpu")


@triton.jit
def _float_kernel(a, b, c, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(a + i)
    y = tl.load(b + i)
    z = tl.load(c + i)
    tl.store(out + i, x + y)
    tl.store(out + BLOCK + i, x - y)
    tl.store(out + 2 * BLOCK + i, x * y)
    tl.store(out + 3 * BLOCK + i, x / y)
    tl.store(out + 4 * BLOCK + i, -x)
    tl.store(out + 5 * BLOCK + i, tl.abs(x))
    tl.store(out + 6 * BLOCK + i, tl.sqrt(x))
    tl.store(out + 7 * BLOCK + i, tl.floor(x))
    tl.store(out + 8 * BLOCK + i, tl.ceil(x))
    tl.store(out + 9 * BLOCK + i, tl.minimum(x, y))
    tl.store(out + 10 * BLOCK + i, tl.maximum(x, y))
    tl.store(out + 11 * BLOCK + i, tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 12 * BLOCK + i, tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 13 * BLOCK + i, tl.where(x < y, x, y))
    tl.store(out + 14 * BLOCK + i, tl.fma(x, y, z))
    tl.store(out + 15 * BLOCK + i, x * y + z)
    tl.store(out + 16 * BLOCK + i, x % y)


FLOAT_EXPECTED = (
    np.add, np.subtract, np.multiply, np.divide, lambda x, y: -x, lambda x, y: np.abs(x), lambda x, y: np.sqrt(x),
    lambda x, y: np.floor(x), lambda x, y: np.ceil(x), np.fmin, np.fmax, np.minimum, np.maximum,
    lambda x, y: np.where(x < y, x, y),
)  # fmt: skip


@triton.jit
def _half_kernel(a, b, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(a + i)
    y = tl.load(b + i)
    tl.store(out + i, x + y)
    tl.store(out + BLOCK + i, x - y)
    tl.store(out + 2 * BLOCK + i, x * y)
    tl.store(out + 3 * BLOCK + i, -x)
    tl.store(out + 4 * BLOCK + i, tl.abs(x))
    tl.store(out + 5 * BLOCK + i, tl.where(x < y, x, y))


HALF_EXPECTED = (
    np.add, np.subtract, np.multiply, lambda x, y: -x, lambda x, y: np.abs(x), lambda x, y: np.where(x < y, x, y),
)  # fmt: skip


@triton.jit
def _comparison_kernel(a, b, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(a + i)
    y = tl.load(b + i)
    tl.store(out + i, (x < y).to(tl.int8))
    tl.store(out + BLOCK + i, (x <= y).to(tl.int8))
    tl.store(out + 2 * BLOCK + i, (x > y).to(tl.int8))
    tl.store(out + 3 * BLOCK + i, (x >= y).to(tl.int8))
    tl.store(out + 4 * BLOCK + i, (x == y).to(tl.int8))
    tl.store(out + 5 * BLOCK + i, (x != y).to(tl.int8))
    tl.store(out + 6 * BLOCK + i, ((x < y) & (x != y) | ~(x >= y)).to(tl.int8))


@triton.jit
def _integer_kernel(a, b, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(a + i)
    y = tl.load(b + i)
    tl.store(out + i, x + y)
    tl.store(out + BLOCK + i, x - y)
    tl.store(out + 2 * BLOCK + i, x * y)
    tl.store(out + 3 * BLOCK + i, x & y)
    tl.store(out + 4 * BLOCK + i, x | y)
    tl.store(out + 5 * BLOCK + i, x ^ y)
    tl.store(out + 6 * BLOCK + i, tl.minimum(x, y))
    tl.store(out + 7 * BLOCK + i, tl.maximum(x, y))
    tl.store(out + 8 * BLOCK + i, tl.abs(x))
    tl.store(out + 9 * BLOCK + i, x << (y & 7))
    tl.store(out + 10 * BLOCK + i, x >> (y & 7))
    divisor = tl.where(y == 0, 1, y)
    tl.store(out + 11 * BLOCK + i, x // divisor)
    tl.store(out + 12 * BLOCK + i, x % divisor)
    tl.store(out + 13 * BLOCK + i, x // 7)
    tl.store(out + 14 * BLOCK + i, x % 16)


def _truncated(x, y):
    """Quotient rounded toward zero, exactly."""
    return (np.sign(x) * np.sign(y) * (np.abs(x.astype(object)) // np.abs(y.astype(object)))).astype(x.dtype)


INTEGER_EXPECTED = (
    np.add, np.subtract, np.multiply, np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.minimum, np.maximum,
    lambda x, y: np.abs(x), lambda x, y: x << (y & 7), lambda x, y: x >> (y & 7),
    lambda x, y: _truncated(x, np.where(y == 0, 1, y)), lambda x, y: np.fmod(x, np.where(y == 0, 1, y)),
    lambda x, y: _truncated(x, np.full_like(x, 7)), lambda x, y: np.fmod(x, np.full_like(x, 16)),
)  # fmt: skip


@triton.jit
def _constant_kernel(out, BLOCK: tl.constexpr):
    """Operations on values known to the compiler, which it folds."""
    i = tl.arange(0, BLOCK)
    x = tl.load(out + i)
    tl.store(out + i, tl.where(i == 3, 100, x))
    tl.store(out + BLOCK + i, tl.where((i + 5) * 3 - i > 40, x, i))
    tl.store(out + 2 * BLOCK + i, (i & 1) * x + (i ^ 2) + (i << 1) + (-i >> 1))
    tl.store(out + 3 * BLOCK + i, tl.minimum(i, 7) * x + tl.maximum(i, 9))


def _edges(kind):
    info = np.finfo(kind)
    values = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, info.max, info.tiny, info.tiny / 4]
    return np.array(values, kind)


def _float_inputs(kind):
    generator = np.random.default_rng(0)
    x, y = (generator.normal(size=BLOCK).astype(kind) * 10 for _ in range(2))
    edges = _edges(kind)
    x[: len(edges)] = edges
    y[: 2 * len(edges) : 2] = edges
    x[40:44], y[40:44] = [np.nan, 1, np.nan, -0.0], [1, np.nan, np.nan, 0.0]
    return x, y, generator.normal(size=BLOCK).astype(kind)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_arithmetic_matches_numpy(dtype):
    x, y, z = _float_inputs(FLOATS[dtype])
    out = torch.full((17, BLOCK), 7.0, dtype=dtype)
    launch(_float_kernel, (1,), (*map(torch.tensor, (x, y, z)), out, BLOCK))
    with np.errstate(all="ignore"):
        for row, function in zip(out.numpy(), FLOAT_EXPECTED):
            np.testing.assert_array_equal(row, function(x, y), str(function))
        if dtype == torch.float32:  # exact in fp64, which rounds it once more to fp32
            expected = (x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)).astype(np.float32)
            np.testing.assert_array_equal(out[14].numpy(), expected)
        np.testing.assert_array_equal(out[15].numpy(), x * y + z)
        np.testing.assert_array_equal(out[16].numpy(), np.fmod(x, y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_arithmetic_rounds_after_each_operation(dtype):
    x, y = (torch.tensor(values).to(dtype) for values in _float_inputs(np.float32)[:2])
    out = torch.full((6, BLOCK), 7.0, dtype=dtype)
    launch(_half_kernel, (1,), (x, y, out, BLOCK))
    a, b = x.float().numpy(), y.float().numpy()
    with np.errstate(all="ignore"):
        for row, function in zip(out, HALF_EXPECTED, strict=True):
            expected = torch.tensor(function(a, b)).to(dtype)
            assert torch.equal(row.nan_to_num(nan=1234.0), expected.nan_to_num(nan=1234.0)), function


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_arithmetic_matches_numpy(dtype):
    kind = INTEGERS[dtype]
    info = np.iinfo(kind)
    generator = np.random.default_rng(1)
    x, y = (generator.integers(info.min, info.max, BLOCK, kind, endpoint=True) for _ in range(2))
    x[:6] = [0, 1, -1, info.max, info.min + 1, 5]
    y[8:14] = [0, 1, 2, -3, info.max, info.min + 1]
    out = torch.zeros(15, BLOCK, dtype=dtype)
    launch(_integer_kernel, (1,), (torch.tensor(x), torch.tensor(y), out, BLOCK))
    with np.errstate(all="ignore"):
        for row, function in zip(out.numpy(), INTEGER_EXPECTED):
            np.testing.assert_array_equal(row, function(x, y), str(function))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64], ids=str)
def test_comparisons_match_numpy(dtype):
    x, y, _ = _float_inputs(np.float32)
    y[20:30] = x[20:30]
    if not dtype.is_floating_point:
        x, y = (np.nan_to_num(v, posinf=9, neginf=-9).clip(-9, 9) for v in (x, y))
    x, y = (torch.tensor(v).to(dtype) for v in (x, y))
    out = torch.zeros(7, BLOCK, dtype=torch.int8)
    launch(_comparison_kernel, (1,), (x, y, out, BLOCK))
    expected = (x < y, x <= y, x > y, x >= y, x == y, x != y, (x < y) & (x != y) | ~(x >= y))
    for row, values in zip(out, expected):
        assert torch.equal(row.bool(), values)


def test_operations_on_constants_are_folded_correctly():
    out = torch.arange(5, 5 + 4 * BLOCK, dtype=torch.int32).reshape(4, BLOCK)
    x = out[0].clone()
    launch(_constant_kernel, (1,), (out, BLOCK))
    i = torch.arange(BLOCK, dtype=torch.int32)
    expected = (
        torch.where(i == 3, 100, x), torch.where((i + 5) * 3 - i > 40, x, i),
        (i & 1) * x + (i ^ 2) + (i << 1) + (-i >> 1), i.clamp_max(7) * x + i.clamp_min(9),
    )  # fmt: skip
    for row, values in zip(out, expected):
        assert torch.equal(row, values)


@triton.jit
def _scalar_kernel(a, out, n, f):
    i = tl.program_id(0)
    x = tl.load(a + i)
    tl.store(out + i, tl.where(x // n > 2, x % n, -x) + tl.minimum(i, 3) + (tl.sqrt(f) * 2.0).to(tl.int32))


def test_scalar_arithmetic():
    a = torch.arange(-8, 24, dtype=torch.int32)
    out = torch.zeros_like(a)
    launch(_scalar_kernel, (32,), (a, out, 5, 9.0))
    quotient = torch.div(a, 5, rounding_mode="trunc")
    expected = torch.where(quotient > 2, a - quotient * 5, -a) + torch.arange(32).clamp_max(3) + 6
    assert torch.equal(out, expected.int())


def test_division_by_zero_does_not_end_the_process():
    for dtype in (torch.int32, torch.int64):
        x, y = torch.full((BLOCK,), 7, dtype=dtype), torch.zeros(BLOCK, dtype=dtype)
        x[0], y[0] = torch.iinfo(dtype).min, -1
        y[1] = 2
        out = torch.zeros(2, BLOCK, dtype=dtype)
        launch(_division_kernel, (1,), (x, y, out, BLOCK))
        assert out[:, 1].tolist() == [3, 1]


@triton.jit
def _division_kernel(a, b, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(a + i)
    y = tl.load(b + i)
    tl.store(out + i, x // y)
    tl.store(out + BLOCK + i, x % y)
    tl.store(out + 2, tl.load(a) // tl.load(b))
