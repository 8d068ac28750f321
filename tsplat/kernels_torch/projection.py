"""Projection in vectorized PyTorch; see ``kernels/projection/``. The backward pass recomputes it with autograd."""

from __future__ import annotations

import functools
import operator

import torch
from torch import Tensor

from ..config import ALPHA_MIN, RADIUS_MAX
from ..data import Cameras, Gaussians3D, ProjectedGaussians, ProjectedGradients, ProjectionSettings, sum_by_id
from ..formulas.rotations import Triple, rotation_rows
from .indices import (
    all_finite,
    flat_scenes,
    gaussians_and_images,
    keep_visible,
    packed_ids,
    row_of_dense,
    visible_rows,
)
from .lenses import LENSES
from .lenses.interface import Row
from .projector import Bounds, Projector, RowValues, ScreenCovariances
from .surfel_projection import surfels
from .unscented import limits_on_sphere, unscented

POSE = (*[[(i, j) for j in range(3)] for i in range(3)], [(i, 3) for i in range(3)])
"""Indices into a view matrix: three for each row of the rotation, and three for the translation."""


def _covariance(quats: Tensor | None, scales: Tensor | None, covars: Tensor | None) -> tuple[Tensor, ...]:
    """Returns the six entries of the upper triangle of the world-space covariance. [nnz] each"""
    if covars is not None:
        return covars.unbind(-1)
    assert quats is not None and scales is not None
    rows = _scaled_rotation(quats, scales)
    return tuple(_dot(rows[i], rows[j]) for i in range(3) for j in range(i, 3))


def _scaled_rotation(quats: Tensor, scales: Tensor) -> tuple[Triple, Triple, Triple]:
    """Returns the rows of R diag(s). Its columns are one standard deviation along each axis. [nnz] each"""
    sx, sy, sz = scales.unbind(-1)
    first, second, third = rotation_rows(quats / quats.norm(dim=-1, keepdim=True))
    return (
        (first[0] * sx, first[1] * sy, first[2] * sz),
        (second[0] * sx, second[1] * sy, second[2] * sz),
        (third[0] * sx, third[1] * sy, third[2] * sz),
    )


def _dot(a: Triple, b: Triple) -> Tensor:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _screen(
    gaussians: Gaussians3D, cameras: Cameras, settings: ProjectionSettings, ids: Tensor | slice
) -> ScreenCovariances:
    """Returns the screen covariances of rows with Gaussians ``ids``. ``cameras`` has one camera per row."""
    viewmats, intrinsics = cameras.viewmats, _intrinsics(cameras)
    w0, w1, w2, t = (tuple(viewmats[:, i, j] for i, j in entries) for entries in POSE)
    mean = tuple(entry[ids] for entry in gaussians.means.unbind(-1))
    if settings.unscented is not None:
        assert gaussians.quats is not None and gaussians.scales is not None
        rows = _scaled_rotation(gaussians.quats, gaussians.scales)
        axes = tuple(tuple(row[k][ids] for row in rows) for k in range(3))
        pose = (w0, w1, w2), t
        return unscented(mean, axes, pose, intrinsics, cameras.lens, cameras.shutter, settings)  # type: ignore[arg-type]
    covariance = [entry[ids] for entry in _covariance(gaussians.quats, gaussians.scales, gaussians.covars)]
    x, y, z = (_dot(w, mean) + offset for w, offset in zip((w0, w1, w2), t))  # type: ignore[arg-type]
    camera = settings.camera
    u, v, row0, row1 = LENSES[camera.model].project_with_jacobian((x, y, z), intrinsics, camera.width, camera.height)
    t0, t1 = (_times_rotation(row, (w0, w1, w2)) for row in (row0, row1))
    s = covariance
    s0, s1 = (
        (
            s[0] * t[0] + s[1] * t[1] + s[2] * t[2],
            s[1] * t[0] + s[3] * t[1] + s[4] * t[2],
            s[2] * t[0] + s[4] * t[1] + s[5] * t[2],
        )
        for t in (t0, t1)
    )
    sharp = (_dot(t0, s0), _dot(t0, s1), _dot(t1, s1))
    return ScreenCovariances(x=u, y=v, depths=z, z=z, covariance=sharp, seen=None)


def _intrinsics(cameras: Cameras) -> tuple[Tensor, ...]:
    """Returns fx, fy, cx and cy of the camera of each row."""
    Ks = cameras.Ks
    return Ks[:, 0, 0], Ks[:, 1, 1], Ks[:, 0, 2], Ks[:, 1, 2]


def _times_rotation(row: Row, w: tuple[tuple[Tensor, ...], ...]) -> Triple:
    """Returns a row of the Jacobian times the world-to-camera rotation with rows w."""
    terms = [(entry, of_rotation) for entry, of_rotation in zip(row, w) if entry is not None]
    x, y, z = (functools.reduce(operator.add, [entry * rotation[k] for entry, rotation in terms]) for k in range(3))
    return x, y, z


def _ellipses(
    gaussians: Gaussians3D, cameras: Cameras, settings: ProjectionSettings, ids: Tensor | slice
) -> tuple[RowValues, Bounds]:
    """Projects rows by EWA splatting or by the unscented transform."""
    ellipse = _screen(gaussians, cameras, settings, ids)
    sharp = ellipse.covariance
    a, b, c = sharp[0] + settings.eps2d, sharp[1], sharp[2] + settings.eps2d
    det = a * c - b * b
    rho = None
    wraps = LENSES[settings.camera.model].wraps
    # The unscented transform culls by the compensated opacity, as in gsplat. gsplat has no lenses that wrap.
    if settings.antialiased or (settings.unscented is not None and not wraps):
        floor = settings.numerics.compensation_floor
        ratio = (sharp[0] * sharp[2] - b * b) / det
        free = ratio > floor * floor
        rho = torch.where(free, torch.where(free, ratio, 1.0).sqrt(), floor)
    conics = torch.stack([c / det, -b / det, a / det], -1)

    def bounds(opacities: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        bounded = opacities if opacities is None or rho is None else opacities * rho
        limits = None
        if wraps:
            assert gaussians.scales is not None
            limits = limits_on_sphere(ellipse.y, ellipse.depths, gaussians.scales[ids], _intrinsics(cameras), settings)
        visible, radii = _bounds(sharp, det, bounded, limits, settings)
        if ellipse.seen is not None:
            visible &= ellipse.seen
        return visible & (det > 0) & det.isfinite(), radii, ellipse.z

    means2d = torch.stack([ellipse.x, ellipse.y], -1)
    return RowValues(means2d, ellipse.depths, conics, None, rho if settings.antialiased else None), bounds


def _bounds(
    sharp: Triple,
    det: Tensor,
    opacities: Tensor | None,
    limits: tuple[Tensor, Tensor] | None,
    settings: ProjectionSettings,
) -> tuple[Tensor, Tensor]:
    """Returns whether rows are opaque and large enough to be visible [nnz], and the radii [nnz, 2], within limits."""
    numerics = settings.numerics
    visible = torch.ones_like(det, dtype=torch.bool)
    extend = torch.full_like(det, numerics.extend)
    blurred_x, blurred_y = sharp[0] + settings.eps2d, sharp[2] + settings.eps2d
    if numerics.opacity_aware:
        if opacities is not None:
            visible = opacities >= ALPHA_MIN
            extend = torch.minimum((2 * (opacities / ALPHA_MIN).clamp_min(1).log()).sqrt(), extend)
        radii = torch.stack([extend * blurred_x.sqrt(), extend * blurred_y.sqrt()], -1).ceil()
    else:
        middle = 0.5 * (blurred_x + blurred_y)
        largest = middle + (middle * middle - det).clamp_min(0.1).sqrt()
        radii = (extend * largest.sqrt()).ceil()[:, None].expand(-1, 2)
    if limits is not None:
        radii = torch.minimum(torch.maximum(radii, limits[0].ceil()), limits[1].ceil())
    radii = radii.clamp_max(RADIUS_MAX)
    return visible & (radii > settings.radius_clip).any(-1), radii


def projection_fwd(gaussians: Gaussians3D, cameras: Cameras, settings: ProjectionSettings) -> ProjectedGaussians:
    n_batches, n_cameras, _, _ = cameras.viewmats.shape
    n_gaussians = gaussians.means.shape[-2]
    dense_ids = torch.arange(n_batches * n_cameras * n_gaussians, device=gaussians.means.device)
    ids, images = gaussians_and_images(dense_ids, n_gaussians, n_cameras)
    flat = flat_scenes(gaussians)
    projected, bounds = _projector(settings)(flat, _cameras_of_rows(cameras, images), settings, ids)
    opacities = None if flat.opacities is None else flat.opacities[ids]
    visible, radii, z = bounds(opacities)
    if opacities is not None and projected.compensations is not None:
        opacities = opacities * projected.compensations
    # Comparisons are written such that they are false for NaN.
    visible &= (z >= settings.camera.near) & (z <= settings.camera.far) & projected.shapes.isfinite().all(-1)
    if gaussians.valid is not None:
        visible &= gaussians.valid.flatten()[ids]
    x, y = projected.means2d.unbind(-1)
    visible &= (x + radii[:, 0] > 0) & (x - radii[:, 0] < settings.camera.width)
    visible &= (y + radii[:, 1] > 0) & (y - radii[:, 1] < settings.camera.height)

    kept = visible.nonzero().squeeze(1) if settings.packed else None
    values = projected._asdict() | {"opacities": opacities}
    emit = functools.partial(keep_visible, visible=visible, packed=settings.packed)
    return ProjectedGaussians(
        n_cameras=n_cameras,
        n_gaussians=n_gaussians,
        dense_ids=kept,
        radii=emit(radii.nan_to_num().to(torch.int32)),
        row_of=None if kept is None else row_of_dense(kept, visible.numel()),
        **{name: None if value is None else emit(value) for name, value in values.items()},  # type: ignore[arg-type]
    )


def _projector(settings: ProjectionSettings) -> Projector:
    return surfels if settings.surfels else _ellipses


def projection_bwd(
    gaussians: Gaussians3D,
    cameras: Cameras,
    row_of: Tensor | None,
    radii: Tensor,
    v_projected: ProjectedGradients,
    settings: ProjectionSettings,
    needs: Cameras,
) -> tuple[Gaussians3D, Cameras]:
    means = gaussians.means
    n_batches, n_cameras, _, _ = cameras.viewmats.shape
    n_gaussians = means.shape[-2]
    rows, dense_ids = visible_rows(packed_ids(row_of), radii, n_batches * n_cameras * n_gaussians, means.device)
    gaussian_ids, images = gaussians_and_images(dense_ids, n_gaussians, n_cameras)
    flat = flat_scenes(gaussians._replace(valid=None))
    by_camera = {name: t.flatten(0, 1) for name, t in cameras._asdict().items() if getattr(needs, name)}
    inputs = {name: t for name, t in (flat._asdict() | by_camera).items() if t is not None}
    with torch.enable_grad():
        # Each row gets a copy of its inputs. The gradients of the copies are summed below.
        row_inputs = {
            name: tensor.detach()[images if name in by_camera else gaussian_ids].requires_grad_()
            for name, tensor in inputs.items()
        }
        by_row = Gaussians3D(**{name: row_inputs.get(name) for name in Gaussians3D._fields})  # type: ignore[arg-type]
        row_cameras = _cameras_of_rows(cameras, images)._replace(**{name: row_inputs[name] for name in by_camera})
        projected, _ = _projector(settings)(by_row, row_cameras, settings, slice(None))
        outputs = [(t, getattr(v_projected, f"v_{name}")) for name, t in projected._asdict().items() if t is not None]
        if "opacities" in row_inputs:
            rho, opacities = projected.compensations, row_inputs["opacities"]
            outputs.append((opacities if rho is None else opacities * rho, v_projected.v_opacities))
    incoming = [torch.zeros_like(output) if v is None else v[rows] for output, v in outputs]
    v_inputs = torch.autograd.grad(
        [output for output, _ in outputs],
        list(row_inputs.values()),
        incoming,
        allow_unused=True,
        materialize_grads=True,
    )
    # Gradients that overflow although the incoming gradients are finite are set to zero.
    kept = all_finite(v_inputs) | ~all_finite(incoming)
    gradients: dict[str, Tensor] = {}
    for (name, tensor), v in zip(inputs.items(), v_inputs):
        v = torch.where(kept.view(-1, *[1] * (v.dim() - 1)), v, 0.0)
        ids = images if name in by_camera else gaussian_ids
        like = getattr(cameras if name in by_camera else gaussians, name)
        gradients[name] = sum_by_id(v, ids, len(tensor)).view(like.shape)
    v_gaussians, v_cameras = (
        {name: gradients.get(name) for name in bundle._fields} for bundle in (gaussians, cameras)
    )  # fmt: skip
    return Gaussians3D(**v_gaussians), type(cameras)(**v_cameras)  # type: ignore[arg-type]


def _cameras_of_rows(cameras: Cameras, images: Tensor) -> Cameras:
    """Gathers the camera of each row."""
    return type(cameras)(*[None if t is None else t.flatten(0, 1)[images] for t in cameras])  # type: ignore[arg-type]
