"""The order of training views: random permutations, so that each view comes once before any comes again."""

from typing import Any

import torch

from ..errors import ArgumentError
from .rng_state import generator_state, set_generator_state


class ViewSampler:
    """Draws indices of n views, in permutations with a random seed."""

    def __init__(self, n: int, seed: int) -> None:
        self._n = n
        self._generator = torch.Generator().manual_seed(seed)
        self._remaining: list[int] = []

    def next(self) -> int:
        """Returns the index of the next view."""
        if not self._remaining:
            self._remaining = torch.randperm(self._n, generator=self._generator, device="cpu").tolist()
        return self._remaining.pop()

    def upcoming(self, n: int) -> list[int]:
        """Returns the next views in their order: n of them, or those that are left before the next permutation."""
        return self._remaining[-n:][::-1]

    def state(self) -> dict[str, Any]:
        """Returns the state that :meth:`restore` takes, as JSON values."""
        return {"n": self._n, "left": list(self._remaining), "generator": generator_state(self._generator)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a state; raises ArgumentError if it belongs to another number of views."""
        if state["n"] != self._n:
            raise ArgumentError(
                f"views: the checkpoint was made with {state['n']} training views, found {self._n}; resume with the "
                "same photographs, test_every and masks"
            )
        self._remaining = list(state["left"])
        set_generator_state(self._generator, state["generator"])
