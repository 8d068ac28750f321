"""Rearranging elements: broadcasts, transposes, reshapes, joins and gathers, for shapes below and above a vector."""

import pytest
import torch
import triton
import triton.language as tl

from tsplat.triton_cpu import launch

pytestmark = pytest.mark.usefixtures("cpu")


@triton.jit
def _transpose_kernel(a, out, M: tl.constexpr, N: tl.constexpr):
    x = tl.load(a + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out + tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :], tl.trans(x))


@pytest.mark.parametrize("shape", [(2, 4), (4, 4), (16, 16), (8, 32), (64, 16), (1, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int8])
def test_transpose(shape, dtype):
    a = torch.arange(shape[0] * shape[1]).reshape(shape).to(dtype)
    out = torch.zeros(shape[::-1], dtype=dtype)
    launch(_transpose_kernel, (1,), (a, out, *shape))
    assert torch.equal(out, a.T)


@triton.jit
def _permute_kernel(a, out, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    x = tl.reshape(tl.load(a + tl.arange(0, A * B * C)), [A, B, C])
    tl.store(out + tl.arange(0, A * B * C), tl.reshape(tl.permute(x, (2, 0, 1)), [A * B * C]))


@triton.jit
def _mask_kernel(a, out, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    x = tl.reshape(tl.load(a + tl.arange(0, A * B * C)) > 0, [A, B, C])
    tl.store(out + tl.arange(0, A * B * C), tl.reshape(tl.permute(x, (2, 0, 1)), [A * B * C]).to(tl.int8))


@pytest.mark.parametrize("shape", [(2, 2, 4), (4, 8, 16), (16, 4, 4)])
def test_permute(shape):
    a = torch.randn(shape)
    out = torch.zeros(shape).permute(2, 0, 1).contiguous()
    launch(_permute_kernel, (1,), (a, out, *shape))
    assert torch.equal(out, a.permute(2, 0, 1))
    signs = torch.zeros(out.shape, dtype=torch.int8)
    launch(_mask_kernel, (1,), (a, signs, *shape))
    assert torch.equal(signs.bool(), out > 0)


@triton.jit
def _broadcast_kernel(a, b, out, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)
    j = tl.arange(0, N)
    x = tl.load(a + i)[:, None, None]
    y = tl.load(b + j)[None, :, None]
    z = tl.load(a + i)[None, None, :]
    place = (i[:, None, None] * N + j[None, :, None]) * M + i[None, None, :]
    tl.store(out + place, x * 100 + y * 10 + z)


@pytest.mark.parametrize("shape", [(2, 4), (4, 4), (4, 16), (16, 2)])
def test_broadcasts(shape):
    a, b = torch.randn(shape[0]), torch.randn(shape[1])
    out = torch.zeros(shape[0], shape[1], shape[0])
    launch(_broadcast_kernel, (1,), (a, b, out, *shape))
    assert torch.equal(out, a[:, None, None] * 100 + b[None, :, None] * 10 + a)


@triton.jit
def _gather_kernel(a, index, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, AXIS: tl.constexpr):
    x = tl.load(a + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    if AXIS == 0:
        place = tl.arange(0, K)[:, None] * N + tl.arange(0, N)[None, :]
    else:
        place = tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :]
    tl.store(out + place, tl.gather(x, tl.load(index + place), AXIS))


@triton.jit
def _reverse_kernel(a, out, M: tl.constexpr, N: tl.constexpr):
    x = tl.load(a + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    index = tl.broadcast_to(N - 1 - tl.arange(0, N)[None, :], [M, N])
    tl.store(out + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], tl.gather(x, index, 1))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(4, 8, 4), (16, 16, 32), (2, 32, 8)])
def test_gather(shape, axis):
    m, n, k = shape
    a = torch.randn(m, n)
    index = torch.randint(0, (m, n)[axis], (k, n) if axis == 0 else (m, k), dtype=torch.int32)
    out = torch.zeros(index.shape)
    launch(_gather_kernel, (1,), (a, index, out, m, n, k, axis))
    assert torch.equal(out, a.gather(axis, index.long()))
    out = torch.zeros(m, n)
    launch(_reverse_kernel, (1,), (a, out, m, n))
    assert torch.equal(out, a.flip(1))


@triton.jit
def _join_kernel(a, b, out, halves, N: tl.constexpr):
    x = tl.load(a + tl.arange(0, N))
    y = tl.load(b + tl.arange(0, N))
    joined = tl.join(x, y)
    tl.store(out + tl.arange(0, 2 * N), tl.reshape(joined, [2 * N]))
    left, right = tl.split(joined)
    tl.store(halves + tl.arange(0, N), left)
    tl.store(halves + N + tl.arange(0, N), right)


@pytest.mark.parametrize("n", [2, 8, 16, 64])
def test_join_and_split(n):
    a, b = torch.randn(n), torch.randn(n)
    out, halves = torch.zeros(n, 2), torch.zeros(2, n)
    launch(_join_kernel, (1,), (a, b, out, halves, n))
    assert torch.equal(out, torch.stack([a, b], 1))
    assert torch.equal(halves, torch.stack([a, b]))


@triton.jit
def _full_kernel(out, f, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.full([N], 2.5, tl.float32) + tl.zeros([N], tl.float32) + f + n)
    tl.store(out + N + i, tl.full([N], float("inf"), tl.float32))
    tl.store(out + 2 * N + i, tl.full([N], float("nan"), tl.float32))
    tl.store(out + 3 * N + i, tl.full([N], -0.1, tl.float16))
    tl.store(out + 4 * N + i, tl.full([N], 0.7, tl.bfloat16))


def test_constants():
    out = torch.zeros(5, 16)
    launch(_full_kernel, (1,), (out, 0.5, 3, 16))
    expected = torch.tensor(
        [6.0, torch.inf, torch.nan, float(torch.tensor(-0.1).half()), float(torch.tensor(0.7).bfloat16())]
    )
    torch.testing.assert_close(out, expected[:, None].expand(5, 16), rtol=0, atol=0, equal_nan=True)
