"""Finds tensors that have a row for every Gaussian of all ranks."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class RowLimit(TorchDispatchMode):
    """Raises if an operation inside the block returns a tensor one of whose dimensions is at least `n`."""

    def __init__(self, n):
        super().__init__()
        self.n, self.largest = n, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and tensor.dim() and not tensor.is_meta:
                self.largest = max(self.largest, *tensor.shape)
                assert self.largest < self.n, f"{function}: {list(tensor.shape)}, a row for each of {self.n} Gaussians"
        return found
