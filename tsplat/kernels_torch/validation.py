"""Finds valid Gaussians and replaces invalid cameras, in vectorized PyTorch; see ``kernels/validation.py``."""

import torch
from torch import Tensor

from ..config import DETERMINANT_MIN, FOCAL_MIN, MAGNITUDE_MAX, QUAT_NORM_MIN, Numerics
from ..data import Cameras, Gaussians3D


@torch.no_grad()
def find_valid(
    gaussians: Gaussians3D | None, signals: dict[str, tuple[Tensor, bool]], cameras: Cameras, numerics: Numerics
) -> tuple[Tensor | None, Cameras, Tensor, Tensor | None]:
    if gaussians is None:
        return None, cameras, camera_centers(cameras.viewmats, numerics), None
    viewmats, Ks = cameras.viewmats, cameras.Ks
    is_valid = ~(exceeds(viewmats, 2) | exceeds(Ks, 2) | is_singular(viewmats) | has_no_focal_length(Ks))
    # All points with coordinates up to MAGNITUDE_MAX are behind this camera.
    blind = torch.eye(4, dtype=viewmats.dtype, device=viewmats.device)
    blind[2, 3] = -4 * MAGNITUDE_MAX
    viewmats = torch.where(is_valid[..., None, None], viewmats, blind)
    Ks = torch.where(is_valid[..., None, None], Ks, blind[:3, :3])
    valid = _valid_gaussians(gaussians, signals)
    return valid, cameras._replace(viewmats=viewmats, Ks=Ks), camera_centers(viewmats, numerics), is_valid


def _valid_gaussians(gaussians: Gaussians3D, signals: dict[str, tuple[Tensor, bool]]) -> Tensor:
    means, opacities, quats = gaussians.means, gaussians.opacities, gaussians.quats
    assert opacities is not None
    shapes = (quats, gaussians.scales, gaussians.covars)
    tensors = [means, opacities[..., None], *(tensor for tensor in shapes if tensor is not None)]
    tensors += [values.flatten(means.dim() - 1 + per_camera) for values, per_camera in signals.values()]
    valid = torch.ones_like(opacities, dtype=torch.bool)
    for tensor in tensors:
        within = ~exceeds(tensor, 1)
        valid &= within if within.dim() == valid.dim() else within.all(-2)
    if quats is not None:
        valid &= quats.square().sum(-1) >= QUAT_NORM_MIN**2
    return valid


def exceeds(tensor: Tensor, n_trailing_dims: int) -> Tensor:
    """Returns whether any value in the trailing dimensions is not finite or exceeds MAGNITUDE_MAX in magnitude."""
    # MAGNITUDE_MAX is infinite in fp16.
    invalid = ~(tensor.abs() <= min(MAGNITUDE_MAX, torch.finfo(tensor.dtype).max))
    return invalid.flatten(invalid.dim() - n_trailing_dims).any(-1) if n_trailing_dims else invalid


def is_singular(viewmats: Tensor) -> Tensor:
    """Returns whether view matrices [..., 4, 4] have no inverse. [...]"""
    x, y, z = viewmats[..., :3, :3].unbind(-2)
    return (x.cross(y, -1) * z).sum(-1).abs() < DETERMINANT_MIN


def has_no_focal_length(Ks: Tensor) -> Tensor:
    """Returns whether intrinsics [..., 3, 3] have a focal length of zero. [...]"""
    return (torch.stack([Ks[..., 0, 0], Ks[..., 1, 1]], -1).abs() < FOCAL_MIN).any(-1)


def camera_centers(viewmats: Tensor, numerics: Numerics) -> Tensor:
    """Returns the camera centers in the world frame. [..., 4, 4] -> [..., 3]

    Operations are elementwise, because autocast does not change their dtype.
    """
    x, y, z = viewmats[..., 0, :3], viewmats[..., 1, :3], viewmats[..., 2, :3]
    t = viewmats[..., :3, 3:]
    if numerics.camera_center == "transpose":
        return -(t[..., 0, :] * x + t[..., 1, :] * y + t[..., 2, :] * z)
    # The columns of the inverse of a 3×3 matrix are the cross products of its rows, divided by the determinant.
    yz, zx, xy = y.cross(z, -1), z.cross(x, -1), x.cross(y, -1)
    det = (x * yz).sum(-1, keepdim=True)
    return -(t[..., 0, :] * yz + t[..., 1, :] * zx + t[..., 2, :] * xy) / det
