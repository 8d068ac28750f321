"""Recorded functions, which stand for CUDA graphs on a CPU: replays use the addresses of the first time."""

from collections.abc import Callable
from typing import Any

from tsplat.passes.arenas import Bases, tensors_of
from tsplat.passes.replay import Pass
from tsplat.stages.tracing import Trace, storage_of


class LaunchRecorder:
    """Records functions on a CPU. All memory that they allocate is kept for the replays."""

    def warm_up(self, function: Callable[[], object]) -> None:
        """Calls a function, so that its kernels are compiled."""
        function()

    def record(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """Calls a function. Returns its results, and what computes them again at the same place."""
        trace, bases = Trace(), Bases()
        with trace.recording():
            results = function()
        tensors = {storage_of(t): t for step in trace.steps for t in tensors_of(step)}.values()
        for tensor in tensors:
            bases.put(bases.add(), storage_of(tensor), tensor.untyped_storage().data_ptr(), 0)
        replayed = Pass(trace.steps, bases)
        storages = [tensor.new_empty(0).set_(tensor.untyped_storage()).detach() for tensor in tensors]
        used = [storages[i] for i in replayed.used]
        return results, lambda: replayed.run(used)
