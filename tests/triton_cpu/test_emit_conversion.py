"""Conversions between types against NumPy and PyTorch, edge values included."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tsplat.triton_cpu import UnsupportedOperationError, launch

BLOCK = 128
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

pytestmark = pytest.mark.usefixtures("cpu")


@triton.jit
def _convert_kernel(a, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i).to(out.dtype.element_ty))


def convert(values, dtype):
    out = torch.zeros(len(values), dtype=dtype)
    block = min(len(values), BLOCK)
    launch(_convert_kernel, (len(values) // block,), (values, out, block))
    return out


def _bits(values):
    return values.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()])


def assert_same_bits(found, expected):
    nan = expected.isnan()
    assert torch.equal(found.isnan(), nan)
    assert torch.equal(_bits(found)[~nan], _bits(expected)[~nan])


def _integers(dtype):
    info = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(info.min, info.max, (BLOCK,), generator=generator, dtype=dtype)
    values[:6] = torch.tensor([0, 1, -1, info.max, info.min, 100], dtype=dtype)
    return values


@pytest.mark.parametrize("source", INTEGERS, ids=str)
def test_integers(source):
    values = _integers(source)
    for dtype in INTEGERS:
        assert torch.equal(convert(values, dtype), values.to(dtype)), dtype
    unsigned = values.to(torch.int8).view(torch.uint8)
    assert torch.equal(convert(unsigned, torch.int32), unsigned.int())


@pytest.mark.parametrize("source", [torch.int8, torch.int32, torch.int64], ids=str)
def test_integers_to_floats(source):
    values = _integers(source)
    assert_same_bits(convert(values, torch.float64), values.double())
    assert_same_bits(convert(values, torch.float32), torch.tensor(values.numpy().astype(np.float32)))
    small = values.long().clamp(-(2**20), 2**20).to(source)
    assert_same_bits(convert(small, torch.bfloat16), small.float().bfloat16())
    with np.errstate(over="ignore"):
        assert_same_bits(convert(small, torch.float16), torch.tensor(small.numpy().astype(np.float16)))


@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_floats_to_integers_round_toward_zero_and_saturate(source):
    values = torch.linspace(-300, 300, BLOCK, dtype=torch.float64).to(source)
    for dtype in (torch.int16, torch.int32, torch.int64):
        assert torch.equal(convert(values, dtype), values.double().trunc().to(dtype))
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0], dtype=source).repeat(4)
    info = torch.iinfo(torch.int32)
    assert convert(special, torch.int32)[:4].tolist() == [0, info.max, info.min, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_half_converts_exactly_to_wider_floats_and_back(dtype):
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    for wide in (torch.float32, torch.float64):
        widened = convert(halves, wide)
        assert_same_bits(widened, halves.to(wide))
        assert_same_bits(convert(widened, dtype), halves)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_round_to_nearest_even(dtype):
    """Midpoints between neighboring halves, and the numbers next to midpoints in fp32 and fp64."""
    generator = torch.Generator().manual_seed(1)
    halves = torch.randint(-(2**15), 2**15, (2000,), generator=generator, dtype=torch.int32).to(torch.int16)
    edge = torch.arange(0, 48, dtype=torch.int16)  # subnormals
    halves = torch.cat([halves, edge]).view(dtype)
    halves = halves[halves.isfinite()]
    following = (halves.view(torch.int16) + 1).view(dtype)
    midpoints = (halves.double() + following.double()) / 2
    midpoints = midpoints[midpoints.isfinite()][:1024]
    for shift in (0, 1, -1):
        double = (midpoints.view(torch.int64) + shift).view(torch.float64)
        found = convert(double, dtype)
        error = (found.double() - double).abs()
        for neighbor in (1, -1):
            other = (found.view(torch.int16) + neighbor).view(dtype).double()
            assert not ((other - double).abs() < error).any()
        single = (midpoints.float().view(torch.int32) + shift).view(torch.float32)
        assert_same_bits(convert(single, dtype), single.to(dtype))
        if shift == 0:
            assert (found.view(torch.int16) & 1 == 0)[midpoints.abs() < torch.finfo(dtype).max].all()


def test_float_and_double():
    generator = np.random.default_rng(0)
    values = generator.normal(size=BLOCK) * 10.0 ** generator.integers(-46, 40, BLOCK)
    values[:5] = [np.inf, -np.inf, np.nan, -0.0, 1e300]
    double = torch.tensor(values)
    assert_same_bits(convert(double, torch.float32), double.float())
    assert_same_bits(convert(double.float(), torch.float64), double.float().double())


@triton.jit
def _bitcast_kernel(a, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    bits = tl.load(a + i).to(tl.int32, bitcast=True)
    tl.store(out + i, (bits ^ -0x80000000).to(tl.float32, bitcast=True))


@triton.jit
def _high_halves_kernel(a, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a.to(tl.pointer_type(tl.int32)) + 2 * i + 1))


@triton.jit
def _cast_tensor_kernel(a, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load((a + i).to(tl.pointer_type(tl.int32))))


@triton.jit
def _bool_kernel(a, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i) ^ (i % 2 == 0))


def test_bitcasts():
    values = torch.randn(BLOCK)
    out = torch.zeros(BLOCK)
    launch(_bitcast_kernel, (1,), (values, out, BLOCK))
    assert torch.equal(out, -values)


def test_pointers_to_another_type():
    values = torch.randint(-(2**62), 2**62, (BLOCK,))
    out = torch.zeros(BLOCK, dtype=torch.int32)
    launch(_high_halves_kernel, (1,), (values, out, BLOCK))
    assert torch.equal(out, (values >> 32).to(torch.int32))


def test_tensors_of_pointers_to_another_type_are_refused():
    with pytest.raises(UnsupportedOperationError, match="tensor to pointers to another type"):
        launch(_cast_tensor_kernel, (1,), (torch.zeros(BLOCK, dtype=torch.int64), torch.zeros(BLOCK).int(), BLOCK))


def test_tensors_of_bool():
    values = torch.rand(BLOCK) < 0.5
    out = torch.zeros(BLOCK, dtype=torch.bool)
    launch(_bool_kernel, (1,), (values, out, BLOCK))
    assert torch.equal(out, values ^ (torch.arange(BLOCK) % 2 == 0))


@triton.jit
def _truncated_index_kernel(a, out, shift, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + (i + shift).to(tl.int8).to(tl.int32) + 128))


@triton.jit
def _narrow_index_kernel(a, out, shift, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + (i.to(tl.int8) + shift.to(tl.int8)).to(tl.int32) + 128))


@triton.jit
def _truncated_long_index_kernel(a, out, shift, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    index = (i + shift.to(tl.int64) + 0x7FFFFF80).to(tl.int32)
    tl.store(out + i, tl.load(a + (index.to(tl.int64) + 0x80000000), mask=index < 0, other=0))


@pytest.mark.parametrize("kernel", [_truncated_index_kernel, _narrow_index_kernel])
def test_indices_that_wrap_around_are_not_contiguous(kernel):
    values, out = torch.arange(256), torch.zeros(BLOCK, dtype=torch.int64)
    for shift in (5, 125):
        launch(kernel, (1,), (values, out, shift, BLOCK))
        assert torch.equal(out, (torch.arange(BLOCK) + shift).to(torch.int8).long() + 128)


def test_long_indices_that_wrap_around_are_not_contiguous():
    values, out = torch.arange(1, BLOCK + 1), torch.zeros(BLOCK, dtype=torch.int64)
    launch(_truncated_long_index_kernel, (1,), (values, out, 5, BLOCK))
    assert torch.equal(out, (torch.arange(BLOCK) + 5 - BLOCK + 1).clamp_min(0))
