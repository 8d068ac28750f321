"""The unscented transform in vectorized PyTorch, differentiated by autograd; see ``kernels/projection/``."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import BEHIND_POLE
from ..data import ProjectionSettings
from ..formulas.rotations import Triple
from .lens_pixels import lens_pixel, pixel_difference, u_period, whole_periods
from .lenses import LENSES
from .projector import ScreenCovariances
from .shutters import Pose, exposed_pixel, pose_at, rotate, to_camera


def unscented(
    mean: Triple,
    axes: tuple[Triple, Triple, Triple],
    pose: Pose,
    intrinsics: tuple[Tensor, ...],
    lens: Tensor | None,
    shutter: Tensor | None,
    settings: ProjectionSettings,
) -> ScreenCovariances:
    """Projects Gaussians by seven sigma points each; see ``kernels/projection/unscented.py``.

    Args:
        mean: Means in the world frame, [nnz] each.
        axes: One standard deviation along each axis of the Gaussian, world frame.
        pose: The pose of the camera of each row, for a global shutter.
        intrinsics: fx, fy, cx and cy of the camera of each row.
        lens, shutter: ``Cameras.lens`` and ``Cameras.shutter`` of each row, [nnz, ...], or None.
    """
    camera, transform = settings.camera, settings.unscented
    assert transform is not None

    def project(point: Triple) -> tuple[Tensor, Tensor, Tensor]:
        if shutter is None:
            return lens_pixel(to_camera(point, pose), lens, intrinsics, camera, transform.margin)
        return exposed_pixel(point, shutter, lens, intrinsics, camera, transform)

    wraps = LENSES[camera.model].wraps
    x, y, valid = project(mean)
    exact = wraps and shutter is None
    origin = to_camera(mean, pose)
    offsets = []
    counts = valid.to(torch.int32)
    for axis in axes:
        for sign in (1, -1):
            step = sign * transform.spread
            offset = (step * axis[0], step * axis[1], step * axis[2])
            if exact:
                dx, dy, also = pixel_difference(
                    origin, rotate(offset, pose), (x, y), intrinsics, camera, transform.margin
                )
            else:
                u, v, also = project((mean[0] + offset[0], mean[1] + offset[1], mean[2] + offset[2]))
                dx, dy = u - x, v - y
                if wraps:
                    dx = dx - whole_periods(dx, u_period(intrinsics[0]))
            counts = counts + also
            offsets.append((dx, dy))
    # The weights of the mean add up to 1. So differences from the center point suffice, which keeps precision.
    if wraps:
        shift_x = shift_y = torch.zeros_like(x)
    else:
        shift_x, shift_y = (transform.weight * torch.stack(each).sum(0) for each in zip(*offsets))
    a = transform.center_weight * shift_x * shift_x
    b = transform.center_weight * shift_x * shift_y
    c = transform.center_weight * shift_y * shift_y
    for dx, dy in offsets:
        dx, dy = dx - shift_x, dy - shift_y
        wide = over_poles(dx, u_period(intrinsics[0])) if wraps else dx
        a = a + transform.weight * wide * wide
        b = b + transform.weight * dx * dy
        c = c + transform.weight * dy * dy
    if shutter is not None:
        pose = pose_at(shutter, torch.full_like(x, 0.5))
    point = to_camera(mean, pose)
    z = depth = point[2]
    if transform.radial:
        depth = sum(p * p for p in point).clamp_min(1e-30).sqrt()  # type: ignore[union-attr]
        z = depth if LENSES[camera.model].culls_by_distance else z
    seen = counts == 7 if transform.all_valid else counts > 0
    return ScreenCovariances(x=x + shift_x, y=y + shift_y, depths=depth, z=z, covariance=(a, b, c), seen=seen)


def over_poles(difference: Tensor, period: Tensor) -> Tensor:
    """Returns the difference of u that enters the variance of u.

    A difference of more than 90 degrees, with a pole between the points, is enlarged: a Gaussian that contains a pole
    covers all columns.
    """
    size = difference.abs()
    quarter = 0.25 * period
    return size + BEHIND_POLE / quarter * (size - quarter).clamp_min(0).square()


@torch.no_grad()
def limits_on_sphere(
    v: Tensor, distance: Tensor, scales: Tensor, intrinsics: tuple[Tensor, ...], settings: ProjectionSettings
) -> tuple[Tensor, Tensor]:
    """Returns the minimum and maximum half extents in u and v, [nnz, 2]; see ``kernels/projection/unscented.py``."""
    fx, fy, _, cy = intrinsics
    cosine = ((v - cy) / fy).cos()
    sine = (settings.numerics.extend * scales.abs().amax(-1) / distance).clamp_max(1.0)
    holds_pole = sine >= cosine
    longitudes = torch.where(holds_pole, torch.pi, (sine / torch.where(holds_pole, 1.0, cosine)).asin())
    focal = torch.stack([fx, fy], -1).abs()
    least = focal * torch.stack([longitudes, sine.asin()], -1)
    return torch.where((sine > 0.1 * cosine)[:, None], least, 0.0), torch.pi * focal
