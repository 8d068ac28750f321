"""Traces a function of tensors while it runs, and replays it on other tensors with the same layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..runtime.tracing import Trace, TracedTensor, storage_of, without_gradient
from .arenas import FOREVER, Bases, View, add_arena, add_output, lifetimes_of, tensor_of_view, view_of_output
from .replay import Pass, runs_on_gpu


class TracedFunction:
    """A traced function, whose launches and operators are replayed by one pass. The constructor runs the function.

    Unlike calls of :func:`tsplat.rasterization`, a replay is not part of autograd. A function that differentiates does
    so itself, and returns the gradients.

    Args:
        function: A function without arguments that returns tensors or None, and does not read values of tensors.
        inputs: The tensors that it reads and that other calls replace. All other tensors that it does not create are
            constants, such as the window of SSIM. It may modify both.
        keeps_results: Whether results have memory of their own. Otherwise, they are in the scratch memory, where they
            replace internal tensors that are not needed any more, and are valid until it is used again.

    Attributes:
        keeps_results: See above.

    Raises:
        UnsupportedError: The function reads values, or returns a view of a tensor that it does not create.
    """

    def __init__(
        self,
        function: Callable[[], Sequence[Tensor | None]],
        inputs: Sequence[Tensor],
        *,
        keeps_results: bool = True,
    ) -> None:
        self.keeps_results = keeps_results
        trace = Trace()

        def traced() -> list[Tensor | None]:
            with torch.autograd.set_multithreading_enabled(False):
                return [None if result is None else result.detach() for result in function()]

        results = trace.record(traced)
        bases = Bases()
        for tensor in inputs:
            bases.add(TracedTensor.of(tensor))
        self._constants = [tensor for storage, tensor in trace.external.items() if not bases.has(storage)]
        for tensor in self._constants:
            bases.add(TracedTensor.of(tensor))
        if any(result is not None and bases.has(storage_of(result)) for result in results):
            raise UnsupportedError("a result is a view of a tensor that the function does not create")
        self._outputs = []
        for result in results if keeps_results else ():
            if result is not None and not bases.has(storage_of(result)):
                self._outputs.append(add_output(bases, result))
        lifetimes = lifetimes_of(trace.steps, bases)
        for result in () if keeps_results else results:
            if result is not None:
                storage = storage_of(result)
                lifetimes[storage] = lifetimes[storage]._replace(last=FOREVER)
        self._scratch = add_arena(bases, lifetimes.values())
        self._results: list[View | None] = [
            None if result is None else view_of_output(bases, result, self._outputs) for result in results
        ]
        self._pass = Pass(trace.steps, bases, range(bases.n), on_gpu=runs_on_gpu(inputs[0]))
        self._device = inputs[0].device
        self._first: list[Tensor | None] | None = results

    def take_first(self) -> list[Tensor | None]:
        """Returns the results of the traced run. May be called once."""
        first, self._first = self._first, None
        assert first is not None
        return first

    def allocate_scratch(self) -> Tensor:
        """Allocates memory for internal tensors of the function, [n] uint8."""
        return torch.empty(self._scratch.size, dtype=torch.uint8, device=self._device)

    def fits(self, scratch: Tensor) -> bool:
        """Returns whether memory, [n] uint8, is large enough for :meth:`bind`."""
        return len(scratch) >= self._scratch.size

    def bind(
        self, inputs: Sequence[Tensor], scratch: Tensor | None = None
    ) -> tuple[list[Tensor | None], Callable[[], None]]:
        """Allocates results, and returns them with a function that computes them from inputs of the same layouts.

        `scratch`, [n] uint8, is memory that may be shared with functions that do not run at the same time. It is used
        if it is large enough.
        """
        if scratch is None or not self.fits(scratch):
            scratch = self.allocate_scratch()
        memory = [output.allocate(self._device) for output in self._outputs]
        bases = [*map(without_gradient, inputs), *self._constants, *memory, scratch]
        results = [
            None if view is None else tensor_of_view(view, bases) if self.keeps_results else view.of(bases[view.base])
            for view in self._results
        ]
        return results, self._pass.bind(bases)
