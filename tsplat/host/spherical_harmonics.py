"""Spherical harmonics in vectorised PyTorch; see `tsplat.kernels.spherical_harmonics`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import SH_NORMS
from .rows import gaussians_and_images, visible_pairs


def _basis(directions: Tensor, degree: int) -> Tensor:
    """The (degree + 1)^2 basis functions at unit directions. [R, 3] -> [R, K]"""
    x, y, z = directions.unbind(-1)
    (c0,), (c1,), c2, c3, c4 = SH_NORMS
    basis = [torch.full_like(x, c0)]
    if degree >= 1:
        basis += [-c1 * y, c1 * z, -c1 * x]
    if degree >= 2:
        xx, yy, zz, xy, yz, xz = x * x, y * y, z * z, x * y, y * z, x * z
        basis += [c2[0] * xy, -c2[0] * yz, c2[1] * (2 * zz - xx - yy), -c2[0] * xz, c2[2] * (xx - yy)]
    if degree >= 3:
        basis += [
            -c3[0] * y * (3 * xx - yy),
            c3[1] * xy * z,
            -c3[2] * y * (4 * zz - xx - yy),
            c3[3] * z * (2 * zz - 3 * xx - 3 * yy),
            -c3[2] * x * (4 * zz - xx - yy),
            c3[4] * z * (xx - yy),
            -c3[0] * x * (xx - 3 * yy),
        ]
    if degree >= 4:
        basis += [
            c4[0] * xy * (xx - yy),
            -c4[1] * yz * (3 * xx - yy),
            c4[2] * xy * (7 * zz - 1),
            -c4[3] * yz * (7 * zz - 3),
            c4[4] * (zz * (35 * zz - 30) + 3),
            -c4[3] * xz * (7 * zz - 3),
            c4[5] * (xx - yy) * (7 * zz - 1),
            -c4[1] * xz * (xx - 3 * yy),
            c4[6] * (xx * (xx - 3 * yy) - yy * (3 * xx - yy)),
        ]
    return torch.stack(basis, -1)


def _colors(means: Tensor, centres: Tensor, coeffs: Tensor, pairs: Tensor, n_cameras: int, degree: int) -> Tensor:
    """Colours of the given pairs of camera and Gaussian. [R, 3]"""
    n_gaussians, n_bases = coeffs.shape[1], (degree + 1) ** 2
    gaussians, images = gaussians_and_images(pairs, n_gaussians, n_cameras)
    directions = means.flatten(0, 1)[gaussians] - centres.flatten(0, 1)[images]
    basis = _basis(torch.nn.functional.normalize(directions, dim=-1), degree)
    return (basis[:, None, :] @ coeffs[..., :n_bases, :].flatten(0, 1)[gaussians])[:, 0]


def spherical_harmonics_fwd(
    means: Tensor, centres: Tensor, coeffs: Tensor, row_ids: Tensor | None, radii: Tensor | None, *, degree: int
) -> Tensor:
    n_cameras = centres.shape[1]
    rows, pairs = visible_pairs(row_ids, radii, means.shape[0] * n_cameras * means.shape[1], means.device)
    n_rows = means.shape[0] * n_cameras * means.shape[1] if row_ids is None else row_ids.numel()
    colors = means.new_zeros(n_rows, 3)
    colors[rows] = _colors(means, centres, coeffs, pairs, n_cameras, degree)
    return colors


def spherical_harmonics_bwd(
    means: Tensor,
    centres: Tensor,
    coeffs: Tensor,
    row_ids: Tensor | None,
    radii: Tensor | None,
    v_colors: Tensor,
    *,
    degree: int,
    needs_centres: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    n_cameras = centres.shape[1]
    rows, pairs = visible_pairs(row_ids, radii, means.shape[0] * n_cameras * means.shape[1], means.device)
    with torch.enable_grad():
        means, centres, coeffs = (t.detach().requires_grad_() for t in (means, centres, coeffs))
        colors = _colors(means, centres, coeffs, pairs, n_cameras, degree)
    # Degree 0 looks the same from everywhere.
    v_means, v_centres, v_coeffs = torch.autograd.grad(
        colors, (means, centres, coeffs), v_colors[rows], allow_unused=True, materialize_grads=True
    )
    return v_means, v_centres if needs_centres else None, v_coeffs
