"""The strategy of the preset `compact`: grows as that of `standard`, then keeps the Gaussians that images need most."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..config import Backend
from ..errors import ArgumentError
from ..runtime.process_group import RankGroup
from .gaussian_parameters import Follower, Optimizers, Parameters, State
from .long_axis import LongAxisStrategy
from .operations import remove


@dataclasses.dataclass
class CompactStrategy(LongAxisStrategy):
    """Splits Gaussians as :class:`LongAxisStrategy` does, then removes most of them in several prunings.

    A pruning removes the Gaussians without which the training images change least. Prunings are evenly spaced from
    `prune_start_iter` to `prune_stop_iter` and multiply the number by the same factor, down to `kept` times the number
    with which :class:`LongAxisStrategy` ends. From the first pruning on, splits only replace transparent Gaussians.
    `refine_stop_iter` and `refine_every` apply to splits alone.

    Attributes:
        kept: Number of Gaussians after the last pruning, as a fraction of the final number without prunings; above 0,
            and at most 1.
        prune_start_iter: Step of the first pruning.
        prune_stop_iter: Step of the last pruning.
        prunings: Number of prunings.
    """

    kept: float = 0.25
    prune_start_iter: int = 9_000
    prune_stop_iter: int = 18_000
    prunings: int = 8

    arguments = ("lr", "backend", "importance")

    @property
    def reads_rendering(self) -> bool:
        """Returns False."""
        return False

    def initialize_state(self, scene_scale: float = 1.0) -> State:
        """Returns the initial state: that of :class:`LongAxisStrategy`, and the numbers of Gaussians before the first
        pruning, `n_before`, and after the last one, `n_after`, which are 0 until the first one."""
        return {**super().initialize_state(scene_scale), "n_before": 0, "n_after": 0}

    def refines(self, step: int) -> bool:
        """Returns whether Gaussians are split, replaced or removed in this step."""
        return super().refines(step) or self.pruning_at(step) > 0

    def pruning_at(self, step: int) -> int:
        """Returns which pruning is due in a step, counted from 1; 0 for none."""
        duration, last = self.prune_stop_iter - self.prune_start_iter, max(self.prunings - 1, 1)
        steps = [self.prune_start_iter + i * duration // last for i in range(self.prunings)]
        return max((i + 1 for i in range(self.prunings) if steps[i] == step), default=0)

    @torch.no_grad()
    def step_post_backward(  # type: ignore[override]
        self,
        params: Parameters,
        optimizers: Optimizers,
        state: State,
        step: int,
        info: dict[str, Any],
        lr: float,
        scene: Follower | None = None,
        backend: Backend = "auto",
        importance: Callable[[], Tensor] | None = None,
    ) -> None:
        """Removes Gaussians if a pruning is due, and does what :class:`LongAxisStrategy` does.

        Args:
            params, optimizers, state, step, info, lr, scene, backend: See :meth:`.MCMCStrategy.step_post_backward`.
            importance: Returns by how much images change without each Gaussian, [N], finite and not negative. Called in
                steps with a pruning.

        Raises:
            ArgumentError: See :meth:`.MCMCStrategy.step_post_backward`; or a pruning is due, and `importance` is None.
        """
        pruning = self.pruning_at(step)
        if pruning:
            if importance is None:
                raise ArgumentError(f"importance: expected a function in step {step}, in which Gaussians are pruned")
            self._check(params, optimizers, state, None)
            self._prune(params, optimizers, state, pruning, importance, scene)
        super().step_post_backward(params, optimizers, state, step, info, lr, scene, backend=backend)

    def _prune(
        self,
        params: Parameters,
        optimizers: Optimizers,
        state: State,
        pruning: int,
        importance: Callable[[], Tensor],
        scene: Follower | None,
    ) -> None:
        n = len(params["means"])
        if not state["n_before"]:
            end = max(1, round(self.kept * self._final_number(state["n_initial"] or n)))
            state["n_before"], state["n_after"] = n, min(n, end)
        n_before, n_after = state["n_before"], state["n_after"]
        n_left = round(n_before * (n_after / n_before) ** (pruning / self.prunings))
        if n_left >= n:
            return
        removed = torch.ones(n, dtype=torch.bool, device=params["means"].device)
        removed[importance().argsort(descending=True, stable=True)[:n_left]] = False
        remove(params, optimizers, {}, removed, scene)

    def _budget(self, state: State, n: int, step: int) -> int:
        return n if state.get("n_before") else super()._budget(state, n, step)

    def _check(self, params: Parameters, optimizers: Optimizers, state: State, ranks: RankGroup | None) -> None:
        super()._check(params, optimizers, state, ranks)
        if not 0 < self.kept <= 1:
            raise ArgumentError(f"kept: expected a number above 0 and at most 1, found {self.kept}")
        if self.prune_stop_iter < self.prune_start_iter:
            raise ArgumentError(
                f"prune_stop_iter: expected prune_start_iter, {self.prune_start_iter}, or a later step, found "
                f"{self.prune_stop_iter}"
            )
