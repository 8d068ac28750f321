"""Sparse gradients of Gaussians: rows for the visible ones only, as ``torch.optim.SparseAdam`` takes them."""

from typing import Any

import torch
from torch import Tensor

from ..data import ProjectedGaussians


class SparseGradients:
    """Makes the gradients of tensors [N, ...] sparse in their first dimension.

    The visible rows are known after the projection. The tensors are attached before it, so that the gradients of the
    projection and of viewing directions pass through the same node.
    """

    def __init__(self) -> None:
        self._dense_ids: Tensor | None = None
        self._n_gaussians = 0
        self._visible_ids: Tensor | None = None

    def attach(self, tensor: Tensor | None) -> Tensor | None:
        """Returns a view of the tensor whose gradient is sparse: a COO tensor with a row per visible Gaussian."""
        attached: Tensor | None = None if tensor is None else _SparseGradient.apply(tensor, self)  # type: ignore[no-untyped-call]
        return attached

    def set_visible(self, projected: ProjectedGaussians) -> None:
        """Sets the visible Gaussians, from the packed rows of a single scene."""
        self._dense_ids, self._n_gaussians = projected.dense_ids, projected.n_gaussians

    def visible_ids(self) -> Tensor:
        """Returns ascending indices of the Gaussians that any camera sees. [n] int64. Waits for the device once."""
        assert self._dense_ids is not None
        if self._visible_ids is None:
            self._visible_ids = torch.unique(self._dense_ids % max(self._n_gaussians, 1))
        return self._visible_ids


class _SparseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, gradients: SparseGradients) -> Tensor:
        ctx.gradients = gradients
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None]:
        ids = ctx.gradients.visible_ids()
        # Without check_invariants=False, PyTorch warns that it does not check.
        sparse = torch.sparse_coo_tensor(
            ids[None], v.index_select(0, ids), v.shape, is_coalesced=True, check_invariants=False
        )
        return sparse, None
