"""Counts the launches, waits and allocations of a training step, and assumes the cost of PyTorch's operators.

No GPU is required: operators are counted as PyTorch dispatches them to CPU tensors.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tsplat
from emulator.program import Launch, Program
from emulator.timing.model import GPUS, predict
from emulator.timing.trace import Recorder
from tsplat import ops

from .scenes import LEAVES

PHASES = ("forward", "loss", "backward", "adam")
PASSES = {"call": ("forward", "backward"), "step": PHASES}
"""A call is `rasterization()` forward and backward; a step is a whole training step."""
OPERATOR_US = 2.0
"""Assumed device time of an operator, or of one launch of a sort, without its memory traffic."""
BANDWIDTH = {"a100": 1.555e6, "h100": 3.35e6}
"""Assumed bandwidth of global memory, in bytes per microsecond."""
WITHOUT_LAUNCH = {
    "view", "_unsafe_view", "slice", "select", "detach", "unsqueeze", "squeeze", "alias", "permute", "transpose",
    "expand", "empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "as_strided", "unbind",
    "t", "split", "split_with_sizes", "lift_fresh", "movedim", "_reshape_alias", "unflatten", "diagonal", "resize_",
    "set_", "_record_function_enter_new", "_record_function_exit",
}  # fmt: skip
"""Operators that neither launch nor wait: views, allocations and marks of PyTorch's profiler."""
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"}
"""Operators that wait for the device, because the CPU needs a value or a size."""
READS = {"tolist", "cpu", "numpy"}
"""Methods of tensors that wait for the device, and are not dispatched as operators for CPU tensors."""


@dataclasses.dataclass(frozen=True)
class Operator:
    """An operator that launches or waits, with the bytes of its results; for a radix sort, its passes and traffic."""

    phase: str
    name: str
    waits: bool = False
    result_bytes: int = 0
    sort_passes: int = 0
    sort_bytes: int = 0

    def device_us(self, gpu: str) -> float:
        """Returns the assumed device time.

        A radix sort has one launch per pass, one for the histogram and one for its sums. Other operators have one
        launch, and read as many bytes as they write.
        """
        if self.sort_passes:
            return (self.sort_passes + 2) * OPERATOR_US + self.sort_bytes / BANDWIDTH[gpu]
        return OPERATOR_US + 2 * self.result_bytes / BANDWIDTH[gpu]


def sort_operator(phase: str, n: int, key_bits: int, key_bytes: int, value_bytes: int) -> Operator:
    """Returns a radix sort of n keys with values. A histogram reads all keys; each pass reads and writes all data."""
    passes = -(-key_bits // 8)
    return Operator(
        phase, "sort", sort_passes=passes, sort_bytes=n * (key_bytes + 2 * passes * (key_bytes + value_bytes))
    )


class Operators(TorchDispatchMode):
    """Dispatch mode that records, by `phase`, operators that launch or wait, and operators that allocate a result."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = ""
        self.found: list[Operator] = []
        self.allocations: list[str] = []
        self._reads = _Reads(self)

    def __enter__(self) -> "Operators":
        self._reads.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._reads.__exit__(*exception)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        written = args[0] if name == "_foreach_copy_" else result
        results = [value for value in tree_leaves(written) if isinstance(value, Tensor)]
        old = {tensor.untyped_storage()._cdata for tensor in given}
        if any(tensor.untyped_storage()._cdata not in old for tensor in results):
            self.allocations.append(self.phase)
        if name in WITHOUT_LAUNCH:
            return result
        if name in ("sort", "argsort"):
            size = given[0].element_size()
            self.found.append(sort_operator(self.phase, given[0].numel(), 8 * size, size, 8))
            return result
        by_mask = name == "index" and any(tensor.dtype == torch.bool for tensor in given[1:])
        n_bytes = sum(tensor.nbytes for tensor in results)
        self.found.append(Operator(self.phase, name, name in WAITS or by_mask, n_bytes))
        return result


class _Reads(TorchFunctionMode):
    """Function mode that counts calls of :data:`READS` as waits."""

    def __init__(self, operators: Operators) -> None:
        super().__init__()
        self.operators = operators

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in READS and getattr(Tensor, name) is function:
            self.operators.found.append(Operator(self.operators.phase, name, waits=True))
        return function(*args, **(kwargs or {}))


@dataclasses.dataclass(frozen=True)
class Launched:
    """A launch of a kernel: its phase, the kernel, and the predicted microseconds by GPU."""

    phase: str
    kernel: str
    device_us: dict[str, float]


class Predictor(Recorder):
    """Predicts the time of every launch, as the `tracer` of a machine, without keeping traces."""

    def __init__(self, gpus: list[str]) -> None:
        super().__init__(lambda launch: True)
        self.gpus = gpus
        self.found: list[Launched] = []

    def executed(self, program: Program, launch: Launch, *more: Any) -> None:
        super().executed(program, launch, *more)
        done = self.launches.pop()
        assert done.trace is not None
        device_us = {gpu: predict(GPUS[gpu], done.trace).predicted_us for gpu in self.gpus}
        self.found.append(Launched(done.phase, done.kernel, device_us))


class Step:
    """A training step of a scene: rasterization, L1 + SSIM loss, backward, and Adam with a learning rate of zero."""

    def __init__(self, scene: dict[str, Any], render: Callable[..., Any] = tsplat.rasterization) -> None:
        self.render = render
        self.leaves = {name: scene[name].detach().clone().requires_grad_() for name in LEAVES}
        self.arguments: dict[str, Any] = scene | self.leaves | {"backend": "triton"}
        self.optimizer = ops.Adam([{"params": [leaf]} for leaf in self.leaves.values()], lr=0.0, backend="triton")
        self.meta: dict[str, Any] = {}
        generator = torch.Generator().manual_seed(0)
        self.target = torch.rand(len(scene["viewmats"]), scene["height"], scene["width"], 3, generator=generator)

    def run(self, enter: Callable[[str], None]) -> None:
        """Runs a step. Calls `enter` with the name of each phase before it begins, and with "" at the end."""
        enter("forward")
        colors, _, self.meta = self.render(**self.arguments)
        enter("loss")
        image = colors.detach().requires_grad_()
        torch.autograd.backward(ops.l1_ssim_loss(image, self.target, backend="triton").sum())
        enter("backward")
        torch.autograd.backward(colors, image.grad)
        enter("adam")
        self.optimizer.step()
        self.optimizer.zero_grad()
        enter("")

    def warm_up(self) -> None:
        """Lets Adam and the loss allocate the tensors that they keep between steps."""
        for leaf in self.leaves.values():
            leaf.grad = torch.zeros_like(leaf)
        self.optimizer.step()
        self.optimizer.zero_grad()
        image = torch.zeros_like(self.target, requires_grad=True)
        torch.autograd.backward(ops.l1_ssim_loss(image, self.target, backend="triton").sum())
