"""Computes the rendering, the loss and the gradients of a training view by replaying passes or CUDA graphs.

The kind of a view is everything, except tensors, on which its launches depend, such as its size and SH degree. The
first view of a kind is rendered by a rasterization call, which returns the number of intersections. The second is
traced while it is computed, and later ones replay the traced pass. The update of the parameters is traced with the
first replay. On a GPU, the third view is captured in a CUDA graph, which reads the view from input tensors of the graph
and the parameters in place. If a strategy has replaced the parameters, the graph is captured again; if it has changed
the number of Gaussians, the next view is traced first.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..config import Capacities
from ..passes.replay import specializations
from ..passes.traced_functions import TracedFunction
from ..runtime.compilation import is_plain_call
from ..runtime.cuda_graphs import GraphRecorder
from ..scene.cameras import Camera
from ..stages.capacity import capacities_for
from .update_pass import UpdatePass

KINDS_MAX = 32
"""Maximum number of kinds of views whose passes are kept."""

REPLAYS_MAX = 4
"""Maximum number of replays that are kept, each with its own memory, except that without graphs they share what they
only use while they run."""

SELECTIONS_MAX = 1.0
"""Maximum memory of the replays that are kept if any of them is of a selection, in units of the memory of the state: as
much as the gradients of all Gaussians."""


@dataclasses.dataclass(frozen=True)
class ViewInputs:
    """Inputs of the gradients of a view besides the parameters.

    Attributes:
        index: [1] int64, index of the view.
        camera: Camera of the view, with its corrections.
        pixels: [H, W, 3] in [0, 1].
        background: [3] in [0, 1].
        rows: [R] int64, Gaussians that the view may show, see :func:`.selection.select`; None for all.
    """

    index: Tensor
    camera: Camera
    pixels: Tensor
    background: Tensor
    rows: Tensor | None

    def tensors(self) -> list[Tensor]:
        """Returns all tensors, in an order that depends only on the kind of the view."""
        rows = [] if self.rows is None else [self.rows]
        return [self.index, self.pixels, self.background, *self.camera.tensors().values(), *rows]


@dataclasses.dataclass(frozen=True)
class ViewResults:
    """Results of one view.

    Attributes:
        metrics: [2] loss and PSNR.
        needed: [N_NEEDED] int64, the capacities that lists needed; the last value is 1 if they exceeded the given
            capacities, so that all results are invalid, and otherwise 0.
        gain_change: [3], see :meth:`.view_corrections.ViewGains.estimate`; None if gains are not estimated.
        rows: [R] int64, the Gaussians that have gradients, see :class:`ViewInputs`; None for all.
        gradients: Gradient of each parameter, or None.
    """

    metrics: Tensor
    needed: Tensor
    gain_change: Tensor | None
    rows: Tensor | None
    gradients: Sequence[Tensor | None]

    def tensors(self) -> list[Tensor | None]:
        return [self.metrics, self.needed, self.gain_change, self.rows, *self.gradients]

    @classmethod
    def from_tensors(cls, tensors: Sequence[Tensor | None]) -> "ViewResults":
        """Inverts :meth:`tensors`."""
        metrics, needed, gain_change, rows, *gradients = tensors
        assert metrics is not None and needed is not None
        return cls(metrics, needed, gain_change, rows, gradients)


Compute = Callable[[Any, ViewInputs, Capacities], ViewResults]
"""Computes the results of a view, given its kind, its inputs and the capacities of lists. Must not wait for the device.
Besides its arguments, it may depend only on the tensors `state` of :meth:`ViewPasses.results`, and on constants."""


class _Replay:
    """A pass that is bound to memory for its inputs and results, and captured in a CUDA graph if there is a recorder.

    Attributes:
        inputs: The tensors of :class:`ViewInputs` that it reads.
        scratch: Memory that it uses only while it runs, and for results that are not kept.
        n_bytes: Size of its inputs and of results that are kept.
        selects: Whether it renders a selection of Gaussians.
        update: The pass that updates the parameters with its gradients.
    """

    def __init__(
        self,
        traced: TracedFunction,
        inputs: list[Tensor],
        state: list[Tensor],
        recorder: GraphRecorder | None,
        scratch: Tensor | None,
        *,
        selects: bool,
    ) -> None:
        self.inputs = [tensor.clone() for tensor in inputs]
        self.scratch = traced.allocate_scratch() if scratch is None else scratch
        self._results, self._run = traced.bind([*self.inputs, *state], self.scratch)
        kept = [*self.inputs, *(self._results if traced.keeps_results else ())]
        self.n_bytes: int = sum(tensor.nbytes for tensor in kept if tensor is not None)
        self.selects = selects
        if recorder is not None:
            _, self._run = recorder.record(self._run)
        self._traced, self._addresses = traced, [tensor.data_ptr() for tensor in state]
        self.update: UpdatePass | None = None

    def fits(self, traced: TracedFunction, state: list[Tensor]) -> bool:
        """Returns whether it replays `traced` on the tensors `state`."""
        return self._traced is traced and self.reads(state)

    def reads(self, state: list[Tensor]) -> bool:
        """Returns whether it reads the tensors `state`."""
        return self._addresses == [tensor.data_ptr() for tensor in state]

    def results(self, inputs: list[Tensor]) -> list[Tensor | None]:
        """Computes the results of a view."""
        torch._foreach_copy_(self.inputs, inputs)
        self._run()
        return self._results


def _size_of(replays: Sequence[_Replay]) -> int:
    """Returns the size in bytes of the memory of replays, some of which may share scratch memory."""
    scratch = {id(replay.scratch): len(replay.scratch) for replay in replays}
    return sum(replay.n_bytes for replay in replays) + sum(scratch.values())


@dataclasses.dataclass
class _KindPass:
    """The capacities of lists for a kind of view, and its pass. `key` has the shapes and strides it was traced with."""

    capacities: Capacities
    key: Hashable = None
    traced: TracedFunction | None = None


class ViewPasses:
    """Computes the results of views by passes, for kinds of views whose number of intersections is known.

    Args:
        compute: Computes the results of a view.
        make_update: Returns an update pass, given the keyword arguments of :class:`UpdatePass`.
        uses_graphs: Whether CUDA graphs replay passes.
        keeps_results: Whether the update pass reads the results. Otherwise, they share memory with what is internal to
            the passes.
    """

    def __init__(
        self,
        compute: Compute,
        make_update: Callable[..., UpdatePass],
        *,
        uses_graphs: bool,
        keeps_results: bool,
    ) -> None:
        self._compute = compute
        self._make_update = make_update
        self._uses_graphs = uses_graphs
        self._keeps_results = keeps_results
        self._kinds: dict[Hashable, _KindPass] = {}
        self._replays: dict[Hashable, _Replay] = {}
        self._enabled = True
        self._recorder: GraphRecorder | None = None
        self._last: _Replay | None = None

    def results(self, kind: Hashable, make_inputs: Callable[[], ViewInputs], state: list[Tensor]) -> ViewResults | None:
        """Returns the results of a view, valid until the next call; None if a rasterization call has to compute them.

        Waits for the device, to check that no list exceeds its capacity. If tracing or capturing fails, a warning is
        logged, and passes are not used again.

        Args:
            kind: The kind of the view.
            make_inputs: Returns the inputs; called only if the kind is known.
            state: The tensors that views share, such as parameters.
        """
        self._last = None
        known = self._kinds.get(kind)
        if not self._enabled or known is None or not is_plain_call():
            return None
        inputs = make_inputs()
        input_tensors = inputs.tensors()
        tensors = [*input_tensors, *state]
        specialized = specializations(tensors)
        if specialized is None:
            return None
        key = (*specialized, *[(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors])
        try:
            if known.traced is None or key != known.key:
                known.key, known.traced = key, None
                known.traced = TracedFunction(
                    lambda: self._compute(kind, inputs, known.capacities).tensors(),
                    tensors,
                    keeps_results=self._keeps_results,
                )
                outputs: Sequence[Tensor | None] = known.traced.take_first()
            else:
                self._last = self._replay(kind, known.traced, input_tensors, state, selects=inputs.rows is not None)
                outputs = self._last.results(input_tensors)
        except Exception as error:  # rasterization calls compute what cannot be traced or captured
            self._disable(error)
            return None
        results = ViewResults.from_tensors(outputs)
        *needed, overflow = results.needed.tolist()
        if not overflow:
            return results
        self._kinds[kind] = _KindPass(capacities_for(Capacities(*needed), known.capacities))
        self._last = None
        return None

    def update_pass(self, *, adds_noise: bool) -> UpdatePass | None:
        """Returns the pass that updates the parameters with the gradients of the last view.

        None if no replay computed these: only a replay writes gradients to the same memory each time.
        """
        replay = self._last
        if replay is None:
            return None
        if replay.update is None or not replay.update.fits(adds_noise=adds_noise):
            record = functools.partial(self._record, replay.inputs[0])
            replay.update = self._make_update(adds_noise=adds_noise, record=record, scratch=replay.scratch)
        return replay.update

    def _record(self, tensor: Tensor, run: Callable[[], None]) -> Callable[[], None]:
        """Captures a bound pass on the GPU of a tensor, if there is a recorder. Returns a function that replays it."""
        if self._recorder is None:
            return run
        try:
            with torch.cuda.device_of(tensor):  # type: ignore[no-untyped-call]
                return self._recorder.record(run)[1]
        except Exception as error:
            self._disable(error)
            return run

    def _disable(self, error: Exception) -> None:
        """Disables passes and logs a warning."""
        self._enabled, self._kinds, self._replays, self._last = False, {}, {}, None
        logging.getLogger("tsplat").warning("tsplat: training without passes: %s", error)

    def _replay(
        self, kind: Hashable, traced: TracedFunction, inputs: list[Tensor], state: list[Tensor], *, selects: bool
    ) -> _Replay:
        """Returns the replay of a pass, which is bound to memory if it does not exist yet."""
        replay = self._replays.get(kind)
        if replay is None or not replay.fits(traced, state):
            # PyTorch captures launches on the current GPU only.
            with torch.cuda.device_of(inputs[0]):  # type: ignore[no-untyped-call]
                if self._uses_graphs and self._recorder is None:
                    self._recorder = GraphRecorder()
                shared = None
                if not self._uses_graphs and self._replays:
                    shared = next(iter(self._replays.values())).scratch
                    if not traced.fits(shared):
                        shared, self._replays = None, {}
                replay = _Replay(traced, inputs, state, self._recorder, shared, selects=selects)
            # Others are released after the capture, as PyTorch cannot capture into a memory pool without a graph.
            others = [(k, other) for k, other in self._replays.items() if k != kind and other.reads(state)]
            others = [*others[1 - REPLAYS_MAX :], (kind, replay)]
            bytes_max = SELECTIONS_MAX * sum(tensor.nbytes for tensor in state)
            while (
                len(others) > 1
                and any(other.selects for _, other in others)
                and _size_of([other for _, other in others]) > bytes_max
            ):
                del others[0]
            self._replays = dict(others)
        return replay

    def release(self) -> None:
        """Releases the memory of replays, for example before Gaussians are added, when memory peaks.

        CUDA graphs are kept, as PyTorch cannot capture into a memory pool whose last graph was released.
        """
        if not self._uses_graphs:
            self._replays, self._last = {}, None

    def add_kind(self, kind: Hashable, needed: Capacities) -> None:
        """Adds a kind of view, unless it is known, given the capacities that the lists of a view needed."""
        if self._enabled and kind not in self._kinds:
            while len(self._kinds) >= KINDS_MAX:
                del self._kinds[next(iter(self._kinds))]
            self._kinds[kind] = _KindPass(capacities_for(needed, varies=True))
