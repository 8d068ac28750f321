"""Captures functions in CUDA graphs, which are replayed without Python."""

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
    """Captures functions one after the other, on the current device, with a pool of memory for their graphs.

    A backward pass runs on the stream of its forward pass: capture both with the same object. PyTorch cannot capture
    into a pool whose last graph is gone.
    """

    def __init__(self) -> None:
        with _lock:  # not in a capture
            # PyTorch keeps the memory of graphs that are gone until a call is short of it, and captures do not get it.
            torch.cuda.empty_cache()
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = _stream_of(torch.cuda.current_device())

    def warm_up(self, function: Callable[[], object]) -> None:
        """Calls a function whose kernels may have to be compiled, which a capture does not allow."""
        with DeferredSignals(), self._on_stream():
            function()

    def record(self, function: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        """Captures a function. Returns its results, which are valid after a replay, and what replays it."""
        graph = torch.cuda.CUDAGraph()
        with DeferredSignals(), self._on_stream(), _without_collections():
            # Other threads may read photographs meanwhile.
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                results = function()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # it does not say why
                    self._end(graph)
                raise
            self._end(graph)
        return results, graph.replay

    def _end(self, graph: Any) -> None:
        """Ends a capture, also one that has failed, which PyTorch leaves underway.

        Its allocator would then free no memory when it is short, and random numbers and replays would raise an error
        until another capture ends.
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
    """Pauses Python's collections of garbage, as a graph that is destroyed in a capture invalidates it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_lock = threading.Lock()
"""Held by one capture at a time, as all have the same stream."""


@functools.cache
def _stream_of(device: int) -> Any:
    """Returns the stream of captures on a device. PyTorch keeps the memory of calls before them for the stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
