"""Traces of functions: records kernel launches and PyTorch operators, in their order.

A trace describes the memory that each step reads and writes, as views of storages. A replay runs the steps on other
memory. Nothing in a trace may depend on values of tensors.
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
from .bundles import leaves, map_tree
from .modes import restored_modes

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

DATA_DEPENDENT = {
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "unique_consecutive",
    "bincount", "repeat_interleave", "tensor_split", "tolist", "numpy", "__array__", "__dlpack__",
}  # fmt: skip
"""Operators and methods that return values to Python, or tensors whose sizes depend on values."""

ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
ZEROS = {"zeros", "zeros_like", "new_zeros", "zero_"}


class TracedTensor(NamedTuple):
    """A tensor of a trace. It does not keep the memory alive.

    Attributes:
        storage, size: The identity of its storage, and the size of the storage in bytes.
        offset: The offset of the tensor in its storage, in bytes.
        shape, strides, dtype: The shape, strides and dtype of the tensor.
    """

    storage: int
    size: int
    offset: int
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> TracedTensor:
        storage = tensor.untyped_storage()
        offset = int(tensor.storage_offset()) * tensor.itemsize
        return cls(storage._cdata, storage.nbytes(), offset, tensor.shape, tensor.stride(), tensor.dtype)


class Launch(NamedTuple):
    """A kernel launch: the compiled kernel, the number of programs, and its arguments, tensors and numbers."""

    run: Any
    n_programs: int
    values: tuple[Any, ...]


class TorchCall(NamedTuple):
    """A call of a PyTorch operator, and the tensors that it returned."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[TracedTensor]


class NumpyCall(NamedTuple):
    """A call of a function of NumPy arrays. Arguments and results are tensors that share their memory."""

    function: Callable[..., Any]
    args: list[TracedTensor]
    results: list[TracedTensor]


class Zeros(NamedTuple):
    """A tensor that is filled with zeros."""

    tensor: TracedTensor


class Constant(NamedTuple):
    """A tensor made from Python numbers, and a copy of it."""

    tensor: TracedTensor
    values: Tensor


Step = Launch | TorchCall | NumpyCall | Zeros | Constant


class Trace:
    """Records the steps that this thread runs in :meth:`record`.

    Args:
        runs_kernels: Whether kernels run. Otherwise, their outputs are zeros, which is faster.
        tracks_slots: Whether to record ``slot_usage``.

    Attributes:
        steps: The steps in their order.
        allocated: The storages that the steps allocate.
        external: Storage -> a tensor in it, for all other storages that the steps use.
        slot_usage: Storage of slots -> the number of used slots, [] int64, and the bytes of a slot.
    """

    def __init__(self, *, runs_kernels: bool = True, tracks_slots: bool = False) -> None:
        self.runs_kernels, self.tracks_slots = runs_kernels, tracks_slots
        self.steps: list[Step] = []
        self.allocated: set[int] = set()
        self.external: dict[int, Tensor] = {}
        self.slot_usage: dict[int, tuple[TracedTensor, int]] = {}
        self._identities: list[StorageWeakRef] = []

    def add_allocation(self, tensor: Tensor) -> None:
        """Records that a step allocates a storage. Reserves its identity, also after its memory has been freed."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self.allocated:
            self.allocated.add(storage._cdata)
            self._identities.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]

    def symbolic(self, tree: Any) -> Any:
        """Replaces tensors in the arguments of a step by :class:`TracedTensor`."""
        return map_tree(tree, Tensor, self._symbol)

    def _symbol(self, tensor: Tensor) -> TracedTensor:
        traced = TracedTensor.of(tensor)
        if traced.storage not in self.allocated:
            self.external.setdefault(traced.storage, without_gradient(tensor))
        return traced

    def record(self, function: Callable[[], Result]) -> Result:
        """Records the steps of a function, and returns its result. Recording ends also on an interrupt.

        Only one trace is recorded at a time, as launches are observed in all threads.

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
                launch.observer, launch.launch_hook, launch.slots_hook = observer, None, None
                _state.trace = outer

    def _observe_launches(self, observer: Callable[[Any, int, dict[str, Any]], None] | None) -> None:
        """Starts to record the launches of this thread. Continues to call an existing observer."""
        from ..kernels import launch
        from ..triton_cpu import flat_arguments

        thread = threading.get_ident()
        observed: list[tuple[Any, dict[str, Any]]] = []

        def observe(kernel: Any, n_programs: int, arguments: dict[str, Any]) -> None:
            if observer is not None:
                observer(kernel, n_programs, arguments)
            if threading.get_ident() == thread:
                observed[:] = [(kernel, arguments)]

        def record_launch(run: Any, n_programs: int, values: tuple[Any, ...]) -> bool:
            if threading.get_ident() != thread:
                return True
            kernel, arguments = observed.pop()
            names = [parameter.name for parameter in kernel.params if not parameter.is_constexpr]
            flat = [leaf for name in names for leaf in flat_arguments(arguments[name])]
            flat = [leaf if isinstance(leaf, Tensor) else value for leaf, value in zip(flat, values, strict=True)]
            with torch._C.DisableTorchFunction():
                self.steps.append(Launch(run, n_programs, self.symbolic(tuple(flat))))
            return self.runs_kernels

        def record_slots(slots: Tensor, n_used: Tensor) -> None:
            if threading.get_ident() == thread:
                self.slot_usage[storage_of(slots)] = self.symbolic(n_used), slots.stride(0) * slots.itemsize

        launch.observer, launch.launch_hook = observe, record_launch
        launch.slots_hook = record_slots if self.tracks_slots else None


_lock = threading.Lock()

_state = threading.local()
"""Has the attribute ``trace``: the trace that this thread records, or None."""


def is_tracing() -> bool:
    """Returns whether this thread records a trace."""
    return getattr(_state, "trace", None) is not None


@contextlib.contextmanager
def _paused(trace: Trace | None) -> Iterator[None]:
    """Pauses the trace of this thread during a block."""
    _state.trace = None
    try:
        yield
    finally:
        _state.trace = trace


def numpy_step(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function of NumPy arrays to take and return CPU tensors, and to be a single step of a trace.

    The function may read values. It must return new arrays whose sizes do not depend on values.
    """

    @functools.wraps(function)
    def run(*tensors: Tensor) -> Any:
        trace: Trace | None = getattr(_state, "trace", None)
        with _paused(trace):
            arrays = function(*[tensor.numpy() for tensor in tensors])
            results = [torch.from_numpy(array) for array in (arrays if isinstance(arrays, tuple) else (arrays,))]
        if trace is not None:
            for result in results:
                trace.add_allocation(result)
            trace.steps.append(NumpyCall(function, trace.symbolic(list(tensors)), trace.symbolic(results)))
        return tuple(results) if isinstance(arrays, tuple) else results[0]

    return run


class _Operators(TorchDispatchMode):
    """Records operators except views and allocations."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._trace = trace

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Returns False. If it returned True, the first trace of a process would import torch._dynamo, which takes a
        second."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_tracing():
            return function(*args, **kwargs)
        name = function.overloadpacket.__name__
        by_mask = name == "index" and any(t.dtype == torch.bool for t in leaves(args[1], Tensor))
        _refuse_data_dependent("masked_select" if by_mask else name)
        result = function(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            self._add_step(function, name, args, kwargs, result)
        return result

    def _add_step(self, function: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        trace, results = self._trace, leaves(result, Tensor)
        symbolic, inputs = trace.symbolic, {storage_of(tensor) for tensor in leaves((args, kwargs), Tensor)}
        is_new = not {storage_of(tensor) for tensor in results} <= inputs
        if is_new:
            for tensor in results:
                trace.add_allocation(tensor)
        if name == "lift_fresh":  # called by torch.tensor
            trace.add_allocation(result)
            trace.steps.append(Constant(symbolic(result), result.clone()))
        elif name in ZEROS:
            trace.steps.append(Zeros(symbolic(result)))
        elif function._schema.is_mutable:
            trace.steps.append(TorchCall(function, symbolic(args), symbolic(kwargs), []))
        elif name not in ALLOCATIONS and is_new:
            trace.steps.append(TorchCall(function, symbolic(args), symbolic(kwargs), symbolic(results)))
        elif is_new and not trace.runs_kernels:
            result.zero_()


class _Methods(TorchFunctionMode):
    """Refuses methods that read values without an operator, such as ``numpy``. Inactive in ``torch.autograd.grad``."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_tracing():
            name = getattr(function, "__name__", "")
            if not (name == "repeat_interleave" and len(args) > 1 and isinstance(args[1], int)):
                _refuse_data_dependent(name)
        return function(*args, **(kwargs or {}))


def _refuse_data_dependent(name: str) -> None:
    if name in DATA_DEPENDENT:
        raise UnsupportedError(f"{name}: results that depend on values cannot be traced")


def without_gradient(tensor: Tensor) -> Tensor:
    """Returns the tensor, or if it requires a gradient, a detached tensor."""
    return tensor.detach() if tensor.requires_grad else tensor


def storage_of(tensor: Tensor) -> int:
    """Returns the identity of a tensor's storage, valid while the storage is alive."""
    address: int = tensor.untyped_storage()._cdata
    return address
