"""Noise and regularization of the MCMC strategy in vectorized PyTorch; see ``kernels/mcmc_step.py``."""

import torch
from torch import Tensor

from ..formulas.rotations import rotate


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
    gate = torch.sigmoid(k * ((1 - opacity_logits.flatten().sigmoid()) - (1 - t))) * scaler
    unit = torch.nn.functional.normalize(quats, dim=-1).to(means.dtype)
    w, axis = unit[:, :1], unit[:, 1:]
    along = rotate(w, -axis, samples * gate[:, None]) * log_scales.exp().square()
    means += rotate(w, axis, along)


def mcmc_regularization(
    opacity_logits: Tensor,
    log_scales: Tensor,
    v_opacity_logits: Tensor | None,
    v_log_scales: Tensor | None,
    opacity_factor: float,
    scale_factor: float,
) -> None:
    if v_opacity_logits is not None:
        o = opacity_logits.sigmoid()
        v_opacity_logits += opacity_factor * (1 - o) * o
    if v_log_scales is not None:
        v_log_scales += scale_factor * log_scales.exp()
