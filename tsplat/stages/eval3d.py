"""Evaluation in 3D: the rays of pixels, and the shapes of Gaussians that compositing along rays reads.

The ray of a pixel is the set of points that the camera projects to the pixel's center. A pixel to which no point is
projected has no ray.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ..arguments import check_tensor
from ..config import MAGNITUDE_MAX, CameraSettings, Numerics
from ..data import Cameras, CompositingSettings, Gaussians3D, ProjectedGaussians, Rays
from ..errors import ShapeError
from ..formulas.pixel_centers import pixel_centers
from ..formulas.rotations import rotation_rows
from ..kernels_torch.lens_pixels import unproject
from ..kernels_torch.lenses import LENSES
from ..kernels_torch.shutters import exposure_time, pose_at
from .inputs import gather_features

DIRECTION_MIN = 1e-18
"""Length of the shortest direction of a ray. Its square must be a normal number in fp32, the smallest of which is
1.2e-38."""


def with_world_shapes(
    projected: ProjectedGaussians, gaussians: Gaussians3D, settings: CompositingSettings
) -> ProjectedGaussians:
    """Replaces conics by means, quaternions and scales [nnz, 10], and detaches means2d. Adds normals if rendered."""
    assert gaussians.quats is not None and gaussians.scales is not None
    parts = [gaussians.means, gaussians.quats, gaussians.scales]
    if settings.normals:
        parts.append(third_axes(gaussians.quats))
    values, ids = torch.cat(parts, -1).flatten(0, -2), projected.feature_ids(per_camera=False)
    shapes = gather_features(values, ids, settings.backend)
    return projected._replace(
        means2d=projected.means2d.detach(), shapes=shapes[:, :10], normals=shapes[:, 10:] if settings.normals else None
    )


def third_axes(quats: Tensor) -> Tensor:
    """Returns the third axes of Gaussians in the world frame, [..., 3]: their normals, with either sign."""
    rows = rotation_rows(torch.nn.functional.normalize(quats, dim=-1))
    return torch.stack([row[2] for row in rows], -1)


def ray_footprint(model: str, numerics: Numerics) -> str:
    """Returns the footprint of evaluation in 3D.

    If columns wrap, other rays see what is behind the origin of a ray, so the footprint is always ``"ray in front"``.
    """
    return "ray in front" if LENSES[model].wraps else numerics.ray_footprint


def camera_rays(cameras: Cameras, settings: CameraSettings, *, unit: bool = False) -> Rays:
    """Returns the rays through the centers of all pixels.

    Args:
        cameras: [B, C], for I = B C images. Differentiable, except ``Ks`` and f-theta lenses.
        unit: Whether to normalize directions in the world frame, as distances along rays require.
    """
    Ks, lens = cameras.Ks.flatten(0, 1), None if cameras.lens is None else cameras.lens.flatten(0, 1)
    with torch.no_grad():
        xs, ys = pixel_centers(settings.width, settings.height, Ks)
        x = (xs - Ks[:, 0, 2, None]) / Ks[:, 0, 0, None]
        y = (ys - Ks[:, 1, 2, None]) / Ks[:, 1, 1, None]
        shape = (len(Ks), settings.height, settings.width)
        x, y = x[:, None, :].expand(shape), y[:, :, None].expand(shape)
    start = (x, y) if LENSES[settings.model].is_parallel else None
    return rays_of(unproject(x, y, lens, settings), cameras, settings, unit=unit, start=start)


def rays_of(
    direction: tuple[Tensor, Tensor, Tensor],
    cameras: Cameras,
    settings: CameraSettings,
    *,
    unit: bool = False,
    start: tuple[Tensor, Tensor] | None = None,
) -> Rays:
    """Transforms directions [I, H, W] from camera frames to rays in the world, by the pose that exposes each pixel.

    Rays start at the camera center, or with ``start`` at (x, y, 0) of the camera frame.
    """
    viewmats, shutter = cameras.viewmats.flatten(0, 1), cameras.shutter
    if shutter is None:
        rows = [[viewmats[:, i, j, None, None] for j in range(3)] for i in range(3)]
        shift = [viewmats[:, i, 3, None, None] for i in range(3)]
    else:
        rows, shift = _poses(shutter.flatten(0, 1), *pixel_centers(settings.width, settings.height, viewmats), settings)
    world = torch.stack(to_world(rows, direction), 1)
    if unit:
        world = torch.nn.functional.normalize(world, dim=1)
    if start is not None:
        shift = [shift[0] - start[0], shift[1] - start[1], shift[2]]
    origins = -torch.stack(to_world(rows, shift), 1)
    if start is None and shutter is None:
        return Rays(world, origins[:, :, 0, 0])
    return Rays(torch.cat([origins.expand_as(world), world], 1), None)


def to_world(rows: Sequence[Sequence[Tensor]], v: Sequence[Tensor]) -> list[Tensor]:
    """Returns the transpose of a matrix times a vector."""
    return [rows[0][k] * v[0] + rows[1][k] * v[1] + rows[2][k] * v[2] for k in range(3)]


def check_rays(rays: object, shape: tuple[int, ...]) -> Tensor:
    """Checks rays that broadcast to [..., C, H, W, 6] or [..., C, H * W, 6], and expands them to the former shape."""
    tensor = check_tensor("rays", rays, [..., 6], "[..., C, H, W, 6]")
    height, width = shape[-3:-1]
    found = list(tensor.shape)
    while tensor.dim() > len(shape) and len(tensor) == 1:  # a batch dimension that cameras do not have
        tensor = tensor[0]
    with contextlib.suppress(RuntimeError):
        return tensor.expand(shape)
    if tensor.dim() > 1 and tensor.shape[-2] == height * width:
        with contextlib.suppress(RuntimeError):
            return tensor.view(*tensor.shape[:-2], height, width, 6).expand(shape)
    flat = [*shape[:-3], height * width, 6]
    raise ShapeError(f"rays: expected a shape that broadcasts to {list(shape)} or {flat}, found {found}")


def unit_rays(rays: Tensor) -> Tensor:
    """Normalizes the directions of the caller's rays [..., 6]. Differentiable.

    Invalid rays become 0, as do directions shorter than ``DIRECTION_MIN``: their pixels have no ray.
    """
    valid = (rays.detach().abs() <= MAGNITUDE_MAX).all(-1, keepdim=True)
    rays = torch.where(valid, rays, 0.0)
    origins, directions = rays[..., :3], rays[..., 3:]
    lengths = directions.norm(dim=-1, keepdim=True)
    exists = lengths >= DIRECTION_MIN
    return torch.cat([origins, torch.where(exists, directions / torch.where(exists, lengths, 1.0), 0.0)], -1)


def given_rays(rays: Tensor) -> Rays:
    """Returns the rays of pixels, with origins, given the caller's rays [I, H, W, 6]. Differentiable."""
    return Rays(unit_rays(rays).permute(0, 3, 1, 2), None)


def _poses(
    shutter: Tensor, xs: Tensor, ys: Tensor, settings: CameraSettings
) -> tuple[list[list[Tensor]], list[Tensor]]:
    """Returns the rotation rows and translations at which pixels are exposed, entries [I, H, 1] or [I, 1, W]."""
    by_row = settings.readout in ("ROLLING_TOP_TO_BOTTOM", "ROLLING_BOTTOM_TO_TOP")
    times = exposure_time(xs, ys, settings)
    shape = (len(shutter), *((len(times), 1) if by_row else (1, len(times))))
    paths = shutter.repeat_interleave(len(times), 0)
    rows, shift = pose_at(paths, times.repeat(len(shutter)))
    return [[entry.view(shape) for entry in row] for row in rows], [entry.view(shape) for entry in shift]
