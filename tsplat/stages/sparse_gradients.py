"""Sparse gradients of Gaussians: rows for the visible ones only, as ``torch.optim.SparseAdam`` takes them."""

from typing import Any

import torch
from torch import Tensor

from ..data import ProjectedGaussians


class SparseGradients:
    """Makes the gradients of tensors [N, ...] sparse in their first dimension.

    Which rows are visible is known after the projection. The tensors are attached before it, so that all that depends
    on them goes through one node: the projection, and the viewing directions of spherical harmonics.
    """

    def __init__(self) -> None:
        self._dense_ids: Tensor | None = None
        self._n_gaussians = 0

    def attach(self, tensor: Tensor | None) -> Tensor | None:
        """Returns the tensor. Its gradient is a COO tensor with a row for each visible Gaussian, in ascending order."""
        attached: Tensor | None = None if tensor is None else _SparseGradient.apply(tensor, self)  # type: ignore[no-untyped-call]
        return attached

    def set_visible(self, projected: ProjectedGaussians) -> None:
        """Records which Gaussians are visible, those with a row. To be called with packed rows of a single scene."""
        self._dense_ids, self._n_gaussians = projected.dense_ids, projected.n_gaussians

    def visible_ids(self) -> Tensor:
        """Returns ascending indices of the Gaussians that any camera sees. [n] int64"""
        assert self._dense_ids is not None
        return torch.unique(self._dense_ids % max(self._n_gaussians, 1))  # type: ignore[no-any-return]


class _SparseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, gradients: SparseGradients) -> Tensor:
        ctx.gradients = gradients
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None]:
        ids = ctx.gradients.visible_ids()
        # Without an explicit choice, PyTorch warns that it does not check.
        sparse = torch.sparse_coo_tensor(
            ids[None], v.index_select(0, ids), v.shape, is_coalesced=True, check_invariants=False
        )
        return sparse, None
