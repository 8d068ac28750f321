"""Stage: evaluation in 3D: the rays of pixels, and what compositing along them reads of Gaussians.

Rays are the inverse of the projection of points: a point on the ray of a pixel's center is seen there. A pixel that no
point is seen at has no ray.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch
from torch import Tensor

from ..arguments import check_bool, check_numerics, check_rolling_shutter, check_tensor, compute_dtype
from ..config import (
    Backend,
    CameraModel,
    CameraSettings,
    NumericsName,
    RollingShutterType,
    UnscentedTransformParameters,
)
from ..data import (
    Cameras,
    CompositingSettings,
    Gaussians3D,
    Intersections,
    ProjectedGaussians,
    ProjectionSettings,
    Rays,
    Splats,
)
from ..errors import ShapeError
from ..formulas.rotations import rotation_rows
from ..kernels_torch.lens_models import directions
from ..kernels_torch.unscented import pose_at, time_of
from .autograd import take_rows
from .compilation import eager, with_plain_tensors
from .compositing import WALKED_MAX, composite
from .inputs import check_scene, flatten_batch, flatten_batches
from .lens_models import Lens, add_lens, check_camera_model, check_unscented, name_of
from .pixels import TileLists


def with_world_shapes(
    projected: ProjectedGaussians, gaussians: Gaussians3D, settings: CompositingSettings
) -> ProjectedGaussians:
    """Replaces conics by means, quaternions and scales, [nnz, 10], and takes means2d out of the graph.

    Adds normals, if they are rendered. Depths are taken out of the graph if distances along rays are rendered.
    """
    assert gaussians.quats is not None and gaussians.scales is not None
    parts = [gaussians.means, gaussians.quats, gaussians.scales]
    if settings.normals:
        parts.append(third_axes(gaussians.quats))
    shapes = torch.cat(parts, -1).flatten(0, -2)
    ids = projected.feature_ids(per_camera=False)
    if ids is not None:
        shapes = take_rows(shapes, ids, unique=projected.n_cameras == 1)
    projected = projected._replace(
        means2d=projected.means2d.detach(), conics=shapes[:, :10], normals=shapes[:, 10:] if settings.normals else None
    )
    return projected._replace(depths=projected.depths.detach()) if settings.hits else projected


def third_axes(quats: Tensor) -> Tensor:
    """Returns the third axes of Gaussians, world frame, [..., 3]: their normals before they face a pixel."""
    rows = rotation_rows(torch.nn.functional.normalize(quats, dim=-1))
    return torch.stack([row[2] for row in rows], -1)


def composite_along_rays(
    splats: Splats,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    n_images: int,
    bands: Iterable[Intersections],
    settings: CompositingSettings,
    rays: Rays,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Composites Gaussians along rays, with what the settings ask for of normals and distances.

    Args:
        splats: With normals in front of the colors of each row, if they are rendered.
        backgrounds: Of the colors without normals, [I, D], or None. D may be 0.
        masks, n_images, bands, settings, rays: As for ``composite``.

    Returns:
        Colors [I, H, W, D], with depth or distance as one more channel; alphas [I, H, W, 1]; normals [I, H, W, 3], or
        None.
    """
    first, rest = 3 * settings.normals, (masks, n_images, bands)
    if splats.n_features <= WALKED_MAX or not (settings.normals or settings.hits):
        if backgrounds is not None:
            backgrounds = torch.nn.functional.pad(backgrounds, (first, 0))
            backgrounds = backgrounds if backgrounds.shape[-1] else None
        images, alphas, _ = composite(splats, backgrounds, *rest, settings, rays)
        return images[..., first:], alphas, images[..., :first] if first else None
    assert splats.colors is not None
    seen = splats._replace(colors=splats.colors[:, :first] if first else None)
    others = splats._replace(colors=splats.colors[:, first:])
    if settings.hits:
        others = others._replace(depths=None)
    else:
        seen = seen._replace(depths=None)
    images, alphas, _ = composite(
        others, backgrounds, *rest, dataclasses.replace(settings, normals=False, hits=False), rays
    )
    of_rays, _, _ = composite(seen, None, *rest, settings, rays)
    return torch.cat([images, of_rays[..., first:]], -1), alphas, of_rays[..., :first] if first else None


def camera_rays(cameras: Cameras, settings: CameraSettings, *, unit: bool = False) -> Rays:
    """Returns the rays of the centers of all pixels.

    Args:
        cameras: [B, C], for I = B C images. Differentiable with respect to all but ``Ks`` and f-theta lenses.
        unit: Whether directions are normalized in the world frame, too, for distances along them.
    """
    viewmats, Ks, lens, shutter = (None if t is None else t.flatten(0, 1) for t in cameras)
    assert viewmats is not None and Ks is not None
    xs, ys = (torch.arange(n, dtype=Ks.dtype, device=Ks.device) + 0.5 for n in (settings.width, settings.height))
    with torch.no_grad():
        x = (xs - Ks[:, 0, 2, None]) / Ks[:, 0, 0, None]
        y = (ys - Ks[:, 1, 2, None]) / Ks[:, 1, 1, None]
        shape = (len(Ks), settings.height, settings.width)
        x, y = x[:, None, :].expand(shape), y[:, :, None].expand(shape)
    if settings.model == "ftheta" and lens is not None:
        lens = lens.detach()
    direction = directions(x, y, lens, settings.model)
    if shutter is None:
        rows = [[viewmats[:, i, j, None, None] for j in range(3)] for i in range(3)]
        shift = [viewmats[:, i, 3, None, None] for i in range(3)]
    else:
        rows, shift = _poses(shutter, xs, ys, settings)
    world = torch.stack(_to_world(rows, direction), 1)
    if unit:
        world = torch.nn.functional.normalize(world, dim=1)
    if settings.model == "ortho":
        shift = [shift[0] - x, shift[1] - y, shift[2]]
    origins = -torch.stack(_to_world(rows, shift), 1)
    if settings.model != "ortho" and shutter is None:
        return Rays(world, origins[:, :, 0, 0])
    return Rays(torch.cat([origins.expand_as(world), world], 1), None)


def _to_world(rows: list[list[Tensor]], v: list[Tensor]) -> list[Tensor]:
    """The transpose of a matrix times a vector."""
    return [rows[0][k] * v[0] + rows[1][k] * v[1] + rows[2][k] * v[2] for k in range(3)]


def check_rays(rays: object, shape: tuple[int, ...]) -> Tensor:
    """Checks rays that broadcast to a shape [..., C, H, W, 6], and expands them."""
    tensor = check_tensor("rays", rays, [..., 6], "[..., C, H, W, 6]")
    try:
        return tensor.expand(shape)
    except RuntimeError:
        found = list(tensor.shape)
        raise ShapeError(f"rays: expected a shape that broadcasts to {list(shape)}, found {found}") from None


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


@eager
@with_plain_tensors
def rasterize_to_pixels_eval3d(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    colors: Tensor,
    opacities: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    image_width: int,
    image_height: int,
    tile_size: int,
    isect_offsets: Tensor,
    flatten_ids: Tensor,
    backgrounds: Tensor | None = None,
    masks: Tensor | None = None,
    camera_model: CameraModel = "pinhole",
    ut_params: UnscentedTransformParameters | None = None,
    radial_coeffs: Tensor | None = None,
    tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None,
    ftheta_coeffs: object | None = None,
    rolling_shutter: object = RollingShutterType.GLOBAL,
    viewmats_rs: Tensor | None = None,
    *,
    external_distortion_coeffs: object | None = None,
    rays: Tensor | None = None,
    use_hit_distance: bool = False,
    return_normals: bool = False,
    backend: Backend = "auto",
    numerics: NumericsName = "gsplat-1.5",
) -> tuple[Tensor, ...]:
    """Composites 3D Gaussians along the rays of pixels (3DGUT, arXiv 2412.12507, section 4.3). Same as gsplat 1.5.3.

    Args:
        means, quats, scales, viewmats, Ks: As :func:`tsplat.rasterization`.
        colors: [..., C, N, D].
        opacities: [..., C, N] after sigmoid.
        image_width, image_height, tile_size: As :func:`rasterize_to_pixels`.
        isect_offsets, flatten_ids, backgrounds, masks: As :func:`rasterize_to_pixels`, of rows [..., C, N].
        camera_model, radial_coeffs, tangential_coeffs, thin_prism_coeffs, ftheta_coeffs: As
            :func:`tsplat.rasterization`.
        ut_params: Checked, and of no effect, as in gsplat: rays do not depend on how Gaussians were projected.
        use_hit_distance: Whether the last channel is the distance along the ray, as of the ``render_mode`` ``"d"`` of
            :func:`tsplat.rasterization`, in place of the last color, which is not read.
        return_normals: Whether to render normals, as :func:`tsplat.rasterization`.

    Returns:
        ``render_colors`` [..., C, H, W, D] and ``render_alphas`` [..., C, H, W, 1]; and with ``return_normals`` normals
        [..., C, H, W, 3]. Differentiable with respect to means, quats, scales, colors, opacities, backgrounds, rays,
        viewmats, viewmats_rs, radial_coeffs, tangential_coeffs and thin_prism_coeffs.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid, or options do not fit each other.

    Example::

        import torch
        from tsplat import isect_offset_encode, isect_tiles, rasterize_to_pixels_eval3d
        from tsplat import fully_fused_projection_with_ut

        n, width, height = 100, 80, 48
        means = torch.randn(n, 3) + torch.tensor([0, 0, 5.0])
        quats, scales = torch.randn(n, 4), torch.full((n, 3), 0.1)
        camera = torch.eye(4)[None], torch.tensor([[[100.0, 0, 40], [0, 100, 24], [0, 0, 1]]])
        radii, means2d, depths, _, _ = fully_fused_projection_with_ut(
            means, quats, scales, None, *camera, width, height
        )
        _, isect_ids, flatten_ids = isect_tiles(means2d, radii, depths, 16, 5, 3)
        image, alpha = rasterize_to_pixels_eval3d(
            means, quats, scales, torch.rand(1, n, 3), torch.full((1, n), 0.8), *camera, width, height, 16,
            isect_offset_encode(isect_ids, 1, 5, 3), flatten_ids,
        )
        assert image.shape == (1, height, width, 3)
    """
    lists = TileLists.check(image_width, image_height, tile_size, isect_offsets, flatten_ids, masks)
    check_camera_model(camera_model, with_ut=True)
    readout = name_of(rolling_shutter)
    check_rolling_shutter(readout)
    preset = check_numerics(numerics)
    camera = CameraSettings(lists.width, lists.height, camera_model, readout=readout)
    batch, n_gaussians, n_cameras = check_scene(means, quats, scales, None, (6,), None, Cameras(viewmats, Ks))
    if lists.images != (*batch, n_cameras):
        raise ShapeError(
            f"isect_offsets: expected the dimensions of images {[*batch, n_cameras]} in front, as viewmats, found "
            f"{list(isect_offsets.shape)}"
        )
    lens = Lens(
        radial_coeffs, tangential_coeffs, thin_prism_coeffs, ftheta_coeffs, external_distortion_coeffs, viewmats_rs
    )
    projection = ProjectionSettings(camera, unscented=check_unscented(True, ut_params, preset), numerics=preset)
    cameras = add_lens(Cameras(viewmats, Ks), lens, projection, batch, n_cameras)
    if rays is not None:
        rays = check_rays(rays, (*lists.images, lists.height, lists.width, 6))
    rows = torch.Size((*lists.images, n_gaussians))
    backgrounds = lists.check_rows(rows, colors, opacities, backgrounds)
    dtype = compute_dtype(means, quats, scales, colors, opacities, backgrounds, *cameras, rays)
    shapes = torch.cat([t.to(dtype) for t in (means, quats, scales)], -1)
    hits, normals = check_bool("use_hit_distance", use_hit_distance), check_bool("return_normals", return_normals)
    settings = dataclasses.replace(
        lists.settings(preset, backend, camera=camera, footprint=preset.ray_footprint), normals=normals, hits=hits
    )
    if rays is None:
        found = camera_rays(flatten_batches(cameras, len(batch), dtype), camera, unit=hits)
    else:
        found = given_rays(flatten_batch(rays, len(batch), dtype).flatten(0, 1))
    features = colors.to(dtype)
    if normals:
        axes = third_axes(quats.to(dtype))[..., None, :, :]
        features = torch.cat([axes.expand(*rows, 3), features], -1)
    features, depths = features.reshape(-1, features.shape[-1]), None
    if hits:
        features, depths = features[:, :-1], features[:, -1].detach()
    splats = Splats(
        shapes.new_zeros(features.shape[0], 2),
        shapes[..., None, :, :].expand(*rows, 10).reshape(-1, 10),
        opacities.to(dtype).reshape(-1),
        features if features.shape[-1] else None,
        depths,
    )
    given = {"means2d": splats.means2d, "colors": colors, "opacities": opacities, "backgrounds": backgrounds}
    arranged = lists.arrange(given, splats.n_features)
    behind = None
    if backgrounds is not None:
        backgrounds = backgrounds.to(dtype).reshape(-1, colors.shape[-1])
        if hits:
            backgrounds, behind = backgrounds[:, :-1], backgrounds[:, None, None, -1:]
    images, alphas, of_normals = composite_along_rays(splats, backgrounds, *arranged, settings, found)
    if behind is not None:
        images = torch.cat([images[..., :-1], images[..., -1:] + (1 - alphas) * behind], -1)
    size = (*lists.images, lists.height, lists.width)
    outputs = (images.reshape(*size, -1), alphas.view(*size, 1))
    return outputs if of_normals is None else (*outputs, of_normals.reshape(*size, 3))
