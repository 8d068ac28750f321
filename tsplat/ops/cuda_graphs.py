"""Captures functions in CUDA graphs, which are replayed without Python."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

Result = TypeVar("Result")


class GraphRecorder:
    """A stream and a pool of memory for functions that are captured one after the other.

    A backward pass runs on the stream of its forward pass: capture both with the same object. PyTorch cannot capture
    into a pool whose last graph is gone.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def warm_up(self, function: Callable[[], object]) -> None:
        """Calls a function whose kernels may have to be compiled, which a capture does not allow."""
        with self._on_stream():
            function()

    def record(self, function: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        """Captures a function. Returns its results, which are valid after a replay, and what replays it."""
        graph = torch.cuda.CUDAGraph()
        with self._on_stream():
            # Other threads may read photographs meanwhile.
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                results = function()
            finally:
                graph.capture_end()
        return results, graph.replay

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)
