"""Tests of model summaries."""

import json
import math

import numpy as np
import pytest
import torch

from tsplat.scene import Gaussians, summarize
from tsplat.scene.summary import QUANTILES


def line(n=101):
    """Gaussians along x, with opacities from 0 to 1 and scales from 1 to 2."""
    fractions = torch.linspace(0, 1, n)
    zeros = torch.zeros(n, 3)
    means = torch.stack([fractions * 10, -fractions, torch.full((n,), 3.0)], 1)
    scales = (1 + fractions).log()[:, None].expand(n, 3).contiguous()
    quats = torch.tensor([[1.0, 0, 0, 0]]).repeat(n, 1)
    return Gaussians(means, scales, quats, fractions.logit(), zeros[:, None], torch.zeros(n, 3, 3), antialiased=True)


def test_summary_has_counts_bounds_and_quantiles():
    summary = summarize(line())
    assert (summary.count, summary.sh_degree, summary.antialiased, summary.n_invalid) == (101, 1, True, 0)
    assert summary.lowest == [0, -1, 3]
    assert summary.highest == [10, 0, 3]
    assert summary.opacities == pytest.approx(QUANTILES, abs=1e-6)
    assert summary.scales == pytest.approx([1 + q for q in QUANTILES], abs=1e-2)


def test_invalid_gaussians_are_counted_and_excluded():
    gaussians = line()
    gaussians.means[-1, 0] = math.inf
    gaussians.quats[0, 0] = math.nan
    summary = summarize(gaussians)
    assert summary.n_invalid == 2
    assert summary.highest[0] == pytest.approx(9.9)
    assert summary.lowest[0] == pytest.approx(0.1)


def test_json_replaces_infinities_with_null():
    gaussians = line()
    gaussians.log_scales[-1] = math.inf
    summary = summarize(gaussians)
    assert summary.scales[-1] == math.inf
    found = json.loads(summary.json())
    assert found["scales"][-1] is None
    assert found["scales"][:-1] == summary.scales[:-1]
    assert (found["count"], found["antialiased"], found["quantiles"]) == (101, True, list(QUANTILES))
    assert "scales" in summary.lines()[-1]
    assert "inf" in summary.lines()[-1]


def test_empty_model_has_no_bounds():
    empty = line().map(lambda tensor: tensor[:0])
    summary = summarize(empty)
    assert (summary.count, summary.lowest, summary.opacities) == (0, None, None)
    assert json.loads(summary.json())["scales"] is None
    assert "none" in summary.lines()[4]


def test_quantiles_are_not_interpolated():
    values = np.sort(line().scales.numpy().ravel())
    assert set(np.float32(summarize(line()).scales)) <= set(values)
