"""Traces of what a function does: launches of kernels and operators of PyTorch, in their order.

A trace says which memory each step reads and writes, as views of storages. Whoever replays it chooses other addresses.
Nothing in it may depend on values of tensors.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import UnsupportedError
from ..support.interruption import DeferredSignals
from .modes import restored_modes

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

READS = {
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "unique_consecutive",
    "bincount", "repeat_interleave", "tensor_split", "tolist", "numpy", "__array__", "__dlpack__",
}  # fmt: skip
"""Operators and methods whose result is known to Python, or has a size that depends on values."""

ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
ZEROS = {"zeros", "zeros_like", "new_zeros", "zero_"}


class Memory(NamedTuple):
    """Where a tensor of a trace is: its storage, by identity, and the size of that in bytes; and the tensor's offset in
    it, in bytes. A trace keeps no tensor, so that memory is free again as soon as it is without a trace."""

    storage: int
    size: int
    offset: int
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Memory:
        storage = tensor.untyped_storage()
        offset = int(tensor.storage_offset()) * tensor.itemsize
        return cls(storage._cdata, storage.nbytes(), offset, tensor.shape, tensor.stride(), tensor.dtype)


class Launch(NamedTuple):
    """A launch of a kernel: what launches it, the number of programs, and its tensors and numbers."""

    run: Any
    n_programs: int
    values: tuple[Any, ...]


class Operator(NamedTuple):
    """A call of an operator of PyTorch, and the tensors that it returned."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Memory]


class OnArrays(NamedTuple):
    """A call of a function of NumPy arrays, with the tensors that have the memory of these and of its results."""

    function: Callable[..., Any]
    args: list[Memory]
    results: list[Memory]


class Zeros(NamedTuple):
    """A tensor that is filled with zeros."""

    memory: Memory


class Constant(NamedTuple):
    """A tensor that Python made of numbers, and a copy of it."""

    memory: Memory
    values: Tensor


Step = Launch | Operator | OnArrays | Zeros | Constant


class Trace:
    """The steps of what this thread computes in :meth:`recording`.

    Args:
        runs: Whether kernels run. Otherwise tensors have zeros where kernels would write, which takes less time.
        counts_slots: Whether to find ``used_slots``.

    Attributes:
        steps: The steps.
        made: The storages that they make.
        used_slots: By storage of slots: how many of the first are used, and the bytes of each.
        others: A tensor of each other storage that they use.
    """

    def __init__(self, *, runs: bool = True, counts_slots: bool = False) -> None:
        self.runs, self.counts_slots = runs, counts_slots
        self.steps: list[Step] = []
        self.made: set[int] = set()
        self.used_slots: dict[int, tuple[Memory, int]] = {}
        self.others: dict[int, Tensor] = {}
        self._identities: list[StorageWeakRef] = []

    def make(self, tensor: Tensor) -> None:
        """Notes that a storage is made. No other gets its identity, although its memory may be freed."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self.made:
            self.made.add(storage._cdata)
            self._identities.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]

    def use(self, tree: Any) -> Any:
        """Returns arguments of a step with :class:`Memory` in place of tensors."""
        if isinstance(tree, Tensor):
            memory = Memory.of(tree)
            if memory.storage not in self.made:
                self.others.setdefault(memory.storage, without_gradient(tree))
            return memory
        if isinstance(tree, dict):
            return {name: self.use(value) for name, value in tree.items()}
        if isinstance(tree, list | tuple):
            return type(tree)([self.use(value) for value in tree])
        return tree

    def record(self, function: Callable[[], Result]) -> Result:
        """Records what a function does, and returns its result. An interrupt leaves nothing recording.

        One trace at a time is recorded, as launches are observed in all threads.

        Raises:
            UnsupportedError: The function reads a value, or a size that depends on values.
        """
        from ..kernels import launch

        outer = getattr(_state, "trace", None)
        with _lock, DeferredSignals(patience=math.inf) as signals:
            observer = launch.observer
            try:
                _state.trace = self
                self._observe_launches(observer)
                with _Operators(self), _Methods(), restored_modes():
                    signals.patience = 0.0
                    try:
                        return function()
                    finally:
                        signals.patience = math.inf
            finally:
                launch.observer, launch.launched, launch.used_slots = observer, None, None
                _state.trace = outer

    def _observe_launches(self, observer: Callable[[Any, int, dict[str, Any]], None] | None) -> None:
        """Records the launches of this thread from now on, besides what observes launches already."""
        from ..kernels import launch
        from ..triton_cpu import leaves

        thread = threading.get_ident()
        observed: list[tuple[Any, dict[str, Any]]] = []

        def observe(kernel: Any, n_programs: int, arguments: dict[str, Any]) -> None:
            if observer is not None:
                observer(kernel, n_programs, arguments)
            if threading.get_ident() == thread:
                observed[:] = [(kernel, arguments)]

        def launched(run: Any, n_programs: int, values: tuple[Any, ...]) -> bool:
            if threading.get_ident() != thread:
                return True
            kernel, arguments = observed.pop()
            names = [parameter.name for parameter in kernel.params if not parameter.is_constexpr]
            given = [leaf for name in names for leaf in leaves(arguments[name])]
            resolved = [g if isinstance(g, Tensor) else value for g, value in zip(given, values, strict=True)]
            with torch._C.DisableTorchFunction():
                self.steps.append(Launch(run, n_programs, self.use(tuple(resolved))))
            return self.runs

        def used_slots(tensor: Tensor, n: Tensor) -> None:
            if threading.get_ident() == thread:
                self.used_slots[storage_of(tensor)] = self.use(n), tensor.stride(0) * tensor.itemsize

        launch.observer, launch.launched = observe, launched
        launch.used_slots = used_slots if self.counts_slots else None


_lock = threading.Lock()

_nothing = contextlib.nullcontext()

_state = threading.local()
"""Of each thread, the ``trace`` that is recorded, or None."""


def is_recorded() -> bool:
    """Returns whether a trace of this thread is recorded."""
    return getattr(_state, "trace", None) is not None


@contextlib.contextmanager
def _current(trace: Trace | None) -> Iterator[None]:
    outer, _state.trace = getattr(_state, "trace", None), trace
    try:
        yield
    finally:
        _state.trace = outer


def on_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function of NumPy arrays, which returns new arrays of fixed sizes, to take and return CPU tensors.

    It may read values: a trace takes it for one step.
    """

    @functools.wraps(function)
    def run(*tensors: Tensor) -> Any:
        trace: Trace | None = getattr(_state, "trace", None)
        with _current(None) if trace is not None else _nothing:
            arrays = function(*[tensor.numpy() for tensor in tensors])
            results = [torch.from_numpy(array) for array in (arrays if isinstance(arrays, tuple) else (arrays,))]
        if trace is not None:
            for result in results:
                trace.make(result)
            trace.steps.append(OnArrays(function, trace.use(list(tensors)), trace.use(results)))
        return tuple(results) if isinstance(arrays, tuple) else results[0]

    return run


class _Operators(TorchDispatchMode):
    """Records operators, but for views and allocations."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._trace = trace

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_recorded():
            return function(*args, **kwargs)
        name = function.overloadpacket.__name__
        by_mask = name == "index" and any(t.dtype == torch.bool for t in _tensors(args[1]))
        _refuse_reads("masked_select" if by_mask else name)
        result = function(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            self._note(function, name, args, kwargs, result)
        return result

    def _note(self, function: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Adds the step of an operator."""
        trace, results = self._trace, _tensors(result)
        given = {storage_of(tensor) for tensor in _tensors((args, kwargs))}
        is_new = not {storage_of(tensor) for tensor in results} <= given
        if is_new:
            for tensor in results:
                trace.make(tensor)
        if name == "lift_fresh":  # of torch.tensor
            trace.make(result)
            trace.steps.append(Constant(trace.use(result), result.clone()))
        elif name in ZEROS:
            trace.steps.append(Zeros(trace.use(result)))
        elif function._schema.is_mutable:
            trace.steps.append(Operator(function, trace.use(args), trace.use(kwargs), []))
        elif name not in ALLOCATIONS and is_new:
            trace.steps.append(Operator(function, trace.use(args), trace.use(kwargs), trace.use(results)))
        elif is_new and not trace.runs:
            result.zero_()


class _Methods(TorchFunctionMode):
    """Refuses methods that read values and are not dispatched on a CPU, but inside of ``torch.autograd.grad``."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_recorded():
            name = getattr(function, "__name__", "")
            if not (name == "repeat_interleave" and len(args) > 1 and isinstance(args[1], int)):
                _refuse_reads(name)
        return function(*args, **(kwargs or {}))


def _refuse_reads(name: str) -> None:
    if name in READS:
        raise UnsupportedError(f"{name}: what depends on values cannot be traced")


def _tensors(tree: Any) -> list[Tensor]:
    """Returns the tensors in nested tuples, lists and dictionaries."""
    if isinstance(tree, Tensor):
        return [tree]
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for value in values for tensor in _tensors(value)]


def without_gradient(tensor: Tensor) -> Tensor:
    """Returns a tensor that needs no gradient, with this memory: itself, with its attributes, if it needs none."""
    return tensor.detach() if tensor.requires_grad else tensor


def storage_of(tensor: Tensor) -> int:
    """Returns the identity of a tensor's storage, as long as that lives."""
    address: int = tensor.untyped_storage()._cdata
    return address
