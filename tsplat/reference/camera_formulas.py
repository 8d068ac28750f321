"""Cameras of the dense reference, in plain PyTorch.

Projection with Jacobians for EWA splatting; the unscented transform with lenses and rolling shutters; and rays.
"""

from collections import namedtuple
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..config import AXIS_MIN, BEHIND_POLE, SHUTTER_STEPS, CameraSettings, Numerics, Unscented
from ..precision import product
from .lens_formulas import LENSES, Lens


def quaternion_to_rotation(quats: Tensor) -> Tensor:
    """Converts quaternions wxyz of any nonzero norm to rotation matrices. [..., 4] -> [..., 3, 3]"""
    w, x, y, z = torch.nn.functional.normalize(quats, dim=-1).unbind(-1)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def project_points(points: Tensor, intrinsics: Tensor, settings: CameraSettings) -> tuple[Tensor, Tensor, Tensor]:
    """Projects points [..., C, N, 3] of the camera frame. Returns pixels [..., C, N, 2], Jacobians [..., C, N, 2, 3],
    and whether they are defined."""
    x, y, z = points.unbind(-1)
    (u, v, defined), rows = LENSES[settings.model].project_with_jacobian((x, y, z), intrinsics[..., None, :], settings)
    return torch.stack([u, v], -1), torch.stack([torch.stack(row, -1) for row in rows], -2), defined


def intrinsics(matrices: Tensor) -> Tensor:
    """Returns fx, fy, cx and cy. [..., 3, 3] -> [..., 4]"""
    return matrices[..., (0, 1, 0, 1), (0, 1, 2, 2)]


class Camera(NamedTuple):
    """Cameras [..., C, ...]: world-to-camera rotation and translation; (fx, fy, cx, cy); lens and shutter, or None."""

    rotation: Tensor
    translation: Tensor
    intrinsics: Tensor
    lens: Tensor | None
    shutter: Tensor | None


Path = namedtuple("Path", "q0 q1 t0 t1 angle inverse_sine center unused")

Windshield = namedtuple("Windshield", "horizontal vertical horizontal_inverse vertical_inverse")
"""The polynomials of a windshield, with 21 coefficients each."""


def path_of(shutter: Tensor) -> Path:
    """Splits ``Cameras.shutter`` [..., 20] into its named values."""
    return Path(*torch.split(shutter, [4, 4, 3, 3, 1, 1, 3, 1], -1))


def unscented(
    means: Tensor, axes: Tensor, cameras: Camera, settings: CameraSettings, transform: Unscented
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Projects Gaussians by seven sigma points each. Column k of ``axes`` is one standard deviation along axis k.

    Returns the means in pixels [..., C, N, 2]; the means in the camera frame [..., C, N, 3]; the screen covariances
    [..., C, N, 2, 2]; and whether Gaussians are seen [..., C, N].
    """
    steps = transform.spread * axes.transpose(-1, -2)
    points = torch.cat([means[..., None, :], means[..., None, :] + steps, means[..., None, :] - steps], -2)
    points = points[..., None, :, :, :]  # [..., 1, N, 7, 3]
    if cameras.shutter is None:
        rotation, translation = cameras.rotation[..., None, None, :, :], cameras.translation[..., None, None, :]
        pixels, valid = pixels_of(_move(points, rotation, translation), cameras, settings, transform.margin)
        in_camera = _move(points, rotation, translation)[..., 0, :]
    else:
        pixels, valid = _exposed_pixels(points, cameras, settings, transform)
        half = torch.full(pixels.shape[:-1], 0.5, dtype=means.dtype, device=means.device)
        in_camera = _move(points, *_pose(cameras.shutter[..., None, None, :], half))[..., 0, :]
    all_seen = valid.all(-1) if transform.all_valid else valid.any(-1)
    if LENSES[settings.model].wraps:
        intrinsics = cameras.intrinsics[..., None, None, :]
        du = shorter_way(pixels[..., 0] - pixels[..., :1, 0], intrinsics)
        dv = pixels[..., 1] - pixels[..., :1, 1]
        # Differences of more than 90 degrees, with a pole between the points, are enlarged.
        quarter = 0.25 * u_period(intrinsics)
        wide = du.abs() + BEHIND_POLE * (du.abs() - quarter).clamp_min(0) ** 2 / quarter
        xx, xy, yy = (transform.weight * (a * b).sum(-1) for a, b in ((wide, wide), (du, dv), (dv, dv)))
        covariances = torch.stack([torch.stack([xx, xy], -1), torch.stack([xy, yy], -1)], -2)
        return pixels[..., 0, :], in_camera, covariances, all_seen
    weights = torch.full((7,), transform.weight, dtype=means.dtype, device=means.device)
    mean_weights, covariance_weights = weights.clone(), weights.clone()
    mean_weights[0], covariance_weights[0] = 1 - 6 * transform.weight, transform.center_weight
    means2d = (mean_weights[:, None] * pixels).sum(-2)
    offsets = pixels - means2d[..., None, :]
    covariances = product((offsets * covariance_weights[:, None]).transpose(-1, -2), offsets)
    return means2d, in_camera, covariances, all_seen


def u_period(intrinsics: Tensor) -> Tensor:
    """Returns the period of u: the pixels of 360 degrees. [..., 4] -> [...]"""
    return 2 * torch.pi * intrinsics[..., 0].abs()


def shorter_way(difference: Tensor, intrinsics: Tensor) -> Tensor:
    """Returns a difference of two values of u, the shorter way around: up to half a period to each side."""
    period = u_period(intrinsics)
    return difference - period * (difference / period + 0.5).floor()


def extents_on_sphere(
    half: Tensor, pixels: Tensor, distances: Tensor, lengths: Tensor, intrinsics: Tensor, numerics: Numerics
) -> Tensor:
    """Returns half extents in u and v: at most half a period, and for wide Gaussians at least the extents of the cap.

    The cap contains the directions of a sphere around the mean with the largest extent of the Gaussian.

    Args:
        half: Half extents of the ellipses, [..., C, N, 2].
        pixels, distances: Pixels and distances of the means, [..., C, N, 2] and [..., C, N].
        lengths: The largest standard deviation of each Gaussian, [..., 1, N].
        intrinsics: [..., C, 4].
    """
    fx, fy, _, cy = intrinsics[..., None, :].unbind(-1)
    cosine = ((pixels[..., 1] - cy) / fy).cos()
    sine = (numerics.extend * lengths / distances).clamp_max(1)
    holds_pole = sine >= cosine
    longitudes = torch.where(holds_pole, torch.pi, (sine / torch.where(holds_pole, 1.0, cosine)).asin())
    focal = torch.stack([fx, fy], -1).abs()
    cap = focal * torch.stack([longitudes, sine.asin()], -1)
    cap = torch.where((sine > 0.1 * cosine)[..., None], cap, 0.0)
    return torch.minimum(torch.maximum(half, cap.detach()), torch.pi * focal)


def _move(points: Tensor, rotation: Tensor, translation: Tensor) -> Tensor:
    return product(rotation, points[..., None])[..., 0] + translation


def pixels_of(points: Tensor, cameras: Camera, settings: CameraSettings, margin: float) -> tuple[Tensor, Tensor]:
    """Projects points [..., C, N, 7, 3] of the camera frame. Returns pixels [..., C, N, 7, 2], and which are valid."""
    wraps = LENSES[settings.model].wraps
    lens = LENSES[settings.model]
    k, windshield = _coefficients(cameras.lens, lens)
    x, y, z = points.unbind(-1)
    front = points.square().sum(-1) > AXIS_MIN if wraps else (z > 0) | lens.shows_behind((x, y, z), k)
    x, y, z = torch.where(front[..., None], points, points.new_tensor([0.0, 0.0, 1.0])).unbind(-1)
    clear = torch.ones_like(front)
    if windshield is not None:
        x, y, z, clear = _through_windshield(x, y, z, windshield.horizontal, windshield.vertical)
    a, b, seen = lens.project((x, y, z), k)
    focal, center = (cameras.intrinsics[..., None, None, first : first + 2] for first in (0, 2))
    pixels = torch.where(front[..., None], focal * torch.stack([a, b], -1) + center, 0.0)
    size = torch.tensor([settings.width, settings.height], dtype=points.dtype, device=points.device)
    if wraps:
        middle = 0.5 * settings.width
        u = middle + shorter_way(pixels[..., 0] - middle, cameras.intrinsics[..., None, None, :])
        pixels = torch.where(front[..., None], torch.stack([u, pixels[..., 1]], -1), 0.0)
    inside = ((pixels >= -margin * size) & (pixels < size + margin * size)).all(-1)
    return pixels, front & clear & seen & inside


def _coefficients(lens: Tensor | None, model: Lens) -> tuple[Any, Windshield | None]:
    """Returns the coefficients of a lens and of its windshield, [..., C, 1, 1] each, or None."""
    if lens is None:
        return None, None
    values = lens[..., None, None, :].unbind(-1)
    k = model.coefficients(*values[: len(model.coefficients._fields)])
    return k, Windshield(*[values[i : i + 21] for i in range(12, 96, 21)]) if len(values) > 12 else None


def _through_windshield(
    x: Tensor, y: Tensor, z: Tensor, horizontal: tuple[Tensor, ...], vertical: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the unit directions in which a windshield shows points, and whether it shows them.

    The direction is the optical axis if it does not.
    """
    length = (x * x + y * y + z * z).sqrt()
    phi, psi = (x / length).asin(), (y / length).asin()
    powers = [(j, k) for k in range(6) for j in range(6 - k)]
    columns = torch.stack([phi**j * psi**k for j, k in powers])
    of_phi = torch.stack([j * phi ** max(j - 1, 0) * psi**k for j, k in powers])
    of_psi = torch.stack([k * phi**j * psi ** max(k - 1, 0) for j, k in powers])
    (h, h_phi, h_psi), (v, v_phi, v_psi) = (
        [(torch.stack(polynomial) * terms).sum(0) for terms in (columns, of_phi, of_psi)]
        for polynomial in (horizontal, vertical)
    )
    square = 1 - h.sin() ** 2 - v.sin() ** 2
    clear = (h.abs() < torch.pi / 2) & (v.abs() < torch.pi / 2) & (square > 0) & (h_phi * v_psi - h_psi * v_phi > 0)
    depth = torch.where(z < 0, -1.0, 1.0) * torch.where(clear, square, 1.0).sqrt()
    return torch.where(clear, h.sin(), 0.0), torch.where(clear, v.sin(), 0.0), depth, clear


def rays(cameras: Camera, settings: CameraSettings) -> tuple[Tensor, Tensor]:
    """Returns the origins and directions of the rays of pixel centers, world frame, [..., C, H, W, 3]. The direction is
    zero if there is no ray."""
    dtype, device = cameras.intrinsics.dtype, cameras.intrinsics.device
    y, x = (torch.arange(n, dtype=dtype, device=device) + 0.5 for n in (settings.height, settings.width))
    pixels = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)  # [H, W, 2]
    focal, center = (cameras.intrinsics[..., None, None, first : first + 2] for first in (0, 2))
    x, y = ((pixels - center) / focal).unbind(-1)
    lens = LENSES[settings.model]
    k, windshield = _coefficients(cameras.lens, lens)
    zero = torch.zeros_like(x)
    origins = torch.stack([x, y, zero] if lens.is_parallel else [zero, zero, zero], -1)
    (x, y, z), exists = lens.unproject(x, y, k)
    if windshield is not None:
        x, y, z = (torch.where(exists, value, outside) for value, outside in ((x, 0.0), (y, 0.0), (z, 1.0)))
        x, y, z, clear = _through_windshield(x, y, z, windshield.horizontal_inverse, windshield.vertical_inverse)
        exists = exists & clear
    directions = torch.stack([x, y, z], -1)
    if cameras.shutter is None:
        rotation, translation = cameras.rotation[..., None, None, :, :], cameras.translation[..., None, None, :]
    else:
        rotation, translation = _pose(
            cameras.shutter[..., None, None, :], _exposure_time(pixels, settings).expand_as(x)
        )
    to_world = rotation.transpose(-1, -2)
    directions = product(to_world, directions[..., None])[..., 0]
    origins = product(to_world, (origins - translation)[..., None])[..., 0]
    return origins, torch.where(exists[..., None], directions, 0.0)


def lidar_rays(cameras: Camera, elevations: Tensor, azimuths: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Same as :func:`rays`, for the elements of a spinning lidar.

    Angles are elevations [H], azimuths [W] and offsets [H]. Azimuth 0 is the z axis, and positive elevations point to
    -y. The first column is exposed at time 0, the last one at time 1.
    """
    like = cameras.intrinsics
    azimuth = azimuths.to(like) + offsets.to(like)[:, None]
    elevation = elevations.to(like)[:, None].expand_as(azimuth)
    flat, up = torch.polar(torch.cos(elevation), azimuth), torch.sin(elevation)
    directions = torch.stack([-flat.imag, -up, flat.real], -1)
    if cameras.shutter is None:
        rotation, translation = cameras.rotation[..., None, None, :, :], cameras.translation[..., None, None, :]
    else:
        times = torch.linspace(0, 1, len(azimuths), dtype=like.dtype, device=like.device).expand_as(azimuth)
        rotation, translation = _pose(cameras.shutter[..., None, None, :], times)
    to_world = rotation.transpose(-1, -2)
    directions = product(to_world, directions[..., None])[..., 0]
    origins = -product(to_world, translation[..., None])[..., 0]
    return origins.expand_as(directions), directions


def distances(
    origins: Tensor, directions: Tensor, means: Tensor, axes: Tensor, *, in_front: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the squared distances of rays from means, in standard deviations (3DGUT, arXiv 2412.12507, section 4.3).

    If ``in_front``, the distance is infinite for Gaussians whose closest point is behind the origin of the ray.

    Returns:
        The squared distances [..., C, H, W, N]; whether there is a ray [..., C, H, W]; and the distances from the
        origin of the ray to the closest point [..., C, H, W, N].
    """
    # Whitened: the Gaussian is a unit sphere around 0. Gaussians without volume are not rendered.
    squares = axes.square().sum(-2)  # squared scales, because the axes are orthogonal
    solid = (squares > 1e-24).all(-1)
    rows = (axes / torch.where(solid[..., None], squares, 1.0)[..., None, :]).transpose(-1, -2)
    whiten = rows[..., None, None, None, :, :, :]
    exists = (directions != 0).any(-1)
    directions = torch.where(exists[..., None], directions, directions.new_tensor([0.0, 0.0, 1.0]))
    origin = product(whiten, (origins[..., None, :] - means[..., None, None, None, :, :])[..., None])[..., 0]
    direction = torch.nn.functional.normalize(product(whiten, directions[..., None, :, None])[..., 0], dim=-1)
    squared = torch.linalg.cross(direction, origin).square().sum(-1)
    nearest = -(direction * origin).sum(-1, keepdim=True) * direction  # from the origin of the ray
    lengths = squares.sqrt()[..., None, None, None, :, :]
    unwhitened = torch.where(solid[..., None, None, None, :, None], nearest * lengths, 1.0)
    hits = torch.where(solid[..., None, None, None, :], unwhitened.norm(dim=-1), 0.0)
    squared = torch.where(solid[..., None, None, None, :], squared, torch.inf)
    if in_front:
        squared = torch.where((direction * origin).sum(-1) <= 0, squared, torch.inf)
    return squared, exists, hits


def facing(quats: Tensor, directions: Tensor) -> Tensor:
    """Returns the third axes of Gaussians, flipped where they point along rays [..., C, H, W, 3].

    The result is [..., C, H, W, N, 3].
    """
    normals = quaternion_to_rotation(quats)[..., None, None, None, :, :, 2]
    away = (normals * directions[..., None, :]).sum(-1, keepdim=True) > 0
    return torch.where(away, -normals, normals)


def _exposed_pixels(
    points: Tensor, cameras: Camera, settings: CameraSettings, transform: Unscented
) -> tuple[Tensor, Tensor]:
    """Same as :func:`pixels_of`, for world points, each at the time at which the shutter exposes its pixel.

    The gradient follows from the implicit function theorem: one Newton step for q = f(s(q)) at the solution. With
    ``whole_lines``, times are constants.
    """
    assert cameras.shutter is not None
    path = cameras.shutter[..., None, None, :]

    def at(time: Tensor) -> tuple[Tensor, Tensor]:
        return pixels_of(_move(points, *_pose(path, time)), cameras, settings, transform.margin)

    def time_of(pixels: Tensor) -> Tensor:
        if not transform.whole_lines:
            return _exposure_time(pixels, settings)
        return torch.where(at_start | at_end, _exposure_time(_centers(pixels, settings), settings), 1.0)

    with torch.no_grad():
        zero = torch.zeros_like(points[..., 0] * path[..., 0])
        (pixels, at_start), (at_its_end, at_end) = at(zero), at(zero + 1)
        pixels = torch.where(at_start[..., None], pixels, at_its_end)
        for _ in range(SHUTTER_STEPS - 1):
            pixels, _ = at(time_of(pixels))
        time = time_of(pixels)
        eye = torch.eye(2, dtype=pixels.dtype, device=pixels.device)
        of_time = torch.stack([_exposure_time(unit, settings) - _exposure_time(0 * unit, settings) for unit in eye])
    pixels, valid = at(time)
    if pixels.requires_grad and not transform.whole_lines:
        time.requires_grad_()
        moving, _ = at(time)
        velocity = torch.stack(
            [torch.autograd.grad(moving[..., k].sum(), time, retain_graph=True)[0] for k in range(2)], -1
        )
        inverse = torch.linalg.inv(eye - velocity[..., :, None] * of_time)
        pixels = pixels.detach() + product(inverse, (pixels - pixels.detach())[..., None])[..., 0]
    return pixels, valid & (at_start | at_end)


def _centers(pixels: Tensor, settings: CameraSettings) -> Tensor:
    """Returns the centers of the pixels that contain positions. A border belongs to the pixel that is exposed later."""
    later = 1 if _exposure_time(pixels.new_ones(2), settings) > _exposure_time(pixels.new_zeros(2), settings) else -1
    return later * ((later * pixels).floor() + 0.5)


def _exposure_time(pixels: Tensor, settings: CameraSettings) -> Tensor:
    """Returns the exposure times of pixels: 0 and 1 at the centers of the first and last row or column that is read."""
    from_start = (pixels - 0.5) / (pixels.new_tensor([settings.width, settings.height]) - 1).clamp_min(1)
    from_left, from_top = from_start.unbind(-1)
    times = {
        "ROLLING_TOP_TO_BOTTOM": from_top,
        "ROLLING_BOTTOM_TO_TOP": (settings.height - 1) / max(settings.height - 1, 1) - from_top,
        "ROLLING_LEFT_TO_RIGHT": from_left,
        "ROLLING_RIGHT_TO_LEFT": (settings.width - 1) / max(settings.width - 1, 1) - from_left,
    }
    return times[settings.readout]


def _pose(path: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Returns rotations [..., 3, 3] and translations [..., 3] at times. The angular velocity is constant."""
    (q0, q1, t0, t1, *_), time = path_of(path), time[..., None]
    # The rotation since the start has the rotation vector of q1 q0*, times the time.
    w0, v0, w1, v1 = q0[..., :1], q0[..., 1:], q1[..., :1], q1[..., 1:]
    imaginary_part = w0 * v1 - w1 * v0 - torch.linalg.cross(v1.expand_as(v0), v0)
    cosine = w0 * w1 + (v0 * v1).sum(-1, keepdim=True)
    length = imaginary_part.norm(dim=-1, keepdim=True)
    half = time * torch.atan2(length, cosine)
    # sin(half) / length, whose limit is the time: gradients of both rotations exist if they are equal.
    ratio = torch.where(length > 0, half.sin() / torch.where(length > 0, length, 1.0), time)
    w, v = half.cos(), ratio * imaginary_part
    imaginary = w * v0 + w0 * v + torch.linalg.cross(v, v0.expand_as(v))
    q = torch.cat([w * w0 - (v * v0).sum(-1, keepdim=True), imaginary], -1)
    return quaternion_to_rotation(q), (1 - time) * t0 + time * t1
