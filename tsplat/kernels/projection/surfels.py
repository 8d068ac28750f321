"""Projection of 2D Gaussians (Huang et al., "2D Gaussian Splatting", arXiv 2403.17888, section 4.1).

A = [s_0 c_0 | s_1 c_1 | p] takes coordinates (u, v, 1) on a disc to the camera frame, with the columns c of the
rotation of the disc there and its center p. The ray transform is M = K A. Boxes around the unit circle are computed
relative to the projected center, where M is [[a, b, 0], [c, d, 0], [A_z]], so that large pixel coordinates do not
cancel: with D = A_z0^2 + A_z1^2 - p_z^2, their center is at (a A_z0 + b A_z1, c A_z0 + d A_z1) / D, and a squared half
extent is the square of that minus (a^2 + b^2) / D, alike (c^2 + d^2) / D.
Programs are those of the projection of 3D Gaussians.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...config import BOX_VARIANCE_MIN, RADIUS_MAX
from ...data import Cameras, Gaussians3D, ProjectedGaussians, ProjectedGradients, ProjectionSettings
from ..device_math import (
    add,
    add_where,
    constant,
    dot,
    finite,
    load_tuple,
    matvec3,
    matvec3_transposed,
    normalize4,
    normalize_vjp,
    own_gaussians,
    rotation,
    rotation_vjp,
    size_of,
    store_tuple,
    times,
)
from ..launch import Int, block_size, indices_of, kernel, programs
from .camera_models import find_rows, load_camera
from .camera_sums import CameraSums

BLOCK = 128


@triton.jit
def _to_camera(mean, r, scale, w, t):
    """The center of a disc, and the columns of its rotation and of A, in the camera frame."""
    p = add(matvec3(w, mean), t)
    c0, c1, c2 = matvec3(w, r[::3]), matvec3(w, r[1::3]), matvec3(w, r[2::3])
    return p, c0, c1, c2, times(c0, scale[0]), times(c1, scale[1])


@triton.jit
def _box(p, a0, a1, intrinsics):
    """The entries a to d; the slopes x/z and y/z of the center; 1 / D; and the offset of the box's center."""
    fx, fy, _, _ = intrinsics
    slope_x = p[0] / p[2]
    slope_y = p[1] / p[2]
    a = fx * (a0[0] - slope_x * a0[2])
    b = fx * (a1[0] - slope_x * a1[2])
    c = fy * (a0[1] - slope_y * a0[2])
    d = fy * (a1[1] - slope_y * a1[2])
    inverse = 1.0 / (a0[2] * a0[2] + a1[2] * a1[2] - p[2] * p[2])
    offset = ((a * a0[2] + b * a1[2]) * inverse, (c * a0[2] + d * a1[2]) * inverse)
    return (a, b, c, d), (slope_x, slope_y), inverse, offset


@triton.jit
def _box_vjp(p, a0, a1, intrinsics, m, slopes, inverse, offset, v):
    """Gradients of p, a0 and a1 from that of the box's center."""
    fx, fy, _, _ = intrinsics
    v_a = v[0] * a0[2] * inverse
    v_b = v[0] * a1[2] * inverse
    v_c = v[1] * a0[2] * inverse
    v_d = v[1] * a1[2] * inverse
    v_denominator = -inverse * (v[0] * offset[0] + v[1] * offset[1])
    v_slope_x = fx * (v[0] - a0[2] * v_a - a1[2] * v_b)
    v_slope_y = fy * (v[1] - a0[2] * v_c - a1[2] * v_d)
    z0 = inverse * (v[0] * m[0] + v[1] * m[2]) + 2.0 * a0[2] * v_denominator
    z1 = inverse * (v[0] * m[1] + v[1] * m[3]) + 2.0 * a1[2] * v_denominator
    z0 -= fx * slopes[0] * v_a + fy * slopes[1] * v_c
    z1 -= fx * slopes[0] * v_b + fy * slopes[1] * v_d
    v_x = v_slope_x / p[2]
    v_y = v_slope_y / p[2]
    v_z = -(v_x * slopes[0] + v_y * slopes[1]) - 2.0 * p[2] * v_denominator
    return (v_x, v_y, v_z), (fx * v_a, fy * v_c, z0), (fx * v_b, fy * v_d, z1)


@kernel
def _surfels_fwd_kernel(
    means,  # [B, N, 3]
    quats,  # [B, N, 4]
    scales,  # [B, N, 3]
    opacities,  # [B, N] or None
    valid,  # [B, N] bool or None
    poses,  # [B, C, 4, 4]
    matrices,  # [B, C, 3, 3]
    dense_ids,  # [nnz] int64, or None if not packed
    visible_out,  # [B, C, N] int8, output; otherwise None, and then what follows is output
    row_of,  # [B, C, N] int32, output: packed row of each entry, -1 where there is none; None if not packed
    radii,  # [nnz, 2] int32
    means2d,  # [nnz, 2]
    depths,  # [nnz]
    conics,  # [nnz, 9], ray transforms
    normals,  # [nnz, 3]
    opacities_out,  # [nnz], or None
    n_rows: "Int", n_gaussians: "Int", n_cameras: "Int", width: "Int", height: "Int",
    near: tl.float64, far: tl.float64, radius_clip: tl.float64,
    EXTEND: tl.constexpr, RADIUS_MAX: tl.constexpr, BOX_VARIANCE_MIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < n_rows
    dense_id = row
    if dense_ids is not None:
        dense_id = tl.load(dense_ids + row, mask=mask, other=0)
    image = dense_id // n_gaussians
    gaussian = image // n_cameras * n_gaussians + dense_id % n_gaussians
    image = tl.where(mask, image, 0)
    unit, _ = normalize4(load_tuple(quats + gaussian * 4, 1, 4, mask))
    scale = load_tuple(scales + gaussian * 3, 1, 2, mask)
    w, t, intrinsics = load_camera(poses, matrices, image)
    mean = load_tuple(means + gaussian * 3, 1, 3, mask)
    p, _, _, normal, a0, a1 = _to_camera(mean, rotation(unit), scale, w, t)
    m, slopes, inverse, offset = _box(p, a0, a1, intrinsics)
    fx, fy, cx, cy = intrinsics
    mean2d = (fx * slopes[0] + cx + offset[0], fy * slopes[1] + cy + offset[1])
    least = constant(BOX_VARIANCE_MIN, p[2])
    square_x = tl.maximum(offset[0] * offset[0] - (m[0] * m[0] + m[1] * m[1]) * inverse, least)
    square_y = tl.maximum(offset[1] * offset[1] - (m[2] * m[2] + m[3] * m[3]) * inverse, least)
    most = constant(RADIUS_MAX, p[2])
    radius_x = tl.minimum(tl.ceil(EXTEND * tl.sqrt(square_x)), most)
    radius_y = tl.minimum(tl.ceil(EXTEND * tl.sqrt(square_y)), most)
    transform = (
        fx * a0[0] + cx * a0[2], fx * a1[0] + cx * a1[2], fx * p[0] + cx * p[2],
        fy * a0[1] + cy * a0[2], fy * a1[1] + cy * a1[2], fy * p[1] + cy * p[2],
        a0[2], a1[2], p[2],
    )  # fmt: skip
    # Every comparison is written so that NaN fails it.
    visible = mask & (p[2] >= constant(near, p[2])) & (p[2] <= constant(far, p[2])) & finite(size_of(transform))
    least_radius = constant(radius_clip, p[2])
    visible = visible & ((radius_x > least_radius) | (radius_y > least_radius))
    visible = visible & (mean2d[0] + radius_x > 0.0) & (mean2d[0] - radius_x < width)
    visible = visible & (mean2d[1] + radius_y > 0.0) & (mean2d[1] - radius_y < height)
    if valid is not None:
        visible = visible & (tl.load(valid + gaussian, mask=mask, other=0) != 0)
    if visible_out is not None:
        tl.store(visible_out + row, visible.to(tl.int8), mask=mask)
        tl.store(row_of + row, tl.full([BLOCK], -1, tl.int32), mask=mask)
    else:
        if dense_ids is not None:
            tl.store(row_of + dense_id, row.to(tl.int32), mask=mask)
        tl.store(radii + row * 2, tl.where(visible, radius_x, 0.0).to(tl.int32), mask=mask)
        tl.store(radii + row * 2 + 1, tl.where(visible, radius_y, 0.0).to(tl.int32), mask=mask)
        store_tuple(means2d + row * 2, 1, mean2d, mask, visible)
        tl.store(depths + row, tl.where(visible, p[2], 0.0), mask=mask)
        store_tuple(conics + row * 9, 1, transform, mask, visible)
        sign = tl.where(dot(normal, p) < 0.0, 1.0, -1.0).to(p[2].dtype)
        store_tuple(normals + row * 3, 1, times(normal, sign), mask, visible)
        if opacities_out is not None:
            opacity = tl.load(opacities + gaussian, mask=mask, other=0.0)
            tl.store(opacities_out + row, tl.where(visible, opacity, 0.0), mask=mask)


@kernel
def _surfels_bwd_kernel(
    means,  # [B, N, 3]
    quats,  # [B, N, 4]
    scales,  # [B, N, 3]
    poses,  # [B, C, 4, 4]
    matrices,  # [B, C, 3, 3]
    row_of,  # [B, C, N] int32, packed row of each entry; None if not packed
    radii,  # [nnz, 2] int32
    v_means2d,  # [nnz, 2] or None
    v_depths,  # [nnz] or None
    v_conics,  # [nnz, 9] or None
    v_normals,  # [nnz, 3] or None
    v_opacities_out,  # [nnz] or None
    v_means,  # [B, N, 3], output
    v_quats,  # [B, N, 4], output
    v_scales,  # [B, N, 3], output
    v_opacities,  # [B, N], output, or None
    v_poses,  # [blocks, I, 12], output, or None
    n_gaussians: "Int", n_cameras: "Int", n_images: "Int", BLOCK: tl.constexpr,
):  # fmt: skip
    batch, block, n, gaussian, mask = own_gaussians(n_gaussians, BLOCK)
    mean = load_tuple(means + gaussian * 3, 1, 3, mask)
    scale = load_tuple(scales + gaussian * 3, 1, 2, mask)
    unit, inverse_norm = normalize4(load_tuple(quats + gaussian * 4, 1, 4, mask))
    r = rotation(unit)
    zero = tl.zeros([BLOCK], mean[0].dtype)
    v_mean, v_scale, v_rotation = (zero,) * 3, (zero,) * 2, (zero,) * 9
    v_opacity = zero
    seen = tl.zeros([BLOCK], tl.int1)
    clean = mask
    for camera in range(n_cameras):
        image = batch * n_cameras + camera
        row, visible = find_rows(row_of, radii, image * n_gaussians + n, mask)
        seen = seen | visible
        w, t, intrinsics = load_camera(poses, matrices, image)
        p, c0, c1, c2, a0, a1 = _to_camera(mean, r, scale, w, t)
        fx, fy, cx, cy = intrinsics
        v_p, v_a0, v_a1, v_c2 = (zero,) * 3, (zero,) * 3, (zero,) * 3, (zero,) * 3
        incoming = zero
        if v_means2d is not None:
            v = load_tuple(v_means2d + row * 2, 1, 2, visible)
            incoming += size_of(v)
            m, slopes, inverse, offset = _box(p, a0, a1, intrinsics)
            v_p, v_a0, v_a1 = _box_vjp(p, a0, a1, intrinsics, m, slopes, inverse, offset, v)
        if v_conics is not None:
            v = load_tuple(v_conics + row * 9, 1, 9, visible)
            incoming += size_of(v)
            v_a0 = (v_a0[0] + fx * v[0], v_a0[1] + fy * v[3], v_a0[2] + cx * v[0] + cy * v[3] + v[6])
            v_a1 = (v_a1[0] + fx * v[1], v_a1[1] + fy * v[4], v_a1[2] + cx * v[1] + cy * v[4] + v[7])
            v_p = (v_p[0] + fx * v[2], v_p[1] + fy * v[5], v_p[2] + cx * v[2] + cy * v[5] + v[8])
        if v_depths is not None:
            v_depth = tl.load(v_depths + row, mask=visible, other=0.0)
            incoming += tl.abs(v_depth)
            v_p = (v_p[0], v_p[1], v_p[2] + v_depth)
        if v_normals is not None:
            v_c2 = load_tuple(v_normals + row * 3, 1, 3, visible)
            incoming += size_of(v_c2)
            sign = tl.where(dot(c2, p) < 0.0, 1.0, -1.0).to(p[2].dtype)
            v_c2 = times(v_c2, sign)
        v_own_opacity = zero
        if v_opacities_out is not None:
            v_own_opacity = tl.load(v_opacities_out + row, mask=visible, other=0.0)
            incoming += tl.abs(v_own_opacity)
        v_c0 = times(v_a0, scale[0])
        v_c1 = times(v_a1, scale[1])
        v_world = matvec3_transposed(w, v_p)
        v_r0 = matvec3_transposed(w, v_c0)
        v_r1 = matvec3_transposed(w, v_c1)
        v_r2 = matvec3_transposed(w, v_c2)
        v_s = (dot(c0, v_a0), dot(c1, v_a1))
        clean = clean & finite(incoming)
        outgoing = size_of(v_world) + size_of(v_r0) + size_of(v_r1) + size_of(v_r2) + size_of(v_s)
        visible = visible & (finite(outgoing + tl.abs(v_own_opacity)) | (finite(incoming) == 0))
        v_opacity += tl.where(visible, v_own_opacity, 0.0)
        v_scale = add_where(v_scale, visible, v_s)
        v_mean = add_where(v_mean, visible, v_world)
        v_r = (v_r0[0], v_r1[0], v_r2[0], v_r0[1], v_r1[1], v_r2[1], v_r0[2], v_r1[2], v_r2[2])
        v_rotation = add_where(v_rotation, visible, v_r)
        if v_poses is not None:
            out = v_poses + (block.to(tl.int64) * n_images + image) * 12
            for i in tl.static_range(3):
                for k in tl.static_range(3):
                    v_w = v_p[i] * mean[k] + v_c0[i] * r[3 * k] + v_c1[i] * r[3 * k + 1] + v_c2[i] * r[3 * k + 2]
                    tl.store(out + 4 * i + k, tl.sum(tl.where(visible, v_w, 0.0)))
                tl.store(out + 4 * i + 3, tl.sum(tl.where(visible, v_p[i], 0.0)))
    v_quat = normalize_vjp(unit, inverse_norm, rotation_vjp(unit, v_rotation))
    outgoing = size_of(v_mean) + size_of(v_quat) + size_of(v_scale) + tl.abs(v_opacity)
    kept = seen & (finite(outgoing) | (clean == 0))
    store_tuple(v_means + gaussian * 3, 1, v_mean, mask, kept)
    store_tuple(v_quats + gaussian * 4, 1, v_quat, mask, kept)
    store_tuple(v_scales + gaussian * 3, 1, v_scale + (zero,), mask, kept)
    if v_opacities is not None:
        tl.store(v_opacities + gaussian, tl.where(kept, v_opacity, 0.0), mask=mask)


def _inputs(gaussians: Gaussians3D, cameras: Cameras) -> dict[str, Any]:
    """Arguments that both kernels take."""
    poses, matrices = cameras.pinhole()
    return {
        "means": gaussians.means,
        "quats": gaussians.quats,
        "scales": gaussians.scales,
        "poses": poses,
        "matrices": matrices,
        "n_gaussians": gaussians.means.shape[-2],
        "n_cameras": poses.shape[1],
    }


def surfels_fwd(gaussians: Gaussians3D, cameras: Cameras, settings: ProjectionSettings) -> ProjectedGaussians:
    """Projects B scenes of N surfels with C cameras each.

    Args:
        gaussians, cameras: With quats and scales, of which the last is not read; pinhole cameras.

    Returns:
        Surfels with ray transforms [nnz, 9] as ``conics``, and normals; zero where culled.
    """
    means, dense_ids, row_of = gaussians.means, None, None
    arguments = _inputs(gaussians, cameras) | dict(
        opacities=gaussians.opacities,
        valid=gaussians.valid,
        width=settings.camera.width,
        height=settings.camera.height,
        near=settings.camera.near,
        far=settings.camera.far,
        radius_clip=settings.radius_clip,
        EXTEND=settings.numerics.extend,
        RADIUS_MAX=float(RADIUS_MAX),
        BOX_VARIANCE_MIN=BOX_VARIANCE_MIN,
    )
    n_rows = len(arguments["poses"]) * arguments["n_cameras"] * arguments["n_gaussians"]
    names = ("dense_ids", "row_of", "radii", "means2d", "depths", "conics", "normals")
    if settings.packed:
        visible = torch.empty(n_rows, dtype=torch.int8, device=means.device)
        row_of = torch.empty(n_rows, dtype=torch.int32, device=means.device)
        outputs: dict[str, Any] = dict.fromkeys((*names, "opacities_out")) | {
            "visible_out": visible,
            "row_of": row_of,
        }
        _surfels_fwd_kernel.launch_elementwise(n_rows, BLOCK, n_rows=n_rows, **outputs, **arguments)
        dense_ids = indices_of(visible)
        n_rows = dense_ids.numel()
    projected = ProjectedGaussians(
        n_cameras=arguments["n_cameras"],
        n_gaussians=arguments["n_gaussians"],
        dense_ids=dense_ids,
        radii=torch.empty(n_rows, 2, dtype=torch.int32, device=means.device),
        means2d=means.new_empty(n_rows, 2),
        depths=means.new_empty(n_rows),
        conics=means.new_empty(n_rows, 9),
        compensations=None,
        opacities=None if gaussians.opacities is None else means.new_empty(n_rows),
        row_of=row_of,
        normals=means.new_empty(n_rows, 3),
    )
    outputs = {name: getattr(projected, name) for name in names}
    outputs |= {"opacities_out": projected.opacities, "visible_out": None}
    _surfels_fwd_kernel.launch_elementwise(n_rows, BLOCK, n_rows=n_rows, **outputs, **arguments)
    return projected


def surfels_bwd(
    gaussians: Gaussians3D,
    cameras: Cameras,
    row_of: Tensor | None,
    radii: Tensor,
    v_projected: ProjectedGradients,
    _settings: ProjectionSettings,
    needs: Cameras,
) -> tuple[Gaussians3D, Cameras]:
    """Computes gradients as :func:`projection_bwd` does, from those of the result of :func:`surfels_fwd`."""
    arguments = _inputs(gaussians, cameras)
    n_batches, n_gaussians = len(arguments["poses"]), arguments["n_gaussians"]
    n_images = n_batches * arguments["n_cameras"]
    v_gaussians = Gaussians3D(*(None if t is None else torch.empty_like(t) for t in gaussians._replace(valid=None)))
    block = block_size(gaussians.means, BLOCK)
    blocks = programs(n_gaussians, block)
    sums = CameraSums.allocate(gaussians.means, blocks, cameras, needs)
    _surfels_bwd_kernel.launch(
        programs(n_batches * blocks, 1),
        **arguments,
        row_of=row_of,
        radii=radii,
        v_means2d=v_projected.v_means2d,
        v_depths=v_projected.v_depths,
        v_conics=v_projected.v_conics,
        v_normals=v_projected.v_normals,
        v_opacities_out=v_projected.v_opacities,
        v_means=v_gaussians.means,
        v_quats=v_gaussians.quats,
        v_scales=v_gaussians.scales,
        v_opacities=v_gaussians.opacities,
        v_poses=sums.poses,
        n_images=n_images,
        BLOCK=block,
    )
    return v_gaussians, sums.gradients(cameras)
