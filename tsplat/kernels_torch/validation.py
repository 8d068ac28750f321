"""Which Gaussians can be drawn at all, in vectorized PyTorch; see `tsplat.kernels.validation`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import MAGNITUDE_MAX, QUAT_NORM_MIN


def valid_gaussians(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    covars: Tensor | None,
    opacities: Tensor,
    colors: Tensor,
    *,
    per_camera: bool,
) -> Tensor:
    rows = [means, opacities[..., None], colors.flatten(3 if per_camera else 2)]
    rows += [tensor for tensor in (quats, scales, covars) if tensor is not None]
    sound = torch.ones_like(opacities, dtype=torch.bool)
    for tensor in rows:
        # Not a number fails every comparison.
        within = (tensor.abs() <= MAGNITUDE_MAX).all(-1)
        sound &= within if within.dim() == sound.dim() else within.all(1)
    if quats is not None:
        sound &= quats.square().sum(-1) >= QUAT_NORM_MIN**2
    return sound
