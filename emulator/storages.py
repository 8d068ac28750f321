"""Finds tensor storages by address, as a driver only receives addresses."""

import bisect
import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Storage:
    """The whole storage of a tensor."""

    address: int
    size: int
    item_bytes: int
    pointees: tuple["Storage", ...] = ()
    """Storages of the tensors in its attribute ``pointees``, whose addresses the tensor contains."""


class Storages:
    """The storages of tensors whose address was requested; the newest one for each address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._found: list[Storage] = []

    def note(self, tensor: Tensor) -> None:
        """Adds a tensor's storage; replaces storages that overlap it."""
        new = _storage(tensor)
        if not new.size:
            return
        first = bisect.bisect_left(self._starts, new.address)
        if first and self._found[first - 1].address + self._found[first - 1].size > new.address:
            first -= 1
        last = bisect.bisect_left(self._starts, new.address + new.size)
        self._starts[first:last], self._found[first:last] = [new.address], [new]

    def at(self, address: int) -> Storage | None:
        """Returns the storage that contains an address, or that ends at it."""
        index = bisect.bisect_right(self._starts, address) - 1
        found = self._found[index] if index >= 0 else None
        return found if found is not None and address <= found.address + found.size else None

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Adds each tensor whose `data_ptr` is called inside of the block, in every thread."""
        address_of = torch._C.TensorBase.data_ptr
        was_noting = "data_ptr" in torch.Tensor.__dict__
        before = torch.Tensor.data_ptr if was_noting else address_of

        def data_ptr(tensor: Tensor) -> int:
            address: int = before(tensor)
            if address:
                self.note(tensor)
            return address

        torch.Tensor.data_ptr = data_ptr  # type: ignore[method-assign]
        try:
            yield
        finally:
            if was_noting:
                torch.Tensor.data_ptr = before  # type: ignore[method-assign]
            else:
                del torch.Tensor.data_ptr


def _storage(tensor: Any) -> Storage:
    storage = tensor.untyped_storage()
    pointees = tuple(_storage(pointee) for pointee in getattr(tensor, "pointees", ()))
    return Storage(storage.data_ptr(), storage.nbytes(), tensor.element_size(), pointees)
