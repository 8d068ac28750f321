"""Order of tiles within a launch."""

import pytest
import torch

tuning = pytest.importorskip("tsplat.kernels.compositing.tuning", reason="needs Triton")


def test_longest_first_sorts_by_length(monkeypatch):
    monkeypatch.setattr(tuning, "RESIDENT", 3)
    monkeypatch.setattr(tuning, "LENGTH_STEP", 10)

    def order(lengths):
        return tuning.longest_first(torch.tensor([0, *lengths]).cumsum(0))

    # Tiles whose lengths differ by less than a step keep their order.
    assert order([5, 31, 0, 200, 39, 9, 10]).tolist() == [3, 1, 4, 6, 0, 2, 5]
    # Lengths beyond 16 bits count as equal.
    assert order([2**40, 1, 2**20, 2**41]).tolist() == [0, 2, 3, 1]
    assert order([1, 2, 3]) is None
