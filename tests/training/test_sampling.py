"""The order of training views."""

import pytest

from tsplat import ArgumentError
from tsplat.training.sampling import ViewSampler


def test_each_view_comes_once_per_permutation():
    sampler = ViewSampler(5, seed=1)
    first, second = ([sampler.next() for _ in range(5)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(5))
    assert first != second


def test_restored_sampler_continues():
    sampler, restored = ViewSampler(5, seed=1), ViewSampler(5, seed=2)
    for _ in range(7):
        sampler.next()
    restored.restore(sampler.state())
    assert [restored.next() for _ in range(9)] == [sampler.next() for _ in range(9)]
    with pytest.raises(ArgumentError, match="5 training views, found 4"):
        ViewSampler(4, seed=1).restore(sampler.state())
