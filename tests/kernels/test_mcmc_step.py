"""Noise and regularization of the MCMC strategy against the dense formulas, with autograd's gradients, in fp64."""

import pytest
import torch

from emulator.package import tsplat_emulated
from tests.emulator.targets import each_target
from tests.support.backends import BACKENDS
from tsplat.reference import covariances
from tsplat.runtime.backend import launchers

N = 300
CPU = torch.device("cpu")
SCALER, T, K = 5.0, 0.3, 7.0


def random(dtype):
    """Means, quaternions, log scales, opacity logits, samples."""
    generator = torch.Generator().manual_seed(0)
    means, log_scales, samples = torch.randn(3, N, 3, generator=generator)
    quats, logits = torch.randn(N, 4, generator=generator), 4 * torch.randn(N, generator=generator)
    quats[3:5] *= 1e-18
    quats[5] = 0  # no rotation
    return [tensor.to(dtype) for tensor in (means, quats, log_scales - 2, logits, samples)]


def noise_error(kernels, dtype):
    """The largest error of a Gaussian's noise, in units of its largest noise."""
    means, quats, log_scales, logits, samples = random(dtype)
    before = means.clone()
    kernels.mcmc_noise(means, quats, log_scales, logits, samples, SCALER, T, K)
    _, quats, log_scales, logits, samples = (tensor.double() for tensor in random(dtype))
    gate = SCALER / (1 + torch.exp(-K * (T - logits.sigmoid())))
    expected = (covariances(quats, log_scales.exp()) @ (gate[:, None] * samples)[..., None])[..., 0]
    bound = torch.finfo(dtype).eps * before.abs() + 30 * torch.finfo(dtype).eps * expected.norm(dim=1, keepdim=True)
    return float((((means - before).double() - expected).abs() / bound).max())


def regularization_error(kernels, dtype):
    """The largest error of a gradient that is added to 1, in units of the dtype's epsilon."""
    *_, log_scales, logits, _ = random(dtype)
    found = torch.ones_like(logits), torch.ones_like(log_scales)
    kernels.mcmc_regularization(logits, log_scales, *found, 30.0, 0.7)
    kernels.mcmc_regularization(logits, log_scales, None, None, 1.0, 1.0)
    leaves = [tensor.double().requires_grad_() for tensor in (logits, log_scales)]
    total = 30 * leaves[0].sigmoid().sum() + 0.7 * leaves[1].exp().sum()
    errors = [f - (1 + g) for f, g in zip(found, torch.autograd.grad(total, leaves))]
    return max(float(error.abs().max()) for error in errors) / torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_match_the_formulas(backend, dtype):
    assert noise_error(launchers(CPU, backend), dtype) < 1
    assert regularization_error(launchers(CPU, backend), dtype) < 30


@pytest.mark.slow
@each_target
def test_steps_on_gpus_match_the_formulas(target, code):
    with tsplat_emulated(target, code):
        assert noise_error(launchers(CPU, "triton"), torch.float32) < 1
        assert regularization_error(launchers(CPU, "triton"), torch.float32) < 30
