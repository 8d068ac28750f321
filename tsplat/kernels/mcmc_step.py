"""Noise and regularization of "3D Gaussian Splatting as Markov Chain Monte Carlo" (Kheradmand et al., 2024).

Noise with the covariance of the Gaussian is added to its mean (equation 8): sigmoid(k (t - o)) R diag(s)^2 R^T x, with
the opacity o and x from a standard normal distribution. The losses on the mean opacity and the mean scale are added as
gradients of opacity logits, o (1 - o), and of log scales, s, times their weights. One lane per Gaussian.
"""

import torch
import triton.language as tl
from torch import Tensor

from .device_math import load_tuple, matvec3, matvec3_transposed, rotation, store_tuple
from .launch import Int, kernel, to_device

BLOCK = 256
"""At least the number of threads of a program. Otherwise, several threads would hold the same lane, and one could read
a value that another has already updated."""


@kernel
def _mcmc_noise_kernel(
    means,  # [N, 3], updated
    quats,  # [N, 4]
    log_scales,  # [N, 3]
    opacity_logits,  # [N]
    samples,  # [N, 3]
    scaler,  # [] fp64
    n: "Int", t: tl.float64, k: tl.float64,
    FP64: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds scaler sigmoid(k (t - o)) R diag(s)^2 R^T x to each mean. One lane per Gaussian."""
    dtype = tl.float64 if FP64 else tl.float32
    gaussian = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = gaussian < n
    transparency = 1.0 - tl.sigmoid(tl.load(opacity_logits + gaussian, mask=mask, other=0.0).to(dtype))
    gate = tl.sigmoid(tl.full([], k, dtype) * (transparency - tl.full([], 1.0 - t, dtype)))
    gate *= tl.load(scaler).to(dtype)
    q = load_tuple(quats + gaussian * 4, 1, 4, mask)
    w = q[0].to(dtype)
    x = q[1].to(dtype)
    y = q[2].to(dtype)
    z = q[3].to(dtype)
    inverse_norm = 1.0 / tl.maximum(tl.sqrt(w * w + x * x + y * y + z * z), 1e-12)
    r = rotation((w * inverse_norm, x * inverse_norm, y * inverse_norm, z * inverse_norm))
    s = load_tuple(log_scales + gaussian * 3, 1, 3, mask)
    s0 = tl.exp(s[0].to(dtype))
    s1 = tl.exp(s[1].to(dtype))
    s2 = tl.exp(s[2].to(dtype))
    u = load_tuple(samples + gaussian * 3, 1, 3, mask)
    along = matvec3_transposed(r, (u[0].to(dtype) * gate, u[1].to(dtype) * gate, u[2].to(dtype) * gate))
    noise = matvec3(r, (s0 * s0 * along[0], s1 * s1 * along[1], s2 * s2 * along[2]))
    mean = load_tuple(means + gaussian * 3, 1, 3, mask)
    store_tuple(means + gaussian * 3, 1, (mean[0] + noise[0], mean[1] + noise[1], mean[2] + noise[2]), mask)


@kernel
def _mcmc_regularization_kernel(
    opacity_logits,  # [N]
    log_scales,  # [N, 3]
    v_opacity_logits,  # [N], updated, or None
    v_log_scales,  # [N, 3], updated, or None
    n: "Int", opacity_factor: tl.float64, scale_factor: tl.float64,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds the gradients of the regularization losses. One lane per Gaussian."""
    gaussian = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = gaussian < n
    if v_opacity_logits is not None:
        # v <- v + factor o (1 - o), for o = sigmoid(logit)
        o = tl.sigmoid(tl.load(opacity_logits + gaussian, mask=mask, other=0.0))
        v = tl.load(v_opacity_logits + gaussian, mask=mask, other=0.0)
        v += tl.full([], opacity_factor, o.dtype) * (1.0 - o) * o
        tl.store(v_opacity_logits + gaussian, v, mask=mask)
    if v_log_scales is not None:
        # v <- v + factor s, for s = exp(log_scale)
        for axis in tl.static_range(3):
            s = tl.exp(tl.load(log_scales + gaussian * 3 + axis, mask=mask, other=0.0))
            v = tl.load(v_log_scales + gaussian * 3 + axis, mask=mask, other=0.0)
            v += tl.full([], scale_factor, s.dtype) * s
            tl.store(v_log_scales + gaussian * 3 + axis, v, mask=mask)


def mcmc_noise(
    means: Tensor,
    quats: Tensor,
    log_scales: Tensor,
    opacity_logits: Tensor,
    samples: Tensor,
    scaler: float | Tensor,
    t: float,
    k: float,
) -> None:
    """Adds noise with the covariance of each Gaussian to its mean, in place. All tensors are contiguous.

    Args:
        means, quats, log_scales: [N, 3], [N, 4] of any norm, [N, 3].
        opacity_logits: [N] or [N, 1].
        samples: [N, 3] from a standard normal distribution.
        scaler, t, k: The noise of a Gaussian with opacity o is multiplied by scaler * sigmoid(k (t - o)). Replays read
            the scaler again if it is a tensor, [] fp64 on the device.
    """
    if not isinstance(scaler, Tensor):
        scaler = to_device(torch.tensor(scaler, dtype=torch.float64, device="cpu"), means)
    _mcmc_noise_kernel.launch_elementwise(
        len(means),
        BLOCK,
        means=means,
        quats=quats,
        log_scales=log_scales,
        opacity_logits=opacity_logits,
        samples=samples,
        n=len(means),
        scaler=scaler,
        t=t,
        k=k,
        FP64=torch.float64 in (means.dtype, quats.dtype, log_scales.dtype),
    )


def mcmc_regularization(
    opacity_logits: Tensor,
    log_scales: Tensor,
    v_opacity_logits: Tensor | None,
    v_log_scales: Tensor | None,
    opacity_factor: float,
    scale_factor: float,
) -> None:
    """Adds the gradients of opacity_factor * sum(opacities) and scale_factor * sum(scales), in place.

    Args:
        opacity_logits, log_scales: [N] and [N, 3], contiguous.
        v_opacity_logits, v_log_scales: The gradients to add to; None to skip one.
    """
    _mcmc_regularization_kernel.launch_elementwise(
        len(opacity_logits),
        BLOCK,
        opacity_logits=opacity_logits,
        log_scales=log_scales,
        v_opacity_logits=v_opacity_logits,
        v_log_scales=v_log_scales,
        n=len(opacity_logits),
        opacity_factor=opacity_factor,
        scale_factor=scale_factor,
    )
