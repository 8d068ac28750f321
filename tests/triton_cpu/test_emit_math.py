"""exp2, exp, log2, log and rsqrt against fp64 and higher precision: error in units in the last place."""

import math

import mpmath
import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tsplat.triton_cpu import launch

BOUNDS = {"exp2": 0.92, "exp": 0.99, "log2": 0.99, "log": 0.85, "rsqrt": 1.5}
"""Largest errors, in ulp, as stated in `tsplat/triton_cpu/emit_math.py`."""

BLOCK = 128

pytestmark = pytest.mark.usefixtures("cpu")


@triton.jit
def _exp2_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.exp2(tl.load(x + i)))


@triton.jit
def _exp_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.exp(tl.load(x + i)))


@triton.jit
def _log2_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.log2(tl.load(x + i)))


@triton.jit
def _log_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.log(tl.load(x + i)))


@triton.jit
def _rsqrt_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.rsqrt(tl.load(x + i)))


KERNELS = {"exp2": _exp2_kernel, "exp": _exp_kernel, "log2": _log2_kernel, "log": _log_kernel, "rsqrt": _rsqrt_kernel}
EXACT = {"exp2": np.exp2, "exp": np.exp, "log2": np.log2, "log": np.log, "rsqrt": lambda x: 1 / np.sqrt(x)}
PRECISE = {
    "exp2": lambda x: mpmath.power(2, x),
    "exp": mpmath.exp,
    "log2": lambda x: mpmath.log(x, 2),
    "log": mpmath.log,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
}


def compute(name, x):
    """The compiled function of a one-dimensional array."""
    block = min(BLOCK, triton.next_power_of_2(len(x)))
    padded = torch.ones(-(-len(x) // block) * block, dtype=torch.from_numpy(x).dtype)
    padded[: len(x)] = torch.from_numpy(x)
    out = torch.full_like(padded, 77.0)
    launch(KERNELS[name], (len(padded) // block,), (padded, out, block))
    return out.numpy()[: len(x)]


def largest_error(name, x, found=None):
    """In units in the last place; special results must be equal. Exact results are from the next wider type."""
    found = compute(name, x) if found is None else found
    wide = np.float64 if x.dtype == np.float32 else np.longdouble
    with np.errstate(all="ignore"):
        exact = EXACT[name](x.astype(wide))
        rounded = exact.astype(x.dtype)
    special = ~np.isfinite(rounded) | (rounded == 0)
    if special.any():
        np.testing.assert_array_equal(found[special], rounded[special])
        found, exact, rounded = found[~special], exact[~special], rounded[~special]
    assert np.isfinite(found).all()
    error = np.abs(found - exact) / ulp(rounded)
    return float(error.max()) if error.size else 0.0


def ulp(x):
    """np.spacing(np.abs(x)), but much faster."""
    info = np.finfo(x.dtype)
    kind = np.int32 if x.dtype == np.float32 else np.int64
    exponent_bits = np.array(np.inf, x.dtype).view(kind)
    return np.maximum((x.view(kind) & exponent_bits).view(x.dtype) * info.eps, info.smallest_subnormal)


def fp64_sample(name, generator, n):
    """fp64 numbers: half of them over the whole range of results, half of them where results are hardest."""
    if name in ("exp2", "exp"):
        x = np.concatenate([generator.uniform(-1080, 1026, n // 2), generator.uniform(-2, 2, n - n // 2)])
        return x if name == "exp2" else x * math.log(2)
    near_one = 1 + generator.normal(size=n - n // 2) * 10.0 ** generator.uniform(-8, -0.5, n - n // 2)
    return np.concatenate([np.exp2(generator.uniform(-1074, 1023.9, n // 2)), np.abs(near_one)])


def every_fp32(start, stop, step=1):
    """fp32 numbers by their bits."""
    return np.arange(start, stop, step, dtype=np.int64).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("name", KERNELS)
def test_fp32_over_its_whole_range(name):
    assert largest_error(name, every_fp32(0, 2**32, 9973)) <= BOUNDS[name]


@pytest.mark.parametrize("name", KERNELS)
def test_fp32_where_results_are_hardest(name):
    """Near 1 for logarithms; small arguments, and subnormal results, for powers."""
    near_one = int(np.float32(1).view(np.uint32))
    parts = [every_fp32(near_one - 20000, near_one + 20000), every_fp32(0, 3000)]
    parts.append(np.linspace(-151, -125, 20000, dtype=np.float32))
    parts.append(np.linspace(-104, -86, 20000, dtype=np.float32))
    parts.append(np.linspace(-2, 2, 20000, dtype=np.float32))
    assert largest_error(name, np.concatenate(parts)) <= BOUNDS[name]


@pytest.mark.parametrize("name", KERNELS)
def test_fp64_to_the_last_places(name):
    generator = np.random.default_rng(0)
    if name in ("exp2", "exp"):
        x = np.concatenate([generator.uniform(-5, 5, 300), generator.uniform(-1070, 1023, 200), [1e-300, 2.0**-60]])
        x = x if name == "exp2" else x * math.log(2)
    else:
        x = np.concatenate([1 + generator.normal(size=200) * 1e-3, 10.0 ** generator.uniform(-320, 308, 300), [5e-324]])
    found = compute(name, x)
    worst = 0.0
    with mpmath.workdps(40):
        for value, result in zip(x.tolist(), found.tolist()):
            error = abs(PRECISE[name](mpmath.mpf(value)) - mpmath.mpf(result))
            worst = max(worst, float(error / mpmath.mpf(float(np.spacing(abs(result))))))
    assert worst <= BOUNDS[name]


def test_exact_results():
    exponents = np.arange(-149, 128)
    powers = np.exp2(exponents).astype(np.float32)
    np.testing.assert_array_equal(compute("exp2", exponents.astype(np.float32)), powers)
    np.testing.assert_array_equal(compute("log2", powers), exponents.astype(np.float32))
    np.testing.assert_array_equal(compute("exp", np.zeros(4, np.float32)), 1)
    np.testing.assert_array_equal(compute("log", np.ones(4, np.float32)), 0)
    exponents = np.arange(-1074, 1024)
    powers = np.exp2(exponents.astype(np.float64))
    np.testing.assert_array_equal(compute("exp2", exponents.astype(np.float64)), powers)
    np.testing.assert_array_equal(compute("log2", powers), exponents.astype(np.float64))


def test_same_bits_on_every_cpu_level(monkeypatch):
    generator = np.random.default_rng(0)
    for name in KERNELS:
        for x in (every_fp32(0, 2**32, 39989), fp64_sample(name, generator, 2**13)):
            found = compute(name, x)
            with monkeypatch.context() as context:
                context.delenv("TSPLAT_CPU", raising=False)
                np.testing.assert_array_equal(found, compute(name, x))


@triton.jit
def _scalar_kernel(x, out):
    i = tl.program_id(0)
    tl.store(out + i, tl.exp2(tl.load(x + i)) + tl.log(tl.load(x + i)))


def test_scalars_get_the_same_bits_as_vectors():
    x = torch.rand(32, generator=torch.Generator().manual_seed(0)) * 4
    out = torch.zeros(32)
    launch(_scalar_kernel, (32,), (x, out))
    expected = compute("exp2", x.numpy()) + compute("log", x.numpy())
    np.testing.assert_array_equal(out.numpy(), expected)
