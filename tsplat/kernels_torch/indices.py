"""Indices of rows, pairs of camera and Gaussian, that the host launchers share."""

from __future__ import annotations

import torch
from torch import Tensor


def visible_pairs(
    row_ids: Tensor | None, radii: Tensor | None, n_pairs: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Rows that are not culled, and for each the flat index into [B, C, N]."""
    if radii is None:
        rows = torch.arange(n_pairs if row_ids is None else row_ids.numel(), device=device)
    else:
        rows = (radii[:, 0] > 0).nonzero().squeeze(1)
    return rows, rows if row_ids is None else row_ids[rows]


def gaussians_and_images(pairs: Tensor, n_gaussians: int, n_cameras: int) -> tuple[Tensor, Tensor]:
    """Flat indices into [B, N] and [B, C] of pairs given by their flat index into [B, C, N]."""
    images = pairs // max(n_gaussians, 1)
    return images // n_cameras * n_gaussians + pairs % max(n_gaussians, 1), images
