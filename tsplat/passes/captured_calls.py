"""A traced call whose passes are captured in CUDA graphs.

Graphs read and write fixed memory, and read inputs in place if their addresses do not change. Results of a call are
copied from this memory. Tensors that are saved for backward passes and ``meta`` are copied only if a later call needs
the memory.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..runtime.cuda_graphs import GraphRecorder
from .call_traces import copy_with_layout
from .calls import ForwardResult, read_counts
from .replay import Pass
from .replayed_meta import ForwardState, LentArena
from .traced_calls import BackwardPass, TracedCall


class GraphRunner:
    """Replays the passes of a traced call by CUDA graphs.

    Args:
        traced: The traced call.
        tensors: The inputs of a call with the same cache key.
        in_place: For each input, whether graphs read it in place. Later calls must have it at the same address.
        recorder: Captures the graphs.
    """

    def __init__(
        self, traced: TracedCall, tensors: Sequence[Tensor], in_place: Sequence[bool], recorder: GraphRecorder
    ) -> None:
        self.traced = traced
        self._lock = threading.RLock()
        self._borrower: Callable[[], LentArena | None] = lambda: None
        self._precomputed: _PrecomputedBackward | None = None
        forward, arena = traced.forward, traced.forward.saved_arena
        passes = [each for each in (traced.images_backward, traced.means2d_backward) if each is not None]
        saved = {base for each in passes for base in each.saved}
        with torch.inference_mode(False), torch.no_grad():
            memory = {
                i: t.detach() if stays else copy_with_layout(t) for i, (t, stays) in enumerate(zip(tensors, in_place))
            }
            # The second carrier's gradient, which the backward pass of images does not write.
            unwritten = [] if traced.handover is None else traced.handover.v_carriers[1:]
            outputs = [
                *forward.outputs,
                *traced.v_images,
                *unwritten,
                *(output for each in passes for output in each.outputs),
            ]
            memory |= {output.base: output.allocate(traced.device) for output in outputs}
            memory[arena.base] = torch.empty(arena.size, dtype=torch.uint8, device=traced.device)
            arenas = [forward.scratch, *(each.scratch for each in passes)]
            scratch = torch.empty(max(size for _, size in arenas), dtype=torch.uint8, device=traced.device)
            memory |= {base: scratch for base, _ in arenas}
            self._forward = _capture(recorder, memory, forward.parts)
            if traced.differentiable:
                # Both backward passes in one graph: usually, no hook changes the gradients between them.
                zeros = [memory[v_carrier.base] for v_carrier in unwritten]
                self._of_images = _capture(recorder, memory, [each.steps for each in passes], zeros)
            if len(passes) > 1:
                self._of_means2d = _capture(recorder, memory, [passes[1].steps])
        self._results = [base for each in passes for base in each.results]
        self._copied = [i for i, stays in enumerate(in_place) if not stays]
        self._restored = [i for i in self._copied if i in saved] + [o.base for o in forward.outputs if o.base in saved]
        # Inputs that are read in place belong to the caller.
        self._memory = {base: t for base, t in memory.items() if base >= len(in_place) or base in self._copied}

    def forward(self, tensors: Sequence[Tensor]) -> ForwardResult:
        """Runs the forward pass. Waits for the device, unless the caller gave a capacity."""
        traced, memory = self.traced, self._memory
        with self._lock, torch.no_grad():
            lent, self._precomputed = LentArena(memory[traced.forward.saved_arena.base]), None
            self._lend(lent)
            if self._copied:
                torch._foreach_copy_([memory[i] for i in self._copied], [tensors[i] for i in self._copied])
            self._forward()
            needed, n_packed = read_counts(traced, lent.memory, on_gpu=True)
            outputs = _copies([memory[output.base] for output in traced.forward.outputs])
            bases: list[Any] = [*tensors, *outputs, None]
            lent.values = [bases[base] for base in self._restored]
        return ForwardResult(bases, ForwardState(needed, n_packed, lent))

    def backward(
        self,
        backward_pass: BackwardPass,
        _saved: Sequence[Tensor | None],
        incoming: Sequence[Tensor | None],
        state: ForwardState,
    ) -> dict[int, Tensor]:
        """Runs a backward pass; see :meth:`.ReplayRunner.backward`."""
        lent = state.lent
        assert lent is not None
        is_second = backward_pass is not self.traced.images_backward
        with self._lock:
            precomputed, self._precomputed = self._precomputed, None
            if is_second and precomputed is not None and precomputed.fits(lent, backward_pass, incoming):
                return precomputed.results
            if self._borrower() is not lent:
                self._lend(lent)
                restored = [self.traced.forward.saved_arena.base, *self._restored]
                torch._foreach_copy_([self._memory[base] for base in restored], [lent.memory, *lent.values])
                lent.memory = self._memory[self.traced.forward.saved_arena.base]
            targets = [self._memory[base] for base in backward_pass.incoming]
            if is_second:
                targets[0] = state.rows(targets[0])  # the memory of means2d has as many rows as the capacity
            for target, v in zip(targets, incoming, strict=True):
                if v is None:
                    target.zero_()
            if given := [(target, v) for target, v in zip(targets, incoming) if v is not None]:
                torch._foreach_copy_([target for target, _ in given], [v for _, v in given])
            (self._of_means2d if is_second else self._of_images)()
            bases = backward_pass.results if is_second else self._results
            results = dict(zip(bases, _copies([self._memory[base] for base in bases])))
            if not is_second and self.traced.means2d_backward is not None:
                self._precomputed = _PrecomputedBackward(lent, results)
            return results

    def _lend(self, lent: LentArena) -> None:
        """Lends the memory of the saved arena to a call. If the previous call may still read it, it gets a copy."""
        previous = self._borrower()
        if previous is not None:
            previous.memory = previous.memory.clone()
        self._borrower = weakref.ref(lent)


class _PrecomputedBackward:
    """The results of both backward passes, which ran at once.

    The results of the second pass are valid if its incoming gradients are the unchanged results of the first.

    Attributes:
        results: The bases by number.
    """

    def __init__(self, lent: LentArena, results: dict[int, Tensor]) -> None:
        self.results, self._lent = results, weakref.ref(lent)
        self._versions = {base: tensor._version for base, tensor in results.items()}

    def fits(self, lent: LentArena, backward_pass: BackwardPass, incoming: Sequence[Tensor | None]) -> bool:
        """Returns whether the incoming gradients of the second pass are the unchanged results of the first."""
        return self._lent() is lent and all(
            v is None if base not in self.results
            else v is not None and v.data_ptr() == self.results[base].data_ptr() and v._version == self._versions[base]
            for base, v in zip(backward_pass.incoming, incoming)
        )  # fmt: skip


def _capture(
    recorder: GraphRecorder,
    memory: dict[int, Tensor],
    passes: Sequence[Pass],
    zeros: Sequence[Tensor] = (),
) -> Callable[[], None]:
    """Captures passes in a graph, which first fills `zeros` with zeros. Returns a function that replays it."""
    steps = [each.bind([memory[base] for base in each.order]) for each in passes]

    def run() -> None:
        for tensor in zeros:
            tensor.zero_()
        for step in steps:
            step()

    recorder.warm_up(run)  # kernels cannot be compiled during a capture
    _, replay = recorder.record(run)
    return replay


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    """Copies tensors by one launch."""
    copies = [torch.empty_like(tensor) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, tensors)
    return copies
