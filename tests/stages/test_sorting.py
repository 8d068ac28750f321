"""Stable sorting equals PyTorch's, to the index."""

import pytest
import torch

from tsplat.stages.sorting import RADIX_MIN, stable_argsort, stable_sort

SPECIAL = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0, 3e38, -3e38, float("inf"), -float("inf")])


@pytest.fixture(params=[1, 2])
def n_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def check(values):
    found = stable_sort(values)
    expected = values.sort(stable=True)
    assert torch.equal(found[1], expected.indices)
    assert torch.equal(found[0], expected.values)


@pytest.mark.parametrize("n", [0, 1, 2, 500, RADIX_MIN - 1, RADIX_MIN])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_integers_of_the_whole_range(dtype, n, n_threads):
    generator = torch.Generator().manual_seed(n)
    info = torch.iinfo(dtype)
    values = torch.randint(info.min, info.max, (n,), dtype=dtype, generator=generator)
    check(values)
    check(values % 7)
    check(values >> 8)


@pytest.mark.parametrize("n", [0, 1, 2, 500, RADIX_MIN - 1, RADIX_MIN])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats(dtype, n, n_threads):
    generator = torch.Generator().manual_seed(n)
    values = torch.randn(n, dtype=dtype, generator=generator)
    check(values)
    check(values.round(decimals=1))
    check(torch.cat([values, SPECIAL.to(dtype).repeat(3)]).flip(0))


def test_values_that_are_not_contiguous_or_need_a_gradient():
    values = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    check(values[:, 1])
    check((1000 * values).to(torch.int16)[::3, 0])
    check(values[:, 0].clone().requires_grad_().detach())
    assert torch.equal(stable_argsort(values[:, 0].clone().requires_grad_()), values[:, 0].argsort(stable=True))
