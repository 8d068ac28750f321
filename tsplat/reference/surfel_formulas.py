"""2D Gaussians of the dense reference (Huang et al., "2D Gaussian Splatting", arXiv 2403.17888).

A surfel is a disc. A = [s_0 r_0 | s_1 r_1 | p] maps coordinates (u, v, 1) on the disc to the camera frame, where r_0
and r_1 are the first two columns of the rotation, and p is the center. The *ray transform* M = K A maps them to
z (x, y, 1) of the pixel (x, y) (section 4.1).
"""

import dataclasses
import functools

import torch
from torch import Tensor

from ..config import DEFAULT_NUMERICS, DISC_EXTENT, RADIUS_MAX, CameraSettings, Numerics
from ..precision import product
from . import _depth_order, _in_tiles, _pixel_centers, _relative, _zero_unless, composite
from .camera_formulas import Camera, quaternion_to_rotation


@dataclasses.dataclass(frozen=True)
class Surfels:
    """Projected surfels, [..., C, N, ...] each, zero where culled.

    Attributes:
        visible, radii, means2d, depths: As in ``Projection``. ``means2d`` are the centers of the bounding boxes.
        transforms: [..., C, N, 3, 3], the ray transforms M.
        normals: [..., C, N, 3] camera frame, facing the camera.
        margin: Relative distance from the culling thresholds.
    """

    visible: Tensor
    radii: Tensor
    means2d: Tensor
    depths: Tensor
    transforms: Tensor
    normals: Tensor
    margin: Tensor


def project_surfels(
    means: Tensor, quats: Tensor, scales: Tensor, cameras: Camera, settings: CameraSettings, *,
    radius_clip: float = 0.0, numerics: Numerics = DEFAULT_NUMERICS,
) -> Surfels:  # fmt: skip
    """Projects every surfel with every camera."""
    rotation = cameras.rotation[..., None, :, :]  # [..., C, 1, 3, 3]
    axes = product(rotation, quaternion_to_rotation(quats)[..., None, :, :, :])  # [..., C, N, 3, 3]
    centers = product(rotation, means[..., None, :, :, None])[..., 0] + cameras.translation[..., None, :]
    disc = torch.stack([axes[..., 0] * scales[..., None, :, :1], axes[..., 1] * scales[..., None, :, 1:2], centers], -1)
    fx, fy, cx, cy = cameras.intrinsics.unbind(-1)
    zero, one = torch.zeros_like(fx), torch.ones_like(fx)
    K = torch.stack([torch.stack(row, -1) for row in ((fx, zero, cx), (zero, fy, cy), (zero, zero, one))], -2)
    transforms = product(K[..., None, :, :], disc)
    z = centers[..., 2]
    seen = (z >= settings.near) & (z <= settings.far)
    # The box around the projected unit circle: equation 9 of the paper's supplement.
    signs = torch.tensor([1.0, 1.0, -1.0], dtype=means.dtype, device=means.device)
    row_x, row_y, row_z = transforms.unbind(-2)
    distance = (signs * row_z * row_z).sum(-1)
    seen = seen & (distance != 0)
    f = signs / torch.where(distance != 0, distance, 1.0)[..., None]
    means2d = torch.stack([(f * row_x * row_z).sum(-1), (f * row_y * row_z).sum(-1)], -1)
    squares = torch.stack([(f * row_x * row_x).sum(-1), (f * row_y * row_y).sum(-1)], -1)
    half = numerics.extend * (means2d * means2d - squares).clamp_min(1e-4).sqrt().detach()
    radius = half.ceil().clamp_max(RADIUS_MAX)
    size = torch.tensor([settings.width, settings.height], dtype=means.dtype, device=means.device)
    seen = seen & (radius > radius_clip).any(-1)
    seen = seen & ((means2d + radius > 0) & (means2d - radius < size)).all(-1)
    margin = torch.stack(
        [
            _relative(z, settings.near)[..., None].expand_as(half),
            _relative(z, settings.far)[..., None].expand_as(half),
            _relative(half, half.round()), _relative(means2d + radius, 0.0), _relative(means2d - radius, size),
        ]
    ).amin((0, -1))  # fmt: skip
    normals = axes[..., 2]
    faces = -(normals * centers).sum(-1, keepdim=True) > 0
    normals = torch.where(faces, normals, -normals)

    keep = functools.partial(_zero_unless, seen)
    radii = keep(radius.nan_to_num()).to(torch.int32)
    return Surfels(seen, radii, keep(means2d), keep(z), keep(transforms), keep(normals), margin)


def surfel_sigmas(means2d: Tensor, transforms: Tensor, width: int, height: int) -> tuple[Tensor, Tensor, Tensor]:
    """Evaluates surfels at pixel centers.

    Returns:
        - sigma, [..., C, H, W, N]: half the smaller of two squared distances. The first is from the center to the point
          where the ray of the pixel meets the plane (equations 8 to 10). The second is in the image, for a Gaussian
          with a standard deviation of sqrt(1/2) pixels (equation 11). Infinite if the ray misses the plane.
        - z of the point where the ray meets the plane.
        - Whether this z is a depth on the disc: at most DISC_EXTENT standard deviations from the center, and positive.
    """
    x, y = _pixel_centers(width, means2d)[:, None, None], _pixel_centers(height, means2d)[:, None, None, None]
    row_x, row_y, row_z = transforms[..., None, None, :, :, :].unbind(-2)  # [..., C, 1, 1, N, 3]
    point = torch.linalg.cross(x * row_z - row_x, y * row_z - row_y)
    meets = point[..., 2] != 0
    uv = point[..., :2] / torch.where(meets, point[..., 2], 1.0)[..., None]
    in_plane = (uv * uv).sum(-1)
    mean = means2d[..., None, None, :, :]
    on_image = 2 * ((mean[..., 0] - x[..., 0]) ** 2 + (mean[..., 1] - y[..., 0]) ** 2)
    sigmas = torch.where(meets, 0.5 * torch.where(in_plane <= on_image, in_plane, on_image), torch.inf)
    z = (row_z[..., :2] * uv).sum(-1) + row_z[..., 2]
    return sigmas, z, meets & (in_plane <= DISC_EXTENT**2) & (z > 0)


@dataclasses.dataclass(frozen=True)
class SurfelImages:
    """The images of surfels.

    Attributes:
        colors, alphas: [..., C, H, W, D] and [..., C, H, W, 1].
        normals: [..., C, H, W, 3] camera frame.
        distortions, medians: Distortion and median of the last color channel, [..., C, H, W, 1] each.
        weights: [..., C, H, W, N].
    """

    colors: Tensor
    alphas: Tensor
    normals: Tensor
    distortions: Tensor
    medians: Tensor
    weights: Tensor


def composite_surfels(
    surfels: Surfels, opacities: Tensor, colors: Tensor, backgrounds: Tensor | None, settings: CameraSettings, *,
    numerics: Numerics = DEFAULT_NUMERICS, tile_size: int = 16, planes: bool = False,
) -> SurfelImages:  # fmt: skip
    """Composites projected surfels, front to back.

    Args:
        opacities, colors: [..., C, N] and [..., C, N, D]. The last channel is called z below.
        backgrounds: [..., C, D] or None.
        tile_size: Surfels contribute only to tiles that the boxes means2d +- radii touch.
        planes: Whether to replace z by the depth at which the ray of the pixel meets the plane, if it is on the disc.

    The distortion is the sum over surfels of 2 w (z A - B), where w is the weight, and A and B are the sums of w_j and
    w_j z_j over the surfels in front. For ascending z, it equals the sum of w_i w_j |z_i - z_j| over all i and j
    (equation 13). The median is z of the last surfel with a transmittance of more than 1/2 in front of it.
    """
    width, height = settings.width, settings.height
    order, _ = _depth_order(surfels.visible, surfels.depths)
    sigmas, z_of_planes, is_depth = surfel_sigmas(surfels.means2d, surfels.transforms, width, height)
    in_tiles = _in_tiles(surfels.means2d, surfels.radii, width, height, tile_size)
    sigmas = torch.where(in_tiles, sigmas, torch.inf)
    n_colors = colors.shape[-1]
    if backgrounds is not None:
        backgrounds = torch.nn.functional.pad(backgrounds, (0, 3))
    image = composite(
        surfels.means2d, surfels.normals, opacities, torch.cat([colors, surfels.normals], -1), backgrounds, order,
        surfels.visible, width, height, numerics=numerics, sigmas=sigmas,
    )  # fmt: skip
    z = colors[..., None, None, :, -1].expand_as(image.weights)
    rendered = image.colors[..., :n_colors]
    if planes:
        z = torch.where(is_depth, z_of_planes, z)
        last = (image.weights * z).sum(-1)
        if backgrounds is not None:
            last = last + (1 - image.alphas) * backgrounds[..., None, None, n_colors - 1]
        rendered = torch.cat([rendered[..., :-1], last[..., None]], -1)
    order = order[..., None, None, :].expand_as(image.weights)
    z, weights = z.gather(-1, order), image.weights.gather(-1, order)
    in_front = weights.cumsum(-1) - weights
    z_in_front = (weights * z).cumsum(-1) - weights * z
    distortions = (2 * weights * (z * in_front - z_in_front)).sum(-1, keepdim=True)
    early = (weights > 0) & (1 - in_front > 0.5)
    positions = torch.arange(1, weights.shape[-1] + 1, device=z.device)
    last = torch.where(early, positions, 0).amax(-1, keepdim=True) if len(positions) else early.new_zeros(1)
    medians = torch.where(early & (positions == last), z, 0.0).sum(-1, keepdim=True)
    return SurfelImages(
        rendered, image.alphas[..., None], image.colors[..., n_colors:], distortions, medians,
        image.weights,
    )  # fmt: skip
