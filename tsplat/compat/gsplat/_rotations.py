"""Quaternions and rotation matrices."""

import torch
from torch import Tensor


def normalized_quat_to_rotmat(quat: Tensor) -> Tensor:
    """Converts unit quaternions [..., 4] (wxyz) to rotation matrices [..., 3, 3]. Differentiable."""
    w, x, y, z = quat.unbind(-1)
    zero = torch.zeros_like(w)
    axis = torch.stack([x, y, z], -1)
    # R = I + 2 w [v]x + 2 [v]x^2, where [v]x is the matrix of the cross product with the vector part.
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).reshape(*quat.shape[:-1], 3, 3)
    outer = axis[..., :, None] * axis[..., None, :]
    identity = torch.eye(3, dtype=quat.dtype, device=quat.device)
    squared = outer - axis.square().sum(-1)[..., None, None] * identity
    return identity + 2 * (w[..., None, None] * cross + squared)
