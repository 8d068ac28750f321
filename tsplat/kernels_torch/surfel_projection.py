"""Projection of 2D Gaussians in vectorized PyTorch; see ``kernels/projection/surfels.py``. The backward pass
differentiates a second run."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from ..config import BOX_VARIANCE_MIN, RADIUS_MAX
from ..data import Cameras, Gaussians3D, ProjectedGaussians, ProjectedGradients, ProjectionSettings, sum_by_id
from ..formulas.rotations import rotation_matrices
from .indices import (
    all_finite,
    flat_scenes,
    gaussians_and_images,
    keep_visible,
    packed_ids,
    packed_rows,
    visible_rows,
)


class SurfelRows(NamedTuple):
    """What is differentiable of projected surfels: box centers [nnz, 2] in pixels, depths [nnz], ray transforms
    [nnz, 9], and normals [nnz, 3] in the camera frame, towards the camera."""

    means2d: Tensor
    depths: Tensor
    transforms: Tensor
    normals: Tensor


def _project(means: Tensor, quats: Tensor, scales: Tensor, viewmats: Tensor, Ks: Tensor) -> tuple[SurfelRows, Tensor]:
    """Projects rows, each with a camera of its own. Returns also squared half extents of boxes at 1 sigma, [nnz, 2]."""
    rotations = rotation_matrices(quats / quats.norm(dim=-1, keepdim=True))
    axes = viewmats[:, :3, :3] @ rotations
    center = (viewmats[:, :3, :3] @ means[..., None])[..., 0] + viewmats[:, :3, 3]
    disc = torch.cat([axes[..., :2] * scales[:, None, :2], center[..., None]], -1)
    along_z, z = disc[:, 2], center[:, 2]
    focal, principal = Ks[:, (0, 1), (0, 1)], Ks[:, :2, 2]
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
    """Returns means, quaternions, scales, view matrices and intrinsics of rows."""
    means, quats, scales, *_ = flat_scenes(gaussians)
    assert quats is not None and scales is not None
    return means[ids], quats[ids], scales[ids], *(t.flatten(0, 1)[images] for t in (cameras.viewmats, cameras.Ks))


def surfels_fwd(gaussians: Gaussians3D, cameras: Cameras, settings: ProjectionSettings) -> ProjectedGaussians:
    n_batches, n_cameras, _, _ = cameras.viewmats.shape
    n_gaussians = gaussians.means.shape[-2]
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

    emit = functools.partial(keep_visible, visible=visible, packed=settings.packed)
    kept = visible.nonzero().squeeze(1) if settings.packed else None
    opacities = None if gaussians.opacities is None else emit(gaussians.opacities.flatten()[ids])
    return ProjectedGaussians(
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
        normals=emit(found.normals),
    )


def surfels_bwd(
    gaussians: Gaussians3D,
    cameras: Cameras,
    row_of: Tensor | None,
    radii: Tensor,
    v_projected: ProjectedGradients,
    needs: Cameras,
) -> tuple[Gaussians3D, Cameras]:
    n_batches, n_cameras, _, _ = cameras.viewmats.shape
    n_images, n_gaussians = n_batches * n_cameras, gaussians.means.shape[-2]
    rows, kept = visible_rows(packed_ids(row_of), radii, n_images * n_gaussians, radii.device)
    ids, images = gaussians_and_images(kept, n_gaussians, n_cameras)
    means, quats, scales, viewmats, Ks = _rows(gaussians, cameras, ids, images)
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (means, quats, scales, viewmats)]
        found, _ = _project(leaves[0], leaves[1], leaves[2], leaves[3], Ks)
    v_means2d, v_depths, v_conics, _, v_opacities, v_normals = v_projected
    v = (v_means2d, v_depths, v_conics, v_normals, v_opacities)
    *incoming, v_opacities = (None if t is None else t[rows] for t in v)
    given = [torch.zeros_like(output) if t is None else t for output, t in zip(found, incoming)]
    gradients = [*torch.autograd.grad(found, leaves, given)]
    if v_opacities is not None:
        gradients.append(v_opacities)
        given.append(v_opacities)
    # Gradients that overflow although the incoming ones are finite are zeroed.
    clean = all_finite(gradients) | ~all_finite(given)
    gradients = [torch.where(clean.view(-1, *[1] * (t.dim() - 1)), t, 0.0) for t in gradients]
    totals = [
        sum_by_id(t, ids, n_batches * n_gaussians).view(*gaussians.means.shape[:-1], *t.shape[1:])
        for t in (*gradients[:3], *gradients[4:])
    ]
    v_gaussians = Gaussians3D(totals[0], totals[1], totals[2], None, totals[3] if len(totals) > 3 else None)
    v_viewmats = sum_by_id(gradients[3], images, n_images).view(cameras.viewmats.shape) if needs.viewmats else None
    return v_gaussians, type(cameras)(v_viewmats, None)  # type: ignore[arg-type]
