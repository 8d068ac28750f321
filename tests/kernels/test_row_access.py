"""Values side by side, loaded and stored a lane at a time by kernels that are compiled for the CPU."""

import math

import pytest
import torch

pytest.importorskip("triton")
import triton.language as tl

from tsplat.kernels.launch import Int, kernel
from tsplat.kernels.row_access import load_side_by_side, row_within, store_side_by_side

pytestmark = pytest.mark.triton

LANES, ROWS = 8, 11


@kernel
def _double_kernel(
    values,  # [n, WIDTH]
    order,  # [n] int64
    out,  # [n, WIDTH], output
    n: "Int",
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    row = tl.load(order + index, mask=mask, other=0)
    found = load_side_by_side(values + row * WIDTH, WIDTH, mask)
    doubled = ()
    for k in tl.static_range(WIDTH):
        doubled = doubled + (found[k] + found[k],)  # noqa: RUF005
    store_side_by_side(out + row * WIDTH, doubled, mask)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 3, 16, 27, 48])
def test_rows_are_loaded_and_stored_in_any_order(width, dtype):
    values = torch.randn(ROWS, width, dtype=dtype)
    out = torch.full((ROWS + 1, width), 7.0, dtype=dtype)
    order = torch.randperm(ROWS)[: ROWS - 1]
    _double_kernel.launch(2, values=values, order=order, out=out, n=len(order), WIDTH=width, BLOCK=LANES)
    expected = torch.full_like(out, 7.0)
    expected[order] = 2 * values[order]
    assert torch.equal(out, expected)


@kernel
def _within_kernel(
    values,  # [n, WIDTH]
    out,  # [n] bool, output
    n: "Int",
    WIDTH: tl.constexpr, BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    tl.store(out + index, row_within(values + index * WIDTH, WIDTH, mask, BOUND), mask=mask)


@pytest.mark.parametrize("width", [5, 16, 48, 75])
def test_every_value_of_a_row_is_compared_with_the_bound(width):
    values = torch.rand(width + 2, width) - 0.5
    values[range(width), range(width)] = torch.tensor([math.nan, math.inf, -math.inf, 1.5, -1.5]).repeat(15)[:width]
    values[width] = 1.0
    out = torch.zeros(len(values), dtype=torch.bool)
    _within_kernel.launch(
        -(-len(values) // LANES), values=values, out=out, n=len(values), WIDTH=width, BOUND=1.0, BLOCK=LANES
    )
    assert out.tolist() == [False] * width + [True, True]
