"""Transforms Gaussians to camera frames and projects them to the image plane, in plain PyTorch."""

import torch
from torch import Tensor

from .... import ShapeError
from ....arguments import check_tensor, compute_dtype
from ....config import CameraModel
from ....kernels_torch.lenses import LENSES
from ....precision import in_full_precision, matrix_product
from ....stages.lens_models import check_camera_model


@in_full_precision
def world_to_cam(means: Tensor, covars: Tensor, viewmats: Tensor) -> tuple[Tensor, Tensor]:
    """Transforms Gaussians from the world frame to the frames of cameras.

    Args:
        means: [..., N, 3], world frame.
        covars: [..., N, 3, 3], world frame.
        viewmats: [..., C, 4, 4] world to camera.

    Returns:
        Means [..., C, N, 3] and covariances [..., C, N, 3, 3], camera frame. Differentiable with respect to all
        arguments.

    Raises:
        ArgumentError: A shape or dtype is invalid.
    """
    batch, n = means.shape[:-2], means.shape[-2]
    check_tensor("means", means, [*batch, n, 3], "[..., N, 3]")
    check_tensor("covars", covars, [*batch, n, 3, 3], "[..., N, 3, 3] as means")
    check_tensor("viewmats", viewmats, [*batch, None, 4, 4], "[..., C, 4, 4] with the batch dimensions of means")
    dtype = compute_dtype(means, covars, viewmats)
    means, covars, viewmats = means.to(dtype), covars.to(dtype), viewmats.to(dtype)
    rotation, translation = viewmats[..., None, :3, :3], viewmats[..., None, :3, 3]  # [..., C, 1, 3, 3], [..., C, 1, 3]
    means_c = (rotation * means[..., None, :, None, :]).sum(-1) + translation
    covars_c = matrix_product(matrix_product(rotation, covars[..., None, :, :, :]), rotation.mT)
    return means_c, covars_c


@in_full_precision
def proj(
    means: Tensor, covars: Tensor, Ks: Tensor, width: int, height: int, camera_model: CameraModel = "pinhole"
) -> tuple[Tensor, Tensor]:
    """Projects Gaussians to the image plane (EWA splatting, Zwicker et al., 2001), without blur and culling.

    The Jacobian of a pinhole camera is evaluated at the mean, clamped to 1.3 times the field of view as in
    :func:`tsplat.rasterization`.

    Args:
        means: [..., C, N, 3], camera frame.
        covars: [..., C, N, 3, 3], camera frame.
        Ks: [..., C, 3, 3] intrinsics in pixels; focal lengths and principal point are read.
        width, height: Image size in pixels.
        camera_model: ``"pinhole"``, ``"ortho"`` or ``"fisheye"``, as in :func:`tsplat.rasterization`.

    Returns:
        Means [..., C, N, 2] in pixels and covariances [..., C, N, 2, 2] in pixels^2. Differentiable with respect to
        means and covars.

    Raises:
        ArgumentError: A shape or dtype is invalid.
        NotImplementedError: ``camera_model="ftheta"``.
    """
    check_camera_model(camera_model)
    if means.dim() < 3:
        raise ShapeError(f"means: expected [..., C, N, 3], found {list(means.shape)}")
    cameras, n = means.shape[:-2], means.shape[-2]
    check_tensor("means", means, [*cameras, n, 3], "[..., C, N, 3]")
    check_tensor("covars", covars, [*cameras, n, 3, 3], "[..., C, N, 3, 3] as means")
    check_tensor("Ks", Ks, [*cameras, 3, 3], "[..., C, 3, 3] with the leading dimensions of means")
    dtype = compute_dtype(means, covars, Ks)
    means, covars, Ks = means.to(dtype), covars.to(dtype), Ks.to(dtype)
    fx, fy, cx, cy = (Ks[..., i, j, None].detach() for i, j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    x, y, z = means.unbind(-1)
    *mean2d, row0, row1 = LENSES[camera_model].project_with_jacobian((x, y, z), (fx, fy, cx, cy), width, height)
    zero = torch.zeros_like(x)
    rows = (torch.stack([zero if entry is None else entry + zero for entry in row], -1) for row in (row0, row1))
    jacobian = torch.stack(list(rows), -2)  # [..., C, N, 2, 3]
    return torch.stack(mean2d, -1), matrix_product(matrix_product(jacobian, covars), jacobian.mT)


def persp_proj(means: Tensor, covars: Tensor, Ks: Tensor, width: int, height: int) -> tuple[Tensor, Tensor]:
    """Projects Gaussians to the image plane of a pinhole camera; see :func:`proj`."""
    return proj(means, covars, Ks, width, height)


def ortho_proj(means: Tensor, covars: Tensor, Ks: Tensor, width: int, height: int) -> tuple[Tensor, Tensor]:
    """Projects Gaussians to the image plane of an orthographic camera; see :func:`proj`."""
    return proj(means, covars, Ks, width, height, "ortho")


def fisheye_proj(means: Tensor, covars: Tensor, Ks: Tensor, width: int, height: int) -> tuple[Tensor, Tensor]:
    """Projects Gaussians to the image plane of an equidistant fisheye camera; see :func:`proj`."""
    return proj(means, covars, Ks, width, height, "fisheye")
