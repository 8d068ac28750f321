"""Random samples of strategies."""

import pytest
import torch

from tsplat.strategies import random_numbers
from tsplat.strategies.random_numbers import draw_key


def test_keys_come_from_the_generator_of_the_cpu_whatever_the_default_device():
    torch.manual_seed(5)
    expected = draw_key(None)
    torch.manual_seed(5)
    with torch.device("meta"):
        assert draw_key(None) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("key", [0, 1, 2**62 + 12345, 2**63 - 1])
def test_arrays_have_the_random_numbers_of_tensors(key, dtype):
    counters = torch.cat([torch.arange(1000), 2**31 + torch.arange(10), 2**61 + torch.arange(10)])
    like = torch.zeros(1, dtype=dtype)
    found = random_numbers._polar_of_arrays(torch.tensor(key), counters, random_numbers.OFFSETS, like)
    for one, other in zip(found, random_numbers._polar(key, counters, random_numbers.OFFSETS, like), strict=True):
        assert one.dtype == dtype and torch.equal(one, other)
