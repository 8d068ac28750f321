"""What training may learn about views beside the Gaussians: a small motion of the camera, and its exposure."""

from __future__ import annotations

import torch
from torch import Tensor


def moved(viewmat: Tensor, motion: Tensor) -> Tensor:
    """A camera after a small rotation and translation, in its own frame.

    Args:
        viewmat: [4, 4] world to camera.
        motion: [6] axis times angle in radians, then the translation in world units; zero for none. Differentiable,
            also at zero.

    Returns:
        [4, 4] world to camera.
    """
    rotation, translation = motion[:3], motion[3:]
    x, y, z = rotation.unbind()
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero]).view(3, 3)
    top = torch.cat([torch.linalg.matrix_exp(cross), translation[:, None]], 1)
    bottom = top.new_tensor([[0.0, 0.0, 0.0, 1.0]])
    return torch.cat([top, bottom]) @ viewmat.to(motion)


def no_motions(n_views: int, like: Tensor) -> Tensor:
    """Motions of n views that leave them where they are. [n, 6]"""
    return like.new_zeros(n_views, 6)


def exposed(image: Tensor, exposure: Tensor) -> Tensor:
    """A picture [H, W, 3] through an affine map of its colors, [3, 4]: the last column is added."""
    # Written out, as autocast would have a matrix product in half precision.
    return (image[..., None, :] * exposure[:, :3]).sum(-1) + exposure[:, 3]


def no_exposures(n_views: int, like: Tensor) -> Tensor:
    """Exposures of n views that leave their colors as they are. [n, 3, 4]"""
    return torch.eye(3, 4, dtype=like.dtype, device=like.device).repeat(n_views, 1, 1)
