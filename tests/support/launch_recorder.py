"""Recorded functions that replace CUDA graphs on a CPU: replays use the addresses of the first call."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tsplat.passes.arenas import Bases
from tsplat.passes.replay import Pass
from tsplat.runtime.tracing import Trace, storage_of


class KeepingTrace(Trace):
    """Keeps allocated memory alive."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def add_allocation(self, tensor: Tensor) -> None:
        super().add_allocation(tensor)
        self.kept.append(tensor.detach())


class LaunchRecorder:
    """Records functions on a CPU. All memory that they allocate is kept for replays."""

    def warm_up(self, function: Callable[[], object]) -> None:
        """Calls a function once, so that its kernels are compiled."""
        function()

    def record(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """Calls a function. Returns its results, and a function that recomputes them in the same memory."""
        trace, bases = KeepingTrace(), Bases()
        results = trace.record(function)
        tensors = {storage_of(t): t for t in (*trace.kept, *trace.external.values())}
        for storage in tensors:
            bases.place(bases.add(), storage, 0)
        replayed = Pass(trace.steps, bases, range(bases.n), on_gpu=False)
        storages = [tensor.new_empty(0).set_(tensor.untyped_storage()).detach() for tensor in tensors.values()]
        return results, lambda: replayed.run(storages)
