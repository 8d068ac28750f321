"""Memory of the tensors of a pass: each is a view of a base, which is an input, an output, a constant or an arena.

An arena is one allocation for all internal tensors of a pass. Tensors whose lifetimes do not overlap share its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..runtime.bundles import leaves
from ..runtime.tracing import Constant, Launch, NumpyCall, Step, TorchCall, TracedTensor, Zeros

SPECIALIZED_ALIGNMENT = 16
"""Triton specializes kernels on whether addresses are multiples of this number of bytes."""

CACHE_LINE = 64
"""Alignment of tensors in an arena, in bytes."""


SCRATCH_CACHED_MAX = 2**28
"""Maximum size in bytes of an arena that is cached on a CPU for the next pass."""

_cached_scratch: list[Tensor] = []
"""A cached arena that no pass uses. The system would zero newly allocated memory, which takes a quarter of a call."""


def acquire_scratch(n_bytes: int, device: torch.device) -> Tensor:
    """Returns an arena of at least `n_bytes` bytes, [n] uint8."""
    if device.type == "cpu":
        try:
            if (memory := _cached_scratch.pop()).numel() >= n_bytes:
                return memory
        except IndexError:  # another pass uses the arena
            pass
    return torch.empty(n_bytes, dtype=torch.uint8, device=device)


def release_scratch(memory: Tensor) -> None:
    """Caches the arena of a completed pass. Must not be called after an error: threads may still write to it."""
    if memory.device.type == "cpu" and memory.numel() <= SCRATCH_CACHED_MAX:
        _cached_scratch[:] = [memory]


_shared_zeros: dict[tuple[torch.device, int], Tensor] = {}
"""Device and stream -> memory for :func:`shared_zeros`."""


def shared_zeros(n_bytes: int, device: torch.device, stream: int) -> Tensor:
    """Returns at least `n_bytes` bytes of zeros, [n] uint8, which must not be written, for passes on a stream."""
    memory = _shared_zeros.get((device, stream))
    if memory is None or memory.numel() < n_bytes:
        memory = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
        if not (memory.is_cuda and torch.cuda.is_current_stream_capturing()):  # only the graph would fill it
            _shared_zeros[device, stream] = memory
    return memory


class View(NamedTuple):
    """A tensor as a view of a base.

    Attributes:
        base: The number of the base.
        offset: Offset of the first element from the start of the base, in bytes.
        shape, strides, dtype: The shape, strides and dtype of the tensor.
        is_base: Whether the tensor is known to be the base itself.
    """

    base: int
    offset: int
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    is_base: bool = False

    def of(self, base: Tensor) -> Tensor:
        """Returns the tensor as a view of the base of a call."""
        if base.dtype != self.dtype:
            base = base.view(self.dtype)
        return base.as_strided(self.shape, self.strides, base.storage_offset() + self.offset // self.dtype.itemsize)

    def as_array(self) -> Callable[[dict[int, np.ndarray]], np.ndarray]:
        """Returns a function that maps bases, as arrays of bytes by number, to the tensor as a NumPy array."""
        shape, dtype, base, offset = tuple(self.shape), DTYPES[self.dtype], self.base, self.offset
        strides = tuple([stride * self.dtype.itemsize for stride in self.strides])
        return lambda arrays: np.ndarray(shape, dtype, arrays[base], offset, strides)


DTYPES: dict[torch.dtype, Any] = {
    torch.float64: np.float64, torch.float32: np.float32, torch.int64: np.int64, torch.int32: np.int32,
    torch.int16: np.int16, torch.int8: np.int8, torch.uint8: np.uint8, torch.bool: np.bool_,
}  # fmt: skip


def aligned(n_bytes: int) -> int:
    """Rounds a size up to whole cache lines, so that memory of this size can be viewed as any dtype."""
    return -(-n_bytes // CACHE_LINE) * CACHE_LINE


FOREVER = 2**62
"""Last step of a storage that is needed after the pass."""


class Lifetime(NamedTuple):
    """A storage, its size in bytes, and the first and the last step that use it."""

    storage: int
    size: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Returns whether both storages are needed at the same time."""
        return self.first <= other.last and other.first <= self.last


class Arena(NamedTuple):
    """An arena: the number of its base, and its size in bytes."""

    base: int
    size: int


def assign_offsets(lifetimes: Iterable[Lifetime], tail: Lifetime | None = None) -> tuple[dict[int, int], int]:
    """Assigns offsets in an arena to storages. Returns the offset of each, and the size of the arena, in bytes.

    Greedy: each storage gets the lowest offset that is free during its lifetime. Storages whose lifetimes overlap
    with ``tail``, a storage at the end of the arena, are placed first, then the others; larger ones first.
    """
    return _offsets_and_size(_place_all(lifetimes, tail))


class Placed(NamedTuple):
    """A storage in an arena: its first byte, the byte after its last, and its lifetime."""

    begin: int
    end: int
    life: Lifetime


def _place_all(lifetimes: Iterable[Lifetime], tail: Lifetime | None = None) -> list[Placed]:
    """Places storages in an arena, see :func:`assign_offsets`."""
    placed: list[Placed] = []
    for life in sorted(lifetimes, key=lambda life: (tail is not None and not life.overlaps(tail), -life.size)):
        placed.append(_place(life, placed))
    return placed


def _place(life: Lifetime, placed: Iterable[Placed]) -> Placed:
    """Places a storage at the lowest offset that is free during its lifetime."""
    size, offset = aligned(life.size), 0
    for other in sorted(placed):
        if not life.overlaps(other.life):
            continue
        if offset + size <= other.begin:
            break
        offset = max(offset, other.end)
    return Placed(offset, offset + size, life)


def _offsets_and_size(placed: Iterable[Placed]) -> tuple[dict[int, int], int]:
    """Returns the offset of each storage, and the size of the arena, in bytes."""
    return {p.life.storage: p.begin for p in placed}, max((p.end for p in placed), default=0)


class ArenaSlots(NamedTuple):
    """The slots of compositing at the tail of an arena. A call uses only the first ones.

    Attributes:
        n_used: The view of the number of used slots, [] int64.
        fixed_size: Size of the arena in bytes without slots.
        offset: Offset of the slots in the arena, in bytes.
        slot_size: Size of a slot in bytes.
    """

    n_used: View
    fixed_size: int
    offset: int
    slot_size: int

    def arena_size(self, n_slots: int) -> int:
        """Returns the size of an arena for n slots."""
        return aligned(max(self.fixed_size, self.offset + n_slots * self.slot_size))


class Bases:
    """The numbered bases of a trace, and the location of each storage: a base and an offset."""

    def __init__(self) -> None:
        self._locations: dict[int, tuple[int, int]] = {}
        self.n = 0

    def add(self, tensor: TracedTensor | None = None) -> int:
        """Adds a base, a tensor of the trace or (None) memory for :meth:`place`. Returns its number."""
        if tensor is not None:
            self._locations[tensor.storage] = self.n, -tensor.offset
        self.n += 1
        return self.n - 1

    def place(self, base: int, storage: int, offset: int) -> None:
        """Places a storage at an offset in a base."""
        self._locations[storage] = base, offset

    def has(self, storage: int) -> bool:
        """Returns whether a storage has a location."""
        return storage in self._locations

    def view(self, tensor: TracedTensor | Tensor) -> View:
        """Returns a tensor of the trace as a view of its base."""
        traced = TracedTensor.of(tensor) if isinstance(tensor, Tensor) else tensor
        base, offset = self._locations[traced.storage]
        return View(base, traced.offset + offset, traced.shape, traced.strides, traced.dtype)


class AllocatedBase(NamedTuple):
    """A base that a pass allocates as an output, or an incoming gradient."""

    base: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def allocate(self, device: torch.device) -> Tensor:
        """Allocates the base."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=device)  # faster than torch.empty

    def zeros(self, device: torch.device) -> Tensor:
        """Allocates the base, filled with zeros."""
        return self.allocate(device).zero_()


def add_output(bases: Bases, tensor: Tensor) -> AllocatedBase:
    """Adds a base that is the storage of an output tensor."""
    traced, base = TracedTensor.of(tensor), bases.add()
    bases.place(base, traced.storage, 0)
    size = traced.size // tensor.dtype.itemsize
    is_whole = tensor.is_contiguous() and tensor.numel() == size
    shape, strides = (tuple(tensor.shape), tensor.stride()) if is_whole else ((size,), (1,))
    return AllocatedBase(base, shape, strides, tensor.dtype)


def view_of_output(bases: Bases, tensor: Tensor, outputs: Iterable[AllocatedBase]) -> View:
    """Returns a tensor of the trace as a view. Sets `is_base` if it is one of the outputs."""
    view = bases.view(tensor)
    is_base = any(view == View(o.base, 0, torch.Size(o.shape), o.strides, o.dtype) for o in outputs)
    return view._replace(is_base=is_base)


def tensor_of_view(view: View, bases: Any, n_rows: int | None = None) -> Tensor:
    """Returns the tensor of a view: the base if `is_base`, otherwise a new tensor that shares its memory.

    With `n_rows`, the tensor has only the first rows.
    """
    base: Tensor = bases[view.base]
    if view.is_base and n_rows is None:
        return base
    shape = view.shape if n_rows is None else (n_rows, *view.shape[1:])
    return base.new_empty(0).set_(base.untyped_storage(), view.offset // base.itemsize, shape, view.strides)


def add_arena(bases: Bases, lifetimes: Iterable[Lifetime]) -> Arena:
    """Adds an arena for storages."""
    return _add_placed(bases, *assign_offsets(lifetimes))


def add_saved_and_scratch(bases: Bases, saved: Iterable[Lifetime], others: Iterable[Lifetime]) -> tuple[Arena, Arena]:
    """Adds an arena for storages that are needed after the pass (lifetimes up to FOREVER), and one for the others.

    Other storages also use the memory of the saved arena until it is written, if they fit.
    """
    placed = _place_all(saved)
    _, size = _offsets_and_size(placed)
    remaining: list[Lifetime] = []
    for life in sorted(others, key=lambda life: -life.size):
        candidate = _place(life, placed)
        if candidate.end <= size:
            placed.append(candidate)
        else:
            remaining.append(life)
    return _add_placed(bases, *_offsets_and_size(placed)), add_arena(bases, remaining)


def _add_placed(bases: Bases, offsets: dict[int, int], size: int) -> Arena:
    """Adds an arena with storages at the given offsets."""
    base = bases.add()
    for storage, offset in offsets.items():
        bases.place(base, storage, offset)
    return Arena(base, size)


def add_arena_with_tail(bases: Bases, lifetimes: Sequence[Lifetime], tail: Lifetime) -> tuple[Arena, int]:
    """Adds an arena for storages and a tail. The tail follows all storages whose lifetimes overlap its own.

    Returns:
        The arena, with its size without the tail; the offset of the tail in bytes.
    """
    base, (offsets, size) = bases.add(), assign_offsets(lifetimes, tail)
    for storage, offset in offsets.items():
        bases.place(base, storage, offset)
    begin = aligned(max((offsets[life.storage] + life.size for life in lifetimes if life.overlaps(tail)), default=0))
    bases.place(base, tail.storage, begin)
    return Arena(base, size), begin


def lifetimes_of(steps: Sequence[Step], bases: Bases) -> dict[int, Lifetime]:
    """Returns the lifetimes of the storages that steps use and that have no location yet."""
    lifetimes: dict[int, Lifetime] = {}
    for i, step in enumerate(steps):
        for tensor in tensors_of(step):
            if not bases.has(tensor.storage):
                first = lifetimes[tensor.storage].first if tensor.storage in lifetimes else i
                lifetimes[tensor.storage] = Lifetime(tensor.storage, tensor.size, first, i)
    return lifetimes


def tensors_of(step: Step) -> list[TracedTensor]:
    """Returns the tensors that a step reads or writes."""
    if isinstance(step, Launch):
        return leaves(step.values, TracedTensor)
    if isinstance(step, Zeros | Constant):
        return [step.tensor]
    if isinstance(step, NumpyCall):
        return [*step.args, *step.results]
    return [*leaves((step.args, step.kwargs), TracedTensor), *step.results]


def live_steps(steps: Sequence[Step], needed: set[int]) -> list[bool]:
    """Returns whether each step is live.

    A step is live if it works in place, or if it makes a storage that is needed or that a later live step uses. A
    backward pass that recomputes its forward pass has steps that are not live.
    """
    used, is_live = set(needed), [True] * len(steps)
    for i in range(len(steps) - 1, -1, -1):
        step = steps[i]
        results = step.results if isinstance(step, TorchCall | NumpyCall) else []
        is_live[i] = not results or any(tensor.storage in used for tensor in results)
        if is_live[i]:
            used |= {tensor.storage for tensor in tensors_of(step)}
    return is_live
