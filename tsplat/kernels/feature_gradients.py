"""Sums the gradients of features, such as colors, of projected Gaussians over cameras, for each Gaussian."""

import triton.language as tl
from torch import Tensor

from ..data import FeatureIds
from .device_math import gaussians_of_program, packed_rows_of
from .launch import CPU_BLOCK, Int, block_size, kernel, programs

BLOCK = 128


@kernel(strided=("v_rows",))
def _sum_feature_gradients_kernel(
    v_rows,  # [nnz, D], rows of any stride
    row_of,  # [B, C, N] int32, packed row of each entry; None if not packed
    v_features,  # [B, N, D], output
    row_stride: "Int", n_cameras: "Int", n_gaussians: "Int",
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums gradients over cameras, in their order. One program per block of Gaussians of a batch element."""
    batch, _, n, gaussian, mask = gaussians_of_program(n_gaussians, BLOCK)
    for channel in range(CHANNELS):
        v = tl.zeros([BLOCK], v_rows.dtype.element_ty)
        for camera in range(n_cameras):
            image = batch * n_cameras + camera
            row, visible = packed_rows_of(row_of, image * n_gaussians + n, mask)
            v += tl.load(v_rows + row * row_stride + channel, mask=visible, other=0.0)
        tl.store(v_features + gaussian * CHANNELS + channel, v, mask=mask)


def sum_feature_gradients(v_rows: Tensor, ids: FeatureIds, n: int) -> Tensor:
    """Returns the gradients of features [n, D] from the gradients of rows [nnz, D], whose channels are contiguous."""
    v_features = v_rows.new_empty(n, v_rows.shape[1])
    block = block_size(v_rows, BLOCK, CPU_BLOCK)
    _sum_feature_gradients_kernel.launch(
        n // ids.n_gaussians * programs(ids.n_gaussians, block),
        v_rows=v_rows,
        row_of=ids.row_of,
        v_features=v_features,
        row_stride=v_rows.stride(0),
        n_cameras=ids.n_cameras,
        n_gaussians=ids.n_gaussians,
        CHANNELS=v_rows.shape[1],
        BLOCK=block,
    )
    return v_features
