"""Gaussians in a few numbers."""

import json
import math

import numpy as np
import pytest
import torch

from tsplat.scene import Gaussians, summarize
from tsplat.scene.summary import QUANTILES


def line(n=101):
    """Gaussians along x whose opacities go from 0 to 1 and whose scales from 1 to 2."""
    parts = torch.linspace(0, 1, n)
    zeros = torch.zeros(n, 3)
    means = torch.stack([parts * 10, -parts, torch.full((n,), 3.0)], 1)
    scales = (1 + parts).log()[:, None].expand(n, 3).contiguous()
    quats = torch.tensor([[1.0, 0, 0, 0]]).repeat(n, 1)
    return Gaussians(means, scales, quats, parts.logit(), zeros[:, None], torch.zeros(n, 3, 3), antialiased=True)


def test_counts_bounds_and_quantiles():
    summary = summarize(line())
    assert (summary.count, summary.sh_degree, summary.antialiased, summary.unsound) == (101, 1, True, 0)
    assert summary.lowest == [0, -1, 3]
    assert summary.highest == [10, 0, 3]
    assert summary.opacities == pytest.approx(QUANTILES, abs=1e-6)
    assert summary.scales == pytest.approx([1 + q for q in QUANTILES], abs=1e-2)


def test_what_is_not_sound_is_counted_and_left_out():
    gaussians = line()
    gaussians.means[-1, 0] = math.inf
    gaussians.quats[0, 0] = math.nan
    summary = summarize(gaussians)
    assert summary.unsound == 2
    assert summary.highest[0] == pytest.approx(9.9)
    assert summary.lowest[0] == pytest.approx(0.1)


def test_json_says_the_same_and_has_no_infinities():
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


def test_nothing_has_no_bounds():
    empty = line().map(lambda tensor: tensor[:0])
    summary = summarize(empty)
    assert (summary.count, summary.lowest, summary.opacities) == (0, None, None)
    assert json.loads(summary.json())["scales"] is None
    assert "none" in summary.lines()[4]


def test_quantiles_are_values_that_are_there():
    values = np.sort(line().scales.numpy().ravel())
    assert set(np.float32(summarize(line()).scales)) <= set(values)
