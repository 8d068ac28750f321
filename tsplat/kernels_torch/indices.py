"""Indices of rows: between the packed and the dense layout, and from rows to Gaussians and images."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..data import Gaussians3D


def visible_rows(
    dense_ids: Tensor | None, radii: Tensor | None, n_dense: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Returns the rows that are not culled, and their indices in the dense [B, C, N] layout."""
    if radii is None:
        rows = torch.arange(n_dense if dense_ids is None else dense_ids.numel(), device=device)
    else:
        rows = (radii[:, 0] > 0).nonzero().squeeze(1)
    return rows, rows if dense_ids is None else dense_ids[rows]


def row_of_dense(dense_ids: Tensor, n_dense: int) -> Tensor:
    """Returns the packed row of each entry of the dense [B, C, N] layout, -1 where it has none. [n_dense] int32"""
    row_of = torch.full((n_dense,), -1, dtype=torch.int32, device=dense_ids.device)
    row_of[dense_ids] = torch.arange(dense_ids.numel(), dtype=torch.int32, device=dense_ids.device)
    return row_of


def packed_ids(row_of: Tensor | None) -> Tensor | None:
    """Inverts :func:`row_of_dense`: returns the dense index of each row, or None if rows are not packed."""
    return None if row_of is None else (row_of >= 0).nonzero().squeeze(1)


def keep_visible(values: Tensor, visible: Tensor, *, packed: bool) -> Tensor:
    """Returns the values of the visible rows if ``packed``, otherwise of all rows, with zeros where culled.

    ``visible`` is a mask [n_dense].
    """
    if packed:
        return values[visible]
    return torch.where(visible.view(-1, *[1] * (values.dim() - 1)), values, values.new_zeros(()))


def gaussians_and_images(dense_ids: Tensor, n_gaussians: int, n_cameras: int) -> tuple[Tensor, Tensor]:
    """Converts flat indices into [B, C, N] to flat indices into [B, N] (Gaussians) and [B, C] (images)."""
    images = dense_ids // max(n_gaussians, 1)
    return images // n_cameras * n_gaussians + dense_ids % max(n_gaussians, 1), images


def flat_scenes(gaussians: Gaussians3D) -> Gaussians3D:
    """Flattens the leading dimensions of the tensors of Gaussians, [..., N, ...] -> [B N, ...]."""
    last = gaussians.means.dim() - 2
    return Gaussians3D(*[None if t is None else t.flatten(0, last) for t in gaussians])  # type: ignore[arg-type]


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Returns whether all values of a row are finite in all tensors. [nnz] bool"""
    return torch.stack([tensor[..., None].flatten(1).isfinite().all(-1) for tensor in tensors]).all(0)
