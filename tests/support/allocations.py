"""Detects tensors that have a row for every Gaussian of all ranks."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

VIEWS = (torch.ops.aten.view.dtype, torch.ops.aten.view.default, torch.ops.aten.detach.default)


class RowLimit(TorchDispatchMode):
    """Raises an error if an operation in the block returns a tensor with a dimension of at least `n`.

    Byte tensors, such as files and generator states, and views of them are ignored.
    """

    def __init__(self, n):
        super().__init__()
        self.n, self.largest = n, 0


def _check(self, function, types, args=(), kwargs=None):
    found = function(*args, **(kwargs or {}))
    if function in VIEWS:
        return found
    for tensor in (found,) if isinstance(found, torch.Tensor) else tree_leaves(found):
        if isinstance(tensor, torch.Tensor) and tensor.dim() and tensor.dtype != torch.uint8 and not tensor.is_meta:
            self.largest = max(self.largest, *tensor.shape)
            assert self.largest < self.n, f"{function}: {list(tensor.shape)}, a row for each of {self.n} Gaussians"
    return found


# PyTorch would wrap a method of the class for torch.compile, which takes half of the time of a run.
RowLimit.__torch_dispatch__ = _check
