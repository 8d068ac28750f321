"""Replacements for CUDA graphs on machines without a GPU."""

from torch.utils._python_dispatch import TorchDispatchMode

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "lift_fresh", "_linalg_check_errors")
"""Operators that wait for the device or read CPU memory, which is not allowed during capture."""


class Forbidden(TorchDispatchMode):
    """Raises an error when an operator in `WAITS` is called."""

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        assert function.overloadpacket.__name__ not in WAITS, function
        return function(*args, **(kwargs or {}))


class FakeRecorder:
    """Replaces `tsplat.runtime.cuda_graphs.GraphRecorder`: a replay calls the function again, and writes its results to
    the same memory.

    Attributes:
        replays: Number of replays of each recorded function.
    """

    def __init__(self):
        self.replays = []

    def warm_up(self, function):
        function()

    def record(self, function):
        i = len(self.replays)
        self.replays.append(0)

        def replay():
            self.replays[i] += 1
            function()

        return None, replay
