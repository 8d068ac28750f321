"""Indices of rows that launchers share."""

from __future__ import annotations

import torch
from torch import Tensor


def visible_rows(
    dense_ids: Tensor | None, radii: Tensor | None, n_dense: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Rows that are not culled, and their indices into the dense [B, C, N] layout."""
    if radii is None:
        rows = torch.arange(n_dense if dense_ids is None else dense_ids.numel(), device=device)
    else:
        rows = (radii[:, 0] > 0).nonzero().squeeze(1)
    return rows, rows if dense_ids is None else dense_ids[rows]


def gaussians_and_images(dense_ids: Tensor, n_gaussians: int, n_cameras: int) -> tuple[Tensor, Tensor]:
    """Flat indices into [B, N] and [B, C] from flat indices into [B, C, N]."""
    images = dense_ids // max(n_gaussians, 1)
    return images // n_cameras * n_gaussians + dense_ids % max(n_gaussians, 1), images
