"""World positions that depth maps of pinhole cameras show, and the surface normals there."""

import torch
from torch import Tensor

from .pixel_centers import pixel_centers


def points_of(depths: Tensor, camtoworlds: Tensor, Ks: Tensor, *, z_depth: bool = True) -> Tensor:
    """Computes points [..., H, W, 3] from depths [..., H, W, 1], z of the camera frame or distances from the camera.

    Args:
        camtoworlds: [..., 4, 4].
        Ks: [..., 3, 3]; skew is not read.
    """
    height, width = depths.shape[-3:-1]
    columns, rows = pixel_centers(width, height, Ks)
    fx, fy, cx, cy = (Ks[..., i, j, None] for i, j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    x = ((columns - cx) / fx)[..., None, :, None]  # [..., 1, W, 1]
    y = ((rows - cy) / fy)[..., :, None, None]  # [..., H, 1, 1]
    right, down, forward = (camtoworlds[..., None, None, :3, axis] for axis in range(3))
    directions = x * right + y * down + forward  # [..., H, W, 3]
    if not z_depth:
        directions = torch.nn.functional.normalize(directions, dim=-1)
    return camtoworlds[..., None, None, :3, 3] + depths * directions


def depth_normals(depths: Tensor, camtoworlds: Tensor, Ks: Tensor) -> Tensor:
    """Computes the normals [..., H, W, 3] of the points that depths show, see :func:`points_of`."""
    return normals_of(points_of(depths, camtoworlds, Ks))


def normals_of(points: Tensor) -> Tensor:
    """Computes unit normals of points [..., H, W, 3] by central differences; zero at the border of one pixel."""
    along_rows = points[..., 2:, 1:-1, :] - points[..., :-2, 1:-1, :]
    along_columns = points[..., 1:-1, 2:, :] - points[..., 1:-1, :-2, :]
    normals = torch.nn.functional.normalize(along_rows.cross(along_columns, dim=-1), dim=-1)
    return torch.nn.functional.pad(normals, (0, 0, 1, 1, 1, 1))
