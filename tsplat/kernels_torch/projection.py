"""Projection in vectorized PyTorch; see `tsplat.kernels.projection`. The backward pass differentiates a second run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..config import ALPHA_MIN, FOV_MARGIN, RADIUS_MAX, Numerics
from ..data import sum_rows
from .indices import gaussians_and_images, visible_pairs

Triple = tuple[Tensor, Tensor, Tensor]


def _covariance(quats: Tensor | None, scales: Tensor | None, covars: Tensor | None) -> tuple[Tensor, ...]:
    """Upper triangle of the world-space covariance, entry by entry. [R] each"""
    if covars is not None:
        return covars.unbind(-1)
    assert quats is not None and scales is not None
    w, x, y, z = (quats / quats.norm(dim=-1, keepdim=True)).unbind(-1)
    sx, sy, sz = scales.unbind(-1)
    rows = (
        ((1 - 2 * (y * y + z * z)) * sx, 2 * (x * y - w * z) * sy, 2 * (x * z + w * y) * sz),
        (2 * (x * y + w * z) * sx, (1 - 2 * (x * x + z * z)) * sy, 2 * (y * z - w * x) * sz),
        (2 * (x * z - w * y) * sx, 2 * (y * z + w * x) * sy, (1 - 2 * (x * x + y * y)) * sz),
    )
    return tuple(_dot(rows[i], rows[j]) for i in range(3) for j in range(i, 3))


def _dot(a: Triple, b: Triple) -> Tensor:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _screen(
    means: Tensor,
    covariance: tuple[Tensor, ...],
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
) -> tuple[Tensor, Tensor, Tensor, Triple]:
    """Pixel mean x and y, depth, and the screen covariance before the blur. [R] each"""
    mean = means.unbind(-1)
    w0, w1, w2 = (tuple(viewmats[:, i, j] for j in range(3)) for i in range(3))
    x, y, z = (_dot(w, mean) + viewmats[:, i, 3] for i, w in enumerate((w0, w1, w2)))  # type: ignore[arg-type]
    fx, fy, cx, cy = Ks[:, 0, 0], Ks[:, 1, 1], Ks[:, 0, 2], Ks[:, 1, 2]
    reciprocal = 1 / z
    j = []
    for p, focal, center, extent in ((x, fx, cx, width), (y, fy, cy, height)):
        margin = 0.5 * FOV_MARGIN * extent / focal
        slope = torch.clamp(p * reciprocal, -(center / focal + margin), (extent - center) / focal + margin)
        j.append((focal * reciprocal, -focal * reciprocal * slope))
    t0 = tuple(j[0][0] * a + j[0][1] * b for a, b in zip(w0, w2))
    t1 = tuple(j[1][0] * a + j[1][1] * b for a, b in zip(w1, w2))
    s = covariance
    s0, s1 = (
        (
            s[0] * t[0] + s[1] * t[1] + s[2] * t[2],
            s[1] * t[0] + s[3] * t[1] + s[4] * t[2],
            s[2] * t[0] + s[4] * t[1] + s[5] * t[2],
        )
        for t in (t0, t1)
    )
    sharp = (_dot(t0, s0), _dot(t0, s1), _dot(t1, s1))  # type: ignore[arg-type]
    return fx * x * reciprocal + cx, fy * y * reciprocal + cy, z, sharp


def _finish(sharp: Triple, eps2d: float, compensate: bool, floor: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """Determinant of the blurred covariance [R], conic [R, 3], compensation [R] or None."""
    a, b, c = sharp[0] + eps2d, sharp[1], sharp[2] + eps2d
    det = a * c - b * b
    rho = None
    if compensate:
        ratio = (sharp[0] * sharp[2] - b * b) / det
        free = ratio > floor * floor
        rho = torch.where(free, torch.where(free, ratio, 1.0).sqrt(), floor)
    return det, torch.stack([c / det, -b / det, a / det], -1), rho


def projection_fwd(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    covars: Tensor | None,
    opacities: Tensor | None,
    viewmats: Tensor,
    Ks: Tensor,
    sound: Tensor | None,
    *,
    width: int,
    height: int,
    eps2d: float,
    near_plane: float,
    far_plane: float,
    radius_clip: float,
    compensate: bool,
    packed: bool,
    numerics: Numerics,
) -> tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    n_batches, n_gaussians, _ = means.shape
    n_cameras = viewmats.shape[1]
    n_pairs = n_batches * n_cameras * n_gaussians
    gaussians, images = gaussians_and_images(torch.arange(n_pairs, device=means.device), n_gaussians, n_cameras)
    covariance = _covariance(*(None if t is None else t.flatten(0, 1) for t in (quats, scales, covars)))
    x, y, depths, sharp = _screen(
        means.flatten(0, 1)[gaussians],
        tuple(entry[gaussians] for entry in covariance),
        viewmats.flatten(0, 1)[images],
        Ks.flatten(0, 1)[images],
        width,
        height,
    )
    det, conics, rho = _finish(sharp, eps2d, compensate, numerics.compensation_floor)
    # Every test is written so that a NaN fails it.
    visible = (depths >= near_plane) & (depths <= far_plane) & (det > 0) & det.isfinite() & conics.isfinite().all(-1)
    if sound is not None:
        visible &= sound.flatten()[gaussians]
    blurred_x, blurred_y = sharp[0] + eps2d, sharp[2] + eps2d
    opacities_out = None
    extend = torch.full_like(det, numerics.extend)
    if opacities is not None:
        opacities_out = opacities.flatten()[gaussians]
        if rho is not None:
            opacities_out = opacities_out * rho
        if numerics.opacity_aware:
            visible &= opacities_out >= ALPHA_MIN
            extend = torch.minimum((2 * (opacities_out / ALPHA_MIN).clamp_min(1).log()).sqrt(), extend)
    if numerics.opacity_aware:
        radius = torch.stack([extend * blurred_x.sqrt(), extend * blurred_y.sqrt()], -1).ceil()
    else:
        middle = 0.5 * (blurred_x + blurred_y)
        largest = middle + (middle * middle - det).clamp_min(0.1).sqrt()
        radius = (extend * largest.sqrt()).ceil()[:, None].expand(-1, 2)
    radius = radius.clamp_max(RADIUS_MAX)
    visible &= (radius > radius_clip).any(-1)
    visible &= (x + radius[:, 0] > 0) & (x - radius[:, 0] < width)
    visible &= (y + radius[:, 1] > 0) & (y - radius[:, 1] < height)
    radii = radius.nan_to_num().to(torch.int32)

    def emit(values: Tensor) -> Tensor:
        if packed:
            return values[visible]
        return torch.where(visible.view(-1, *[1] * (values.dim() - 1)), values, torch.zeros((), dtype=values.dtype))

    return (
        visible.nonzero().squeeze(1) if packed else None,
        emit(radii),
        emit(torch.stack([x, y], -1)),
        emit(depths),
        emit(conics),
        None if rho is None else emit(rho),
        None if opacities_out is None else emit(opacities_out),
    )


def projection_bwd(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    covars: Tensor | None,
    opacities: Tensor | None,
    viewmats: Tensor,
    Ks: Tensor,
    row_ids: Tensor | None,
    radii: Tensor,
    v_means2d: Tensor,
    v_depths: Tensor,
    v_conics: Tensor,
    v_compensations: Tensor | None,
    v_opacities_out: Tensor | None,
    *,
    width: int,
    height: int,
    eps2d: float,
    compensate: bool,
    numerics: Numerics,
    needs_viewmats: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    n_cameras, n_gaussians = viewmats.shape[1], means.shape[1]
    rows, pairs = visible_pairs(row_ids, radii, n_cameras * means.shape[0] * n_gaussians, means.device)
    gaussians, images = gaussians_and_images(pairs, n_gaussians, n_cameras)
    scene = dict(means=means, quats=quats, scales=scales, covars=covars, opacities=opacities, viewmats=viewmats)
    given = {name: tensor for name, tensor in scene.items() if tensor is not None}
    with torch.enable_grad():
        # Every row has inputs of its own, whose gradients are summed below.
        own = {
            name: tensor.detach().flatten(0, 1)[images if name == "viewmats" else gaussians].requires_grad_()
            for name, tensor in given.items()
        }
        x, y, depths, sharp = _screen(
            own["means"],
            _covariance(own.get("quats"), own.get("scales"), own.get("covars")),
            own["viewmats"],
            Ks.flatten(0, 1)[images],
            width,
            height,
        )
        _, conics, rho = _finish(sharp, eps2d, compensate, numerics.compensation_floor)
        outputs = [(torch.stack([x, y], -1), v_means2d), (depths, v_depths), (conics, v_conics)]
        if rho is not None and v_compensations is not None:
            outputs.append((rho, v_compensations))
        if "opacities" in own and v_opacities_out is not None:
            outputs.append((own["opacities"] if rho is None else own["opacities"] * rho, v_opacities_out))
    incoming = [v[rows] for _, v in outputs]
    found = torch.autograd.grad(
        [output for output, _ in outputs], list(own.values()), incoming, allow_unused=True, materialize_grads=True
    )
    # A gradient that overflows although what comes in is finite is left out.
    kept = _all_finite(found) | ~_all_finite(incoming)
    grads: dict[str, Tensor] = {}
    for (name, tensor), v in zip(given.items(), found):
        if name == "viewmats" and not needs_viewmats:
            continue
        v = torch.where(kept.view(-1, *[1] * (v.dim() - 1)), v, 0.0)
        ids = images if name == "viewmats" else gaussians
        grads[name] = sum_rows(v, ids, tensor.shape[0] * tensor.shape[1]).view(tensor.shape)
    v_means, v_quats, v_scales, v_covars, v_opacities, v_viewmats = (grads.get(name) for name in scene)
    assert v_means is not None
    return v_means, v_quats, v_scales, v_covars, v_opacities, v_viewmats


def _all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Rows in which every tensor is finite. [R] bool"""
    return torch.stack([tensor[..., None].flatten(1).isfinite().all(-1) for tensor in tensors]).all(0)
