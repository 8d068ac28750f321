"""Spherical harmonics in vectorized PyTorch; see ``kernels/spherical_harmonics.py``."""

import torch
from torch import Tensor

from ..config import SH_NORMS
from ..data import Coefficients, sum_by_id
from .indices import gaussians_and_images, packed_ids, visible_rows


def _basis(directions: Tensor, degree: int) -> Tensor:
    """Returns the (degree + 1)^2 basis functions at unit directions. [nnz, 3] -> [nnz, K]"""
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


def _colors(
    means: Tensor, centers: Tensor, coeffs: Tensor, gaussians: Tensor, images: Tensor, degree: int
) -> tuple[Tensor, list[Tensor]]:
    """Returns the colors of rows [nnz, 3], and the gathered means, camera centers and coefficients of the rows.

    ``gaussians`` and ``images`` are the indices of each row. In grad mode, the gathered tensors are leaves of autograd.
    """
    inputs = [means.reshape(-1, 3)[gaussians], centers.flatten(0, 1)[images]]
    inputs.append(coeffs[..., : (degree + 1) ** 2, :].flatten(0, -3)[gaussians].to(means.dtype))
    if torch.is_grad_enabled():
        inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    basis = _basis(torch.nn.functional.normalize(inputs[0] - inputs[1], dim=-1), degree)
    return (basis[:, None, :] @ inputs[2])[:, 0], inputs


def spherical_harmonics_fwd(
    means: Tensor,
    centers: Tensor,
    coeffs: Coefficients,
    dense_ids: Tensor | None,
    radii: Tensor | None,
    *,
    degree: int,
    as_colors: bool,
) -> tuple[Tensor, Tensor | None]:
    n_gaussians, (n_batches, n_cameras, _) = means.shape[-2], centers.shape
    rows, visible_ids = visible_rows(dense_ids, radii, n_batches * n_cameras * n_gaussians, means.device)
    n_rows = n_batches * n_cameras * n_gaussians if dense_ids is None else dense_ids.numel()
    colors = means.new_zeros(n_rows, 3)
    with torch.no_grad():
        colors[rows], _ = _colors(
            means, centers, _concatenated(coeffs), *gaussians_and_images(visible_ids, n_gaussians, n_cameras), degree
        )
    if not as_colors:
        return colors, None
    shifted = colors + 0.5
    return shifted.clamp_min(0), ~(shifted >= 0)


def spherical_harmonics_bwd(
    means: Tensor,
    centers: Tensor,
    coeffs: Coefficients,
    row_of: Tensor | None,
    radii: Tensor | None,
    clamped: Tensor | None,
    v_colors: Tensor,
    *,
    degree: int,
    needs_centers: bool,
    v_means_before: Tensor | None = None,
    v_higher: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Coefficients]:
    n_gaussians, (n_batches, n_cameras, _) = means.shape[-2], centers.shape
    n_dense = n_batches * n_cameras * n_gaussians
    rows, visible_ids = visible_rows(packed_ids(row_of), radii, n_dense, means.device)
    gaussians, images = gaussians_and_images(visible_ids, n_gaussians, n_cameras)
    if clamped is not None:
        v_colors = v_colors.masked_fill(clamped, 0)
    with torch.enable_grad():
        colors, inputs = _colors(means, centers, _concatenated(coeffs), gaussians, images, degree)
    # Degree 0 does not depend on the direction.
    v_means, v_centers, v_coeffs = torch.autograd.grad(
        colors, inputs, v_colors[rows], allow_unused=True, materialize_grads=True
    )
    n_used = (degree + 1) ** 2
    v_bases = sum_by_id(v_coeffs, gaussians, n_batches * n_gaussians).view(*means.shape[:-1], n_used, 3)
    v_means = sum_by_id(v_means, gaussians, n_batches * n_gaussians).view(means.shape)
    v_split = _split(torch.nn.functional.pad(v_bases, (0, 0, 0, coeffs.n_bases - n_used)), coeffs)
    if v_higher is not None and v_split.higher is not None:
        v_split = v_split._replace(higher=v_higher.copy_(v_split.higher))
    return (
        v_means if v_means_before is None else v_means_before + v_means,
        sum_by_id(v_centers, images, n_batches * n_cameras).view(centers.shape) if needs_centers else None,
        v_split,
    )


def _concatenated(coeffs: Coefficients) -> Tensor:
    """Returns the coefficients of all degrees in one tensor."""
    return coeffs.first if coeffs.higher is None else torch.cat([coeffs.first, coeffs.higher], -2)


def _split(values: Tensor, coeffs: Coefficients) -> Coefficients:
    """Splits values of all degrees into tensors like ``coeffs``, in their dtypes."""
    parts = Coefficients(values) if coeffs.higher is None else Coefficients(values[..., :1, :], values[..., 1:, :])
    return parts.in_dtypes_of(coeffs)
