"""Detects tensors that have a row for every Gaussian of all ranks, fails allocations, and counts their bytes."""

import weakref

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


class FailingAllocation(TorchDispatchMode):
    """Raises `torch.OutOfMemoryError` in place of the k-th allocation of a tensor with a dimension, counted from 1.

    Attributes:
        n: Number of allocations so far.
    """

    def __init__(self, k):
        super().__init__()
        self.k, self.n = k, 0


def _fail(self, function, types, args=(), kwargs=None):
    given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    known = {tensor.untyped_storage()._cdata for tensor in given}
    found = function(*args, **(kwargs or {}))
    tensors = [value for value in tree_leaves(found) if isinstance(value, torch.Tensor)]
    if any(tensor.numel() and tensor.dim() and tensor.untyped_storage()._cdata not in known for tensor in tensors):
        self.n += 1
        if self.n == self.k:
            raise torch.OutOfMemoryError(f"injected: allocation {self.k}, by {function}")
    return found


FailingAllocation.__torch_dispatch__ = _fail


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of given tensors, and of those that operations in the block allocate, while they are alive.

    Attributes:
        peak: By how much they exceeded the bytes of the given tensors at most.
    """

    def __init__(self, tensors):
        super().__init__()
        self.peak, self._sizes = 0, {}
        for tensor in tensors:
            self.add(tensor)
        self._initial = sum(self._sizes.values())

    def add(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in self._sizes:
            self._sizes[storage._cdata] = storage.nbytes()
            weakref.finalize(storage, self._sizes.pop, storage._cdata, None)

    def note(self):
        self.peak = max(self.peak, sum(self._sizes.values()) - self._initial)


def _count(self, function, types, args=(), kwargs=None):
    given = {value.untyped_storage()._cdata for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)}
    found = function(*args, **(kwargs or {}))
    for tensor in tree_leaves(found):
        if isinstance(tensor, torch.Tensor) and not tensor.is_meta and tensor.untyped_storage()._cdata not in given:
            self.add(tensor)
            self.note()
    return found


LiveBytes.__torch_dispatch__ = _count
