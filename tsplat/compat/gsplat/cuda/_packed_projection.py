"""Projections whose packed results are those of gsplat 1.5.3 or of gsplat 1.6, as `numerics` says."""

import math

import torch
from torch import Tensor

from .... import config
from .... import fully_fused_projection as project
from .... import fully_fused_projection_2dgs as project_2dgs


def fully_fused_projection(
    means: Tensor, covars: Tensor | None, quats: Tensor | None, scales: Tensor | None, viewmats: Tensor, Ks: Tensor,
    width: int, height: int, eps2d: float = 0.3, near_plane: float = 0.01, far_plane: float = 1e10,
    radius_clip: float = 0.0, packed: bool = False, sparse_grad: bool = False, calc_compensations: bool = False,
    camera_model: config.CameraModel = "pinhole", opacities: Tensor | None = None,
    *, backend: config.Backend = "auto", numerics: config.NumericsName = "gsplat-1.5",
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Projects 3D Gaussians to the image plane, as :func:`tsplat.fully_fused_projection`.

    Returns:
        As there. Packed with ``numerics="gsplat-1.6"``, there is a value more, after ``gaussian_ids``: ``indptr`` int32
        [B * C + 1], the first row of each batch and camera, and nnz.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: As there.
    """
    outputs = project(
        means, covars, quats, scales, viewmats, Ks, width, height, eps2d, near_plane, far_plane, radius_clip, packed,
        sparse_grad, calc_compensations, camera_model, opacities, backend=backend, numerics=numerics,
    )  # fmt: skip
    return _with_indptr(outputs, viewmats) if packed and numerics == "gsplat-1.6" else outputs


def fully_fused_projection_2dgs(
    means: Tensor, quats: Tensor, scales: Tensor, viewmats: Tensor, Ks: Tensor, width: int, height: int,
    eps2d: float = 0.3, near_plane: float = 0.01, far_plane: float = 1e10, radius_clip: float = 0.0,
    packed: bool = False, sparse_grad: bool = False,
    *, backend: config.Backend = "auto", numerics: config.NumericsName = "gsplat-1.5",
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Projects 2D Gaussians to the image plane, as :func:`tsplat.fully_fused_projection_2dgs`.

    Returns:
        As there. Packed with ``numerics="gsplat-1.6"``, with ``indptr`` as :func:`fully_fused_projection`.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: As there.
    """
    outputs = project_2dgs(
        means, quats, scales, viewmats, Ks, width, height, eps2d, near_plane, far_plane, radius_clip, packed,
        sparse_grad, backend=backend, numerics=numerics,
    )  # fmt: skip
    return _with_indptr(outputs, viewmats) if packed and numerics == "gsplat-1.6" else outputs


def _with_indptr(outputs: tuple[Tensor | None, ...], viewmats: Tensor) -> tuple[Tensor | None, ...]:
    """Inserts, behind the ids of packed rows, where the rows of each image start. Rows are sorted by image."""
    batch_ids, camera_ids, gaussian_ids, *rest = outputs
    assert batch_ids is not None and camera_ids is not None
    n_cameras, n_images = viewmats.shape[-3], math.prod(viewmats.shape[:-2])
    images = torch.arange(n_images + 1, device=batch_ids.device)
    indptr = torch.searchsorted(batch_ids * n_cameras + camera_ids, images, out_int32=True)
    return batch_ids, camera_ids, gaussian_ids, indptr, *rest
