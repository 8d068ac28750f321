"""quat_scale_to_covar_preci: covariances, precisions and gradients."""

import torch

import tsplat


def test_quat_scale_to_covar_preci():
    generator = torch.Generator().manual_seed(0)
    quats = torch.randn(4, 5, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    scales = torch.rand(4, 5, 3, generator=generator, dtype=torch.float64) + 0.1
    covars, precis = tsplat.quat_scale_to_covar_preci(quats, scales)
    eye = torch.eye(3, dtype=torch.float64).expand(4, 5, 3, 3)
    torch.testing.assert_close(covars @ precis, eye, rtol=0, atol=1e-11)
    torch.testing.assert_close(torch.linalg.eigvalsh(covars).sqrt(), scales.sort(-1).values, rtol=1e-10, atol=0)
    upper, none = tsplat.quat_scale_to_covar_preci(quats, scales, compute_preci=False, triu=True)
    assert none is None
    assert torch.equal(upper, covars[..., (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)])
    assert torch.autograd.gradcheck(lambda q: tsplat.quat_scale_to_covar_preci(q, scales)[0], quats)
