"""Matrix products against NumPy."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tsplat.triton_cpu import launch


@triton.jit
def _dot_kernel(a, b, c, out, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, TRANSPOSED: tl.constexpr):
    rows = tl.arange(0, M)
    inner = tl.arange(0, K)
    columns = tl.arange(0, N)
    if TRANSPOSED:
        x = tl.trans(tl.load(a + inner[:, None] * M + rows[None, :]))
    else:
        x = tl.load(a + rows[:, None] * K + inner[None, :])
    y = tl.load(b + inner[:, None] * N + columns[None, :])
    where = rows[:, None] * N + columns[None, :]
    z = tl.load(c + where)
    tl.store(out + where, tl.dot(x, y, z, out_dtype=z.dtype))


@triton.jit
def _batched_dot_kernel(a, b, out, P: tl.constexpr, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    p = tl.arange(0, P)[:, None, None]
    rows = tl.arange(0, M)
    inner = tl.arange(0, K)
    columns = tl.arange(0, N)
    x = tl.load(a + p * M * K + rows[None, :, None] * K + inner[None, None, :])
    y = tl.load(b + p * K * N + inner[None, :, None] * N + columns[None, None, :])
    tl.store(out + p * M * N + rows[None, :, None] * N + columns[None, None, :], tl.dot(x, y))


@pytest.mark.parametrize("shape", [(16, 16, 16), (4, 16, 8), (64, 16, 32), (16, 32, 64), (1, 16, 16), (128, 16, 16)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dot_matches_numpy(shape, transposed, dtype):
    m, k, n = shape
    generator = torch.Generator().manual_seed(m + k + n)
    a = torch.randn(m, k, generator=generator, dtype=dtype)
    b = torch.randn(k, n, generator=generator, dtype=dtype)
    c = torch.randn(m, n, generator=generator, dtype=dtype)
    out = torch.full_like(c, torch.nan)
    given = a.T.contiguous() if transposed else a
    launch(_dot_kernel, (1,), (given, b, c, out, m, k, n, transposed))
    expected = c.numpy().astype(np.float64) + a.numpy().astype(np.float64) @ b.numpy().astype(np.float64)
    np.testing.assert_allclose(out.numpy(), expected, atol=1e-12 if dtype == torch.float64 else 2e-5)


@pytest.mark.parametrize(
    ("inputs", "sums"), [(torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.int8, torch.int32)]
)
def test_dot_of_narrow_types_accumulates_in_wide_ones(inputs, sums):
    generator = torch.Generator().manual_seed(1)
    a = torch.randint(-100, 100, (16, 32), generator=generator).to(inputs)
    b = torch.randint(-100, 100, (32, 16), generator=generator).to(inputs)
    c = torch.randint(-1000, 1000, (16, 16), generator=generator).to(sums)
    out = torch.zeros_like(c)
    launch(_dot_kernel, (1,), (a, b, c, out, 16, 32, 16, False))
    assert torch.equal(out.double(), c.double() + a.double() @ b.double())


def test_batched_dot():
    generator = torch.Generator().manual_seed(2)
    a = torch.randn(4, 16, 16, generator=generator)
    b = torch.randn(4, 16, 32, generator=generator)
    out = torch.full((4, 16, 32), torch.nan)
    launch(_batched_dot_kernel, (1,), (a, b, out, 4, 16, 16, 32))
    torch.testing.assert_close(out, a @ b, atol=2e-5, rtol=1e-5)
