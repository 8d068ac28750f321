"""Perspective views of panoramas, on which some steps train in place of the panorama.

A wide Gaussian looks different in a panorama, which projects it by the unscented transform, and in a perspective view,
which projects it by EWA splatting. A model has to look right in both (docs/decisions/0059).
"""

import dataclasses
import math

import torch
from torch import Tensor

from ..formulas.panorama_angles import longitude_and_latitude
from ..precision import fp64
from ..scene.cameras import Camera
from ..scene.capture.views import View

R2_INCREMENTS = (0.7548776662466927, 0.5698402909980532)
"""Increments of the R2 low-discrepancy sequence in the unit square (Roberts, 2018)."""

FULL_TOLERANCE = 1e-3
"""Relative deviation from 360 by 180 degrees up to which a panorama counts as complete."""


def compares_perspective(camera: Camera, step: int, share: float) -> bool:
    """Returns whether a step trains on a perspective view. A fraction `share` of the steps does, evenly distributed.

    Panoramas with a rolling shutter have no perspective views, as their pixels are exposed at different times.
    """
    has_perspectives = camera.is_panorama and camera.viewmat_end is None
    return has_perspectives and math.floor((step + 1) * share) > math.floor(step * share)


def is_whole(camera: Camera) -> bool:
    """Returns whether a panorama shows all directions, so that its perspective views have no empty pixels."""
    left, top, right, bottom = _angles(camera)
    width, height = right - left, min(-top, bottom)
    return width >= 2 * math.pi * (1 - FULL_TOLERANCE) and height >= math.pi / 2 * (1 - FULL_TOLERANCE)


def perspective_camera(camera: Camera, step: int) -> Camera:
    """Returns a pinhole camera with a field of view of 90 degrees, whose direction depends on the step.

    Pixels at its center subtend the same angle as at the panorama's equator. Differentiable with respect to the pose.
    """
    rotation = _rotation(camera, step).to(camera.viewmat)
    side = max(1, round(2 * float(camera.K[0, 0])))
    K = camera.K.new_tensor([[side / 2, 0, side / 2], [0, side / 2, side / 2], [0, 0, 1]])
    # Written out, because autocast would compute a matrix product in half precision.
    rotated = (rotation[:, :, None] * camera.viewmat[None, :3]).sum(1)
    viewmat = torch.cat([rotated, camera.viewmat[3:]])
    return dataclasses.replace(camera, viewmat=viewmat, K=K, width=side, height=side, model="pinhole")


def perspective_view(view: View, step: int, camera: Camera | None = None) -> View:
    """Returns the perspective view of a panorama, resampled bilinearly, without sparse points and priors.

    `camera` is the result of :func:`perspective_camera`, if the caller has it. Pixels that a partial panorama does not
    contain, or that it masks out, are masked out.
    """
    camera, image = camera or perspective_camera(view.camera, step), view.image
    half = camera.width / 2
    steps = (torch.arange(camera.width, device=image.device, dtype=torch.float32) + 0.5 - half) / half
    b, a = torch.meshgrid(steps, steps, indexing="ij")
    rotation = _rotation(view.camera, step).to(image.device, torch.float32)
    x, y, z = (rotation[0, i] * a + rotation[1, i] * b + rotation[2, i] for i in range(3))
    longitudes, latitudes = longitude_and_latitude(x, y, z)
    K = view.camera.K
    around = 2 * math.pi * K[0, 0]
    u = (K[0, 0] * longitudes + K[0, 2]).remainder(around)  # from the left border of the panorama
    v = K[1, 1] * latitudes + K[1, 2]
    whole = is_whole(view.camera)
    inside = (u < view.width) & (v >= 0) & (v < view.height)
    sampled = _sample(image, u, v, wraps=whole)
    mask = None
    if view.mask is not None or not whole:
        mask = inside
        if view.mask is not None:
            mask = mask & (_sample(view.mask[..., None].float(), u, v, wraps=whole)[..., 0] > 0.5)
    return View(sampled.round().clamp(0, 255).to(torch.uint8), camera, mask, camera_id=view.camera_id, files=view.files)


def _sample(image: Tensor, u: Tensor, v: Tensor, *, wraps: bool) -> Tensor:
    """Samples an image [H, W, D] bilinearly at pixels [S, S], across the seam if it wraps. [S, S, D] fp32"""
    height, width = image.shape[:2]
    x, y = u - 0.5, v - 0.5
    left, top = x.floor(), y.floor()
    x, y = (x - left)[..., None], (y - top)[..., None]
    columns = [left.long(), left.long() + 1]
    columns = [c.remainder(width) if wraps else c.clamp(0, width - 1) for c in columns]
    rows = [(top.long() + i).clamp(0, height - 1) for i in range(2)]
    upper, lower = ([image[row, column].float() for column in columns] for row in rows)
    return (1 - y) * ((1 - x) * upper[0] + x * upper[1]) + y * ((1 - x) * lower[0] + x * lower[1])


def _rotation(camera: Camera, step: int) -> Tensor:
    """Returns the rotation [3, 3] fp64 from the frame of a panorama's camera to that of a perspective view.

    Its z axis is a direction of the panorama, evenly distributed over the steps, and its x axis is level.
    """
    left, top, right, bottom = _angles(camera)
    across, down = ((step * increment) % 1.0 for increment in R2_INCREMENTS)
    yaw = left + across * (right - left)
    low, high = math.sin(max(top, -math.pi / 2)), math.sin(min(bottom, math.pi / 2))
    pitch = math.asin(low + down * (high - low))
    forward = (math.cos(pitch) * math.sin(yaw), math.sin(pitch), math.cos(pitch) * math.cos(yaw))
    level = (math.cos(yaw), 0.0, -math.sin(yaw))
    below = (-math.sin(pitch) * math.sin(yaw), math.cos(pitch), -math.sin(pitch) * math.cos(yaw))
    return fp64([level, below, forward])


def _angles(camera: Camera) -> tuple[float, float, float, float]:
    """Returns the longitudes and latitudes of the left, upper, right and lower border of a panorama, in radians."""
    (fx, _, cx), (_, fy, cy), _ = camera.K.double().tolist()
    return -cx / fx, -cy / fy, (camera.width - cx) / fx, (camera.height - cy) / fy
