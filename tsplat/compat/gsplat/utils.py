"""The names of ``gsplat.utils``: rotations, logarithmic quantization, depth maps, PLY files."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ... import depth_to_normals as depth_to_normal
from ... import depth_to_points
from ...arguments import check_tensor, compute_dtype
from ...formulas.rotations import rotation_matrices
from ...scene.sh_colors import colors_to_sh0
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


def normalized_quat_to_rotmat(quat: Tensor) -> Tensor:
    """Converts unit quaternions [..., 4] (wxyz) to rotation matrices [..., 3, 3], in at least fp32. Differentiable."""
    return rotation_matrices(quat.to(compute_dtype(quat)))


def get_projection_matrix(
    znear: float, zfar: float, fovX: float, fovY: float, device: torch.device | str = "cuda"
) -> Tensor:
    """Returns the [4, 4] projection to clip space for cameras that look along +z, with depths from 0 to 1.

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


def save_ply(splats: Mapping[str, Tensor], dir: str, colors: Tensor | None = None) -> None:
    """Writes ``splats``, the arguments of :func:`~tsplat.compat.gsplat.exporter.export_splats`, to a PLY file.

    If colors [N, 3] in [0, 1] are given, they are written instead of ``sh0`` and ``shN``.
    """
    sh0, shN = splats["sh0"], splats["shN"]
    if colors is not None:
        check_tensor("colors", colors, [len(splats["means"]), 3], "[N, 3] as means")
        sh0, shN = colors_to_sh0(colors)[:, None], shN[:, :0]
    export_splats(splats["means"], splats["scales"], splats["quats"], splats["opacities"], sh0, shN, save_to=dir)
