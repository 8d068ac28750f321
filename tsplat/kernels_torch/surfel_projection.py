"""Projection of 2D Gaussians in vectorized PyTorch; see ``kernels/projection/surfels.py``."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import BOX_VARIANCE_MIN, RADIUS_MAX
from ..data import Cameras, Gaussians3D, ProjectionSettings
from ..formulas.rotations import rotation_matrices
from .projector import Bounds, RowValues


def surfels(
    gaussians: Gaussians3D, cameras: Cameras, settings: ProjectionSettings, ids: Tensor | slice
) -> tuple[RowValues, Bounds]:
    """Projects surfels. Shapes are ray transforms [nnz, 9]. Normals are in the camera frame and face the camera."""
    assert gaussians.quats is not None and gaussians.scales is not None
    means, quats, scales = gaussians.means[ids], gaussians.quats[ids], gaussians.scales[ids]
    rotations = rotation_matrices(quats / quats.norm(dim=-1, keepdim=True))
    axes = cameras.viewmats[:, :3, :3] @ rotations
    center = (cameras.viewmats[:, :3, :3] @ means[..., None])[..., 0] + cameras.viewmats[:, :3, 3]
    disc = torch.cat([axes[..., :2] * scales[:, None, :2], center[..., None]], -1)
    along_z, z = disc[:, 2], center[:, 2]
    focal, principal = cameras.Ks[:, (0, 1), (0, 1)], cameras.Ks[:, :2, 2]
    slopes = center[:, :2] / z[:, None]
    # Relative to the projected center, so that the transform maps (0, 0, 1) to (0, 0, z).
    rows = focal[..., None] * (disc[:, :2, :2] - slopes[..., None] * along_z[:, None, :2])
    inverse = 1 / (along_z[:, :2].square().sum(-1) - z * z)
    offsets = (rows * along_z[:, None, :2]).sum(-1) * inverse[:, None]
    extents = offsets.detach().square() - rows.detach().square().sum(-1) * inverse.detach()[:, None]
    transforms = torch.cat([focal[..., None] * disc[:, :2] + principal[..., None] * along_z[:, None], disc[:, 2:]], 1)
    normals = axes[..., 2]
    faces = (normals * center).sum(-1, keepdim=True) < 0
    normals = torch.where(faces, normals, -normals)

    def bounds(opacities: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        # ``extents`` are the squared half extents of the boxes at one standard deviation.
        radii = (settings.numerics.extend * extents.clamp_min(BOX_VARIANCE_MIN).sqrt()).ceil().clamp_max(RADIUS_MAX)
        return (radii > settings.radius_clip).any(-1), radii, z

    return RowValues(focal * slopes + principal + offsets, z, transforms.flatten(1), normals, None), bounds
