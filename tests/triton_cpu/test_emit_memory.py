"""Loads and stores: contiguous, strided, gathered, masked, scalar, of every element type."""

import pytest
import torch
import triton
import triton.language as tl
from triton.language import core

from tsplat.triton_cpu import UnsupportedOperationError, launch
from tsplat.triton_cpu.launcher import llvm_ir

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("cpu")


@triton.jit
def _copy_kernel(a, out, n, stride_a, stride_out, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(a + i * stride_a, mask=i < n, other=OTHER)
    tl.store(out + i * stride_out, x, mask=i < n)


@triton.jit
def _copy_unmasked_kernel(a, out, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i))


def _values(dtype, n):
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.bool:
        return torch.rand(n, generator=generator) < 0.5
    return (torch.rand(n, generator=generator) * 100).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies_of_every_type(dtype):
    a = _values(dtype, 100)
    for n in (100, 37, 0):
        out = torch.ones(128, dtype=dtype)
        launch(_copy_kernel, (4,), (a, out, n, 1, 1, 0, 32))
        assert torch.equal(out[:n], a[:n])
        assert (out[n:] == 1).all()
    out = torch.zeros(96, dtype=dtype)
    launch(_copy_unmasked_kernel, (3,), (a, out, 32))
    assert torch.equal(out, a[:96])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides_and_overlapping_strides(dtype):
    a = _values(dtype, 400)
    out = torch.zeros(300, dtype=dtype)
    launch(_copy_kernel, (4,), (a, out, 90, 4, 3, 0, 32))
    assert torch.equal(out[: 3 * 90 : 3], a[: 4 * 90 : 4])
    assert not out[1::3].any()
    assert not out[3 * 90 :].any()
    launch(_copy_kernel, (4,), (a, out, 90, 0, 1, 0, 32))
    assert (out[:90] == a[0]).all()


def test_views_that_are_not_contiguous():
    a = torch.randn(40, 30).T[3:, 1::2]
    out = torch.zeros(27, 20)
    for row in range(27):
        launch(_copy_kernel, (1,), (a[row], out[row], 20, a.stride(1), 1, 0, 32))
    assert torch.equal(out, a)


@triton.jit
def _gather_kernel(a, index, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(index + i, mask=i < n, other=-(2**30))
    x = tl.load(a + place, mask=(i < n) & (place >= 0), other=-1.0)
    tl.store(out + (n - 1 - i), x, mask=i < n)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int8], ids=str)
def test_gathers_do_not_read_where_masked_out(dtype, index_dtype):
    a = _values(dtype, 1000)
    index = torch.randint(0, 1000, (77,), dtype=index_dtype)
    index[::5] = -(2**30)
    out = torch.zeros(77, dtype=dtype)
    launch(_gather_kernel, (3,), (a, index, out, 77, 32))
    expected = torch.where(index >= 0, a[index.clamp_min(0).long()], -1).flip(0)
    assert torch.equal(out, expected)


@triton.jit
def _sum_of_offsets_kernel(a, out, far, BLOCK: tl.constexpr):
    """Two offsets whose sum does not fit into 32 bits."""
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + far + i + far - far - far))
    tl.store(out + BLOCK + i, tl.load((a + i * 0 + far) + (i + far) - 2 * far.to(tl.int64)))


def test_offsets_are_added_in_64_bits():
    a = torch.randn(32)
    out = torch.zeros(64)
    launch(_sum_of_offsets_kernel, (1,), (a, out, 2**30 + 2**29, 32))
    assert torch.equal(out, torch.cat([a, a]))


@triton.jit
def _two_dimensions_kernel(a, out, rows, columns, stride, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(1) * R + tl.arange(0, R)[:, None]
    c = tl.program_id(0) * C + tl.arange(0, C)[None, :]
    inside = (r < rows) & (c < columns)
    tl.store(out + c * rows + r, tl.load(a + r * stride + c, mask=inside), mask=inside)


@pytest.mark.parametrize("block", [(4, 4), (8, 8), (16, 16), (2, 32), (32, 1)])
def test_blocks_of_rows_and_columns(block):
    a = torch.randn(37, 45)[:, :41]
    out = torch.zeros(41, 37)
    grid = (-(-41 // block[1]), -(-37 // block[0]))
    launch(_two_dimensions_kernel, grid, (a, out, 37, 41, a.stride(0), *block))
    assert torch.equal(out, a.T)


@triton.jit
def _scalar_kernel(a, out, n):
    i = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0) + tl.program_id(2) * tl.num_programs(0) * 3
    x = tl.load(a + i, mask=i < n, other=-5.0)
    tl.store(out + 2 * i, x)
    tl.store(out + 2 * i + 1, x + 1, mask=i % 2 == 0)


def test_scalars_and_grids_of_three_axes():
    a = torch.randn(24)
    out = torch.zeros(48)
    launch(_scalar_kernel, (4, 3, 2), (a, out, 20))
    expected = torch.where(torch.arange(24) < 20, a, -5.0)
    assert torch.equal(out[::2], expected)
    assert torch.equal(out[1::2], torch.where(torch.arange(24) % 2 == 0, expected + 1, 0))


def _extern(symbol):
    @core.extern
    def call(address, _semantic=None):
        result = {(core.int64,): (symbol, core.int32)}
        return core.extern_elementwise("", "", [address], result, is_pure=False, _semantic=_semantic)

    return call


prefetch, unknown = _extern("prefetch"), _extern("unknown")


@triton.jit
def _prefetching_kernel(a, out, n, AHEAD: tl.constexpr):
    for i in range(n):
        prefetch((a + i + AHEAD).to(tl.int64))
        tl.store(out + i, tl.load(a + i))


@triton.jit
def _unknown_kernel(a):
    unknown(a.to(tl.int64))


@triton.jit
def _prefetching_tensor_kernel(a):
    prefetch((a + tl.arange(0, 16)).to(tl.int64))


def test_prefetch():
    """Any address may be prefetched, also one that is not allocated."""
    a = _values(torch.float32, 50)
    for ahead in (8, 2**40):
        out = torch.zeros(50)
        launch(_prefetching_kernel, (1,), (a, out, 50, ahead))
        assert torch.equal(out, a)
    signature = {"a": "*fp32", "out": "*fp32", "n": "i32", "AHEAD": "constexpr"}
    assert "call void @llvm.prefetch.p0(" in llvm_ir(_prefetching_kernel, signature, {"AHEAD": 8}, "kernel")


@triton.jit
def _table_of_addresses_kernel(table, out, n, BLOCK: tl.constexpr):
    row = table + tl.program_id(0) * 2
    a = tl.load(row).to(tl.pointer_type(tl.float32))
    end = tl.minimum(tl.load(row + 1), n)
    for start in range(0, end, BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(out + tl.program_id(0) * n + i, tl.load(a + i, mask=i < end), mask=i < end)


def test_pointers_from_a_table_of_addresses():
    tensors = [_values(torch.float32, 100) + k for k in range(3)]
    table = torch.tensor([[tensor.data_ptr(), size] for tensor, size in zip(tensors, (100, 37, 0))])
    out = torch.zeros(3, 60)
    launch(_table_of_addresses_kernel, (3,), (table, out, 60, 16))
    for row, tensor, size in zip(out, tensors, (60, 37, 0)):
        assert torch.equal(row[:size], tensor[:size])
        assert not row[size:].any()


@triton.jit
def _tensor_of_addresses_kernel(a):
    tl.store((tl.load(a) + tl.arange(0, 16)).to(tl.pointer_type(tl.float32)), 0.0)


@pytest.mark.parametrize("kernel", [_unknown_kernel, _prefetching_tensor_kernel, _tensor_of_addresses_kernel])
def test_other_extern_functions_and_tensors_of_addresses_are_not_implemented(kernel):
    with pytest.raises(UnsupportedOperationError, match=r"tt\.(extern_elementwise|ptr_to_int|int_to_ptr)"):
        launch(kernel, (1,), (torch.zeros(16, dtype=torch.int64),))
