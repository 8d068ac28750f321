"""Learned corrections of training views: a small motion of the camera, and an affine map of the colors (exposure)."""

from __future__ import annotations

import torch
from torch import Tensor


def move_camera(viewmat: Tensor, motion: Tensor) -> Tensor:
    """Applies a small rotation and translation to a camera, in its own frame.

    Args:
        viewmat: [4, 4] world to camera.
        motion: [6] rotation vector in radians, then translation in world units. Differentiable, also at zero, which is
            the identity.

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


def identity_motions(n_views: int, like: Tensor) -> Tensor:
    """Motions that leave the cameras of n views unchanged, with the dtype and device of `like`. [n, 6]"""
    return like.new_zeros(n_views, 6)


def apply_exposure(image: Tensor, exposure: Tensor) -> Tensor:
    """Maps the colors of an image [H, W, 3] by a matrix [3, 4], whose last column is an offset. [H, W, 3]"""
    # Written out, because autocast would compute a matrix product in half precision.
    return (image[..., None, :] * exposure[:, :3]).sum(-1) + exposure[:, 3]


def identity_exposures(n_views: int, like: Tensor) -> Tensor:
    """Exposures that leave the colors of n views unchanged, with the dtype and device of `like`. [n, 3, 4]"""
    return torch.eye(3, 4, dtype=like.dtype, device=like.device).repeat(n_views, 1, 1)
