"""A traced call whose passes are captured in CUDA graphs.

Graphs read and write memory of their own, but for tensors that stay where they are. What a call returns is copied from
there. What it keeps for its backward passes and ``meta`` is copied only if another call needs the memory first.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..runtime.cuda_graphs import GraphRecorder
from .calls import Forward, read_counted
from .replay import Pass
from .replayed_meta import Kept
from .traced_calls import BackwardPass, TracedCall, copy_with_layout


class CapturedCall:
    """Replays the passes of a traced call by CUDA graphs.

    Args:
        traced: The call.
        tensors: The inputs of a call of its kind.
        in_place: For each of them, whether graphs read it where it is. Later calls must have it there.
        recorder: Captures graphs.
    """

    def __init__(
        self, traced: TracedCall, tensors: Sequence[Tensor], in_place: Sequence[bool], recorder: GraphRecorder
    ) -> None:
        self.traced = traced
        self._lock = threading.RLock()
        self._last: Callable[[], Kept | None] = lambda: None
        self._ahead: _Ahead | None = None
        backward = [each for each in (traced.of_images, traced.of_centers) if each is not None]
        read = {base for each in backward for base in each.saved}
        with torch.inference_mode(False), torch.no_grad():
            memory = {
                i: t.detach() if own else copy_with_layout(t) for i, (t, own) in enumerate(zip(tensors, in_place))
            }
            made = [*traced.outputs, *traced.v_images, *(output for each in backward for output in each.outputs)]
            memory |= {output.base: output.allocate(traced.device) for output in made}
            n_kept = traced.kept[1]
            memory[traced.kept[0]] = torch.empty(n_kept, dtype=torch.uint8, device=traced.device)
            arenas = [traced.scratch, *(each.scratch for each in backward)]
            scratch = torch.empty(max(size for _, size in arenas), dtype=torch.uint8, device=traced.device)
            memory |= {base: scratch for base, _ in arenas}
            self._forward = _capture(recorder, memory, traced.forward)
            if traced.differentiable:
                # Of images, and of centers at once, as no hook may change what goes from one to the other.
                self._of_images = _capture(recorder, memory, [each.steps for each in backward], traced.of_images)
            if len(backward) > 1:
                self._of_centers = _capture(recorder, memory, [backward[1].steps])
        self._results = [base for each in backward for base in each.results]
        of_packed_rows = [*traced.outputs, *([] if traced.v_centers is None else [traced.v_centers[0]])]
        self._packed = {output.base for output in of_packed_rows if output.is_packed}
        self._copied = [i for i, is_read in enumerate(in_place) if not is_read]
        self._restored = [i for i in self._copied if i in read] + [o.base for o in traced.outputs if o.base in read]
        # What is read in place belongs to the caller.
        self._memory = {base: t for base, t in memory.items() if base >= len(in_place) or base in self._copied}

    def forward(self, tensors: Sequence[Tensor]) -> Forward:
        """Runs the forward pass. Waits for the device, unless the caller gave a capacity."""
        traced, memory = self.traced, self._memory
        with self._lock, torch.no_grad():
            kept, self._ahead = Kept(memory[traced.kept[0]]), None
            self._lend(kept)
            if self._copied:
                torch._foreach_copy_([memory[i] for i in self._copied], [tensors[i] for i in self._copied])
            self._forward()
            needed, n_packed = read_counted(traced, kept.memory, on_gpu=True)
            outputs = _copies(self._used([output.base for output in traced.outputs], n_packed))
            bases: list[Any] = [*tensors, *outputs, None]
            kept.values = [bases[base] for base in self._restored]
        return Forward(bases, needed, kept, n_packed)

    def _used(self, bases: Iterable[int], n_packed: int | None) -> list[Tensor]:
        """Returns the memory of bases, without the rows behind packed ones."""
        return [self._memory[base][:n_packed] if base in self._packed else self._memory[base] for base in bases]

    def differentiate(
        self,
        backward: BackwardPass,
        _saved: Sequence[Tensor | None],
        given: Sequence[Tensor],
        kept: Kept | None,
        n_packed: int | None,
        _n_slots: Callable[[], int] | None,
    ) -> dict[int, Tensor]:
        """Runs a backward pass; see :meth:`.Replays.differentiate`. The memory of a graph has room for all rows."""
        assert kept is not None
        is_second = backward is not self.traced.of_images
        with self._lock:
            ahead, self._ahead = self._ahead, None
            if is_second and ahead is not None and ahead.is_of(kept, backward, given):
                return ahead.results
            if self._last() is not kept:
                self._lend(kept)
                own = [self.traced.kept[0], *self._restored]
                torch._foreach_copy_(self._used(own, n_packed), [kept.memory, *kept.values])
                kept.memory = self._memory[own[0]]
            torch._foreach_copy_(self._used(backward.given, n_packed), list(given))
            (self._of_centers if is_second else self._of_images)()
            bases = backward.results if is_second else self._results
            results = dict(zip(bases, _copies(self._used(bases, n_packed))))
            if not is_second and self.traced.of_centers is not None:
                self._ahead = _Ahead(kept, results)
            return results

    def _lend(self, kept: Kept) -> None:
        """Lends the memory of what is kept to a call. If the one before may still need it, that gets a copy."""
        last = self._last()
        if last is not None:
            last.memory = last.memory.clone()
        self._last = weakref.ref(kept)


class _Ahead:
    """The results of both backward passes, which ran at once. Those of the second hold for what the first has computed.

    Attributes:
        results: The bases, by number.
    """

    def __init__(self, kept: Kept, results: dict[int, Tensor]) -> None:
        self.results, self._kept = results, weakref.ref(kept)
        self._versions = {base: tensor._version for base, tensor in results.items()}

    def is_of(self, kept: Kept, backward: BackwardPass, given: Sequence[Tensor]) -> bool:
        """Returns whether a call gives the second pass what the first has computed, unchanged."""
        return self._kept() is kept and all(
            tensor.data_ptr() == self.results[base].data_ptr() and tensor._version == self._versions[base]
            for base, tensor in zip(backward.given, given)
        )


def _capture(
    recorder: GraphRecorder,
    memory: dict[int, Tensor],
    passes: Sequence[Pass],
    backward: BackwardPass | None = None,
) -> Callable[[], None]:
    """Captures passes, the first of which may be a backward pass. Returns what replays them."""
    steps = [each.bind([memory[base] for base in each.order]) for each in passes]

    def run() -> None:
        if backward is not None:
            backward.clear(memory)
        for step in steps:
            step()

    recorder.warm_up(run)  # a capture allows no first launches of kernels
    _, replay = recorder.record(run)
    return replay


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    """Copies tensors in one launch."""
    copies = [torch.empty_like(tensor) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, tensors)
    return copies
