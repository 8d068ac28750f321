"""Gradients of features, summed over cameras."""

import pytest
import torch

from tsplat import kernels_torch
from tsplat.data import FeatureIds

kernels = pytest.importorskip("tsplat.kernels")


def expected_sums(v: torch.Tensor, dense_ids: torch.Tensor, sizes: tuple[int, int, int]) -> torch.Tensor:
    """Sums rows [nnz, D] by their Gaussian, [B N, D], with a loop."""
    B, C, N = sizes
    sums = v.new_zeros(B * N, v.shape[1])
    for row, dense_id in enumerate(dense_ids.tolist()):
        sums[dense_id // (C * N) * N + dense_id % N] += v[row]
    return sums


@pytest.mark.parametrize("launchers", [kernels, kernels_torch], ids=["triton", "torch"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 7), (1, 3, 5), (2, 3, 4), (2, 0, 4), (1, 2, 300)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_summed_over_cameras_in_order(launchers, packed, sizes, dtype):
    B, C, N = sizes
    generator = torch.Generator().manual_seed(N)
    dense_ids = torch.arange(B * C * N)
    row_of = None
    if packed:
        dense_ids = dense_ids[torch.rand(B * C * N, generator=generator) < 0.6]
        row_of = torch.full((B * C * N,), -1, dtype=torch.int32)
        row_of[dense_ids] = torch.arange(len(dense_ids), dtype=torch.int32)
    v = torch.randn(len(dense_ids), 5, generator=generator, dtype=dtype)[:, :3]  # rows with a stride
    ids = FeatureIds(dense_ids, row_of, C, N)
    found = launchers.sum_feature_gradients(v, ids, B * N)
    assert torch.equal(found, expected_sums(v, dense_ids, sizes))
