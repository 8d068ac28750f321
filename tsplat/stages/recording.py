"""Recorded calls: what a function does on a CPU, to be done again without the Python around it.

A recording has the launches of kernels and PyTorch's operators in their order, with the addresses of the first time. It
is for CPUs what a CUDA graph is for GPUs, and as there, nothing may depend on values, nor on memory that others free.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..errors import UnsupportedError
from ..precision import full_precision

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Step = Callable[[], object]

CPU = torch.device("cpu")

READS = {
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "unique_consecutive",
    "bincount", "repeat_interleave", "tensor_split", "tolist", "numpy", "__array__", "__dlpack__",
}  # fmt: skip
"""Operators and methods whose result is known to Python, or has a size that depends on values."""

ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
ZEROS = {"zeros", "zeros_like", "new_zeros"}

_lock = threading.Lock()
"""Of one recording at a time, as launches are observed in all threads."""

_recording = threading.local()
"""Of each thread, the ``steps`` of what is recorded."""


class LaunchRecorder:
    """Records functions on a CPU. All memory that they allocate is kept for the replays."""

    def warm_up(self, function: Callable[[], object]) -> None:
        """Calls a function, so that its kernels are compiled."""
        function()

    def record(self, function: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        """Calls a function. Returns its results, and what computes them again at the same place.

        Raises:
            UnsupportedError: The function reads a value or a size that depends on values.
        """
        recording = _Recording([], [])
        with _lock, _steps(recording.steps), _launches(recording), _Operators(recording), _Methods():
            results = function()
        return results, recording.replay


class _Recording(NamedTuple):
    """Steps, and the tensors in whose memory they read and write."""

    steps: list[Step]
    kept: list[Any]

    def replay(self) -> None:
        with torch.no_grad(), full_precision():
            for step in self.steps:
                step()


def recordable(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a function that reads values and returns new tensors of fixed sizes: one step of a recording."""

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        steps = getattr(_recording, "steps", None)
        if steps is None:
            return function(*args, **kwargs)
        _recording.steps = None
        try:
            result = function(*args, **kwargs)
        finally:
            _recording.steps = steps
        steps.append(_again(function, args, kwargs, result))
        return result

    return run


@contextlib.contextmanager
def _steps(steps: list[Step]) -> Iterator[None]:
    _recording.steps = steps
    try:
        yield
    finally:
        _recording.steps = None


@contextlib.contextmanager
def _launches(recording: _Recording) -> Iterator[None]:
    """Records the launches of this thread."""
    from ..kernels import launch

    thread, observer = threading.get_ident(), launch.observer

    def observe(kernel: Any, n_programs: int, arguments: dict[str, Any]) -> None:
        if observer is not None:
            observer(kernel, n_programs, arguments)
        if threading.get_ident() == thread:
            recording.kept.append(arguments)

    def launched(run: Callable[..., None], n_programs: int, values: tuple[Any, ...]) -> None:
        if threading.get_ident() == thread:
            recording.steps.append(functools.partial(run, n_programs, values))

    launch.observer, launch.launched = observe, launched
    try:
        yield
    finally:
        launch.observer, launch.launched = observer, None


class _Operators(TorchDispatchMode):
    """Records operators, but for views and allocations."""

    def __init__(self, recording: _Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(_recording, "steps", None) is None:
            return function(*args, **kwargs)
        name = function.overloadpacket.__name__
        by_mask = name == "index" and any(t.dtype == torch.bool for t in _tensors(args[1]))
        _refuse_reads("masked_select" if by_mask else name)
        result = function(*args, **kwargs)
        self._recording.kept.append(result)
        if name == "lift_fresh":  # of torch.tensor
            self._recording.steps.append(functools.partial(result.copy_, result.clone()))
        elif name in ZEROS:
            self._recording.steps.append(result.zero_)
        elif function._schema.is_mutable:
            self._recording.steps.append(functools.partial(function, *args, **kwargs))
        elif name not in ALLOCATIONS and not _storages(result) <= _storages((args, kwargs)):
            self._recording.steps.append(_again(function, args, kwargs, result))
        return result


class _Methods(TorchFunctionMode):
    """Refuses methods that read values and are not dispatched on a CPU, but inside of ``torch.autograd.grad``."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(_recording, "steps", None) is not None:
            _refuse_reads(getattr(function, "__name__", ""))
        return function(*args, **(kwargs or {}))


def _refuse_reads(name: str) -> None:
    if name in READS:
        raise UnsupportedError(f"{name}: what depends on values cannot be recorded")


def _again(function: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> Step:
    """A step that calls a function, and copies its results to those of the first time."""
    own = _tensors(result)

    def step() -> None:
        for tensor, new in zip(own, _tensors(function(*args, **kwargs)), strict=True):
            tensor.copy_(new)

    return step


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storages(tree: Any) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in _tensors(tree)}
