"""Stage: the rays of pixels, for evaluation in 3D.

The inverse of the projection of single points: a point on the ray of a pixel's center is seen there. Pixels that no
point is seen at have no ray. Not differentiable with respect to intrinsics and coefficients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..config import LENS_GAIN_MIN, CameraSettings
from ..data import Cameras, Gaussians3D, ProjectedGaussians, Rays, sum_by_id
from ..kernels_torch.unscented import pose_at, time_of
from .autograd import once_differentiable

NEWTON_STEPS = 20
"""Steps that undo a distortion; each about doubles the number of exact digits."""


class _TakeRows(torch.autograd.Function):
    """Rows of a tensor, whose gradients are summed in a fixed order."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.n = len(values)
        return values[ids]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Tensor, ...], v: Tensor) -> tuple[Tensor, None]:
        return sum_by_id(v, saved[0], ctx.n), None


def with_world_shapes(projected: ProjectedGaussians, gaussians: Gaussians3D) -> ProjectedGaussians:
    """Replaces conics by means, quaternions and scales, [nnz, 10], and takes means2d out of the graph."""
    assert gaussians.quats is not None and gaussians.scales is not None
    shapes = torch.cat([gaussians.means, gaussians.quats, gaussians.scales], -1).flatten(0, 1)
    ids = projected.feature_ids(per_camera=False)
    if ids is not None:
        shapes = _TakeRows.apply(shapes, ids)  # type: ignore[no-untyped-call]
    return projected._replace(means2d=projected.means2d.detach(), conics=shapes)


def camera_rays(cameras: Cameras, settings: CameraSettings) -> Rays:
    """Returns the rays of the centers of all pixels.

    Args:
        cameras: [B, C], for I = B C images. Differentiable with respect to ``viewmats``, unless they have a shutter.
    """
    viewmats, Ks, lens, shutter = (None if t is None else t.flatten(0, 1) for t in cameras)
    assert viewmats is not None and Ks is not None
    xs, ys = (torch.arange(n, dtype=Ks.dtype, device=Ks.device) + 0.5 for n in (settings.width, settings.height))
    with torch.no_grad():
        x = (xs - Ks[:, 0, 2, None]) / Ks[:, 0, 0, None]
        y = (ys - Ks[:, 1, 2, None]) / Ks[:, 1, 1, None]
        x, y = torch.broadcast_tensors(x[:, None, :], y[:, :, None])  # [I, H, W]
        if settings.model == "ortho":
            direction = [torch.zeros_like(x), torch.zeros_like(x), torch.ones_like(x)]
        elif settings.model == "fisheye":
            direction = _fisheye(x, y, lens)
        else:
            direction = _pinhole(x, y, lens)
    if shutter is None:
        rows = [[viewmats[:, i, j, None, None] for j in range(3)] for i in range(3)]
        shift = [viewmats[:, i, 3, None, None] for i in range(3)]
    else:
        rows, shift = _poses(shutter, xs, ys, settings)
    directions = torch.stack([sum(rows[i][k] * direction[i] for i in range(3)) for k in range(3)], 1)
    if settings.model == "ortho":
        shift = [shift[0] - x, shift[1] - y, shift[2]]
    origins = torch.stack([-sum(rows[i][k] * shift[i] for i in range(3)) for k in range(3)], 1)
    if settings.model != "ortho" and shutter is None:
        return Rays(directions, origins[:, :, 0, 0])
    return Rays(torch.cat([origins.expand_as(directions), directions], 1), None)


def given_rays(rays: Tensor) -> Rays:
    """Returns rays [I, H, W, 6] that the caller passed: origins, and directions of any length. Differentiable.

    Rays that are not finite, or have no direction, are none.
    """
    valid = rays.isfinite().all(-1, keepdim=True)
    rays = torch.where(valid, rays, 0.0)
    values = torch.cat([rays[..., :3], torch.nn.functional.normalize(rays[..., 3:], dim=-1)], -1)
    return Rays(values.permute(0, 3, 1, 2), None)


def _poses(
    shutter: Tensor, xs: Tensor, ys: Tensor, settings: CameraSettings
) -> tuple[list[list[Tensor]], list[Tensor]]:
    """Rotations and translations when pixels are exposed, [I, H, 1] or [I, 1, W] each."""
    by_row = settings.readout in ("ROLLING_TOP_TO_BOTTOM", "ROLLING_BOTTOM_TO_TOP")
    times = time_of(xs, ys, settings)
    shape = (len(shutter), *((-1, 1) if by_row else (1, -1)))
    paths = shutter.repeat_interleave(len(times), 0)
    rows, shift = pose_at(paths, times.repeat(len(shutter)))
    return [[entry.view(shape) for entry in row] for row in rows], [entry.view(shape) for entry in shift]


def _pinhole(x: Tensor, y: Tensor, lens: Tensor | None) -> list[Tensor]:
    """Unit directions that a pinhole camera with a focal length of 1 shows at x, y; zero if there are none."""
    a, b = x, y
    valid = torch.ones_like(x, dtype=torch.bool)
    if lens is not None:
        a, b, valid = _undistort(x, y, lens[:, :, None, None].unbind(1))
    inverse_norm = torch.where(valid, (a * a + b * b + 1).rsqrt(), 0.0)
    return [torch.where(valid, a, 0.0) * inverse_norm, torch.where(valid, b, 0.0) * inverse_norm, inverse_norm]


def _undistort(x: Tensor, y: Tensor, lens: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Undoes OpenCV's distortion by Newton's method. Returns a, b, and where there is a solution."""
    k1, k2, k3, k4, k5, k6, p1, p2, s1, s2, s3, s4 = lens
    a, b = x, y
    for step in range(NEWTON_STEPS + 1):
        square = a * a + b * b
        above = 1 + square * (k1 + square * (k2 + square * k3))
        below = 1 + square * (k4 + square * (k5 + square * k6))
        inverse = 1 / torch.where(below.abs() > 1e-8, below, torch.inf)
        gain = above * inverse
        rest_x = gain * a + 2 * p1 * a * b + p2 * (square + 2 * a * a) + square * (s1 + square * s2) - x
        rest_y = gain * b + p1 * (square + 2 * b * b) + 2 * p2 * a * b + square * (s3 + square * s4) - y
        if step == NEWTON_STEPS:
            break
        slope_above = k1 + square * (2 * k2 + square * 3 * k3)
        slope = 2 * (slope_above - gain * (k4 + square * (2 * k5 + square * 3 * k6))) * inverse
        prism_x, prism_y = 2 * (s1 + 2 * s2 * square), 2 * (s3 + 2 * s4 * square)
        xx = gain + slope * a * a + 2 * p1 * b + 6 * p2 * a + prism_x * a
        xy = slope * a * b + 2 * (p1 * a + p2 * b) + prism_x * b
        yx = slope * a * b + 2 * (p1 * a + p2 * b) + prism_y * a
        yy = gain + slope * b * b + 6 * p1 * b + 2 * p2 * a + prism_y * b
        det = xx * yy - xy * yx
        det = torch.where(det.abs() > 1e-8, det, torch.inf)
        a, b = a - (yy * rest_x - xy * rest_y) / det, b - (xx * rest_y - yx * rest_x) / det
    size = 1 + x.abs() + y.abs()
    solved = rest_x.abs() + rest_y.abs() <= 100 * torch.finfo(x.dtype).eps * size
    return a, b, solved & (gain > LENS_GAIN_MIN)


def _fisheye(x: Tensor, y: Tensor, lens: Tensor | None) -> list[Tensor]:
    """Unit directions that a fisheye camera with a focal length of 1 shows at x, y; zero if there are none."""
    radius = torch.hypot(x, y)
    theta, valid = radius, radius <= torch.pi
    if lens is not None:
        k1, k2, k3, k4, largest, *_ = lens[:, :, None, None].unbind(1)
        # Theta is between these, as the distorted angle grows up to the largest.
        low, high = torch.zeros_like(radius), largest.expand_as(radius)
        theta = torch.minimum(radius, high)
        for step in range(2 * NEWTON_STEPS + 1):
            square = theta * theta
            rest = theta * (1 + square * (k1 + square * (k2 + square * (k3 + square * k4)))) - radius
            if step == 2 * NEWTON_STEPS:
                break
            low, high = torch.where(rest <= 0, theta, low), torch.where(rest >= 0, theta, high)
            slope = 1 + square * (3 * k1 + square * (5 * k2 + square * (7 * k3 + square * 9 * k4)))
            newton = theta - rest / slope
            theta = torch.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high))
        valid = rest.abs() <= 100 * torch.finfo(x.dtype).eps * (1 + radius)
    scale = theta.sin() / torch.where(radius > 0, radius, 1.0)
    return [torch.where(valid, value, 0.0) for value in (scale * x, scale * y, theta.cos())]
