"""The dense reference: Gaussian splatting in plain PyTorch, without tiles, differentiated by autograd.

Every pixel evaluates every Gaussian. Memory grows with images x pixels x Gaussians, so use it for tests and small
images only. It supports all float dtypes. Tests compare both backends with the reference in fp64. It shares no code
with them.

Rasterization makes discontinuous decisions: which Gaussians are visible, their depth order, and which of them
contribute to a pixel (alpha at least 1/255, pixel not stopped). In fp32, a decision may differ if a value is within
rounding of a threshold. :func:`rasterize` can therefore take over the :class:`Decisions` of another run. It reports the
distances of its values from the thresholds as :class:`Margins`.
"""

import dataclasses
import functools

import torch
from torch import Tensor

from ..config import (
    ALPHA_MIN,
    DEFAULT_NUMERICS,
    DEPTH_ALPHA_MIN,
    DISTANCE_MODES,
    HIT_MODES,
    MAGNITUDE_MAX,
    QUAT_NORM_MIN,
    RADIUS_MAX,
    TRANSMITTANCE_MIN,
    CameraModel,
    CameraSettings,
    Numerics,
    RasterizeMode,
    RenderMode,
    Unscented,
)
from ..data import Cameras, Gaussians3D, ProjectionSettings
from ..precision import differentiable, product
from .camera_formulas import (
    Camera,
    distances,
    extents_on_sphere,
    facing,
    intrinsics,
    lidar_rays,
    path_of,
    project_points,
    shorter_way,
    u_period,
)
from .camera_formulas import quaternion_to_rotation as quaternion_to_rotation
from .camera_formulas import rays as camera_rays
from .camera_formulas import unscented as unscented_transform
from .lens_formulas import LENSES
from .sh_formulas import sh_basis as sh_basis
from .sh_formulas import spherical_harmonics as spherical_harmonics


@dataclasses.dataclass(frozen=True)
class Decisions:
    """The discontinuous decisions of a run. If one is None, the reference makes it.

    Attributes:
        visible: [..., C, N] bool, whether a Gaussian is not culled.
        order: [..., C, N] int64, a permutation of the Gaussians, front to back.
        contributes: [..., C, H, W, N] bool, whether a Gaussian contributes to a pixel, by Gaussian index.
    """

    visible: Tensor | None = None
    order: Tensor | None = None
    contributes: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Margins:
    """The relative distances of values from the thresholds of decisions; infinite where there is no threshold.

    Attributes:
        visible: [..., C, N], the minimum over the culling thresholds.
        order: [..., C, N], from the depth of a Gaussian to the depth of the next visible one behind it.
        alpha: [..., C, H, W, N], from alpha to 1/255.
        stop: [..., C, H, W, N], from the transmittance behind a Gaussian to 1e-4.
        clamp: [..., C, H, W, N], from the unclamped alpha to alpha_max, where the gradient jumps.
    """

    visible: Tensor
    order: Tensor
    alpha: Tensor
    stop: Tensor
    clamp: Tensor


def covariances(quats: Tensor, scales: Tensor) -> Tensor:
    """Returns the covariances R diag(s)^2 R^T. [..., 4], [..., 3] -> [..., 3, 3]"""
    m = quaternion_to_rotation(quats) * scales[..., None, :]
    return product(m, m.transpose(-1, -2))


def camera_centers(viewmats: Tensor, numerics: Numerics = DEFAULT_NUMERICS) -> Tensor:
    """Returns the camera centers in the world frame. [..., 4, 4] -> [..., 3]"""
    if numerics.camera_center == "inverse":
        rotated: Tensor = differentiable(torch.linalg.solve, viewmats[..., :3, :3], viewmats[..., :3, 3])
        return -rotated
    return -product(viewmats[..., :3, :3].transpose(-1, -2), viewmats[..., :3, 3:])[..., 0]


def _relative(value: Tensor, threshold: Tensor | float) -> Tensor:
    """Returns the relative distances of values from a threshold."""
    threshold = torch.as_tensor(threshold, dtype=value.dtype, device=value.device)
    scale = torch.maximum(value.abs(), threshold.abs()).clamp_min(torch.finfo(value.dtype).tiny)
    return ((value - threshold).abs() / scale).nan_to_num(nan=torch.inf)


@dataclasses.dataclass(frozen=True)
class Projection:
    """Projected Gaussians, [..., C, N, ...] each. ``margin`` is the relative distance from the culling thresholds."""

    visible: Tensor
    radii: Tensor
    means2d: Tensor
    depths: Tensor
    conics: Tensor
    compensations: Tensor
    opacities: Tensor
    margin: Tensor


def project(
    means: Tensor, covars: Tensor, opacities: Tensor | None, viewmats: Tensor, Ks: Tensor,
    settings: ProjectionSettings, *, shown: Tensor | None = None, visible: Tensor | None = None,
    axes: Tensor | None = None, lens: Tensor | None = None, shutter: Tensor | None = None,
) -> Projection:  # fmt: skip
    """Projects every Gaussian with every camera, by EWA splatting or the unscented transform. Culled values are zero.

    Args:
        shown: [..., C, N] bool, false for Gaussians to cull.
        visible: [..., C, N] bool, a decision to take over.
        axes: [..., N, 3, 3], whose columns are one standard deviation along each axis; for the unscented transform.
        lens, shutter: As in ``Cameras``; for the unscented transform.
    """
    near, far, numerics, eps2d = settings.camera.near, settings.camera.far, settings.numerics, settings.eps2d
    if settings.unscented is not None:
        assert axes is not None
        camera = Camera(viewmats[..., :3, :3], viewmats[..., :3, 3], intrinsics(Ks), lens, shutter)
        means2d, points, sharp, defined = unscented_transform(means, axes, camera, settings.camera, settings.unscented)
        defined = defined & (axes.norm(dim=-2) >= numerics.scale_min).all(-1)[..., None, :]
    else:
        rotation = viewmats[..., None, :3, :3]
        points = product(rotation, means[..., None, :, :, None])[..., 0] + viewmats[..., None, :3, 3]  # [..., C, N, 3]
        means2d, jacobian, defined = project_points(points, intrinsics(Ks), settings.camera)
        to_image = product(jacobian, rotation)
        sharp = product(product(to_image, covars[..., None, :, :, :]), to_image.transpose(-1, -2))
    z = depths = points[..., 2]
    if settings.unscented is not None and settings.unscented.radial:
        depths = points.norm(dim=-1)
        z = depths if LENSES[settings.camera.model].culls_by_distance else z
    seen = defined & (z >= near) & (z <= far)
    margin = torch.minimum(_relative(z, near), _relative(z, far))
    a, b, c = sharp[..., 0, 0] + eps2d, sharp[..., 0, 1], sharp[..., 1, 1] + eps2d
    det_sharp = sharp[..., 0, 0] * sharp[..., 1, 1] - b * b
    det = a * c - b * b
    seen = seen & (det > 0) & det.isfinite()
    safe_det = torch.where(det > 0, det, torch.ones_like(det))
    conics = torch.stack([c / safe_det, -b / safe_det, a / safe_det], -1)
    wraps = LENSES[settings.camera.model].wraps
    ratio = det_sharp / safe_det
    floor = numerics.compensation_floor
    free = ratio > floor * floor
    damping = torch.where(free, torch.where(free, ratio, 1.0).sqrt(), floor)
    compensations = damping if settings.antialiased else torch.ones_like(det)

    row_opacities, bounded = compensations, None
    if opacities is not None:
        row_opacities = opacities[..., None, :] * compensations
        # The unscented transform culls by the compensated opacity, as in gsplat. gsplat has no lenses that wrap.
        bounded = row_opacities if settings.unscented is None or wraps else opacities[..., None, :] * damping
        if numerics.opacity_aware:
            seen = seen & (bounded >= ALPHA_MIN)
            margin = torch.minimum(margin, _relative(bounded, ALPHA_MIN))
    half = _half_extents(a, c, det, bounded, numerics)
    if wraps:
        assert axes is not None
        lengths = axes.square().sum(-2).amax(-1).sqrt()[..., None, :]
        half = extents_on_sphere(half, means2d, depths, lengths, intrinsics(Ks), numerics)
    radius = half.ceil().clamp_max(RADIUS_MAX)
    seen = seen & (radius > settings.radius_clip).any(-1)
    size = torch.tensor([settings.camera.width, settings.camera.height], dtype=means.dtype, device=means.device)
    seen = seen & ((means2d + radius > 0) & (means2d - radius < size)).all(-1)
    # Thresholds: radii are rounded up, and the edges of boxes are compared with the image border.
    steps = torch.stack(
        [_relative(half, half.round()), _relative(means2d + radius, 0.0), _relative(means2d - radius, size)]
    )
    margin = torch.minimum(margin, steps.amin((0, -1)))
    seen = seen & means2d.isfinite().all(-1) & conics.isfinite().all(-1)

    if shown is not None:
        seen = seen & shown
    if visible is not None:
        seen = visible

    keep = functools.partial(_zero_unless, seen)
    radii = keep(radius.nan_to_num()).to(torch.int32)
    return Projection(
        seen, radii, keep(means2d), keep(depths), keep(conics), keep(compensations), keep(row_opacities), margin
    )


def _zero_unless(seen: Tensor, values: Tensor) -> Tensor:
    """Returns values [..., C, N, ...] where Gaussians are seen [..., C, N], else zero."""
    return torch.where(seen[..., *[None] * (values.dim() - seen.dim())], values, torch.zeros_like(values))


def _half_extents(a: Tensor, c: Tensor, det: Tensor, opacities: Tensor | None, numerics: Numerics) -> Tensor:
    """Returns the half extents in pixels along x and y, for covariances with diagonal a, c and determinant. [..., 2]"""
    extend = torch.full_like(det, numerics.extend)
    if numerics.opacity_aware:
        if opacities is not None:
            extend = torch.minimum(extend, (2 * (opacities / ALPHA_MIN).clamp_min(1).log()).sqrt())
        return torch.stack([extend * a.clamp_min(0).sqrt(), extend * c.clamp_min(0).sqrt()], -1).detach()
    middle = 0.5 * (a + c)
    largest = middle + (middle * middle - det).clamp_min(0.1).sqrt()
    return (extend * largest.clamp_min(0).sqrt())[..., None].expand(*det.shape, 2).detach()


@dataclasses.dataclass(frozen=True)
class Composite:
    """Colors [..., H, W, D] and alphas [..., H, W]; weights and margins [..., H, W, N], by Gaussian index."""

    colors: Tensor
    alphas: Tensor
    weights: Tensor
    alpha_margin: Tensor
    stop_margin: Tensor
    clamp_margin: Tensor


def _pixel_centers(size: int, like: Tensor) -> Tensor:
    return torch.arange(size, dtype=like.dtype, device=like.device) + 0.5


def _sigmas(means2d: Tensor, conics: Tensor, width: int, height: int, wrapped: Tensor | None = None) -> Tensor:
    """Returns sigma: half the squared distances of pixels from means [..., 1, 1, N, 2], in standard deviations.

    ``wrapped`` are the intrinsics [..., 4] of cameras whose u has a period, or None. Distances are then from the
    closest periodic copy. The result is [..., H, W, N].
    """
    dx = _pixel_centers(width, means2d)[None, :, None] - means2d[..., 0]
    dy = _pixel_centers(height, means2d)[:, None, None] - means2d[..., 1]
    if wrapped is not None:
        dx = shorter_way(dx, wrapped[..., None, None, None, :])
    return 0.5 * (conics[..., 0] * dx * dx + conics[..., 2] * dy * dy) + conics[..., 1] * dx * dy


def composite(
    means2d: Tensor, conics: Tensor, opacities: Tensor, colors: Tensor, backgrounds: Tensor | None, order: Tensor,
    visible: Tensor, width: int, height: int, *, numerics: Numerics = DEFAULT_NUMERICS, contributes: Tensor | None =
    None, sigmas: Tensor | None = None,
) -> Composite:  # fmt: skip
    """Composites projected Gaussians [..., N] in the given order, front to back.

    Args:
        contributes: [..., H, W, N] by Gaussian index, a decision to take over.
        sigmas: [..., H, W, N], used instead of ``means2d`` and ``conics``. Infinite where a Gaussian does not count.
    """
    index = order[..., None]
    mean = means2d.gather(-2, index.expand_as(means2d))[..., None, None, :, :]  # [..., 1, 1, N, 2]
    conic = conics.gather(-2, index.expand_as(conics))[..., None, None, :, :]
    opacity = opacities.gather(-1, order)[..., None, None, :]
    color = colors.gather(-2, index.expand_as(colors))
    shown = visible.gather(-1, order)[..., None, None, :]
    if sigmas is None:
        sigma = _sigmas(mean, conic, width, height)
    else:
        sigma = sigmas.gather(-1, order[..., None, None, :].expand_as(sigmas))
    # alpha = min(alpha_max, o exp(-sigma)), constant where it is clamped
    raw = torch.where(shown, opacity * torch.exp(-torch.where(shown, sigma, 0.0)), 0.0)
    alpha = torch.where(raw > numerics.alpha_max, numerics.alpha_max, raw)

    counts = alpha >= ALPHA_MIN
    after = torch.cumprod(1 - torch.where(counts, alpha, 0.0), -1)
    added = counts & (after > TRANSMITTANCE_MIN)
    alpha_margin = torch.where(shown, _relative(alpha, ALPHA_MIN), torch.inf)
    stop_margin = torch.where(counts, _relative(after, TRANSMITTANCE_MIN), torch.inf)
    clamp_margin = torch.where(added, _relative(raw, numerics.alpha_max), torch.inf)
    pixel_order = order[..., None, None, :].expand(alpha.shape)
    if contributes is not None:
        added = contributes.gather(-1, pixel_order) & shown
    alpha = torch.where(added, alpha, 0.0)
    through = torch.cumprod(1 - alpha, -1)
    before = torch.cat([torch.ones_like(through[..., :1]), through[..., :-1]], -1)
    weight = alpha * before
    # Incoming gradients of pixels without a Gaussian may be NaN, e.g. of 1 / depth. They are not propagated.
    covered = added.any(-1)
    image = torch.where(covered[..., None], product(weight, color[..., None, :, :]), 0.0)
    left = torch.where(covered, through[..., -1], 1.0) if through.shape[-1] else through.new_ones(covered.shape)
    if backgrounds is not None:
        image = image + left[..., None] * backgrounds[..., None, None, :]
    inverse = pixel_order.argsort(-1)
    margins = (margin.gather(-1, inverse).detach() for margin in (alpha_margin, stop_margin, clamp_margin))
    return Composite(image, 1 - left, weight.gather(-1, inverse), *margins)


@dataclasses.dataclass(frozen=True)
class Rendering:
    """The result of :func:`rasterize`: images and intermediate values.

    Attributes:
        colors: [..., C, H, W, X], with extra signals between colors and depth.
        alphas: [..., C, H, W, 1].
        projection: Projected Gaussians.
        weights: [..., C, H, W, N].
        decisions, margins: See the classes.
        valid: [..., N] bool, or None if values were not checked.
        outputs: Further images that were requested, by their names in ``meta``: ``normals`` [..., C, H, W, 3].
    """

    colors: Tensor
    alphas: Tensor
    projection: Projection
    weights: Tensor
    decisions: Decisions
    margins: Margins
    valid: Tensor | None
    outputs: dict[str, Tensor]


def rasterize(
    means: Tensor, quats: Tensor | None, scales: Tensor | None, opacities: Tensor, colors: Tensor, viewmats: Tensor,
    Ks: Tensor, width: int, height: int, *, near_plane: float = 0.01, far_plane: float = 1e10, radius_clip: float =
    0.0, eps2d: float = 0.3, sh_degree: int | None = None, backgrounds: Tensor | None = None, render_mode:
    RenderMode = "RGB", rasterize_mode: RasterizeMode = "classic", camera_model: CameraModel = "pinhole", covars:
    Tensor | None = None, numerics: Numerics = DEFAULT_NUMERICS, cull: bool = False, decisions: Decisions | None =
    None, extra_signals: Tensor | None = None, extra_signals_sh_degree: int | None = None, lens: Tensor | None = None,
    shutter: Tensor | None = None, unscented: Unscented | None = None, readout: str = "GLOBAL", with_eval3d: bool =
    False, rays: Tensor | None = None, tile_size: int = 16, return_normals: bool = False,
    lidar: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Rendering:  # fmt: skip
    """Renders like :func:`tsplat.rasterization`. Arguments that both have mean the same.

    Args:
        numerics: The preset.
        cull: Whether to leave out invalid Gaussians and cameras.
        decisions: Decisions of another run to take over. Gradients follow them.
        lens, shutter: As in ``Cameras``.
        unscented: Parameters of the unscented transform; None for EWA splatting.
        readout: The direction in which a rolling shutter reads the image.
        tile_size: Only used if ``with_eval3d``.
        lidar: Elevations [H], azimuths [W] and offsets [H] of a spinning lidar, or None. Every visible Gaussian is
            evaluated at every element. ``camera_model``, ``Ks``, ``width`` and ``height`` then describe the panorama
            of its angles, in which Gaussians are projected.
    """
    decided = decisions or Decisions()
    if LENSES[camera_model].wraps and with_eval3d:
        render_mode = DISTANCE_MODES.get(render_mode, render_mode)
    if covars is not None:
        quats = scales = None
    valid = shown = None
    inputs = ((colors, sh_degree), (extra_signals, extra_signals_sh_degree))
    signals = [
        (_per_camera(values, degree, means.dim() - 2), degree) for values, degree in inputs if values is not None
    ]
    if cull:
        gaussians, cameras = Gaussians3D(means, quats, scales, covars, opacities), Cameras(viewmats, Ks, lens, shutter)
        gaussians, signals, (viewmats, Ks, lens, shutter), shown = _cull_invalid(gaussians, signals, cameras)
        means, quats, scales, covars, opacities, valid = gaussians  # type: ignore[assignment]
    axes = None
    if covars is None:
        assert quats is not None and scales is not None
        covars = covariances(quats, scales)
        axes = quaternion_to_rotation(quats) * scales[..., None, :]
    else:
        # Only the upper triangle is read, as in gsplat.
        covars = covars.triu() + covars.triu(1).transpose(-1, -2)

    settings = ProjectionSettings(
        CameraSettings.of(width, height, camera_model, near_plane, far_plane, numerics, readout), eps2d, radius_clip,
        antialiased=rasterize_mode == "antialiased", numerics=numerics, unscented=unscented,
    )  # fmt: skip
    projection = project(
        means, covars, opacities, viewmats, Ks, settings, shown=shown, visible=decided.visible, axes=axes, lens=lens,
        shutter=shutter,
    )  # fmt: skip
    visible, depths = projection.visible, projection.depths

    centers = camera_centers(viewmats, numerics)
    if shutter is not None:
        centers = 0.5 * (centers + path_of(shutter).center)
    features = [_shade(means, values, degree, centers) for values, degree in signals]
    if sh_degree is not None:
        features[0] = features[0].clamp_min(0)
    if "RGB" not in render_mode:
        features, backgrounds = features[1:], None
    if "D" in render_mode:
        features.append(depths[..., None])
        backgrounds = None if backgrounds is None else torch.nn.functional.pad(backgrounds, (0, 1))
    features.append(depths.new_zeros(*depths.shape, 0))
    shaded = torch.where(visible[..., None], torch.cat(features, -1), 0.0)

    own_order, order_margin = _depth_order(visible, depths)
    order = own_order if decided.order is None else decided.order
    sigmas, seen = None, []
    wrapped = intrinsics(Ks) if LENSES[camera_model].wraps else None
    if with_eval3d:
        assert axes is not None and quats is not None
        camera = Camera(viewmats[..., :3, :3], viewmats[..., :3, 3], intrinsics(Ks), lens, shutter)
        if rays is not None:
            pixel_rays = rays[..., :3], rays[..., 3:]
        else:
            pixel_rays = camera_rays(camera, settings.camera) if lidar is None else lidar_rays(camera, *lidar)
        in_front = numerics.ray_footprint == "ray in front" or wrapped is not None
        squared, exists, hits = distances(*pixel_rays, means, axes, in_front=in_front)
        counted = exists[..., None]
        if lidar is None:
            period = None if wrapped is None else u_period(wrapped)
            counted = counted & _in_tiles(projection.means2d, projection.radii, width, height, tile_size, period)
        sigmas = torch.where(counted, 0.5 * squared, torch.inf)
        seen = [hits[..., None], facing(quats, pixel_rays[1])]
    elif wrapped is not None:
        rows = (projection.means2d[..., None, None, :, :], projection.conics[..., None, None, :, :])
        sigmas = _sigmas(*rows, width, height, wrapped)
    image = composite(
        projection.means2d, projection.conics, projection.opacities, shaded, backgrounds, order, visible, width, height,
        numerics=numerics, contributes=decided.contributes, sigmas=sigmas,
    )  # fmt: skip
    covered = (image.alphas > 0)[..., None]
    along = [torch.where(covered, product(image.weights[..., None, :], values)[..., 0, :], 0.0) for values in seen]
    render_colors = image.colors
    if render_mode in HIT_MODES:
        render_colors = torch.cat([render_colors, along[0]], -1)
    if "E" in render_mode:
        expected = render_colors[..., -1:] / image.alphas[..., None].clamp_min(DEPTH_ALPHA_MIN)
        render_colors = torch.cat([render_colors[..., :-1], expected], -1)
    return Rendering(
        render_colors,
        image.alphas[..., None],
        projection,
        image.weights,
        Decisions(visible, order, image.weights > 0),
        Margins(projection.margin.detach(), order_margin, image.alpha_margin, image.stop_margin, image.clamp_margin),
        valid,
        {"normals": along[1]} if return_normals else {},
    )


def _in_tiles(
    means2d: Tensor, radii: Tensor, width: int, height: int, tile_size: int, period: Tensor | None = None
) -> Tensor:
    """Returns which pixels are in tiles that the boxes mean +- radii of Gaussians touch. [..., C, H, W, N]

    With a ``period`` [..., C], boxes are at most a period wide and repeat one period to the left and to the right.
    """
    if period is not None:
        radii = torch.stack([torch.minimum(radii[..., 0], 0.5 * period[..., None]), radii[..., 1]], -1)
        aside = torch.stack([period, torch.zeros_like(period)], -1)[..., None, :]
        boxes = [_in_tiles(means2d + k * aside, radii, width, height, tile_size) for k in (-1, 0, 1)]
        return boxes[0] | boxes[1] | boxes[2]
    inside = torch.ones((), dtype=torch.bool, device=means2d.device)
    for axis, size in enumerate((width, height)):
        mean, radius = means2d[..., axis], radii[..., axis]
        first, end = ((mean - radius) / tile_size).floor(), ((mean + radius) / tile_size).ceil()
        tile = torch.arange(size, device=mean.device) // tile_size
        tile = tile[None, :, None] if axis == 0 else tile[:, None, None]
        inside = inside & (tile >= first[..., None, None, :]) & (tile < end[..., None, None, :])
    return inside


def _per_camera(values: Tensor, sh_degree: int | None, n_batch: int) -> Tensor:
    """Returns values [..., 1 or C, N, D] or coefficients [..., 1 or C, N, K, D], with a dimension for cameras."""
    return values if values.dim() == n_batch + (3 if sh_degree is None else 4) else values.unsqueeze(n_batch)


def _shade(means: Tensor, values: Tensor, sh_degree: int | None, centers: Tensor) -> Tensor:
    """Returns the features of every Gaussian for every camera, not clamped. [..., C, N, D]"""
    if sh_degree is not None:
        directions = means[..., None, :, :] - centers[..., None, :]
        values = spherical_harmonics(sh_degree, directions, values) + 0.5
    return values.expand(*means.shape[:-2], centers.shape[-2], means.shape[-2], values.shape[-1])


def _depth_order(visible: Tensor, depths: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the order front to back [..., C, N], and the relative distance of each depth from the next one behind."""
    behind = torch.where(visible, depths, torch.inf).detach()
    order = torch.argsort(behind, dim=-1, stable=True)
    in_order = behind.gather(-1, order)
    gaps = torch.full_like(in_order, torch.inf)
    gaps[..., :-1] = _relative(in_order[..., 1:], in_order[..., :-1])
    return order, gaps.gather(-1, order.argsort(-1))


def _cull_invalid(
    gaussians: Gaussians3D, signals: list[tuple[Tensor, int | None]], cameras: Cameras
) -> tuple[Gaussians3D, list[tuple[Tensor, int | None]], Cameras, Tensor]:
    """Replaces invalid Gaussians and cameras by valid ones that are not shown, so that they get no gradient.

    Returns the Gaussians with ``valid``; colors and extra signals; the cameras; and which Gaussians each camera shows
    [..., C, N].
    """
    (means, quats, scales, covars, opacities, _), (viewmats, Ks, lens, shutter) = gaussians, cameras
    assert opacities is not None
    valid = torch.ones_like(opacities, dtype=torch.bool)
    for tensor, n_trailing_dims in ((means, 1), (quats, 1), (scales, 1), (covars, 2), (opacities, 0)):
        if tensor is not None:
            valid = valid & _within(tensor, n_trailing_dims)
    for values, degree in signals:
        valid = valid & _within(values, 1 if degree is None else 2).all(-2)
    if quats is not None:
        valid = valid & (quats.square().sum(-1) >= QUAT_NORM_MIN**2)
    seeing = _within(viewmats, 2) & _within(Ks, 2) & (Ks[..., (0, 1), (0, 1)].abs() >= 1e-12).all(-1)
    seeing = seeing & (torch.linalg.det(viewmats[..., :3, :3].nan_to_num()).abs() >= 1e-12)
    for tensor in (lens, shutter):
        if tensor is not None:
            seeing = seeing & _within(tensor, 1)
    lens, shutter = (None if t is None else torch.where(seeing[..., None], t, 0.0) for t in (lens, shutter))
    means, opacities = _replace(means, valid), _replace(opacities, valid)
    quats, scales, covars = (None if t is None else _replace(t, valid) for t in (quats, scales, covars))
    signals = [(_replace(values, valid[..., None, :]), degree) for values, degree in signals]
    identity = torch.eye(4, dtype=means.dtype, device=means.device)
    viewmats = torch.where(seeing[..., None, None], viewmats, identity)
    Ks = torch.where(seeing[..., None, None], Ks, identity[:3, :3])
    shown = valid[..., None, :] & seeing[..., :, None]
    cameras = Cameras(viewmats, Ks, lens, shutter)
    return Gaussians3D(means, quats, scales, covars, opacities, valid), signals, cameras, shown


def _within(tensor: Tensor, n_trailing_dims: int) -> Tensor:
    """Returns whether all values in the trailing dimensions are finite and at most MAGNITUDE_MAX in magnitude."""
    within = tensor.abs() <= MAGNITUDE_MAX
    return within.flatten(within.dim() - n_trailing_dims).all(-1) if n_trailing_dims else within


def _replace(tensor: Tensor, valid: Tensor) -> Tensor:
    """Replaces invalid entries by ones."""
    return torch.where(valid[..., *[None] * (tensor.dim() - valid.dim())], tensor, torch.ones_like(tensor))
