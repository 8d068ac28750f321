"""The order of views: random permutations for training, and collective rendering calls of several ranks."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..errors import ArgumentError
from ..runtime.process_group import RankGroup
from .rng_state import generator_state, set_generator_state


def calls_of_ranks(kinds: Sequence[object], ranks: RankGroup) -> Iterator[tuple[int, bool]]:
    """Yields, for each rendering call, the index of a view, and whether this rank renders it or only joins the call.

    Each round assigns one view to each rank. One call can render only views of equal kind, so a round has one call for
    each distinct kind, and ranks whose view is of another kind join it without a view. `kinds` has the kind of each
    view. All ranks get equally many calls.
    """
    for first in range(0, len(kinds), ranks.world_size):
        calls: dict[object, list[int]] = {}
        for index in range(first, min(first + ranks.world_size, len(kinds))):
            calls.setdefault(kinds[index], []).append(index)
        own = first + ranks.rank
        for indices in calls.values():
            yield (own, True) if own in indices else (indices[0], False)


class ViewSampler:
    """Draws the indices of n views in random permutations, so that each view comes once before any comes again."""

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
        """Returns the next n views in order, or fewer if the current permutation has fewer left."""
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
