"""What the stages hand to each other: rows and pairs.

A *row* is an image and a Gaussian. Packed rows are the visible ones in ascending order of image, then Gaussian;
otherwise there is a row for every image and Gaussian, and culled ones are zero. A *pair* is a row and a tile.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclasses.dataclass(frozen=True)
class Rows:
    """Projected Gaussians.

    Attributes:
        n_cameras, n_gaussians: C and N.
        row_ids: [R] int64, flat index into [B, C, N] of each row; None where every pair is a row.
        radii: [R, 2] int32, half width and height in pixels, zero where culled.
        means2d: [R, 2] pixels.
        depths: [R], camera-space z.
        conics: [R, 3] upper triangle of the inverse screen covariance, 1/pixel^2.
        compensations: [R] antialiasing factor, or None.
        opacities: [R] opacity times compensation, or None where no opacities were given.
    """

    n_cameras: int
    n_gaussians: int
    row_ids: Tensor | None
    radii: Tensor
    means2d: Tensor
    depths: Tensor
    conics: Tensor
    compensations: Tensor | None
    opacities: Tensor | None

    def indices(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Batch, camera and Gaussian of each packed row, [nnz] int64 each; None where rows are not packed."""
        if self.row_ids is None:
            return None, None, None
        n_gaussians = max(self.n_gaussians, 1)
        image_ids = self.row_ids // n_gaussians
        return image_ids // self.n_cameras, image_ids % self.n_cameras, self.row_ids % n_gaussians


class GaussianMajor(NamedTuple):
    """Another order of the pairs, in which those of one row are neighbours, each in a *slot*.

    Attributes:
        slots: [M] int64, slot of each pair.
        segment_starts, segment_rows: [R + 1] and [R] int64: slots segment_starts[i] to segment_starts[i + 1] belong to
            the row segment_rows[i]; every row occurs once.
    """

    slots: Tensor
    segment_starts: Tensor
    segment_rows: Tensor


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Rows and the tiles they touch, M pairs in all, tile by tile and front to back.

    Attributes:
        tile_width, tile_height: Tiles per image row and column.
        tiles_per_gauss: [R] int32, pairs of each row.
        tile_ids: [M] int64, image x tile of each pair.
        flatten_ids: [M] int32, row of each pair.
        isect_offsets: [I * tiles + 1] int64, where each tile's pairs begin, and M.
        gaussian_major: The same pairs row by row.
    """

    tile_width: int
    tile_height: int
    tiles_per_gauss: Tensor
    tile_ids: Tensor
    flatten_ids: Tensor
    isect_offsets: Tensor
    gaussian_major: GaussianMajor


@overload
def flatten_batch(tensor: Tensor, n_batch_dims: int, dtype: torch.dtype) -> Tensor: ...
@overload
def flatten_batch(tensor: None, n_batch_dims: int, dtype: torch.dtype) -> None: ...
def flatten_batch(tensor: Tensor | None, n_batch_dims: int, dtype: torch.dtype) -> Tensor | None:
    """[..., own] -> [B, own] in the given element type."""
    if tensor is None:
        return None
    return tensor.to(dtype).reshape(math.prod(tensor.shape[:n_batch_dims]), *tensor.shape[n_batch_dims:])


class _GatherRows(torch.autograd.Function):
    """values[index], whose backward pass sums in a fixed order."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, unique: bool) -> Tensor:
        ctx.save_for_backward(index)
        ctx.size, ctx.unique = values.shape, unique
        return values[index]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v_rows: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        v_values = v_rows.new_zeros(ctx.size)
        v_values.index_put_((index,), v_rows, accumulate=not ctx.unique)
        return v_values, None, None


def gather_rows(values: Tensor, rows: Rows, per_camera: bool) -> Tensor:
    """What belongs to Gaussians [B, N, D], or to pairs of camera and Gaussian [B, C, N, D], brought to rows [R, D]."""
    channels = values.shape[-1]
    if rows.row_ids is None:
        if not per_camera:
            values = values[:, None].expand(-1, rows.n_cameras, -1, -1)
        return values.reshape(rows.depths.numel(), channels)
    index = rows.row_ids
    if not per_camera:
        index = index // (rows.n_cameras * rows.n_gaussians) * rows.n_gaussians + index % rows.n_gaussians
    gathered: Tensor = _GatherRows.apply(  # type: ignore[no-untyped-call]
        values.reshape(-1, channels), index, per_camera or rows.n_cameras == 1
    )
    return gathered
