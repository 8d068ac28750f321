"""Projections whose packed results follow gsplat 1.5.3 or gsplat 1.6, depending on `numerics`."""

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
    """Projects 3D Gaussians to the image plane; see :func:`tsplat.fully_fused_projection`.

    Returns:
        The same values. If packed with ``numerics="gsplat-1.6"``, ``gaussian_ids`` is followed by ``indptr`` int32 [B *
        C + 1]: the first row of each batch and camera, and finally nnz.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: An option is not implemented.
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
    """Projects 2D Gaussians to the image plane; see :func:`tsplat.fully_fused_projection_2dgs`.

    Returns:
        The same values. If packed with ``numerics="gsplat-1.6"``, also ``indptr`` as in :func:`fully_fused_projection`.

    Raises:
        ArgumentError: A shape, dtype, device or value is invalid.
        NotImplementedError: An option is not implemented.
    """
    outputs = project_2dgs(
        means, quats, scales, viewmats, Ks, width, height, eps2d, near_plane, far_plane, radius_clip, packed,
        sparse_grad, backend=backend, numerics=numerics,
    )  # fmt: skip
    return _with_indptr(outputs, viewmats) if packed and numerics == "gsplat-1.6" else outputs


def _with_indptr(outputs: tuple[Tensor | None, ...], viewmats: Tensor) -> tuple[Tensor | None, ...]:
    """Inserts the first row of each image after the ids of packed rows, which are sorted by image."""
    batch_ids, camera_ids, gaussian_ids, *rest = outputs
    assert batch_ids is not None and camera_ids is not None
    n_cameras, n_images = viewmats.shape[-3], math.prod(viewmats.shape[:-2])
    images = torch.arange(n_images + 1, device=batch_ids.device)
    indptr = torch.searchsorted(batch_ids * n_cameras + camera_ids, images, out_int32=True)
    return batch_ids, camera_ids, gaussian_ids, indptr, *rest
