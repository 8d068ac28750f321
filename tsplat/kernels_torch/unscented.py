"""The unscented transform in vectorized PyTorch, differentiated by autograd; see ``kernels/projection/``."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import SHUTTER_STEPS, CameraSettings
from ..data import ProjectionSettings
from ..formulas.rotations import Triple, rotation_rows
from .lens_models import bend

Pose = tuple[tuple[Triple, Triple, Triple], Triple]
"""Rows of a rotation from the world to the camera, and a translation."""


def unscented(
    mean: Triple,
    axes: tuple[Triple, Triple, Triple],
    pose: Pose,
    intrinsics: tuple[Tensor, ...],
    lens: Tensor | None,
    shutter: Tensor | None,
    settings: ProjectionSettings,
) -> tuple[Tensor, Tensor, Tensor, Triple, Tensor, Tensor]:
    """Projects Gaussians by seven sigma points each.

    Args:
        mean: World frame, [nnz] each.
        axes: One standard deviation along each axis of a Gaussian, world frame.
        pose, intrinsics: Of each row's camera; intrinsics are fx, fy, cx and cy. The pose is that of a global shutter.
        lens, shutter: Of each row's camera, [nnz, ...], or None.

    Returns:
        Pixel mean x and y, depth, the screen covariance before eps2d is added, whether the camera sees it, and the
        depth by which it culls.
    """
    camera, transform = settings.camera, settings.unscented
    assert transform is not None

    def project(point: Triple) -> tuple[Tensor, Tensor, Tensor]:
        if shutter is None:
            return _pixel(_to_camera(point, pose), intrinsics, lens, camera, transform.margin)
        return _pixel_in_time(point, shutter, intrinsics, lens, camera, transform.margin)

    x, y, valid = project(mean)
    offsets = []
    counts = valid.to(torch.int32)
    for axis in axes:
        for sign in (1, -1):
            spread = sign * transform.spread
            point = (mean[0] + spread * axis[0], mean[1] + spread * axis[1], mean[2] + spread * axis[2])
            u, v, also = project(point)
            counts = counts + also
            offsets.append((u - x, v - y))
    # The mean weights add to 1, so only differences from the center are weighted, which loses no precision.
    shift_x, shift_y = (transform.weight * torch.stack(each).sum(0) for each in zip(*offsets))
    a = transform.center_weight * shift_x * shift_x
    b = transform.center_weight * shift_x * shift_y
    c = transform.center_weight * shift_y * shift_y
    for dx, dy in offsets:
        dx, dy = dx - shift_x, dy - shift_y
        a = a + transform.weight * dx * dx
        b = b + transform.weight * dx * dy
        c = c + transform.weight * dy * dy
    if shutter is not None:
        pose = pose_at(shutter, torch.full_like(x, 0.5))
    point = _to_camera(mean, pose)
    z = depth = point[2]
    if transform.radial:
        depth = sum(p * p for p in point).clamp_min(1e-30).sqrt()  # type: ignore[union-attr]
        z = depth if camera.model == "ftheta" else z
    seen = counts == 7 if transform.all_valid else counts > 0
    return x + shift_x, y + shift_y, depth, (a, b, c), seen, z


def _to_camera(point: Triple, pose: Pose) -> Triple:
    rows, translation = pose
    x, y, z = (w[0] * point[0] + w[1] * point[1] + w[2] * point[2] + t for w, t in zip(rows, translation))
    return x, y, z


def _pixel(
    p: Triple, intrinsics: tuple[Tensor, ...], lens: Tensor | None, camera: CameraSettings, margin: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Pixel x and y of a point of the camera frame, and whether the lens sees it; 0, 0 if it is not in front."""
    front = p[2] > 0
    # Gradients of what is not used must not be NaN.
    p = (torch.where(front, p[0], 0.0), torch.where(front, p[1], 0.0), torch.where(front, p[2], 1.0))
    x, y, seen = bend(p, lens, camera.model)
    fx, fy, cx, cy = intrinsics
    u, v = torch.where(front, fx * x + cx, 0.0), torch.where(front, fy * y + cy, 0.0)
    side, top = margin * camera.width, margin * camera.height
    inside = (u >= -side) & (u < camera.width + side) & (v >= -top) & (v < camera.height + top)
    return u, v, front & seen & inside


def _pixel_in_time(
    point: Triple,
    shutter: Tensor,
    intrinsics: tuple[Tensor, ...],
    lens: Tensor | None,
    camera: CameraSettings,
    margin: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Pixel x and y of a point of the world at the time at which the shutter exposes it, and whether it is seen.

    The gradient is that of the solution, not of the iterations: with the gradient d of the time s and the velocity w of
    the pixel, dq = dq|_s + w (d dq|_s) / (1 - d w).
    """

    def at(time: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _pixel(_to_camera(point, pose_at(shutter, time)), intrinsics, lens, camera, margin)

    with torch.no_grad():
        zero = torch.zeros_like(point[0])
        u, v, at_start = at(zero)
        end_u, end_v, at_end = at(zero + 1)
        u, v = torch.where(at_start, u, end_u), torch.where(at_start, v, end_v)
        for _ in range(SHUTTER_STEPS - 1):
            u, v, _ = at(time_of(u, v, camera))
        time = time_of(u, v, camera)
    u, v, seen = at(time)
    if u.requires_grad:
        moving = time.clone().requires_grad_()
        rate_u, rate_v = (torch.autograd.grad(at(moving)[k].sum(), moving)[0] for k in range(2))
        change = _growth(u - u.detach(), v - v.detach(), camera) / (1 - _growth(rate_u, rate_v, camera))
        u, v = u + rate_u * change, v + rate_v * change
    return u, v, seen & (at_start | at_end)


def _growth(u: Tensor, v: Tensor, camera: CameraSettings) -> Tensor:
    """How much later a pixel is exposed that is farther by u, v."""
    return time_of(u, v, camera) - time_of(torch.zeros_like(u), torch.zeros_like(v), camera)


def time_of(u: Tensor, v: Tensor, camera: CameraSettings) -> Tensor:
    """The time at which a pixel is exposed: 0 at the center of the first row or column that is read, 1 at the last."""
    if camera.readout == "ROLLING_TOP_TO_BOTTOM":
        return (v - 0.5) / max(camera.height - 1, 1)
    if camera.readout == "ROLLING_BOTTOM_TO_TOP":
        return (camera.height - 0.5 - v) / max(camera.height - 1, 1)
    if camera.readout == "ROLLING_LEFT_TO_RIGHT":
        return (u - 0.5) / max(camera.width - 1, 1)
    return (camera.width - 0.5 - u) / max(camera.width - 1, 1)


def pose_at(shutter: Tensor, time: Tensor) -> Pose:
    """The pose of a camera between those at the start and at the end of the readout (spherical interpolation)."""
    angle, inverse_sine = shutter[:, 14], shutter[:, 15]
    turns = inverse_sine > 0
    before = torch.where(turns, ((1 - time) * angle).sin() * inverse_sine, 1 - time)
    after = torch.where(turns, (time * angle).sin() * inverse_sine, time)
    q = before[:, None] * shutter[:, :4] + after[:, None] * shutter[:, 4:8]
    t = (1 - time)[:, None] * shutter[:, 8:11] + time[:, None] * shutter[:, 11:14]
    return rotation_rows(torch.nn.functional.normalize(q, dim=-1)), (t[:, 0], t[:, 1], t[:, 2])
