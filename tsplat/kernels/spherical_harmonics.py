"""View-dependent color from real spherical harmonics up to degree 4, forward and backward.

The basis is that of Sloan, "Efficient Spherical Harmonic Evaluation" (JCGT 2013), with the signs of 3D Gaussian
Splatting. The direction d is (mean - camera center), normalized.

Forward: one lane per output row. Colors can be shifted by 0.5 and clamped to at least 0; a bit per channel records the
clamp. On CPUs (ON_CPU), both passes access the coefficients of a Gaussian row by row, and skip programs without a
visible row.
Backward: one lane per Gaussian, which loops over the cameras of its scene, so that gradients of means and coefficients
are summed in a fixed order. Gradients of camera centers are summed over a block and written once per block and image.
There are no atomics.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import SH_NORMS
from ..data import Coefficients
from .device_math import (
    add,
    dot,
    gaussians_of_program,
    load_tuple,
    normalize3,
    normalize_vjp,
    packed_rows_of,
    store_tuple,
    where,
)
from .launch import (
    CPU_BLOCK,
    CPU_LONG_BLOCK,
    Int,
    block_size,
    is_compiled_for_cpu,
    kernel,
    programs,
)
from .row_access import load_side_by_side, store_side_by_side

BLOCK = 64

Y0, Y1, Y2, Y3, Y4 = (tl.constexpr(norms) for norms in SH_NORMS)


@triton.jit
def sh_basis(d, DEGREE: tl.constexpr):
    """Returns the (DEGREE + 1)^2 basis functions at the unit direction d."""
    x, y, z = d[0], d[1], d[2]
    basis = (tl.full(x.shape, Y0[0], x.dtype),)
    if DEGREE >= 1:
        basis = basis + (-y * Y1[0], z * Y1[0], -x * Y1[0])
    if DEGREE >= 2:
        xx, yy, zz = x * x, y * y, z * z
        basis = basis + (
            x * y * Y2[0],
            -y * z * Y2[0],
            (2.0 * zz - xx - yy) * Y2[1],
            -x * z * Y2[0],
            (xx - yy) * Y2[2],
        )
    if DEGREE >= 3:
        basis = basis + (
            -y * (3.0 * xx - yy) * Y3[0],
            x * y * z * Y3[1],
            -y * (4.0 * zz - xx - yy) * Y3[2],
            z * (2.0 * zz - 3.0 * xx - 3.0 * yy) * Y3[3],
            -x * (4.0 * zz - xx - yy) * Y3[2],
            z * (xx - yy) * Y3[4],
            -x * (xx - 3.0 * yy) * Y3[0],
        )
    if DEGREE >= 4:
        basis = basis + (
            x * y * (xx - yy) * Y4[0],
            -y * z * (3.0 * xx - yy) * Y4[1],
            x * y * (7.0 * zz - 1.0) * Y4[2],
            -y * z * (7.0 * zz - 3.0) * Y4[3],
            (zz * (35.0 * zz - 30.0) + 3.0) * Y4[4],
            -x * z * (7.0 * zz - 3.0) * Y4[3],
            (xx - yy) * (7.0 * zz - 1.0) * Y4[5],
            -x * z * (xx - 3.0 * yy) * Y4[1],
            (xx * (xx - 3.0 * yy) - yy * (3.0 * xx - yy)) * Y4[6],
        )
    return basis


@triton.jit
def sh_basis_vjp(d, v, DEGREE: tl.constexpr):
    """Returns the gradient of the unit direction d from the gradients v of the basis functions.

    Its radial part is arbitrary: normalization removes it.
    """
    x, y, z = d[0], d[1], d[2]
    gx, gy, gz = tl.zeros_like(x), tl.zeros_like(x), tl.zeros_like(x)
    if DEGREE >= 1:
        gx -= v[3] * Y1[0]
        gy -= v[1] * Y1[0]
        gz += v[2] * Y1[0]
    if DEGREE >= 2:
        xx, yy, zz = x * x, y * y, z * z
        gx += (y * v[4] - z * v[7]) * Y2[0] + 2.0 * x * (v[8] * Y2[2] - v[6] * Y2[1])
        gy += (x * v[4] - z * v[5]) * Y2[0] - 2.0 * y * (v[8] * Y2[2] + v[6] * Y2[1])
        gz += -(y * v[5] + x * v[7]) * Y2[0] + 4.0 * z * v[6] * Y2[1]
    if DEGREE >= 3:
        gx += -(6.0 * x * y * v[9] + 3.0 * (xx - yy) * v[15]) * Y3[0] + y * z * v[10] * Y3[1]
        gx += (2.0 * x * y * v[11] - (4.0 * zz - 3.0 * xx - yy) * v[13]) * Y3[2]
        gx += 2.0 * x * z * (v[14] * Y3[4] - 3.0 * v[12] * Y3[3])
        gy += (6.0 * x * y * v[15] - 3.0 * (xx - yy) * v[9]) * Y3[0] + x * z * v[10] * Y3[1]
        gy += (2.0 * x * y * v[13] - (4.0 * zz - xx - 3.0 * yy) * v[11]) * Y3[2]
        gy -= 2.0 * y * z * (v[14] * Y3[4] + 3.0 * v[12] * Y3[3])
        gz += x * y * v[10] * Y3[1] - 8.0 * z * (y * v[11] + x * v[13]) * Y3[2]
        gz += 3.0 * (2.0 * zz - xx - yy) * v[12] * Y3[3] + (xx - yy) * v[14] * Y3[4]
    if DEGREE >= 4:
        gx += y * (3.0 * xx - yy) * v[16] * Y4[0] - 3.0 * z * (2.0 * x * y * v[17] + (xx - yy) * v[23]) * Y4[1]
        gx += (7.0 * zz - 1.0) * (y * v[18] * Y4[2] + 2.0 * x * v[22] * Y4[5])
        gx += -z * (7.0 * zz - 3.0) * v[21] * Y4[3] + 4.0 * x * (xx - 3.0 * yy) * v[24] * Y4[6]
        gy += x * (xx - 3.0 * yy) * v[16] * Y4[0] + 3.0 * z * (2.0 * x * y * v[23] - (xx - yy) * v[17]) * Y4[1]
        gy += (7.0 * zz - 1.0) * (x * v[18] * Y4[2] - 2.0 * y * v[22] * Y4[5])
        gy += -z * (7.0 * zz - 3.0) * v[19] * Y4[3] - 4.0 * y * (3.0 * xx - yy) * v[24] * Y4[6]
        gz += -(y * (3.0 * xx - yy) * v[17] + x * (xx - 3.0 * yy) * v[23]) * Y4[1]
        gz += 14.0 * z * (x * y * v[18] * Y4[2] + (xx - yy) * v[22] * Y4[5])
        gz += 20.0 * z * (7.0 * zz - 3.0) * v[20] * Y4[4] - 3.0 * (7.0 * zz - 1.0) * (y * v[19] + x * v[21]) * Y4[3]
    return gx, gy, gz


@triton.jit
def _direction(means, centers, gaussian, image, mask):
    """Returns the unit direction from the camera center to the mean, and 1 / distance."""
    mean = load_tuple(means + gaussian * 3, 1, 3, mask)
    center = load_tuple(centers + image * 3, 1, 3)
    return normalize3((mean[0] - center[0], mean[1] - center[1], mean[2] - center[2]))


@triton.jit
def _load_coefficients(coeffs, gaussian, n_bases, N: tl.constexpr, BY_ROW: tl.constexpr, mask):
    """Loads the first N coefficients of each Gaussian, three values each."""
    if coeffs.higher is not None:
        values = load_tuple(coeffs.first + gaussian * 3, 1, 3, mask)
        if N > 1:
            values = values + load_side_by_side(coeffs.higher + gaussian * (n_bases - 1) * 3, 3 * (N - 1), mask)
        return values
    elif BY_ROW:
        return load_side_by_side(coeffs.first + gaussian * n_bases * 3, 3 * N, mask)
    else:
        return load_tuple(coeffs.first + gaussian * n_bases * 3, 1, 3 * N, mask)


@triton.jit
def _load_coefficient(coeffs, gaussian, n_bases, K: tl.constexpr, mask):
    """Loads coefficient K of each Gaussian, three values."""
    if coeffs.higher is None:
        return load_tuple(coeffs.first + gaussian * n_bases * 3 + 3 * K, 1, 3, mask)
    elif K == 0:
        return load_tuple(coeffs.first + gaussian * 3, 1, 3, mask)
    else:
        return load_tuple(coeffs.higher + gaussian * (n_bases - 1) * 3 + 3 * (K - 1), 1, 3, mask)


@triton.jit
def _store_coefficients(coeffs, gaussian, n_bases, values, BY_ROW: tl.constexpr, mask):
    """Stores the first coefficients of each Gaussian."""
    if coeffs.higher is not None:
        if len(values) > 3:
            store_side_by_side(coeffs.higher + gaussian * (n_bases - 1) * 3, values[3:], mask)
        store_tuple(coeffs.first + gaussian * 3, 1, values[:3], mask)
    elif BY_ROW:
        store_side_by_side(coeffs.first + gaussian * n_bases * 3, values, mask)
    else:
        store_tuple(coeffs.first + gaussian * n_bases * 3, 1, values, mask)


@kernel
def _sh_fwd_kernel(
    means,  # [B, N, 3]
    centers,  # [B, C, 3]
    coeffs: "Coefficients",
    dense_ids,  # [nnz] int64, or None if not packed
    radii,  # [nnz, 2] int32 or None
    colors,  # [nnz, 3], output
    clamped,  # [nnz] int8, output: a bit per clamped channel; None without ``as_colors``
    n_rows: "Int", n_gaussians: "Int", n_cameras: "Int", n_bases: "Int",
    DEGREE: tl.constexpr, ON_CPU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Evaluates v = sum over k of c_k Y_k(d), or max(v + 0.5, 0), for each row. One lane per row."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = row < n_rows
    mask = inside
    dense_id = row
    if dense_ids is not None:
        dense_id = tl.load(dense_ids + row, mask=mask, other=0)
    if radii is not None:
        mask = mask & (tl.load(radii + row * 2, mask=mask, other=0) > 0)
    image = tl.where(mask, dense_id // n_gaussians, 0)
    gaussian = image // n_cameras * n_gaussians + dense_id % n_gaussians
    bits = tl.zeros([BLOCK], tl.int8)
    if not ON_CPU or tl.max(mask.to(tl.int32)) > 0:
        # d = (mean - center) / |mean - center|;  Y_k(d)
        unit, _ = _direction(means, centers, gaussian, image, mask)
        basis = sh_basis(unit, DEGREE)
        # Row access does not pay off for the three values of degree 0.
        coeff = _load_coefficients(coeffs, gaussian, n_bases, len(basis), ON_CPU or DEGREE > 0, mask)
        for channel in tl.static_range(3):
            total = tl.zeros_like(unit[0])
            for k in tl.static_range(len(basis)):
                total = tl.fma(basis[k], coeff[3 * k + channel].to(total.dtype), total)
            if clamped is not None:
                total += 0.5
                bits |= tl.where(total >= 0.0, 0, 1 << channel).to(tl.int8)
                total = tl.where(total < 0.0, 0.0, total)  # NaN stays NaN
            tl.store(colors + row * 3 + channel, tl.where(mask, total, 0.0), mask=inside)
    else:
        for channel in tl.static_range(3):
            tl.store(colors + row * 3 + channel, 0.0, mask=inside)
    if clamped is not None:
        tl.store(clamped + row, bits, mask=inside)


@kernel(strided=("v_colors",))
def _sh_bwd_kernel(
    means,  # [B, N, 3]
    centers,  # [B, C, 3]
    coeffs: "Coefficients",
    row_of,  # [B, C, N] int32, packed row of each entry; None if not packed
    radii,  # [nnz, 2] int32 or None
    clamped,  # [nnz] int8 or None, as in the forward pass
    v_colors,  # [nnz, 3], rows `v_stride` apart
    v_means_before,  # [B, N, 3], gradients of means to add to, or None
    v_means,  # [B, N, 3], output
    v_centers,  # [blocks, I, 3], output, or None
    v_coeffs: "Coefficients",  # output
    n_gaussians: "Int", n_cameras: "Int", n_images: "Int", n_bases: "Int", v_stride: "Int",
    DEGREE: tl.constexpr, ON_CPU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Computes gradients of means, centers and coefficients. One lane per Gaussian, which loops over cameras."""
    batch, block, n, gaussian, mask = gaussians_of_program(n_gaussians, BLOCK)
    N_BASES: tl.constexpr = (DEGREE + 1) * (DEGREE + 1)
    zero = tl.zeros([BLOCK], v_colors.dtype.element_ty)
    v_mean, v_coeff = (zero,) * 3, (zero,) * (3 * N_BASES)
    for camera in range(n_cameras):
        image = batch * n_cameras + camera
        row, visible = packed_rows_of(row_of, image * n_gaussians + n, mask)
        if radii is not None:
            visible = visible & (tl.load(radii + row * 2, mask=visible, other=0) > 0)
        v_dir = (zero,) * 3
        if not ON_CPU or tl.max(visible.to(tl.int32)) > 0:
            unit, inverse_norm = _direction(means, centers, gaussian, image, mask)
            basis = sh_basis(unit, DEGREE)
            v_color = load_tuple(v_colors + row * v_stride, 1, 3, visible)
            if ON_CPU:
                coeff = _load_coefficients(coeffs, gaussian, n_bases, N_BASES, True, visible)
            if clamped is not None:
                bits = tl.load(clamped + row, mask=visible, other=0)
                v_color = (
                    tl.where(bits & 1 == 0, v_color[0], 0.0),
                    tl.where(bits & 2 == 0, v_color[1], 0.0),
                    tl.where(bits & 4 == 0, v_color[2], 0.0),
                )
            # v_c_k <- v_c_k + Y_k v;  v_Y_k = c_k . v
            summed = ()
            v_basis = ()
            for k in tl.static_range(N_BASES):
                summed = summed + (
                    v_coeff[3 * k] + tl.where(visible, basis[k] * v_color[0], 0.0),
                    v_coeff[3 * k + 1] + tl.where(visible, basis[k] * v_color[1], 0.0),
                    v_coeff[3 * k + 2] + tl.where(visible, basis[k] * v_color[2], 0.0),
                )
                if ON_CPU:
                    c = coeff[3 * k : 3 * k + 3]
                else:
                    c = _load_coefficient(coeffs, gaussian, n_bases, k, visible)
                c = (c[0].to(zero.dtype), c[1].to(zero.dtype), c[2].to(zero.dtype))
                v_basis = v_basis + (dot(c, v_color),)
            v_coeff = summed
            # v_mean = (v_d - (v_d . d) d) / |mean - center|, for the gradient v_d of the direction; v_center = -v_mean
            v_dir = where(visible, normalize_vjp(unit, inverse_norm, sh_basis_vjp(unit, v_basis, DEGREE)))
        v_mean = add(v_mean, v_dir)
        if v_centers is not None:
            for k in tl.static_range(3):
                tl.store(v_centers + (block.to(tl.int64) * n_images + image) * 3 + k, -tl.sum(v_dir[k]))
    if v_means_before is not None:
        before = load_tuple(v_means_before + gaussian * 3, 1, 3, mask)
        v_mean = add(before, v_mean)
    store_tuple(v_means + gaussian * 3, 1, v_mean, mask)
    _store_coefficients(v_coeffs, gaussian, n_bases, v_coeff, ON_CPU or DEGREE > 0, mask)


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
    """Evaluates spherical harmonics for each row.

    Args:
        means, centers: [..., N, 3] with B N means in total, and [B, C, 3].
        coeffs: At least (degree + 1)^2 coefficients per Gaussian.
        dense_ids: [nnz] index into [B, C, N], or None if not packed.
        radii: [nnz, 2], or None if all rows are visible.
        as_colors: Whether to return max(value + 0.5, 0); otherwise, returns the value.

    Returns:
        The colors [nnz, 3], zero where radii are zero; and the bits of clamped channels, for the backward pass, or None
        without ``as_colors``.
    """
    n_gaussians, (n_batches, n_cameras, _) = means.shape[-2], centers.shape
    n_rows = n_batches * n_cameras * n_gaussians if dense_ids is None else dense_ids.numel()
    colors = means.new_empty(n_rows, 3)
    clamped = torch.empty(n_rows, dtype=torch.int8, device=means.device) if as_colors else None
    _sh_fwd_kernel.launch_elementwise(
        n_rows,
        BLOCK,
        means=means,
        centers=centers,
        coeffs=coeffs,
        dense_ids=dense_ids,
        radii=radii,
        colors=colors,
        clamped=clamped,
        n_rows=n_rows,
        n_gaussians=n_gaussians,
        n_cameras=n_cameras,
        n_bases=coeffs.n_bases,
        DEGREE=degree,
        ON_CPU=is_compiled_for_cpu(means),
        num_warps=2,
        enable_fp_fusion=False,  # contraction would depend on the dtype of coefficients
    )
    return colors, clamped


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
    """Computes the gradients of means, centers (None if not needed) and coefficients.

    Args:
        row_of: [B, C, N], packed row of each entry, or -1; None if not packed.
        clamped: As returned by :func:`spherical_harmonics_fwd`.
        v_means_before: Gradients of means to which those of colors are added; or None.
        v_higher: Contiguous memory for the gradients of ``coeffs.higher``, in the dtype of means; or None. It may be
            ``coeffs.higher`` itself: a program reads all coefficients of its Gaussians before it writes gradients.
    """
    n_gaussians, n_bases, (n_batches, n_cameras, _) = means.shape[-2], coeffs.n_bases, centers.shape
    n_images = n_batches * n_cameras
    if v_colors.stride(1) != 1:
        v_colors = v_colors.contiguous()
    v_means = torch.empty_like(means)
    # Coefficients above the degree have zero gradients.
    make = means.new_empty if n_bases == (degree + 1) ** 2 else means.new_zeros
    if coeffs.higher is None:
        v_coeffs = Coefficients(make(coeffs.first.shape))
    else:
        if v_higher is None or v_higher.dtype != means.dtype:
            v_higher = make(coeffs.higher.shape)
        else:
            v_higher[..., (degree + 1) ** 2 - 1 :, :] = 0
        v_coeffs = Coefficients(means.new_empty(coeffs.first.shape), v_higher)
    block = block_size(means, BLOCK, CPU_LONG_BLOCK if needs_centers else CPU_BLOCK)  # v_centers depends on it
    blocks = programs(n_gaussians, block)
    block_sums = means.new_empty(blocks, n_images, 3) if needs_centers else None
    _sh_bwd_kernel.launch(
        programs(n_batches * blocks, 1),
        means=means,
        centers=centers,
        coeffs=coeffs,
        row_of=row_of,
        radii=radii,
        clamped=clamped,
        v_colors=v_colors,
        v_means_before=v_means_before,
        v_means=v_means,
        v_centers=block_sums,
        v_coeffs=v_coeffs,
        n_gaussians=n_gaussians,
        n_cameras=n_cameras,
        n_images=n_images,
        n_bases=n_bases,
        v_stride=v_colors.stride(0),
        DEGREE=degree,
        ON_CPU=is_compiled_for_cpu(means),
        BLOCK=block,
        num_warps=2,
        enable_fp_fusion=False,
    )
    v_centers = None if block_sums is None else block_sums.sum(0).view(n_batches, n_cameras, 3)
    return v_means, v_centers, v_coeffs.in_dtypes_of(coeffs)
