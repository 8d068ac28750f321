"""The names of ``gsplat.utils``: rotations, logarithmic quantization, depth maps, PLY files."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ...arguments import check_tensor
from ...config import SH_NORMS
from ...stages.compilation import with_plain_tensors
from ._rotations import normalized_quat_to_rotmat
from .exporter import export_splats

__all__ = [
    "depth_to_normal",
    "depth_to_points",
    "get_projection_matrix",
    "inverse_log_transform",
    "log_transform",
    "normalized_quat_to_rotmat",
    "save_ply",
]


def log_transform(x: Tensor) -> Tensor:
    """Computes ``sign(x) log(1 + |x|)``, elementwise."""
    return x.sign() * x.abs().log1p()


def inverse_log_transform(y: Tensor) -> Tensor:
    """Computes ``sign(y) (exp(|y|) - 1)``, the inverse of :func:`log_transform`."""
    return y.sign() * y.abs().expm1()


def get_projection_matrix(
    znear: float, zfar: float, fovX: float, fovY: float, device: torch.device | str = "cuda"
) -> Tensor:
    """Returns the [4, 4] projection of cameras that look along +z to clip space, with depths from 0 to 1.

    Args:
        znear, zfar: Depths of the near and the far plane.
        fovX, fovY: Fields of view, radians.
        device: The device of the matrix.
    """
    depth = zfar / (zfar - znear)
    rows = [
        [1 / math.tan(fovX / 2), 0, 0, 0],
        [0, 1 / math.tan(fovY / 2), 0, 0],
        [0, 0, depth, -depth * znear],
        [0, 0, 1, 0],
    ]
    return torch.tensor(rows, dtype=torch.get_default_dtype(), device=device)


@with_plain_tensors
def depth_to_points(depths: Tensor, camtoworlds: Tensor, Ks: Tensor, z_depth: bool = True) -> Tensor:
    """Computes the world positions that depth maps show.

    Args:
        depths: [..., H, W, 1].
        camtoworlds: [..., 4, 4] camera to world.
        Ks: [..., 3, 3] intrinsics in pixels; pixel centers are at +0.5. Skew is not read.
        z_depth: Whether depths are camera-space z; otherwise distances from the camera center.

    Returns:
        Points [..., H, W, 3]. Differentiable.

    Raises:
        ArgumentError: A shape or dtype is invalid.
    """
    check_tensor("depths", depths, [..., None, None, 1], "[..., H, W, 1]")
    batch, (height, width) = depths.shape[:-3], depths.shape[-3:-1]
    check_tensor("camtoworlds", camtoworlds, [*batch, 4, 4], "[..., 4, 4] with the batch dimensions of depths")
    check_tensor("Ks", Ks, [*batch, 3, 3], "[..., 3, 3] with the batch dimensions of depths")
    columns = torch.arange(width, dtype=Ks.dtype, device=depths.device) + 0.5
    rows = torch.arange(height, dtype=Ks.dtype, device=depths.device) + 0.5
    fx, fy, cx, cy = (Ks[..., i, j, None] for i, j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    x = ((columns - cx) / fx)[..., None, :, None]  # [..., 1, W, 1]
    y = ((rows - cy) / fy)[..., :, None, None]  # [..., H, 1, 1]
    right, down, forward = (camtoworlds[..., None, None, :3, axis] for axis in range(3))
    directions = x * right + y * down + forward  # [..., H, W, 3]
    if not z_depth:
        directions = torch.nn.functional.normalize(directions, dim=-1)
    return camtoworlds[..., None, None, :3, 3] + depths * directions


def depth_to_normal(depths: Tensor, camtoworlds: Tensor, Ks: Tensor, z_depth: bool = True) -> Tensor:
    """Estimates the surface normals of depth maps by central differences. They face the camera.

    Args:
        depths, camtoworlds, Ks, z_depth: As for :func:`depth_to_points`.

    Returns:
        Unit normals [..., H, W, 3], world frame; zero at the border. Differentiable.

    Raises:
        ArgumentError: A shape or dtype is invalid.
    """
    points = depth_to_points(depths, camtoworlds, Ks, z_depth)
    along_rows = points[..., 2:, 1:-1, :] - points[..., :-2, 1:-1, :]
    along_columns = points[..., 1:-1, 2:, :] - points[..., 1:-1, :-2, :]
    normals = torch.nn.functional.normalize(along_rows.cross(along_columns, dim=-1), dim=-1)
    return torch.nn.functional.pad(normals, (0, 0, 1, 1, 1, 1))


def save_ply(splats: Mapping[str, Tensor], dir: str, colors: Tensor | None = None) -> None:
    """Writes Gaussians to a PLY file; see :func:`~tsplat.compat.gsplat.exporter.export_splats`.

    Args:
        splats: ``means``, ``scales``, ``quats``, ``opacities``, ``sh0`` and ``shN``, before activation.
        dir: The file.
        colors: [N, 3] in [0, 1], written instead of ``sh0`` and ``shN``.
    """
    sh0, shN = splats["sh0"], splats["shN"]
    if colors is not None:
        check_tensor("colors", colors, [len(splats["means"]), 3], "[N, 3] as means")
        sh0, shN = ((colors - 0.5) / SH_NORMS[0][0])[:, None], shN[:, :0]
    export_splats(
        splats["means"], splats["scales"], splats["quats"], splats["opacities"], sh0, shN, save_to=dir
    )  # fmt: skip
