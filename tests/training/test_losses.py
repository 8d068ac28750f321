"""Losses and measures against closed forms and a formula written out plainly."""

import math

import numpy as np
import pytest
import torch

from tsplat import ArgumentError, ShapeError
from tsplat.training import loss, psnr, ssim


def plain_ssim(x, y, pad=0):
    """Wang et al. 2004, window by window in NumPy's fp64, one channel after another."""
    taps = np.exp(-0.5 * ((np.arange(11) - 5) / 1.5) ** 2)
    window = np.outer(taps, taps) / np.outer(taps, taps).sum()
    values = []
    for channel in range(x.shape[-1]):
        a, b = (np.pad(i[..., channel].double().numpy(), pad) for i in (x, y))
        for top in range(a.shape[0] - 10):
            for left in range(a.shape[1] - 10):
                p, q = (i[top : top + 11, left : left + 11] for i in (a, b))
                mean_p, mean_q = (window * p).sum(), (window * q).sum()
                var_p, var_q = (window * (p - mean_p) ** 2).sum(), (window * (q - mean_q) ** 2).sum()
                cov = (window * (p - mean_p) * (q - mean_q)).sum()
                c1, c2 = 0.01**2, 0.03**2
                numerator = (2 * mean_p * mean_q + c1) * (2 * cov + c2)
                values.append(numerator / ((mean_p**2 + mean_q**2 + c1) * (var_p + var_q + c2)))
    return np.mean(values)


@pytest.fixture
def pair():
    torch.manual_seed(1)
    x = torch.rand(17, 23, 3)
    return x, (x + 0.2 * torch.randn(17, 23, 3)).clamp(0, 1)


@pytest.mark.parametrize(("padding", "pad"), [("valid", 0), ("same", 5)])
def test_ssim_is_the_formula(pair, padding, pad):
    assert float(ssim(*pair, padding=padding)) == pytest.approx(plain_ssim(*pair, pad), abs=1e-5)


def test_ssim_of_flat_pictures_has_a_closed_form():
    a, b = torch.full((20, 20, 3), 0.4), torch.full((20, 20, 3), 0.7)
    expected = (2 * 0.4 * 0.7 + 1e-4) / (0.4**2 + 0.7**2 + 1e-4)
    assert float(ssim(a, b)) == pytest.approx(expected, abs=1e-4)


def test_equal_pictures(pair):
    x, _ = pair
    for padding in ("valid", "same"):
        assert float(ssim(x, x, padding=padding)) == pytest.approx(1, abs=1e-6)
    assert float(loss(x, x)) == pytest.approx(0, abs=1e-6)
    assert float(psnr(x, x)) == math.inf


def test_psnr_of_a_constant_error():
    x = torch.rand(4, 5, 3) * 0.5
    assert float(psnr(x, x + 0.1)) == pytest.approx(20, abs=1e-4)


def test_the_loss_is_four_parts_l1_and_one_part_ssim(pair):
    expected = 0.8 * float((pair[0] - pair[1]).abs().mean()) + 0.2 * (1 - plain_ssim(*pair, 5))
    assert float(loss(*pair)) == pytest.approx(expected, abs=1e-5)


def test_every_pixel_has_a_gradient(pair):
    x = pair[0].requires_grad_()
    (1 - ssim(x, pair[1], padding="same")).backward()
    assert (x.grad != 0).float().mean() > 0.99


def test_gradients_are_slopes(pair):
    torch.manual_seed(2)
    x, y = pair
    x.requires_grad_()
    ssim(x, y, padding="same").backward()
    way = torch.randn_like(x)
    step = 1e-3
    with torch.no_grad():
        ahead, behind = (ssim(x + s * way, y, padding="same") for s in (step, -step))
        slope = float(ahead - behind) / (2 * step)
    assert float((x.grad * way).sum()) == pytest.approx(slope, rel=0.02)


def test_batches_are_means_over_pictures(pair):
    x, y = pair
    both = ssim(torch.stack([x, x]), torch.stack([x, y]))
    assert float(both) == pytest.approx(0.5 + 0.5 * float(ssim(x, y)), abs=1e-6)


def test_half_precision_and_autocast_change_nothing_but_the_input(pair):
    x, y = (i.bfloat16() for i in pair)
    expected = ssim(x.float(), y.float())
    assert ssim(x, y).dtype == torch.float32
    assert torch.equal(ssim(x, y), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ssim(x, y), expected)


def test_pictures_that_do_not_go_together(pair):
    for measure in (psnr, ssim, loss):
        with pytest.raises(ShapeError, match="truth"):
            measure(pair[0], pair[1][:-1])
    with pytest.raises(ShapeError, match="11 pixels"):
        ssim(torch.zeros(10, 40, 3), torch.zeros(10, 40, 3))
    with pytest.raises(ArgumentError, match="padding"):
        ssim(*pair, padding="full")
