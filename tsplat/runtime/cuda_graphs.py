"""Captures functions in CUDA graphs."""

import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from ..support.interruption import DeferredSignals

Result = TypeVar("Result")


class GraphRecorder:
    """Captures functions in CUDA graphs that share a memory pool, one after the other, on the current device.

    A backward pass runs on the stream of its forward pass: capture both with the same object. PyTorch cannot capture
    into a pool after its last graph has been destroyed.
    """

    def __init__(self) -> None:
        with _lock:  # not during a capture
            # PyTorch caches the memory of destroyed graphs until an allocation fails. Captures cannot use it.
            torch.cuda.empty_cache()
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = _stream_of(torch.cuda.current_device())

    def warm_up(self, function: Callable[[], object]) -> None:
        """Calls a function before its capture, so that its kernels are compiled, which a capture does not allow."""
        with DeferredSignals(), self._on_stream():
            function()

    def record(self, function: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        """Captures a function. Returns its results, which are valid after a replay, and a function that replays it."""
        graph = torch.cuda.CUDAGraph()
        with DeferredSignals(), self._on_stream(), _without_collections():
            # "thread_local", as other threads may load photographs meanwhile.
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                results = function()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the original error is more informative
                    self._end(graph)
                raise
            self._end(graph)
        return results, graph.replay

    def _end(self, graph: Any) -> None:
        """Ends a capture, also a failed one, which PyTorch does not end.

        Otherwise, the allocator would not free cached memory, and random numbers and replays would raise an error until
        another capture ends.
        """
        try:
            graph.capture_end()
        except RuntimeError:
            with contextlib.suppress(RuntimeError):
                device = torch.cuda.current_device()
                torch._C._cuda_endAllocateToPool(device, self._pool)
                torch._C._cuda_releasePool(device, self._pool)
            with contextlib.suppress(RuntimeError):
                another = torch.cuda.CUDAGraph()
                another.capture_begin(capture_error_mode="thread_local")
                torch.zeros(1, device="cuda")
                another.capture_end()
            raise

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        current = torch.cuda.current_stream()
        with _lock:
            self._stream.wait_stream(current)
            try:
                with torch.cuda.stream(self._stream):
                    yield
            finally:
                current.wait_stream(self._stream)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Disables Python's garbage collection: destroying a graph during a capture would invalidate the capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_lock = threading.Lock()
"""Serializes captures, which use the same stream."""


@functools.cache
def _stream_of(device: int) -> Any:
    """Returns the stream for captures on a device. It is cached, as PyTorch caches memory per stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
