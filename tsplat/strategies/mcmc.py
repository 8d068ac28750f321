"""The MCMC strategy ("3D Gaussian Splatting as Markov Chain Monte Carlo", Kheradmand et al., 2024)."""

import dataclasses
import math
from typing import Any, Self

import torch
from torch import Tensor

from ..config import Backend
from ..errors import ArgumentError
from ..runtime.process_group import RankGroup
from .base import Strategy
from .gaussian_parameters import (
    Follower,
    Optimizers,
    Parameters,
    State,
    check_finite,
    check_min_opacity,
    check_parameters,
    opacities_of,
)
from .operations import add_noise, inject_noise_to_position, relocate, sample_add
from .relocation import binomial_table, check_binoms
from .rows import follow_replaced
from .sharding import RowOrder, Shard, count, reshard


@dataclasses.dataclass
class MCMCStrategy(Strategy):
    """Relocates dead Gaussians to live ones, adds 5 % at a time up to a cap, and adds noise to the means.

    Kheradmand et al., "3D Gaussian Splatting as Markov Chain Monte Carlo", 2024.

    Attributes:
        cap_max: Maximum number of Gaussians. A trainer lowers it to `max_gaussians` of its configuration.
        noise_lr: Scale of the noise, in units of the means' learning rate.
        refine_start_iter: Step after which Gaussians are relocated and added.
        refine_stop_iter: Step before which Gaussians are relocated and added.
        refine_every: Number of steps between refinements.
        min_opacity: Gaussians with at most this opacity are dead: refinements relocate them.
        verbose: Print the number of changed Gaussians.
        noise_injection_stop_iter: Step before which noise is added; negative for all steps.
        noise_opacity_t: Opacity at which Gaussians get half of the noise; more opaque ones get less.
        noise_opacity_k: Steepness of this transition.
        generator: Random generator of noise and samples; PyTorch's global one if None.
    """

    cap_max: int = 1_000_000
    noise_lr: float = 5e5
    refine_start_iter: int = 500
    refine_stop_iter: int = 25_000
    refine_every: int = 100
    min_opacity: float = 0.005
    verbose: bool = False
    noise_injection_stop_iter: int = -1
    noise_opacity_t: float = 0.005
    noise_opacity_k: float = 100.0
    generator: torch.Generator | None = None

    arguments = ("lr", "shard", "backend")

    @property
    def reads_rendering(self) -> bool:
        """Whether a subclass overrides a hook, which may then read the rendering."""
        hooks, own = ((cls.step_pre_backward, cls.step_post_backward) for cls in (type(self), MCMCStrategy))
        return hooks != own

    def initialize_state(self, scene_scale: float = 1.0) -> State:
        """Returns the initial state: `binoms`, [51, 51] fp64 binomial coefficients.

        `scene_scale` is ignored; it exists so that strategies are interchangeable.
        """
        return {"binoms": binomial_table()}

    def refines(self, step: int) -> bool:
        """Returns whether Gaussians are relocated or added in this step."""
        return self.refine_start_iter < step < self.refine_stop_iter and step % self.refine_every == 0

    def expected_growth(self) -> float | None:
        """Returns the growth if each refinement adds 5 %, ignoring `cap_max`."""
        return float(1.05 ** ((self.refine_stop_iter - self.refine_start_iter) / self.refine_every))

    def step_pre_backward(
        self, params: Parameters, optimizers: Optimizers, state: State, step: int, info: dict[str, Any]
    ) -> None:
        """Updates optimizers whose parameters were replaced, with a warning. Call it before the backward pass.

        Args:
            params, optimizers: See :meth:`check_sanity` and :func:`.rows.follow_replaced`.
            state, step, info: Not used.
        """
        follow_replaced(params, optimizers)

    @torch.no_grad()
    def step_post_backward(
        self,
        params: Parameters,
        optimizers: Optimizers,
        state: State,
        step: int,
        info: dict[str, Any],
        lr: float,
        scene: Follower | None = None,
        shard: Shard | None = None,
        backend: Backend = "auto",
    ) -> None:
        """Relocates and adds Gaussians in steps that refine, and adds noise. Call it after the optimizers' step.

        Args:
            params, optimizers: See :meth:`check_sanity`; modified in place.
            state: The result of :meth:`initialize_state`, modified in place.
            step: Number of the step.
            info: Ignored; it exists so that strategies are interchangeable.
            lr: Learning rate of the means, in world units.
            scene: Data with a row per Gaussian; its hooks are called after each change.
            shard: The shard of the scene that `params` hold, if it is sharded; not together with `scene`. The call is
                then collective, and the generators of all ranks must have the same state.
            backend: As in :func:`tsplat.rasterization`.

        Raises:
            ArgumentError: An argument is invalid, or opacities are not finite in a step that refines. Nothing has been
                changed.
        """
        scaler = self.noise_scaler(step, lr)
        if self.refines(step):
            ranks = None if shard is None else shard.ranks
            self._check(params, optimizers, state, ranks)
            state["binoms"] = state["binoms"].to(params["means"].device)
            order = None if shard is None else RowOrder(len(params["means"]), params["means"].device)
            n_moved, n_added = self._refine(params, optimizers, state, step, order if scene is None else scene, ranks)
            if order is not None and ranks is not None:
                shard = reshard(params, optimizers, state, order, ranks)
            if self.verbose:
                # The messages of gsplat, which programs parse.
                print(f"Step {step}: Relocated {n_moved} GSs.")
                n = len(params["means"]) if shard is None else shard.n_total
                print(f"Step {step}: Added {n_added} GSs. Now having {n} GSs.")
        if scaler is not None:
            inject_noise_to_position(
                params, optimizers, state, scaler, self.noise_opacity_t, self.noise_opacity_k,
                generator=self.generator, first=0 if shard is None else shard.first, backend=backend,
            )  # fmt: skip

    def noise_scaler(self, step: int, lr: float) -> float | None:
        """Returns the scale of the noise of a step; None for no noise.

        Raises ArgumentError if the noise would not be finite.
        """
        if not math.isfinite(lr * self.noise_lr):
            raise ArgumentError(f"lr: expected a finite learning rate and noise_lr, found {lr} and {self.noise_lr}")
        for name in ("noise_opacity_t", "noise_opacity_k"):
            check_finite(name, getattr(self, name))
        has_noise = self.noise_injection_stop_iter < 0 or step < self.noise_injection_stop_iter
        return lr * self.noise_lr if has_noise else None

    def add_noise(self, params: Parameters, key: int | Tensor, scaler: float | Tensor, backend: Backend) -> None:
        """Adds noise to the means; see :func:`.operations.inject_noise_to_position`."""
        add_noise(params, key, scaler, self.noise_opacity_t, self.noise_opacity_k, 0, backend)

    def with_noise(self, factor: float) -> Self:
        """Returns the strategy with `noise_lr` multiplied by a factor."""
        return dataclasses.replace(self, noise_lr=self.noise_lr * factor)

    def _check(self, params: Parameters, optimizers: Optimizers, state: State, ranks: RankGroup | None) -> None:
        """Raises the errors of a refinement and of its noise, before anything is changed."""
        check_parameters(params, optimizers)
        if "binoms" not in state:
            raise ArgumentError(f"state: expected binoms, found {sorted(state)}; call initialize_state")
        check_binoms(state["binoms"])
        check_min_opacity(self.min_opacity)
        n_invalid = count(ranks, int(opacities_of(params).isnan().sum()))[1]
        if n_invalid:
            raise ArgumentError(
                f"params: {n_invalid} opacities are NaN, so they cannot be sampled; the run has diverged"
            )

    def _refine(
        self,
        params: Parameters,
        optimizers: Optimizers,
        state: State,
        step: int,
        scene: Follower | None,
        ranks: RankGroup | None,
    ) -> tuple[int, int]:
        """Relocates dead Gaussians and adds new ones. Returns both numbers of Gaussians, over all ranks."""
        # Overrides written for gsplat 1.5 lack these parameters, so None is not passed.
        options: dict[str, Any] = {"scene": scene, "ranks": ranks}
        options = {name: value for name, value in options.items() if value is not None}
        n_moved = self._relocate_gs(params, optimizers, state["binoms"], **options)
        return n_moved, self._add_new_gs(params, optimizers, state["binoms"], **options)

    @torch.no_grad()
    def _relocate_gs(
        self,
        params: Parameters,
        optimizers: Optimizers,
        binoms: Tensor,
        scene: Follower | None = None,
        ranks: RankGroup | None = None,
    ) -> int:
        """Moves dead Gaussians to live ones, sampled by opacity, and returns their number; 0 if all are dead."""
        dead = opacities_of(params) <= self.min_opacity
        n = count(ranks, int(dead.sum()))[1]
        if n == count(ranks, len(dead))[1]:
            return 0
        relocate(params, optimizers, {}, dead, binoms, self.min_opacity, scene, generator=self.generator, ranks=ranks)
        return n

    @torch.no_grad()
    def _add_new_gs(
        self,
        params: Parameters,
        optimizers: Optimizers,
        binoms: Tensor,
        scene: Follower | None = None,
        ranks: RankGroup | None = None,
    ) -> int:
        """Adds copies of Gaussians, sampled by opacity, and returns their number: 5 %, limited by `cap_max`."""
        n = count(ranks, len(params["means"]))[1]
        n_added = max(0, min(self.cap_max, int(1.05 * n)) - n)
        if n_added:
            sample_add(
                params, optimizers, {}, n_added, binoms, self.min_opacity, scene, generator=self.generator, ranks=ranks
            )
        return n_added
