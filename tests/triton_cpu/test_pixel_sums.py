"""Sums over the pixels of a part on a CPU."""

import pytest
import torch
import triton
import triton.language as tl

from tsplat import triton_cpu
from tsplat.kernels.compositing.footprints.ellipse import ELLIPSE
from tsplat.kernels.compositing.pixel_sums import add_block, sum_block

FIRST, SUMS = 3, 6
"""Sums of an ellipse over the pixels of a column, and those that are computed from them."""


@triton.jit
def _kernel(
    values, x, y, added, summed, FOOTPRINT: tl.constexpr, N: tl.constexpr, FEATURES: tl.constexpr,
    WIDTH: tl.constexpr, HEIGHT: tl.constexpr,
):  # fmt: skip
    pixel = tl.arange(0, HEIGHT)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    local = (tl.load(x + tl.arange(0, WIDTH)[None, :]), tl.load(y + tl.arange(0, HEIGHT)[:, None]))
    sums = ()
    for k in tl.static_range(N):
        sums = sums + (tl.load(values + k * (WIDTH * HEIGHT) + pixel),)  # noqa: RUF005 (Triton cannot unpack tuples)
    features = ()
    for k in tl.static_range(N, N + FEATURES):
        features = features + (tl.load(values + k * (WIDTH * HEIGHT) + pixel),)  # noqa: RUF005
    add_block(added, sums, features, local, FOOTPRINT)
    columns = sum_block(sums, features, local, FOOTPRINT)
    for k in tl.static_range(len(columns)):
        tl.store(summed + k, tl.load(summed + k) + columns[k])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("width", "height"), [(4, 4), (8, 4), (16, 4)])
@pytest.mark.parametrize("features", [3, 13])
def test_sums_are_added_with_the_bits_of_single_sums(cpu, dtype, width, height, features):
    generator = torch.manual_seed(features)
    values = torch.randn(FIRST + features, height, width, generator=generator, dtype=dtype)
    x, y = torch.randn(width, generator=generator, dtype=dtype), torch.randn(height, generator=generator, dtype=dtype)
    slot = torch.randn(SUMS + features + 1, generator=generator, dtype=dtype)
    added, summed = slot.clone(), slot.clone()
    triton_cpu.launch(
        _kernel,
        (1,),
        (values, x, y, added, summed),
        {"FOOTPRINT": ELLIPSE, "N": FIRST, "FEATURES": features, "WIDTH": width, "HEIGHT": height},
    )
    assert torch.equal(added, summed)
    assert torch.equal(added[-1], slot[-1])
    assert not torch.isclose(added[:-1], slot[:-1]).any()
    torch.testing.assert_close(added[SUMS:-1] - slot[SUMS:-1], values[FIRST:].sum((1, 2)))
