"""Projection of 2D Gaussians in vectorized PyTorch, for all backends. The backward pass differentiates a second run.

The math is that of ``reference/surfel_formulas.py``. Boxes are computed relative to the projected center, where the
products of large pixel coordinates, which cancel, are absent.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..config import RADIUS_MAX
from ..data import Cameras, Gaussians3D, ProjectedGaussians, ProjectionSettings, sum_by_id
from .camera_models import rotation_rows
from .indices import gaussians_and_images, packed_rows, visible_rows

BOX_VARIANCE_MIN = 1e-4
"""Least squared half extent of the box around a unit circle, pixels^2."""


class SurfelRows(NamedTuple):
    """What is differentiable of projected surfels: box centers [nnz, 2] in pixels, depths [nnz], ray transforms
    [nnz, 9], and normals [nnz, 3] in the camera frame, towards the camera."""

    means2d: Tensor
    depths: Tensor
    transforms: Tensor
    normals: Tensor


def _project(
    means: Tensor, quats: Tensor, scales: Tensor, poses: Tensor, matrices: Tensor
) -> tuple[SurfelRows, Tensor]:
    """Projects rows, each with a camera of its own. Returns also squared half extents of boxes at 1 sigma, [nnz, 2]."""
    rotations = torch.stack(
        [torch.stack(row, -1) for row in rotation_rows(quats / quats.norm(dim=-1, keepdim=True))], 1
    )
    axes = poses[:, :3, :3] @ rotations
    center = (poses[:, :3, :3] @ means[..., None])[..., 0] + poses[:, :3, 3]
    disc = torch.cat([axes[..., :2] * scales[:, None, :2], center[..., None]], -1)
    along_z, z = disc[:, 2], center[:, 2]
    focal, principal = matrices[:, (0, 1), (0, 1)], matrices[:, :2, 2]
    slopes = center[:, :2] / z[:, None]
    # The transform relative to the projected center, which takes (0, 0, 1) to (0, 0, z).
    rows = focal[..., None] * (disc[:, :2, :2] - slopes[..., None] * along_z[:, None, :2])
    inverse = 1 / (along_z[:, :2].square().sum(-1) - z * z)
    offsets = (rows * along_z[:, None, :2]).sum(-1) * inverse[:, None]
    extents = offsets.detach().square() - rows.detach().square().sum(-1) * inverse.detach()[:, None]
    transforms = torch.cat([focal[..., None] * disc[:, :2] + principal[..., None] * along_z[:, None], disc[:, 2:]], 1)
    normals = axes[..., 2]
    faces = (normals * center).sum(-1, keepdim=True) < 0
    normals = torch.where(faces, normals, -normals)
    return SurfelRows(focal * slopes + principal + offsets, z, transforms.flatten(1), normals), extents


def _rows(gaussians: Gaussians3D, cameras: Cameras, ids: Tensor, images: Tensor) -> tuple[Tensor, ...]:
    """Means, quaternions, scales, poses and intrinsics of rows."""
    assert gaussians.quats is not None and gaussians.scales is not None
    own = (t.flatten(0, 1)[ids] for t in (gaussians.means, gaussians.quats, gaussians.scales))
    return *own, *(t.flatten(0, 1)[images] for t in cameras[:2])


def surfels_fwd(
    gaussians: Gaussians3D, cameras: Cameras, settings: ProjectionSettings
) -> tuple[ProjectedGaussians, Tensor]:
    """Projects B scenes of N surfels with C cameras each.

    Args:
        gaussians: With quats and scales, of which the last is not read.
        cameras: Pinhole cameras.

    Returns:
        Surfels with ray transforms [nnz, 9] as ``conics``, and their normals [nnz, 3]; zero where culled.
    """
    n_batches, n_gaussians, _ = gaussians.means.shape
    n_cameras = cameras[0].shape[1]
    dense_ids = torch.arange(n_batches * n_cameras * n_gaussians, device=gaussians.means.device)
    ids, images = gaussians_and_images(dense_ids, n_gaussians, n_cameras)
    found, extents = _project(*_rows(gaussians, cameras, ids, images))
    radii = (settings.numerics.extend * extents.clamp_min(BOX_VARIANCE_MIN).sqrt()).ceil().clamp_max(RADIUS_MAX)
    camera = settings.camera
    # Every comparison is written so that NaN fails it.
    visible = (found.depths >= camera.near) & (found.depths <= camera.far) & (radii > settings.radius_clip).any(-1)
    size = torch.tensor([camera.width, camera.height], device=radii.device)
    visible &= ((found.means2d + radii > 0) & (found.means2d - radii < size)).all(-1)
    visible &= found.transforms.isfinite().all(-1)
    if gaussians.valid is not None:
        visible &= gaussians.valid.flatten()[ids]

    def emit(values: Tensor) -> Tensor:
        if settings.packed:
            return values[visible]
        return torch.where(visible.view(-1, *[1] * (values.dim() - 1)), values, values.new_zeros(()))

    kept = visible.nonzero().squeeze(1) if settings.packed else None
    opacities = None if gaussians.opacities is None else emit(gaussians.opacities.flatten()[ids])
    projected = ProjectedGaussians(
        n_cameras=n_cameras,
        n_gaussians=n_gaussians,
        dense_ids=kept,
        radii=emit(radii.nan_to_num().to(torch.int32)),
        means2d=emit(found.means2d),
        depths=emit(found.depths),
        conics=emit(found.transforms),
        compensations=None,
        opacities=opacities,
        row_of=None if kept is None else packed_rows(kept, visible.numel()),
    )
    return projected, emit(found.normals)


def surfels_bwd(
    gaussians: Gaussians3D, cameras: Cameras, dense_ids: Tensor | None, radii: Tensor, v_rows: SurfelRows
) -> tuple[Tensor, ...]:
    """Computes the gradients of means, quats, scales and view matrices.

    Args:
        gaussians, cameras: As for :func:`surfels_fwd`.
        dense_ids, radii: Of its result.
        v_rows: Gradients of what :func:`surfels_fwd` returned.
    """
    n_cameras, n_gaussians = cameras[0].shape[1], gaussians.means.shape[1]
    n_images, n_dense = cameras[0].shape[0] * n_cameras, cameras[0].shape[0] * n_cameras * n_gaussians
    rows, kept = visible_rows(dense_ids, radii, n_dense, radii.device)
    ids, images = gaussians_and_images(kept, n_gaussians, n_cameras)
    means, quats, scales, poses, matrices = _rows(gaussians, cameras, ids, images)
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (means, quats, scales, poses)]
        found, _ = _project(leaves[0], leaves[1], leaves[2], leaves[3], matrices)
    incoming = [v[rows] for v in v_rows]
    gradients = torch.autograd.grad(found, leaves, incoming)
    # Gradients that overflow although the incoming ones are finite are zeroed.
    finite = [torch.stack([t.flatten(1).isfinite().all(-1) for t in ts]).all(0) for ts in (gradients, _flat(incoming))]
    gradients = tuple(torch.where((finite[0] | ~finite[1]).view(-1, *[1] * (v.dim() - 1)), v, 0.0) for v in gradients)
    n = gaussians.means.shape[0] * n_gaussians
    shapes = [t.shape for t in (gaussians.means, gaussians.quats, gaussians.scales, cameras[0]) if t is not None]
    sums = [sum_by_id(v, ids, n) for v in gradients[:3]] + [sum_by_id(gradients[3], images, n_images)]
    return tuple(total.view(shape) for total, shape in zip(sums, shapes))


def _flat(tensors: list[Tensor]) -> list[Tensor]:
    return [t[:, None] if t.dim() == 1 else t for t in tensors]
