"""Where a pass finds its tensors: each is a view of a base, which is a tensor that a call brings, or an arena.

An arena is one allocation for all tensors that a pass needs and that do not leave it. Tensors whose lives do not
overlap share its memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..runtime.tracing import Constant, Launch, Memory, OnArrays, Operator, Step, Zeros

SPECIALIZED_ALIGNMENT = 16
"""Bytes to which addresses are aligned or not, which Triton specializes kernels on."""

CACHE_LINE = 64
"""Bytes to which tensors in an arena are aligned."""


SCRATCH_KEPT = 2**28
"""Bytes of an arena up to which a CPU keeps it for the next pass."""

_scratch: list[Tensor] = []
"""An arena that no pass uses. The system clears memory that it hands out, which takes a quarter of a call."""


def take_scratch(n_bytes: int, device: torch.device) -> Tensor:
    """Returns an arena of at least so many bytes, [n] uint8, for a pass."""
    if device.type == "cpu":
        with contextlib.suppress(IndexError):  # another pass uses it
            if (memory := _scratch.pop()).numel() >= n_bytes:
                return memory
    return torch.empty(n_bytes, dtype=torch.uint8, device=device)


def leave_scratch(memory: Tensor) -> None:
    """Takes back the arena of a pass that is done. Not called after an error: threads may still write there."""
    if memory.device.type == "cpu" and memory.numel() <= SCRATCH_KEPT:
        _scratch[:] = [memory]


class View(NamedTuple):
    """A tensor relative to a base: bytes from the first element of the base to that of the tensor.

    `base` is the number of the base. `is_base` says that the tensor is known to be the base itself.
    """

    base: int
    offset: int
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    is_base: bool = False

    def of(self, base: Tensor) -> Tensor:
        """Returns the tensor, given the base of a call."""
        if base.dtype != self.dtype:
            base = base.view(self.dtype)
        return base.as_strided(self.shape, self.strides, base.storage_offset() + self.offset // self.dtype.itemsize)

    def as_array(self) -> Callable[[dict[int, np.ndarray]], np.ndarray]:
        """Returns the function of bases, as arrays of bytes, that returns the tensor as an array."""
        shape, dtype, base, offset = tuple(self.shape), DTYPES[self.dtype], self.base, self.offset
        strides = tuple([stride * self.dtype.itemsize for stride in self.strides])
        return lambda arrays: np.ndarray(shape, dtype, arrays[base], offset, strides)


DTYPES: dict[torch.dtype, Any] = {
    torch.float64: np.float64, torch.float32: np.float32, torch.int64: np.int64, torch.int32: np.int32,
    torch.int16: np.int16, torch.int8: np.int8, torch.uint8: np.uint8, torch.bool: np.bool_,
}  # fmt: skip


def aligned(n_bytes: int) -> int:
    """Returns a size rounded up to whole cache lines, so that memory of that size is viewed as any dtype."""
    return -(-n_bytes // CACHE_LINE) * CACHE_LINE


class Life(NamedTuple):
    """A storage in an arena: its size in bytes, and the first and the last step that use it."""

    storage: int
    size: int
    first: int
    last: int

    def meets(self, other: Life) -> bool:
        """Returns whether both are needed at the same time."""
        return self.first <= other.last and other.first <= self.last


def arrange(lives: Iterable[Life], end: Life | None = None) -> tuple[dict[int, int], int]:
    """Places storages in an arena. Returns the offset of each, and the size of the arena, in bytes.

    First come those that are needed at the same time as the storage at the ``end`` of the arena, then the others; of
    both, the largest first. Each takes the lowest place that is free during its life.
    """
    placed: list[tuple[int, int, Life]] = []
    offsets: dict[int, int] = {}
    for life in sorted(lives, key=lambda life: (end is not None and not life.meets(end), -life.size)):
        size = aligned(life.size)
        place = 0
        for begin, after, other in sorted(placed, key=lambda entry: entry[0]):
            if not life.meets(other):
                continue
            if place + size <= begin:
                break
            place = max(place, after)
        placed.append((place, place + size, life))
        offsets[life.storage] = place
    return offsets, max((after for _, after, _ in placed), default=0)


class Slots(NamedTuple):
    """The slots of compositing at the end of an arena, of which a call uses the first ones only.

    Attributes:
        n: The view of the number that is used, [] int64.
        fixed: Bytes of the arena that other tensors take.
        offset, size: Of the slots in the arena, and of one of them, in bytes.
    """

    n: View
    fixed: int
    offset: int
    size: int

    def bytes(self, n: int) -> int:
        """Returns the size of an arena with room for n rows."""
        return aligned(max(self.fixed, self.offset + n * self.size))


class Bases:
    """The storages of a trace, each in a base with a number."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[int, int]] = {}
        self.n = 0

    def add(self, tensor: Memory | None = None) -> int:
        """Adds a base and returns its number: it is a tensor of the trace, or an arena for :meth:`put`."""
        if tensor is not None:
            self._places[tensor.storage] = self.n, -tensor.offset
        self.n += 1
        return self.n - 1

    def put(self, base: int, storage: int, offset: int) -> None:
        """Places a storage at an offset in a base."""
        self._places[storage] = base, offset

    def has(self, storage: int) -> bool:
        """Returns whether a storage is in a base."""
        return storage in self._places

    def view(self, tensor: Memory | Tensor) -> View:
        """Returns the view that stands for a tensor of the trace."""
        memory = Memory.of(tensor) if isinstance(tensor, Tensor) else tensor
        base, shift = self._places[memory.storage]
        return View(base, memory.offset + shift, memory.shape, memory.strides, memory.dtype)


class Output(NamedTuple):
    """A base that a pass allocates and that leaves it.

    If it is packed, it has a row for each packed row of a call, and `shape` is that of all rows.
    """

    base: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    is_packed: bool = False

    def allocate(self, device: torch.device, n_packed: int | None = None) -> Tensor:
        """Allocates it, for so many packed rows, or for all rows."""
        shape = (n_packed, *self.shape[1:]) if self.is_packed and n_packed is not None else self.shape
        return torch.empty_strided(shape, self.strides, dtype=self.dtype, device=device)  # faster than torch.empty

    def zeros(self, device: torch.device, n_packed: int | None = None) -> Tensor:
        """Allocates zeros of its shape and dtype."""
        return self.allocate(device, n_packed).zero_()

    def view(self, view: View) -> View:
        """Returns a view of this base, with `is_base`."""
        found = view.offset, tuple(view.shape), view.strides, view.dtype
        return view._replace(is_base=found == (0, self.shape, self.strides, self.dtype))


def add_output(bases: Bases, tensor: Tensor, *, is_packed: bool = False) -> Output:
    """Adds a base for the storage of a tensor."""
    memory, base = Memory.of(tensor), bases.add()
    bases.put(base, memory.storage, 0)
    size = memory.size // tensor.dtype.itemsize
    is_whole = tensor.is_contiguous() and tensor.numel() == size
    shape, strides = (tuple(tensor.shape), tensor.stride()) if is_whole else ((size,), (1,))
    return Output(base, shape, strides, tensor.dtype, is_packed)


def whole(view: View, bases: Any) -> Tensor:
    """Returns the tensor of a view: its base, if that is the same."""
    base: Tensor = bases[view.base]
    if view.is_base:
        return base
    return base.new_empty(0).set_(base.untyped_storage(), view.offset // base.itemsize, view.shape, view.strides)


def marked(view: View, outputs: Iterable[Output]) -> View:
    """Returns a view, with `is_base` if its base is among outputs and the same."""
    return next((output.view(view) for output in outputs if output.base == view.base), view)


def add_arena(bases: Bases, lives: Iterable[Life]) -> tuple[int, int]:
    """Adds a base for storages. Returns its number and size in bytes."""
    base, _, size = _add_arranged(bases, lives, None)
    return base, size


def add_arena_with_end(bases: Bases, lives: Sequence[Life], end: Life) -> tuple[int, int, int]:
    """Adds a base for storages, with one more behind all those that are needed at the same time. Returns its number,
    its size without that one, and where that one begins, in bytes."""
    base, offsets, size = _add_arranged(bases, lives, end)
    begin = max((offsets[life.storage] + life.size for life in lives if life.meets(end)), default=0)
    begin = aligned(begin)
    bases.put(base, end.storage, begin)
    return base, size, begin


def _add_arranged(bases: Bases, lives: Iterable[Life], end: Life | None) -> tuple[int, dict[int, int], int]:
    """Adds a base for storages. Returns its number, and what :func:`arrange` does."""
    base, (offsets, size) = bases.add(), arrange(lives, end)
    for storage, offset in offsets.items():
        bases.put(base, storage, offset)
    return base, offsets, size


def lives_of(steps: Sequence[Step], bases: Bases) -> dict[int, Life]:
    """Returns the life of each storage that steps use and that no base has."""
    lives: dict[int, Life] = {}
    for i, step in enumerate(steps):
        for tensor in tensors_of(step):
            if not bases.has(tensor.storage):
                first = lives[tensor.storage].first if tensor.storage in lives else i
                lives[tensor.storage] = Life(tensor.storage, tensor.size, first, i)
    return lives


def tensors_of(step: Step) -> list[Memory]:
    """Returns the tensors that a step reads or writes."""
    if isinstance(step, Launch):
        return leaves(step.values, Memory)
    if isinstance(step, Zeros | Constant):
        return [step.memory]
    if isinstance(step, OnArrays):
        return [*step.args, *step.results]
    return [*leaves(step.args, Memory), *leaves(tuple(step.kwargs.values()), Memory), *step.results]


def used_steps(steps: Sequence[Step], wanted: set[int]) -> list[bool]:
    """Returns whether each step makes something that a later one reads, or a storage that is wanted. Operators of a
    backward pass that computes its forward pass again, and kernels, may make more."""
    read, is_used = set(wanted), [True] * len(steps)
    for i in range(len(steps) - 1, -1, -1):
        step = steps[i]
        made = step.results if isinstance(step, Operator | OnArrays) else []
        is_used[i] = not made or any(tensor.storage in read for tensor in made)
        if is_used[i]:
            read |= {tensor.storage for tensor in tensors_of(step)}
    return is_used


def leaves(tree: Any, kind: type[Any]) -> list[Any]:
    """Returns the values of a kind in nested tuples and lists."""
    if isinstance(tree, kind):
        return [tree]
    if isinstance(tree, list | tuple):
        return [leaf for value in tree for leaf in leaves(value, kind)]
    return []
