"""CUDA graphs of what a training step computes for a view: rendering, loss and gradients.

Python needs several milliseconds for that, the GPU a fraction of one. A graph holds all of it, and is replayed by one
call. It reads its view from tensors that it owns, and the parameters where they lie: it is captured again whenever a
strategy has replaced them, and for each kind of view.
"""

import dataclasses
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..config import Capacities
from ..ops.cuda_graphs import GraphRecorder
from ..scene.cameras import Camera
from ..stages.capacity import graph_room

KINDS_MAX = 4
"""Graphs that are kept; each holds the memory of a call."""


@dataclasses.dataclass(frozen=True)
class ViewInputs:
    """What the gradients of a view depend on besides the parameters.

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
        """The tensors, in an order that depends on the kind of camera only."""
        return [self.index, self.pixels, self.background, *self.camera.tensors().values()]

    def clone(self) -> "ViewInputs":
        """Returns a copy with memory of its own."""
        camera = self.camera.map(Tensor.clone)
        return ViewInputs(self.index.clone(), camera, self.pixels.clone(), self.background.clone())


@dataclasses.dataclass(frozen=True)
class ViewResults:
    """What is computed for a view.

    Attributes:
        figures: [2] loss and PSNR.
        gradients: Of each parameter, or None.
        overflow: [] bool, whether lists had no room, so that the others are wrong.
    """

    figures: Tensor
    gradients: Sequence[Tensor | None]
    overflow: Tensor


Compute = Callable[[Any, ViewInputs, Capacities], ViewResults]
"""Computes the results of a view of a kind, with room for its lists. Must not wait for the device, and
must not depend on anything else that changes but parameters."""


class _Graph:
    """A captured call, with the tensors that it reads and writes."""

    def __init__(
        self, compute: Compute, kind: Hashable, inputs: ViewInputs, room: Capacities, recorder: GraphRecorder
    ) -> None:
        self.room = room
        self._inputs = inputs.clone()
        self.results, self._replay = recorder.record(lambda: compute(kind, self._inputs, room))

    def replay(self, inputs: ViewInputs) -> ViewResults:
        for own, given in zip(self._inputs.tensors(), inputs.tensors(), strict=True):
            own.copy_(given)
        self._replay()
        return self.results


class ViewGraphs:
    """Computes the results of views by graphs, as soon as it is known how many intersections a kind of view needs."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._graphs: dict[Hashable, _Graph] = {}
        self._places: tuple[Any, ...] = ()
        self._rooms: dict[Hashable, Capacities] = {}
        self._works = True
        self._recorder: GraphRecorder | None = None

    def results(self, kind: Hashable, inputs: ViewInputs, parameters: Sequence[Tensor]) -> ViewResults | None:
        """The results of a view, which the next call replaces; None if they have to be computed without a graph.

        Waits for the device, to know whether lists had room. `kind` is all that the computation depends on but tensors.
        """
        if not self._works or kind not in self._rooms:
            return None
        places = tuple((parameter.data_ptr(), parameter.shape) for parameter in parameters)
        graph = self._graphs.get(kind) if places == self._places else None
        if graph is None or graph.room != self._rooms[kind]:
            try:
                # If another GPU is the current one, nothing is captured.
                with torch.cuda.device_of(inputs.pixels):  # type: ignore[no-untyped-call]
                    if self._recorder is None:
                        self._recorder = GraphRecorder()
                    graph = _Graph(self._compute, kind, inputs, self._rooms[kind], self._recorder)
            except Exception as error:  # what cannot be captured works without a graph
                self._works, self._graphs = False, {}
                logging.getLogger("tsplat").warning("tsplat: training without CUDA graphs: %s", error)
                return None
            # Only now may others go: PyTorch cannot capture into a pool of memory whose last graph is gone.
            others = list(self._graphs.items())[1 - KINDS_MAX :] if places == self._places else []
            self._graphs, self._places = {**dict(others), kind: graph}, places
        results = graph.replay(inputs)
        return None if results.overflow else results

    def learn(self, kind: Hashable, needed: Capacities) -> None:
        """Tells what the lists of a view of a kind needed."""
        self._rooms[kind] = graph_room(needed, self._rooms.get(kind))
