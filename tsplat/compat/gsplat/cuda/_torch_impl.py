"""The names of ``gsplat.cuda._torch_impl``: steps of the pipeline in plain PyTorch, with gradients by autograd."""

import torch
from torch import Tensor

from .... import ArgumentError, fully_fused_projection, isect_offset_encode, isect_tiles
from .... import quat_scale_to_covar_preci as _quat_scale_to_covar_preci
from .... import spherical_harmonics as _spherical_harmonics
from ....config import SH_DEGREE_MAX, CameraModel
from ....scalars import check_size
from ..utils import normalized_quat_to_rotmat
from ._cameras import fisheye_proj as _fisheye_proj
from ._cameras import ortho_proj as _ortho_proj
from ._cameras import persp_proj as _persp_proj
from ._cameras import world_to_cam as _world_to_cam
from ._contributions import accumulate, rasterize_to_indices_in_range

__all__ = ["_fisheye_proj", "_ortho_proj", "_persp_proj", "_quat_scale_to_covar_preci", "_world_to_cam", "accumulate"]


def _quat_to_rotmat(quats: Tensor) -> Tensor:
    """Converts quaternions [..., 4] (wxyz, any nonzero norm) to rotation matrices [..., 3, 3]."""
    return normalized_quat_to_rotmat(torch.nn.functional.normalize(quats, dim=-1))


def _quat_scale_to_matrix(quats: Tensor, scales: Tensor) -> Tensor:
    """Computes R diag(s), a square root of the covariance. [..., 4], [..., 3] -> [..., 3, 3]"""
    return _quat_to_rotmat(quats) * scales[..., None, :]


def _fully_fused_projection(
    means: Tensor, covars: Tensor, viewmats: Tensor, Ks: Tensor, width: int, height: int,
    eps2d: float = 0.3, near_plane: float = 0.01, far_plane: float = 1e10,
    calc_compensations: bool = False, camera_model: CameraModel = "pinhole",
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Projects Gaussians with covariances [..., N, 3, 3]; see :func:`tsplat.fully_fused_projection`."""
    return fully_fused_projection(
        means, covars[..., (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)], None, None, viewmats, Ks, width, height,
        eps2d=eps2d, near_plane=near_plane, far_plane=far_plane, calc_compensations=calc_compensations,
        camera_model=camera_model,
    )  # fmt: skip


def _isect_tiles(
    means2d: Tensor, radii: Tensor, depths: Tensor, tile_size: int, tile_width: int, tile_height: int, sort: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Lists the intersections of Gaussians and tiles; see :func:`tsplat.isect_tiles`."""
    return isect_tiles(means2d, radii, depths, tile_size, tile_width, tile_height, sort=sort)


def _isect_offset_encode(isect_ids: Tensor, I: int, tile_width: int, tile_height: int) -> Tensor:  # noqa: E741
    """Finds each tile's first intersection; see :func:`tsplat.isect_offset_encode`."""
    return isect_offset_encode(isect_ids, I, tile_width, tile_height)


def _rasterize_to_pixels(
    means2d: Tensor, conics: Tensor, colors: Tensor, opacities: Tensor,
    image_width: int, image_height: int, tile_size: int, isect_offsets: Tensor, flatten_ids: Tensor,
    backgrounds: Tensor | None = None, batch_per_iter: int = 100,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Composites Gaussians like :func:`tsplat.rasterize_to_pixels`, `batch_per_iter` blocks of each tile at a time."""
    check_size("batch_per_iter", batch_per_iter)
    images = means2d.shape[:-2]
    colors_sum = means2d.new_zeros(*images, image_height, image_width, colors.shape[-1])
    transmittances = means2d.new_ones(*images, image_height, image_width)
    bounds = torch.cat([isect_offsets.flatten(), isect_offsets.new_tensor([flatten_ids.numel()])])
    n_blocks = -(-int(bounds.diff().max()) // tile_size**2)
    for first in range(0, n_blocks, batch_per_iter):
        ids = rasterize_to_indices_in_range(
            first, first + batch_per_iter, transmittances, means2d, conics, opacities, image_width, image_height,
            tile_size, isect_offsets, flatten_ids,
        )  # fmt: skip
        renders, alphas = accumulate(means2d, conics, opacities, colors, *ids, image_width, image_height)
        colors_sum = colors_sum + transmittances[..., None] * renders
        transmittances = transmittances * (1 - alphas[..., 0])
    if backgrounds is not None:
        colors_sum = colors_sum + transmittances[..., None] * backgrounds[..., None, None, :]
    return colors_sum, 1 - transmittances[..., None]


def _eval_sh_bases_fast(basis_dim: int, dirs: Tensor) -> Tensor:
    """Evaluates 1, 4, 9, 16 or 25 real spherical harmonics in unit directions. [..., 3] -> [..., basis_dim]"""
    sizes = [(degree + 1) ** 2 for degree in range(SH_DEGREE_MAX + 1)]
    if basis_dim not in sizes:
        raise ArgumentError(f"basis_dim: expected one of {sizes}, found {basis_dim!r}")
    # With one basis function per channel, the colors are the values of all basis functions.
    one_hot = torch.eye(basis_dim, dtype=dirs.dtype, device=dirs.device)
    return _spherical_harmonics(sizes.index(basis_dim), dirs, one_hot.expand(*dirs.shape[:-1], basis_dim, basis_dim))
