"""What stands in for CUDA graphs without a GPU."""

import dataclasses

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "lift_fresh", "_linalg_check_errors")
"""Operators that wait for the device, or read memory of the CPU, which a capture does not allow."""


class Forbidden(TorchDispatchMode):
    """Fails when an operator of `WAITS` is called."""

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        assert function.overloadpacket.__name__ not in WAITS, function
        return function(*args, **(kwargs or {}))


class FakeRecorder:
    """Takes the place of `tsplat.ops.cuda_graphs.GraphRecorder`: a replay calls the function again, and copies its
    results to those of the first time.

    The first replay does nothing: the function has run then, which a capture does not do, and may change what it uses.

    Attributes:
        replays: How often each recorded function was replayed.
    """

    def __init__(self):
        self.replays = []

    def record(self, function):
        results, i = function(), len(self.replays)
        self.replays.append(0)

        def replay():
            self.replays[i] += 1
            if self.replays[i] == 1:
                return
            for own, new in zip(tensors(results), tensors(function()), strict=True):
                own.copy_(new)

        return results, replay


def tensors(results):
    leaves = tree_leaves(vars(results) if dataclasses.is_dataclass(results) else results)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
