"""Tracks which bytes of tensors were written."""

import ctypes
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

EMPTY = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")
POISON = 0xFF
"""Value of every byte that was not written: makes floats NaN, and integers -1."""


class Shadow(TorchDispatchMode):
    """Fills tensors of `torch.empty` with poison, and tracks which bytes PyTorch and kernels write."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[int, np.ndarray] = {}
        self._from_numpy = torch.from_numpy

    def __enter__(self) -> "Shadow":
        torch.from_numpy = self._of_array  # PyTorch does not dispatch it
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        torch.from_numpy = self._from_numpy
        super().__exit__(*exception)

    def _of_array(self, array: np.ndarray) -> torch.Tensor:
        tensor = self._from_numpy(array)
        self._written.pop(tensor.untyped_storage().data_ptr(), None)
        return tensor

    def of(self, tensor: torch.Tensor) -> np.ndarray | None:
        """Returns [bytes] uint8 for the tensor's storage, 1 for written bytes; None if all were written."""
        storage = tensor.untyped_storage()
        return self.at(storage.data_ptr(), storage.nbytes())

    def at(self, address: int, size: int) -> np.ndarray | None:
        """Returns the same for the storage at an address; None if all were written, or for unknown storages."""
        found = self._written.get(address)
        return found if found is not None and len(found) == size else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        fresh = func.overloadpacket.__name__ in EMPTY
        given = {a.untyped_storage().data_ptr() for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)}
        for out in tree_leaves(result):
            if not isinstance(out, torch.Tensor) or out.device.type != "cpu":
                continue
            storage = out.untyped_storage()
            if fresh:
                self._poison(storage.data_ptr(), storage.nbytes())
            elif storage.data_ptr() not in given:
                self._written.pop(storage.data_ptr(), None)
        for index, schema in enumerate(func._schema.arguments):
            if schema.alias_info is not None and schema.alias_info.is_write:
                for value in tree_leaves(args[index] if index < len(args) else kwargs.get(schema.name)):
                    if isinstance(value, torch.Tensor):
                        self._write(value)
        return result

    def _poison(self, address: int, size: int) -> None:
        self._written[address] = np.zeros(size, np.uint8)
        if size:
            ctypes.memset(address, POISON, size)

    def _write(self, tensor: torch.Tensor) -> None:
        written = self.of(tensor)
        if written is not None:
            size = tensor.element_size()
            strides = (*(stride * size for stride in tensor.stride()), 1)
            start = written[tensor.storage_offset() * size :]
            np.lib.stride_tricks.as_strided(start, (*tensor.shape, size), strides)[...] = 1
