"""Opacities and scales of Gaussians that are copied."""

import decimal
import math
from decimal import Decimal

import pytest
import torch

from tests.support.closeness import assert_exact
from tsplat import ArgumentError
from tsplat.compat.gsplat.relocation import compute_relocation


def binomials(n_max):
    return torch.tensor([[math.comb(n, k) for k in range(n_max)] for n in range(n_max)], dtype=torch.float64)


def equation_9(opacity, copies, least=0.0):
    """The new opacity and the factor of the scales, by the double sum of the paper in 60 digits."""
    with decimal.localcontext(decimal.Context(prec=60)):
        o = Decimal(opacity)
        new = max(1 - (1 - o) ** (Decimal(1) / copies), Decimal(least))
        total = sum(
            math.comb(i - 1, k) * (-1) ** k * new ** (k + 1) / Decimal(k + 1).sqrt()
            for i in range(1, copies + 1)
            for k in range(i)
        )
        return float(new), float(o / total)


@pytest.mark.parametrize("column", [False, True])
def test_matches_equation_9(column):
    generator = torch.Generator().manual_seed(0)
    opacities = 0.01 + 0.98 * torch.rand(24, generator=generator, dtype=torch.float64)
    scales = torch.rand(24, 3, generator=generator, dtype=torch.float64)
    ratios = torch.tensor([1, 2, 3, 5, 8, 13] * 4)
    before = ratios.clone()
    shape = (24, 1) if column else (24,)
    new, new_scales = compute_relocation(opacities.view(shape), scales, ratios, binomials(51))
    expected = [equation_9(*values) for values in zip(opacities.tolist(), ratios.tolist())]
    assert_exact("opacities", new, torch.tensor([o for o, _ in expected], dtype=torch.float64).view(shape))
    factors = torch.tensor([factor for _, factor in expected], dtype=torch.float64)
    assert_exact("scales", new_scales, scales * factors[:, None])
    assert torch.equal(ratios, before)


def test_scales_are_those_of_the_least_opacity():
    opacities, ratios = torch.tensor([1e-6, 2e-3, 0.2, 1.0]).double(), torch.tensor([8, 4, 2, 2])
    scales = torch.ones(4, 3).double()
    new, new_scales = compute_relocation(opacities, scales, ratios, binomials(8), min_opacity=0.005)
    expected = [equation_9(*values, least=0.005) for values in zip(opacities.tolist()[:3], ratios.tolist())]
    assert_exact("opacities", new[:3], torch.tensor([o for o, _ in expected], dtype=torch.float64))
    assert_exact("scales", new_scales[:3, 0], torch.tensor([factor for _, factor in expected], dtype=torch.float64))
    assert new[3] < 1
    for found, default in zip(
        compute_relocation(opacities, scales, ratios, binomials(8), 0.0),
        compute_relocation(opacities, scales, ratios, binomials(8)),
    ):
        assert torch.equal(found, default)
    with pytest.raises(ArgumentError, match="min_opacity: expected at least 0 and less than 1, found 1"):
        compute_relocation(opacities, scales, ratios, binomials(8), 1)


def test_ratios_are_limited_to_the_table():
    opacities, scales = torch.full((3,), 0.4).double(), torch.ones(3, 3).double()
    found = compute_relocation(opacities, scales, torch.tensor([0, 4, 9]), binomials(4))
    expected = compute_relocation(opacities, scales, torch.tensor([1, 4, 4]), binomials(51))
    for one, other in zip(found, expected):
        assert torch.equal(one, other)


def test_arguments_are_checked():
    opacities, scales, ratios = torch.full((3,), 0.4), torch.ones(3, 3), torch.ones(3, dtype=torch.int64)
    with pytest.raises(ArgumentError, match="scales"):
        compute_relocation(opacities, scales[:2], ratios, binomials(4))
    with pytest.raises(ArgumentError, match="binoms"):
        compute_relocation(opacities, scales, ratios, binomials(4)[:3])
