"""Sums the gradients of features, such as colors, of projected Gaussians over cameras, for each Gaussian."""

import triton
import triton.language as tl
from torch import Tensor

from ..data import FeatureIds
from .launch import CPU_BLOCK, Int, block_size, kernel, programs

BLOCK = 128


@triton.jit
def _load(v_rows, row_of, index, channel, row_stride, mask):
    """Loads the gradients of a channel, given indices into [B, C, N]; zero where a Gaussian is culled."""
    row = index
    if row_of is not None:
        row = tl.load(row_of + index, mask=mask, other=-1).to(tl.int64)
        mask = mask & (row >= 0)
    return tl.load(v_rows + row * row_stride + channel, mask=mask, other=0.0)


@kernel(strided=("v_rows",))
def _sum_feature_gradients_kernel(
    v_rows,  # [nnz, D], rows of any stride
    row_of,  # [B, C, N] int32, packed row of each entry; None if not packed
    v_features,  # [B, N, D], output
    row_stride: "Int", n_cameras: "Int", n_gaussians: "Int", n_blocks: "Int",
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums gradients over cameras, in their order. One program per block of Gaussians of a batch element."""
    batch, block = tl.program_id(0) // n_blocks, tl.program_id(0) % n_blocks
    gaussian = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = gaussian < n_gaussians
    index = batch.to(tl.int64) * n_cameras * n_gaussians + gaussian
    output = (batch.to(tl.int64) * n_gaussians + gaussian) * CHANNELS
    for channel in range(CHANNELS):
        v = tl.zeros([BLOCK], v_rows.dtype.element_ty)
        for camera in range(n_cameras):
            v += _load(v_rows, row_of, index + camera * n_gaussians, channel, row_stride, mask)
        tl.store(v_features + output + channel, v, mask=mask)


def sum_feature_gradients(v_rows: Tensor, ids: FeatureIds, n: int) -> Tensor:
    """Returns the gradients of features [n, D] from the gradients of rows [nnz, D], whose channels are contiguous."""
    v_features = v_rows.new_empty(n, v_rows.shape[1])
    block = block_size(v_rows, BLOCK, CPU_BLOCK)
    n_blocks = programs(ids.n_gaussians, block)
    _sum_feature_gradients_kernel.launch(
        n // ids.n_gaussians * n_blocks, v_rows=v_rows, row_of=ids.row_of, v_features=v_features,
        row_stride=v_rows.stride(0), n_cameras=ids.n_cameras, n_gaussians=ids.n_gaussians, n_blocks=n_blocks,
        CHANNELS=v_rows.shape[1], BLOCK=block,
    )  # fmt: skip
    return v_features
