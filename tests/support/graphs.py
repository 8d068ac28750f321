"""What stands in for CUDA graphs without a GPU."""

from torch.utils._python_dispatch import TorchDispatchMode

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "lift_fresh", "_linalg_check_errors")
"""Operators that wait for the device, or read memory of the CPU, which a capture does not allow."""


class Forbidden(TorchDispatchMode):
    """Fails when an operator of `WAITS` is called."""

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        assert function.overloadpacket.__name__ not in WAITS, function
        return function(*args, **(kwargs or {}))


class FakeRecorder:
    """Takes the place of `tsplat.runtime.cuda_graphs.GraphRecorder`: a replay calls the function, which writes its
    results to the same memory each time.

    Attributes:
        replays: How often each recorded function was replayed.
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
