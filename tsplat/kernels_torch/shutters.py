"""Rolling shutters in vectorized PyTorch: the pose of a camera at a time, and when it exposes a point."""

from __future__ import annotations

from collections import namedtuple

import torch
from torch import Tensor

from ..config import SHUTTER_STEPS, CameraSettings, Unscented
from ..formulas.rotations import Triple, rotation_rows
from .lens_pixels import lens_pixel

Pose = tuple[tuple[Triple, Triple, Triple], Triple]
"""Rows of a rotation from the world to the camera, and a translation."""


Path = namedtuple("Path", "q0 q1 t0 t1 angle inverse_sine center unused")
"""Of a camera during the readout: rotations at the start and at the end as unit quaternions wxyz, at most 90 degrees
apart; translations; the angle between the quaternions in radians, and the inverse of its sine, 0 for equal rotations;
the center of the camera at the end, world frame; a zero."""


def path_of(shutter: Tensor) -> Path:
    """Names the values of ``Cameras.shutter``. [..., 20]"""
    return Path(*torch.split(shutter, [4, 4, 3, 3, 1, 1, 3, 1], -1))


def rotate(vector: Triple, pose: Pose) -> Triple:
    """Rotates a vector of the world to the frame of the camera."""
    x, y, z = (w[0] * vector[0] + w[1] * vector[1] + w[2] * vector[2] for w in pose[0])
    return x, y, z


def to_camera(point: Triple, pose: Pose) -> Triple:
    """Transforms a point of the world to the frame of the camera."""
    x, y, z = (value + t for value, t in zip(rotate(point, pose), pose[1]))
    return x, y, z


def exposed_pixel(
    point: Triple,
    shutter: Tensor,
    lens: Tensor | None,
    intrinsics: tuple[Tensor, ...],
    camera: CameraSettings,
    transform: Unscented,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns pixel x and y of a point of the world when the shutter exposes it; and whether it is seen.

    The gradient is that of the solution, not of the iterations: with the gradient d of the time s and the velocity w of
    the pixel, dq = dq|_s + w (d dq|_s) / (1 - d w). If ``whole_lines``, the time has no gradient.
    """

    def at(time: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return lens_pixel(to_camera(point, pose_at(shutter, time)), lens, intrinsics, camera, transform.margin)

    def time_of(u: Tensor, v: Tensor) -> Tensor:
        if not transform.whole_lines:
            return exposure_time(u, v, camera)
        u, v = (_center_of_line(x, camera) for x in (u, v))
        return torch.where(at_start | at_end, exposure_time(u, v, camera), 1.0)

    with torch.no_grad():
        zero = torch.zeros_like(point[0])
        u, v, at_start = at(zero)
        end_u, end_v, at_end = at(zero + 1)
        u, v = torch.where(at_start, u, end_u), torch.where(at_start, v, end_v)
        for _ in range(SHUTTER_STEPS - 1):
            u, v, _ = at(time_of(u, v))
        time = time_of(u, v)
    u, v, seen = at(time)
    if u.requires_grad and not transform.whole_lines:
        moving = time.clone().requires_grad_()
        rate_u, rate_v = (torch.autograd.grad(at(moving)[k].sum(), moving)[0] for k in range(2))
        change = _delay(u - u.detach(), v - v.detach(), camera) / (1 - _delay(rate_u, rate_v, camera))
        u, v = u + rate_u * change, v + rate_v * change
    return u, v, seen & (at_start | at_end)


def _center_of_line(x: Tensor, camera: CameraSettings) -> Tensor:
    """Returns the center of the row or column of a coordinate; borders belong to the one that is read later."""
    from_end = camera.readout in ("ROLLING_BOTTOM_TO_TOP", "ROLLING_RIGHT_TO_LEFT")
    return x.ceil() - 0.5 if from_end else x.floor() + 0.5


def _delay(u: Tensor, v: Tensor, camera: CameraSettings) -> Tensor:
    """Returns how much later a pixel is exposed that is farther by u, v."""
    return exposure_time(u, v, camera) - exposure_time(torch.zeros_like(u), torch.zeros_like(v), camera)


def exposure_time(u: Tensor, v: Tensor, camera: CameraSettings) -> Tensor:
    """Returns when a pixel is exposed: at 0 in the center of the first row or column that is read, at 1 in the last."""
    if camera.readout == "ROLLING_TOP_TO_BOTTOM":
        return (v - 0.5) / max(camera.height - 1, 1)
    if camera.readout == "ROLLING_BOTTOM_TO_TOP":
        return (camera.height - 0.5 - v) / max(camera.height - 1, 1)
    if camera.readout == "ROLLING_LEFT_TO_RIGHT":
        return (u - 0.5) / max(camera.width - 1, 1)
    return (camera.width - 0.5 - u) / max(camera.width - 1, 1)


def pose_at(shutter: Tensor, time: Tensor) -> Pose:
    """Interpolates the pose of a camera at a time of the readout, 0 at its start and 1 at its end, along the sphere."""
    path, time = path_of(shutter), time[:, None]
    rotates = path.inverse_sine > 0
    before = torch.where(rotates, ((1 - time) * path.angle).sin() * path.inverse_sine, 1 - time)
    after = torch.where(rotates, (time * path.angle).sin() * path.inverse_sine, time)
    q = before * path.q0 + after * path.q1
    t = (1 - time) * path.t0 + time * path.t1
    return rotation_rows(torch.nn.functional.normalize(q, dim=-1)), (t[:, 0], t[:, 1], t[:, 2])
