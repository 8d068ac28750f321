"""Opacities and scales of relocated Gaussians."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsplat import ArgumentError
from tsplat.strategies.relocation import binomial_table, compute_relocation


@given(st.floats(0.01, 0.99), st.integers(1, 51))
def test_copies_share_the_appearance_of_the_original(opacity, copies):
    o, s = torch.tensor([opacity], dtype=torch.float64), torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    new, scales = compute_relocation(o, s, torch.tensor([copies]), binomial_table())
    assert float(1 - (1 - new) ** copies) == pytest.approx(opacity, rel=1e-9)
    # Equation 9 of the paper, term by term.
    total = sum(
        math.comb(i - 1, j) * (-1) ** j / math.sqrt(j + 1) * float(new) ** (j + 1)
        for i in range(1, copies + 1)
        for j in range(i)
    )
    torch.testing.assert_close(scales, s * opacity / total, rtol=1e-7, atol=0)


def test_numbers_of_copies_are_clamped_and_shapes_are_kept():
    opacities, scales = torch.tensor([[0.5], [0.7], [1e-30]]), torch.ones(3, 3)
    ratios = torch.tensor([0, 9, 3], dtype=torch.int32)
    new, new_scales = compute_relocation(opacities, scales, ratios, binomial_table(4).float())
    assert new.shape == (3, 1)
    # Floats are rounded down, as gsplat does.
    for floats in (torch.tensor([0.9, torch.inf, 3.5]), torch.tensor([torch.nan, 4.0, 3.0])):
        other = compute_relocation(opacities, scales, floats, binomial_table(4).float())
        assert torch.equal(other[0], new)
        assert torch.equal(other[1], new_scales)
    assert ratios.tolist() == [0, 9, 3]
    # One copy changes nothing, nine are treated as four, and a vanishing opacity leaves the scales unchanged.
    assert new[:, 0].tolist() == pytest.approx([0.5, 1 - 0.3**0.25, 0.0])
    assert torch.equal(new_scales[[0, 2]], scales[[0, 2]])
    expected = compute_relocation(opacities, scales, torch.tensor([1, 4, 3]), binomial_table())
    torch.testing.assert_close(new_scales, expected[1])


@pytest.mark.parametrize(
    "changed",
    [
        {"opacities": torch.ones(2)},
        {"scales": torch.ones(3, 2)},
        {"ratios": torch.ones(3, dtype=torch.bool)},
        {"ratios": torch.ones(2, dtype=torch.int64)},
        {"binoms": torch.ones(51, 50)},
        {"binoms": torch.ones(51, 51, dtype=torch.int64)},
    ],
)
def test_invalid_arguments_are_refused(changed):
    arguments = dict(
        opacities=torch.full((3,), 0.5), scales=torch.ones(3, 3), ratios=torch.tensor([1, 2, 3]),
        binoms=binomial_table(),
    )  # fmt: skip
    compute_relocation(**arguments)
    (name,) = changed
    with pytest.raises(ArgumentError, match="scales" if name == "opacities" else name):
        compute_relocation(**arguments | changed)
