"""Random samples of strategies."""

import math

import pytest
import torch

from tsplat import ArgumentError
from tsplat.strategies import random_numbers
from tsplat.strategies.random_numbers import _multinomial_sample, draw_key


def test_samples_follow_the_weights():
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0])
    indices = _multinomial_sample(weights, 4000, generator=torch.Generator().manual_seed(1))
    counts = torch.bincount(indices, minlength=4)
    assert counts[[0, 3]].tolist() == [0, 0]
    assert float(counts[2]) == pytest.approx(3000, abs=120)


def test_samples_without_replacement_are_distinct_and_follow_the_weights():
    weights, generator = torch.tensor([0.0, 1.0, 3.0, 2.0]), torch.Generator().manual_seed(1)
    draws = torch.stack([_multinomial_sample(weights, 2, False, generator=generator) for _ in range(2000)])
    assert (draws > 0).all()
    assert (draws[:, 0] != draws[:, 1]).all()
    # The first of two is distributed as a single sample.
    assert float((draws[:, 0] == 2).float().mean()) == pytest.approx(3 / 6, abs=0.04)
    # P(1 is left out) = P(2, 3) + P(3, 2)
    expected = 3 / 6 * 2 / 3 + 2 / 6 * 3 / 4
    assert float((draws != 1).all(1).float().mean()) == pytest.approx(expected, abs=0.04)
    assert sorted(_multinomial_sample(weights, 3, False, generator=generator).tolist()) == [1, 2, 3]


@pytest.mark.parametrize("weights", [[1.0, math.nan], [1.0, math.inf], [1.0, -1.0], [0.0, 0.0], []])
@pytest.mark.parametrize("replacement", [True, False])
def test_invalid_weights_are_refused(weights, replacement):
    with pytest.raises(ArgumentError, match=r"weights: expected finite|positive weights"):
        _multinomial_sample(torch.tensor(weights), 1, replacement)
    assert _multinomial_sample(torch.tensor([0.0, 2.0]), 0, replacement).tolist() == []


def test_more_samples_than_positive_weights_need_replacement():
    with pytest.raises(ArgumentError, match="n: expected 0 to 2 samples of 2 positive weights, found 3"):
        _multinomial_sample(torch.tensor([1.0, 0.0, 1.0]), 3, replacement=False)
    assert len(_multinomial_sample(torch.tensor([1.0, 0.0, 1.0]), 3)) == 3


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
