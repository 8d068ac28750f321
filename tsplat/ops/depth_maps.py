"""Computes world positions and surface normals from depth maps."""

from torch import Tensor

from ..arguments import check_bool, check_tensor
from ..formulas.depth_maps import normals_of, points_of
from ..runtime.compilation import with_plain_tensors


@with_plain_tensors
def depth_to_points(depths: Tensor, camtoworlds: Tensor, Ks: Tensor, z_depth: bool = True) -> Tensor:
    """Computes world positions from depth maps of pinhole cameras.

    Differentiable with respect to `depths`, `camtoworlds` and `Ks`.

    Args:
        depths: [..., H, W, 1] depth of each pixel, world units; the last channel of the images that
            :func:`tsplat.rasterization` renders with ``render_mode="ED"`` or ``"RGB+ED"``.
        camtoworlds: [..., 4, 4] camera to world, the inverse of `viewmats`; cameras look along +z, with y down.
        Ks: [..., 3, 3] intrinsics in pixels; pixel centers are at +0.5. Skew is ignored.
        z_depth: Whether depths are camera-space z, as :func:`tsplat.rasterization` renders them; otherwise, they are
            distances from the camera center.

    Returns:
        Points [..., H, W, 3], world frame.

    Raises:
        ArgumentError: A shape or dtype is invalid, or `z_depth` is neither True nor False.
        UnsupportedError: A tensor is not strided, such as a sparse or quantized one.

    Example::

        import torch
        from tsplat import depth_to_points

        Ks = torch.tensor([[100.0, 0, 40], [0, 100, 30], [0, 0, 1]])
        points = depth_to_points(torch.full((60, 80, 1), 4.0), torch.eye(4), Ks)  # [60, 80, 3], on the plane z = 4
    """
    check_bool("z_depth", z_depth)
    check_tensor("depths", depths, [..., None, None, 1], "[..., H, W, 1]")
    batch = depths.shape[:-3]
    check_tensor("camtoworlds", camtoworlds, [*batch, 4, 4], "[..., 4, 4] with the batch dimensions of depths")
    check_tensor("Ks", Ks, [*batch, 3, 3], "[..., 3, 3] with the batch dimensions of depths")
    return points_of(depths, camtoworlds, Ks, z_depth=z_depth)


@with_plain_tensors
def depth_to_normals(depths: Tensor, camtoworlds: Tensor, Ks: Tensor, z_depth: bool = True) -> Tensor:
    """Estimates surface normals from depth maps, by central differences of :func:`depth_to_points`.

    Differentiable with respect to `depths`, `camtoworlds` and `Ks`. Normals are meaningless next to a discontinuity of
    the depth; where alpha is small, so are depths and normals.

    Args:
        depths, camtoworlds, Ks, z_depth: As for :func:`depth_to_points`.

    Returns:
        Unit normals [..., H, W, 3], world frame, which face the camera; zero in a border of one pixel.

    Raises:
        ArgumentError, UnsupportedError: As :func:`depth_to_points`.

    Example::

        import torch
        from tsplat import depth_to_normals

        Ks = torch.tensor([[100.0, 0, 40], [0, 100, 30], [0, 0, 1]])
        normals = depth_to_normals(torch.full((60, 80, 1), 4.0), torch.eye(4), Ks)  # (0, 0, -1) inside the border
    """
    return normals_of(depth_to_points(depths, camtoworlds, Ks, z_depth))
