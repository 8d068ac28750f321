"""World points of depth maps of pinhole cameras, and their surface normals."""

import torch
from torch import Tensor

from .pixel_centers import pixel_centers


def points_of(depths: Tensor, camtoworlds: Tensor, Ks: Tensor, *, z_depth: bool = True) -> Tensor:
    """Computes world points [..., H, W, 3] from depths [..., H, W, 1].

    Args:
        camtoworlds: [..., 4, 4].
        Ks: [..., 3, 3]; skew is ignored.
        z_depth: Whether depths are z of the camera frame; otherwise, distances from the camera.
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
    """Computes the normals [..., H, W, 3] of the world points of depths, see :func:`points_of`."""
    return normals_of(points_of(depths, camtoworlds, Ks))


def normals_of(points: Tensor) -> Tensor:
    """Computes unit normals of points [..., H, W, 3] by central differences; zero in a border of one pixel."""
    along_rows = points[..., 2:, 1:-1, :] - points[..., :-2, 1:-1, :]
    along_columns = points[..., 1:-1, 2:, :] - points[..., 1:-1, :-2, :]
    normals = torch.nn.functional.normalize(along_rows.cross(along_columns, dim=-1), dim=-1)
    return torch.nn.functional.pad(normals, (0, 0, 1, 1, 1, 1))
