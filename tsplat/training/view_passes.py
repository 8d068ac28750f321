"""Computes the rendering, the loss and the gradients of a training view by passes, and by CUDA graphs of these.

The first view of a kind runs the stages, which tells how many intersections there are. The second is traced while it is
computed, and later ones replay one pass. What updates the parameters is traced with the first replay. On a GPU, the
third is captured in a CUDA graph, which reads its view from tensors of its own and the parameters where they lie. When
a strategy has replaced these, it is captured again; when it has changed their number, the next view is traced before.
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
from .update_pass import Capture, UpdatePass

KINDS_MAX = 32
"""Kinds of views whose passes are kept."""

REPLAYS_MAX = 4
"""Passes that are kept with memory of their own."""


@dataclasses.dataclass(frozen=True)
class ViewInputs:
    """Inputs of the gradients of a view besides the parameters.

    Attributes:
        index: [1] int64, of the view.
        camera: Of the view, with its corrections.
        pixels: [H, W, 3] in [0, 1].
        background: [3] in [0, 1].
    """

    index: Tensor
    camera: Camera
    pixels: Tensor
    background: Tensor

    def tensors(self) -> list[Tensor]:
        """Returns the tensors, in an order that depends on the kind of camera only."""
        return [self.index, self.pixels, self.background, *self.camera.tensors().values()]


@dataclasses.dataclass(frozen=True)
class ViewResults:
    """Results of one view.

    Attributes:
        figures: [2] loss and PSNR.
        needed: [5] int64, what lists needed, and 1 if they did not fit, so that the others are wrong.
        gain_change: [3], see :meth:`.view_corrections.ViewGains.estimate`; None if gains are not estimated.
        gradients: Of each parameter, or None.
    """

    figures: Tensor
    needed: Tensor
    gain_change: Tensor | None
    gradients: Sequence[Tensor | None]

    def tensors(self) -> list[Tensor | None]:
        return [self.figures, self.needed, self.gain_change, *self.gradients]

    @classmethod
    def of(cls, tensors: Sequence[Tensor | None]) -> "ViewResults":
        """Returns the results whose tensors these are."""
        figures, needed, gain_change, *gradients = tensors
        assert figures is not None and needed is not None
        return cls(figures, needed, gain_change, gradients)


Compute = Callable[[Any, ViewInputs, Capacities], ViewResults]
"""Computes the results of a view of a kind, with room for its lists. Must not wait for the device, and must not depend
on anything else that changes but the tensors that are given to :meth:`ViewPasses.results` as `state`."""


class _Replay:
    """A pass with memory of its own, also for the tensors of a view, which is captured if there is a recorder.

    Attributes:
        update: What updates the parameters with its gradients.
        like: A tensor on its device.
    """

    def __init__(
        self, traced: TracedFunction, given: list[Tensor], state: list[Tensor], recorder: GraphRecorder | None
    ) -> None:
        self._given = [tensor.clone() for tensor in given]
        self.like = self._given[0]
        self._results, self._run = traced.bind([*self._given, *state])
        if recorder is not None:
            _, self._run = recorder.record(self._run)
        self._traced, self._addresses = traced, [tensor.data_ptr() for tensor in state]
        self.update: UpdatePass | None = None

    def fits(self, traced: TracedFunction, state: list[Tensor]) -> bool:
        """Returns whether it replays a pass with this state."""
        return self._traced is traced and self.has_state(state)

    def has_state(self, state: list[Tensor]) -> bool:
        """Returns whether it reads this state."""
        return self._addresses == [tensor.data_ptr() for tensor in state]

    def results(self, given: list[Tensor]) -> list[Tensor | None]:
        """Computes the results of a view."""
        torch._foreach_copy_(self._given, given)
        self._run()
        return self._results


@dataclasses.dataclass
class _TracedKind:
    """A kind of view: what its lists have room for, and its pass, for tensors of the kinds `key`."""

    room: Capacities
    key: Hashable = None
    traced: TracedFunction | None = None


class ViewPasses:
    """Computes the results of views, as soon as it is known how many intersections a kind of view needs.

    Args:
        compute: Computes the results.
        make_update: Returns the pass of an update, with noise or without, given what captures it.
        by_graphs: Whether CUDA graphs replay passes.
    """

    def __init__(
        self, compute: Compute, make_update: Callable[[bool, Capture], UpdatePass], *, by_graphs: bool
    ) -> None:
        self._compute = compute
        self._make_update = make_update
        self._by_graphs = by_graphs
        self._kinds: dict[Hashable, _TracedKind] = {}
        self._replays: dict[Hashable, _Replay] = {}
        self._works = True
        self._recorder: GraphRecorder | None = None
        self._last: _Replay | None = None

    def results(self, kind: Hashable, make_inputs: Callable[[], ViewInputs], state: list[Tensor]) -> ViewResults | None:
        """Returns the results of a view, which the next call may replace; None if the stages have to compute them.

        If tracing or capturing fails, for whatever reason, passes are not used again, with a warning.

        Waits for the device, to know whether lists had room. `kind` is all that the computation depends on but tensors,
        and `state` the tensors that stay where they are from view to view. Inputs are made if the kind is known.
        """
        self._last = None
        known = self._kinds.get(kind)
        if not self._works or known is None or not is_plain_call():
            return None
        inputs = make_inputs()
        given = inputs.tensors()
        tensors = [*given, *state]
        specialized = specializations(tensors)
        if specialized is None:
            return None
        key = (*specialized, *[(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors])
        try:
            if known.traced is None or key != known.key:
                known.key, known.traced = key, None
                known.traced = TracedFunction(lambda: self._compute(kind, inputs, known.room).tensors(), tensors)
                outputs: Sequence[Tensor | None] = known.traced.take_first()
            else:
                self._last = self._replay(kind, known.traced, given, state)
                outputs = self._last.results(given)
        except Exception as error:  # what cannot be traced or captured is computed by the stages
            self._give_up(error)
            return None
        results = ViewResults.of(outputs)
        *needed, overflow = results.needed.tolist()
        if not overflow:
            return results
        self._kinds[kind] = _TracedKind(capacities_for(Capacities(*needed), known.room))
        self._last = None
        return None

    def update_pass(self, *, adds_noise: bool) -> UpdatePass | None:
        """Returns the pass that updates the parameters with the gradients of the last view.

        None if a replay has not computed these, as only its gradients stay where they are.
        """
        replay = self._last
        if replay is None:
            return None
        if replay.update is None or not replay.update.fits(adds_noise=adds_noise):
            replay.update = self._make_update(adds_noise, functools.partial(self._capture, replay.like))
        return replay.update

    def _capture(self, like: Tensor, run: Callable[[], None]) -> Callable[[], None]:
        """Returns what replays a bound pass, which is captured if there is a recorder, on the GPU of a tensor."""
        if self._recorder is None:
            return run
        try:
            with torch.cuda.device_of(like):  # type: ignore[no-untyped-call]
                return self._recorder.record(run)[1]
        except Exception as error:
            self._give_up(error)
            return run

    def _give_up(self, error: Exception) -> None:
        """Ends the use of passes, with a warning."""
        self._works, self._kinds, self._replays, self._last = False, {}, {}, None
        logging.getLogger("tsplat").warning("tsplat: training without passes: %s", error)

    def _replay(self, kind: Hashable, traced: TracedFunction, given: list[Tensor], state: list[Tensor]) -> _Replay:
        """Returns what replays a pass."""
        replay = self._replays.get(kind)
        if replay is None or not replay.fits(traced, state):
            # If another GPU is the current one, nothing is captured.
            with torch.cuda.device_of(given[0]):  # type: ignore[no-untyped-call]
                if self._by_graphs and self._recorder is None:
                    self._recorder = GraphRecorder()
                replay = _Replay(traced, given, state, self._recorder)
            # Only now may others go: PyTorch cannot capture into a pool of memory whose last graph is gone.
            others = [(k, other) for k, other in self._replays.items() if k != kind and other.has_state(state)]
            self._replays = {**dict(others[1 - REPLAYS_MAX :]), kind: replay}
        return replay

    def release(self) -> None:
        """Releases the memory of passes, as before Gaussians are added, which needs most. Graphs stay: PyTorch cannot
        capture into a pool of memory whose last graph is gone."""
        if not self._by_graphs:
            self._replays, self._last = {}, None

    def learn(self, kind: Hashable, needed: Callable[[], Capacities]) -> None:
        """Learns what the lists of a view of a kind needed, if that is not known."""
        if self._works and kind not in self._kinds:
            while len(self._kinds) >= KINDS_MAX:
                del self._kinds[next(iter(self._kinds))]
            self._kinds[kind] = _TracedKind(capacities_for(needed()))
