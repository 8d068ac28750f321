"""The order in which views come: random permutations, each view once before any comes again."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ArgumentError


class Sampler:
    """Draws indices of n views.

    Args:
        n: How many there are.
        seed: Of the permutations.
    """

    def __init__(self, n: int, seed: int) -> None:
        self._n = n
        self._generator = torch.Generator().manual_seed(seed)
        self._left: list[int] = []

    def next(self) -> int:
        if not self._left:
            self._left = torch.randperm(self._n, generator=self._generator).tolist()
        return self._left.pop()

    def state(self) -> dict[str, Any]:
        """Where the order is: what is left of the permutation, and the generator's bytes in hexadecimal digits."""
        return {"n": self._n, "left": list(self._left), "generator": generator_state(self._generator)}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a state.

        Raises:
            ArgumentError: The state is of another number of views.
        """
        if state["n"] != self._n:
            raise ArgumentError(
                f"views: the checkpoint was made with {state['n']} views to fit, found {self._n}; "
                "continue with the same photographs, test_every and masks"
            )
        self._left = list(state["left"])
        set_generator_state(self._generator, state["generator"])


def generator_state(generator: torch.Generator) -> str:
    return bytes(generator.get_state().numpy()).hex()


def set_generator_state(generator: torch.Generator, digits: str) -> None:
    generator.set_state(torch.frombuffer(bytearray.fromhex(digits), dtype=torch.uint8))
