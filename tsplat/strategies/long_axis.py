"""The strategy of the preset `standard`: splits Gaussians along their longest axis, within a growing budget."""

import dataclasses
import math

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..errors import ArgumentError
from ..runtime.process_group import RankGroup
from .gaussian_parameters import Follower, Optimizers, Parameters, State, check_optimizers, check_shapes, opacities_of
from .mcmc import MCMCStrategy
from .operations import rotate
from .random_numbers import choose_rows
from .rows import enlarge, replace_rows
from .sharding import count, ranges, route

OFFSET, LONGEST, OTHERS, OPACITY = 1.35, 0.55, 0.893, 0.6
"""Constants of a split: distance of each half from the center, in standard deviations along the longest axis; and
factors of the scale along this axis, of the other scales, and of the opacity."""

GROWTH_TIME = 0.5
"""Fraction of the steps from the first to the last refinement after which the budget stops growing."""


@dataclasses.dataclass
class LongAxisStrategy(MCMCStrategy):
    """Splits Gaussians in two along their longest axis, within a budget, and replaces transparent ones.

    Each refinement removes transparent Gaussians, and splits as many others as the budget allows, sampled by opacity
    without replacement. The budget is a number of Gaussians. It grows with the square root of the step, from the number
    before the first refinement to `growth` times this number, or to `cap_max` if that is less, and reaches its end
    half-way to the last refinement. Splits follow Deng et al., "Improving densification in 3D Gaussian Splatting for
    high-fidelity rendering", 2025, the budget follows Mallick et al., "Taming 3DGS", 2024, and noise is added as by
    :class:`MCMCStrategy`.

    Attributes:
        growth: Ratio of the number of Gaussians after the last refinement to that before the first; at least 1.
    """

    growth: float = 3.2

    def initialize_state(self, scene_scale: float = 1.0) -> State:
        """Returns the state of :class:`MCMCStrategy` and `n_initial`, which is 0 until the first refinement."""
        return {**super().initialize_state(scene_scale), "n_initial": 0}

    def expected_growth(self) -> float | None:
        """Returns `growth`."""
        return self.growth

    def _check(self, params: Parameters, optimizers: Optimizers, state: State, ranks: RankGroup | None) -> None:
        super()._check(params, optimizers, state, ranks)
        if not 1 <= self.growth < math.inf:
            raise ArgumentError(f"growth: expected a number of at least 1, found {self.growth}")

    def _final_number(self, n_initial: int) -> float:
        """Returns the number of Gaussians after the last refinement."""
        return max(n_initial, min(self.cap_max, self.growth * n_initial))

    def _budget(self, state: State, n: int, step: int) -> int:
        """Returns the number of Gaussians that a step may have, given the present number."""
        n_initial = state["n_initial"]
        duration = GROWTH_TIME * (self.refine_stop_iter - self.refine_start_iter)
        progress = (step + self.refine_every - self.refine_start_iter) / duration
        return int(n_initial + (self._final_number(n_initial) - n_initial) * math.sqrt(min(progress, 1.0)))

    def _refine(
        self,
        params: Parameters,
        optimizers: Optimizers,
        state: State,
        step: int,
        scene: Follower | None,
        ranks: RankGroup | None,
    ) -> tuple[int, int]:
        first, n = count(ranks, len(params["means"]))
        state["n_initial"] = state.get("n_initial") or n
        budget = self._budget(state, n, step)
        weights = opacities_of(params)
        dead = weights <= self.min_opacity
        weights.masked_fill_(dead, 0.0)
        dead_rows = dead.nonzero().squeeze(1)
        dead_before, n_dead = count(ranks, len(dead_rows))
        n_split = min(max(n, budget) - (n - n_dead), n - n_dead)
        chosen = choose_rows(weights, n_split, self.generator, first, ranks)
        replaced = dead_rows[: max(0, n_split - dead_before)]
        del weights, dead, dead_rows  # memory peaks in the split
        split_long_axis(params, optimizers, {}, chosen, replaced, scene, ranks)
        return min(n_dead, n_split), max(0, n_split - n_dead)


@torch.no_grad()
def split_long_axis(
    params: Parameters,
    optimizers: Optimizers,
    state: State,
    chosen: Tensor,
    replaced: Tensor,
    scene: Follower | None = None,
    ranks: RankGroup | None = None,
) -> None:
    """Splits Gaussians in two along their longest axis. Moments and statistics of both halves are zero.

    The first half replaces the Gaussian in its row. The second halves overwrite the `replaced` rows, in order, and the
    remaining ones are appended. Tensors are changed in place; if rows are appended, they are moved to larger storages
    first. `chosen` [K] are distinct indices of the Gaussians to split, and `replaced` [R], R <= K, indices of Gaussians
    to overwrite; no index is in both. For the other arguments, see :mod:`tsplat.strategies.operations`.
    """
    total = check_shapes(params)
    check_optimizers(params, optimizers, params)
    sources, targets = ranges(ranks, len(chosen)), ranges(ranks, len(replaced))
    rank = 0 if ranks is None else ranks.rank
    n_moved = min(len(chosen), max(0, targets[-1].stop - sources[rank].start))
    move = route(ranks, sources, targets)
    appended = enlarge(params, optimizers, len(chosen) - n_moved)
    # All new rows are computed before any is changed, so that an error changes nothing.
    log_scales = params["scales"].detach()[chosen]
    longest = one_hot(log_scales.argmax(-1), 3).to(log_scales)
    offsets = rotate(params["quats"].detach()[chosen], OFFSET * longest * log_scales.exp())
    opacities = OPACITY * opacities_of(params)[chosen]
    halved = {
        "scales": log_scales + longest * math.log(LONGEST) + (1 - longest) * math.log(OTHERS),
        "opacities": opacities.clamp_min(torch.finfo(opacities.dtype).tiny).logit(),
    }
    firsts = {name: rows.view(-1, *params[name].shape[1:]).to(params[name]) for name, rows in halved.items()}
    seconds = {name: firsts[name] if name in firsts else p.detach()[chosen] for name, p in params.items()}
    firsts["means"] = seconds["means"] + offsets
    seconds["means"] -= offsets
    moved = {name: move(rows) for name, rows in seconds.items()}

    def halves(name: str, p: Tensor) -> Tensor:
        p = appended(p.detach())
        if name in firsts:
            p[chosen] = firsts[name]
        p[replaced] = moved[name]
        p[total:] = seconds[name][n_moved:]
        return p

    def cleared(values: Tensor) -> Tensor:
        values = appended(values)
        values[chosen] = values[replaced] = 0
        return values

    replace_rows(params, optimizers, state, total, halves, cleared, cleared)
    if scene is not None:
        if len(replaced):
            scene.on_relocate(replaced, chosen[: len(replaced)])
        if sources[-1].stop > targets[-1].stop:
            scene.on_sample_add(chosen[n_moved:])
