"""Valid Gaussians in vectorized PyTorch; see ``kernels/validation.py``."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import MAGNITUDE_MAX, QUAT_NORM_MIN
from ..data import Gaussians3D


def valid_gaussians(gaussians: Gaussians3D, colors: Tensor, *, per_camera: bool) -> Tensor:
    means, quats, scales, covars, opacities, _ = gaussians
    assert opacities is not None
    tensors = [means, opacities[..., None], colors.flatten(3 if per_camera else 2)]
    tensors += [tensor for tensor in (quats, scales, covars) if tensor is not None]
    valid = torch.ones_like(opacities, dtype=torch.bool)
    for tensor in tensors:
        # NaN fails the comparison.
        within = (tensor.abs() <= MAGNITUDE_MAX).all(-1)
        valid &= within if within.dim() == valid.dim() else within.all(1)
    if quats is not None:
        valid &= quats.square().sum(-1) >= QUAT_NORM_MIN**2
    return valid
