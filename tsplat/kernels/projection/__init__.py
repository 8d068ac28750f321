"""Projection of Gaussians to the image plane, forward and backward: EWA splatting, unscented transform, or surfels.

Two kernels implement all three. A `Projector` provides the device functions that differ.

Forward: one lane per output row. For packed rows, a first launch finds the visible rows, and a second one writes them.
With a row capacity, a single launch projects all rows, and ``packed_rows`` moves the visible ones to the front.
Backward: one lane per Gaussian, which loops over the cameras of its scene and recomputes the forward pass, so that
gradients are summed in registers in a fixed order. Gradients of view matrices are summed over a block and written once
per block and image. If a gradient overflows although the incoming gradients are finite, it is zeroed for that Gaussian
only. Incoming infinities are passed on, so that gradient scaling detects them. There are no atomics.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...data import Cameras, Gaussians3D, ProjectedGaussians, ProjectedGradients, ProjectionSettings
from ..device_math import (
    add_where,
    constant,
    finite,
    gaussians_of_program,
    load_tuple,
    packed_rows_of,
    size_of,
    store_tuple,
)
from ..launch import Int, block_size, indices_of, kernel, programs
from ..packed_rows import pack_rows
from .camera_sums import CameraSums
from .ewa import EWA
from .loaded_cameras import N_COEFFICIENTS, PATH_GRADIENTS, PATH_VALUES, POSE_VALUES, Screen, load_camera
from .projector import Constants, Projector, RowGradients
from .surfels import SURFEL
from .unscented import UNSCENTED

BLOCK = 128

NO_ROWS = ProjectedGaussians._make([None] * len(ProjectedGaussians._fields))
"""Output without tensors. Its fields are replaced by the tensors that a kernel writes."""


def _projector(settings: ProjectionSettings) -> Projector:
    if settings.surfels:
        return SURFEL
    return EWA if settings.unscented is None else UNSCENTED


@kernel
def _projection_fwd_kernel(
    gaussians: "Gaussians3D",
    cameras: "Cameras",
    projected: "ProjectedGaussians",  # output, except dense_ids; only row_of in the launch that finds visible rows
    visible_out,  # [B, C, N] int8 or int32, output, or None
    n_rows: "Int", width: "Int", height: "Int",
    eps2d: tl.float64, near: tl.float64, far: tl.float64, radius_clip: tl.float64,
    PROJECTOR: tl.constexpr, CONSTANTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Projects Gaussians with cameras, and culls them. One lane per row."""
    # The Gaussian and the image of each row.
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < n_rows
    dense_id = row
    if projected.dense_ids is not None:
        dense_id = tl.load(projected.dense_ids + row, mask=mask, other=0)
        tl.store(projected.row_of + dense_id, row.to(tl.int32), mask=mask)
    image = dense_id // projected.n_gaussians
    gaussian_id = image // projected.n_cameras * projected.n_gaussians + dense_id % projected.n_gaussians
    image = tl.where(mask, image, 0)

    gaussian = PROJECTOR.load(gaussians, gaussian_id, mask)
    opacity = None
    if gaussians.opacities is not None:
        opacity = tl.load(gaussians.opacities + gaussian_id, mask=mask, other=0.0)
    camera = load_camera(cameras, image, CONSTANTS.N_LENS)
    screen = Screen(width=width, height=height, eps2d=eps2d)
    projection = PROJECTOR.project(gaussian, camera, opacity, screen, CONSTANTS)
    z, mean2d, radii, shape = projection.z, projection.mean2d, projection.radii, projection.shape

    # Culling by depth, radius and image. All comparisons are false for NaN.
    visible = mask & projection.seen & (z >= constant(near, z)) & (z <= constant(far, z)) & finite(size_of(shape))
    if gaussians.valid is not None:
        visible = visible & (tl.load(gaussians.valid + gaussian_id, mask=mask, other=0) != 0)
    radius_min = constant(radius_clip, z)
    visible = visible & ((radii[0] > radius_min) | (radii[1] > radius_min))
    # Clamped after the test: tl.minimum turns NaN, from negative definite covariances, into the bound.
    radius_x = tl.minimum(radii[0], CONSTANTS.RADIUS_MAX)
    radius_y = tl.minimum(radii[1], CONSTANTS.RADIUS_MAX)
    visible = visible & (mean2d[0] + radius_x > 0.0) & (mean2d[0] - radius_x < width)
    visible = visible & (mean2d[1] + radius_y > 0.0) & (mean2d[1] - radius_y < height)

    if visible_out is not None:
        tl.store(visible_out + row, visible.to(visible_out.dtype.element_ty), mask=mask)
    if projected.radii is None:
        tl.store(projected.row_of + row, tl.full([BLOCK], -1, tl.int32), mask=mask)
    else:
        tl.store(projected.radii + row * 2, tl.where(visible, radius_x, 0.0).to(tl.int32), mask=mask)
        tl.store(projected.radii + row * 2 + 1, tl.where(visible, radius_y, 0.0).to(tl.int32), mask=mask)
        store_tuple(projected.means2d + row * 2, 1, mean2d, mask, visible)
        store_tuple(projected.shapes + row * len(shape), 1, shape, mask, visible)
        tl.store(projected.depths + row, tl.where(visible, projection.depth, 0.0), mask=mask)
        if projected.compensations is not None:
            tl.store(projected.compensations + row, tl.where(visible, projection.compensation, 0.0), mask=mask)
        if projected.opacities is not None:
            tl.store(projected.opacities + row, tl.where(visible, projection.opacity, 0.0), mask=mask)
        if projected.normals is not None:
            store_tuple(projected.normals + row * 3, 1, projection.normal, mask, visible)


@triton.jit
def _find_rows(row_of, radii, dense_id, mask):
    """Returns the rows of dense ids, indices into [B, C, N], and whether they are visible."""
    if row_of is not None:
        return packed_rows_of(row_of, dense_id, mask)
    else:
        return dense_id, tl.load(radii + dense_id * 2, mask=mask, other=0) > 0


@triton.jit
def _load_row_gradients(v_projected, row, visible, zero, SHAPE: tl.constexpr):
    """Loads the :class:`RowGradients` of each row. Returns them, and a value that is finite if all of them are."""
    v_mean2d, v_depth, v_shape, v_normal, v_opacity, v_compensation = None, None, None, None, None, None
    size = zero
    if v_projected.v_means2d is not None:
        v_mean2d = load_tuple(v_projected.v_means2d + row * 2, 1, 2, visible)
        size += size_of(v_mean2d)
    if v_projected.v_depths is not None:
        v_depth = tl.load(v_projected.v_depths + row, mask=visible, other=0.0)
        size += tl.abs(v_depth)
    if v_projected.v_shapes is not None:
        v_shape = load_tuple(v_projected.v_shapes + row * SHAPE, 1, SHAPE, visible)
        size += size_of(v_shape)
    if v_projected.v_normals is not None:
        v_normal = load_tuple(v_projected.v_normals + row * 3, 1, 3, visible)
        size += size_of(v_normal)
    if v_projected.v_opacities is not None:
        v_opacity = tl.load(v_projected.v_opacities + row, mask=visible, other=0.0)
        size += tl.abs(v_opacity)
    if v_projected.v_compensations is not None:
        v_compensation = tl.load(v_projected.v_compensations + row, mask=visible, other=0.0)
        size += tl.abs(v_compensation)
    v_row = RowGradients(
        v_mean2d=v_mean2d, v_depth=v_depth, v_shape=v_shape, v_normal=v_normal, v_opacity=v_opacity,
        v_compensation=v_compensation,
    )  # fmt: skip
    return v_row, size


@triton.jit
def _store_camera_sums(
    sums, block_image, gaussian, v_inputs, visible, PROJECTOR: tl.constexpr, CONSTANTS: tl.constexpr
):
    """Stores the gradients of the camera of an image, summed over the block."""
    if sums.poses is not None:
        for i in tl.static_range(3):
            for j in tl.static_range(4):
                v_w = PROJECTOR.pose_gradient(gaussian, v_inputs.saved, i, j, CONSTANTS)
                tl.store(sums.poses + block_image * POSE_VALUES + 4 * i + j, tl.sum(tl.where(visible, v_w, 0.0)))
    if sums.lens is not None:
        for k in tl.static_range(N_COEFFICIENTS):
            v_coefficient = tl.sum(tl.where(visible, v_inputs.v_lens[k], 0.0))
            tl.store(sums.lens + block_image * N_COEFFICIENTS + k, v_coefficient)
    if sums.shutter is not None:
        for k in tl.static_range(PATH_GRADIENTS):
            v_value = tl.sum(tl.where(visible, v_inputs.v_path[k], 0.0))
            tl.store(sums.shutter + block_image * PATH_VALUES + k, v_value)


@kernel
def _projection_bwd_kernel(
    gaussians: "Gaussians3D",
    cameras: "Cameras",
    row_of,  # [B, C, N] int32, packed row of each dense id, or -1; None if not packed
    radii,  # [nnz, 2] int32
    v_projected: "ProjectedGradients",
    v_gaussians: "Gaussians3D",  # output
    sums: "CameraSums",  # output
    n_gaussians: "Int", n_cameras: "Int", n_images: "Int", width: "Int", height: "Int",
    eps2d: tl.float64,
    PROJECTOR: tl.constexpr, CONSTANTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Computes gradients of Gaussians, and per block of cameras. One lane per Gaussian, which loops over cameras."""
    GRADIENTS: tl.constexpr = PROJECTOR.GRADIENTS
    batch, block, n, gaussian_id, mask = gaussians_of_program(n_gaussians, BLOCK)
    gaussian = PROJECTOR.load(gaussians, gaussian_id, mask)
    given_opacity = None
    if CONSTANTS.COMPENSATE and gaussians.opacities is not None:
        given_opacity = tl.load(gaussians.opacities + gaussian_id, mask=mask, other=0.0)
    zero = tl.zeros([BLOCK], gaussian.mean[0].dtype)
    screen = Screen(width=width, height=height, eps2d=eps2d)
    total, v_opacity = (zero,) * GRADIENTS, zero
    seen_by_any = tl.zeros([BLOCK], tl.int1)
    is_clean = mask
    for camera_index in range(n_cameras):
        image = batch * n_cameras + camera_index
        row, visible = _find_rows(row_of, radii, image * n_gaussians + n, mask)
        seen_by_any = seen_by_any | visible
        camera = load_camera(cameras, image, CONSTANTS.N_LENS)

        # The incoming gradients of the row, and whether they are finite.
        v_row, incoming = _load_row_gradients(v_projected, row, visible, zero, PROJECTOR.SHAPE)
        is_clean = is_clean & finite(incoming)
        # Gradients of the Gaussian and of the camera by the vector-Jacobian product, and whether they are finite.
        v_inputs = PROJECTOR.vjp(
            gaussian, camera, given_opacity, screen, v_row, sums.lens is not None, sums.shutter is not None, CONSTANTS
        )
        outgoing = size_of(v_inputs.v_gaussian) + tl.abs(v_inputs.v_opacity)
        v_camera = v_inputs.v_lens + v_inputs.v_path
        if len(v_camera) > 0:
            outgoing += size_of(v_camera)
        visible = visible & (finite(outgoing) | (finite(incoming) == 0))
        total = add_where(total, visible, v_inputs.v_gaussian)
        v_opacity += tl.where(visible, v_inputs.v_opacity, 0.0)

        # v_camera: sums over the block.
        block_image = block.to(tl.int64) * n_images + image
        _store_camera_sums(sums, block_image, gaussian, v_inputs, visible, PROJECTOR, CONSTANTS)

    # Gradients of quaternion and scales, from the gradient of the covariance or the axes, summed over cameras.
    v_quat, v_scale, v_covar = PROJECTOR.finish(gaussians, gaussian_id, mask, gaussian, total)
    outgoing = size_of(total[:3] + v_quat + v_scale + v_covar) + tl.abs(v_opacity)
    kept = seen_by_any & (finite(outgoing) | (is_clean == 0))
    store_tuple(v_gaussians.means + gaussian_id * 3, 1, total[:3], mask, kept)
    if v_gaussians.opacities is not None:
        tl.store(v_gaussians.opacities + gaussian_id, tl.where(kept, v_opacity, 0.0), mask=mask)
    if v_gaussians.covars is not None:
        store_tuple(v_gaussians.covars + gaussian_id * 6, 1, v_covar, mask, kept)
    else:
        store_tuple(v_gaussians.quats + gaussian_id * 4, 1, v_quat, mask, kept)
        store_tuple(v_gaussians.scales + gaussian_id * 3, 1, v_scale, mask, kept)


def projection_fwd(gaussians: Gaussians3D, cameras: Cameras, settings: ProjectionSettings) -> ProjectedGaussians:
    """Projects the Gaussians of each scene with all of its cameras; see :class:`ProjectedGaussians`."""
    means = gaussians.means
    n_batches, n_cameras, _, _ = cameras.viewmats.shape
    n_gaussians = means.shape[-2]
    n_rows = n_batches * n_cameras * n_gaussians
    projector = _projector(settings)
    arguments: dict[str, Any] = {
        "gaussians": gaussians,
        "cameras": cameras,
        "width": settings.camera.width,
        "height": settings.camera.height,
        "eps2d": settings.eps2d,
        "near": settings.camera.near,
        "far": settings.camera.far,
        "radius_clip": settings.radius_clip,
        "PROJECTOR": projector,
        "CONSTANTS": Constants.of(settings, cameras),
    }
    dense_ids = row_of = visible = None
    if settings.packed and settings.row_capacity is None:
        visible = torch.empty(n_rows, dtype=torch.int8, device=means.device)
        row_of = torch.empty(n_rows, dtype=torch.int32, device=means.device)
        rows = NO_ROWS._replace(n_cameras=n_cameras, n_gaussians=n_gaussians, row_of=row_of)
        _projection_fwd_kernel.launch_elementwise(
            n_rows, BLOCK, projected=rows, visible_out=visible, n_rows=n_rows, **arguments
        )
        dense_ids, visible = indices_of(visible), None
        n_rows = dense_ids.numel()
    elif settings.packed:
        visible = torch.empty(n_rows, dtype=torch.int32, device=means.device)
    projected = ProjectedGaussians(
        n_cameras=n_cameras,
        n_gaussians=n_gaussians,
        dense_ids=dense_ids,
        radii=torch.empty(n_rows, 2, dtype=torch.int32, device=means.device),
        means2d=means.new_empty(n_rows, 2),
        depths=means.new_empty(n_rows),
        shapes=means.new_empty(n_rows, projector.SHAPE),
        compensations=means.new_empty(n_rows) if settings.antialiased else None,
        opacities=means.new_empty(n_rows) if gaussians.opacities is not None else None,
        row_of=row_of,
        normals=means.new_empty(n_rows, 3) if settings.surfels else None,
    )
    _projection_fwd_kernel.launch_elementwise(
        n_rows, BLOCK, projected=projected, visible_out=visible, n_rows=n_rows, **arguments
    )
    if visible is not None and settings.row_capacity is not None:
        return pack_rows(projected, visible, settings.row_capacity)
    return projected


def projection_bwd(
    gaussians: Gaussians3D,
    cameras: Cameras,
    row_of: Tensor | None,
    radii: Tensor,
    v_projected: ProjectedGradients,
    settings: ProjectionSettings,
    needs: Cameras,
) -> tuple[Gaussians3D, Cameras]:
    """Computes the gradients of Gaussians and cameras. Fields that are None, or require no gradient, are None.

    Args:
        gaussians, cameras, settings: As in :func:`projection_fwd`.
        row_of, radii: As returned by :func:`projection_fwd`.
        v_projected: Gradients of the results of :func:`projection_fwd`.
        needs: Whether each tensor of the cameras requires a gradient.
    """
    means = gaussians.means
    n_batches, n_cameras, _, _ = cameras.viewmats.shape
    n_gaussians = means.shape[-2]
    gaussians = gaussians._replace(valid=None)
    v_gaussians = Gaussians3D(*(None if t is None else torch.empty_like(t) for t in gaussians))
    block = block_size(means, BLOCK)
    blocks = programs(n_gaussians, block)
    sums = CameraSums.allocate(means, blocks, cameras, needs, settings.camera.model)
    _projection_bwd_kernel.launch(
        programs(n_batches * blocks, 1),
        gaussians=gaussians,
        cameras=cameras,
        row_of=row_of,
        radii=radii,
        v_projected=v_projected,
        v_gaussians=v_gaussians,
        sums=sums,
        n_gaussians=n_gaussians,
        n_cameras=n_cameras,
        n_images=n_batches * n_cameras,
        width=settings.camera.width,
        height=settings.camera.height,
        eps2d=settings.eps2d,
        PROJECTOR=_projector(settings),
        CONSTANTS=Constants.of(settings, cameras),
        BLOCK=block,
    )
    return v_gaussians, sums.gradients(cameras)
