"""Adaptive density control, the strategy of 3D Gaussian Splatting (Kerbl et al., 2023, section 5.2)."""

import dataclasses
from typing import Any, Self

import torch
from torch import Tensor

from ..data import sum_by_id
from ..errors import ArgumentError, ShapeError
from ..runtime.process_group import RankGroup
from .base import Strategy
from .gaussian_parameters import Follower, Optimizers, Parameters, State, check_opacity, check_parameters, opacities_of
from .operations import LOG_SPLIT, duplicate, remove, reset_opa, revise_opacities, split
from .rows import follow_replaced
from .sharding import RowOrder, Shard, count, reshard, select_smallest

STATISTICS = ("grad2d", "count", "radii")


@dataclasses.dataclass
class DefaultStrategy(Strategy):
    """Clones small and splits large Gaussians with large screen gradients, prunes, and resets opacities.

    Adaptive density control (Kerbl et al., "3D Gaussian Splatting", 2023, section 5.2).

    As in gsplat, thresholds of scales are in units of the scene's scale, and screen gradients are with respect to
    coordinates from -1 to 1 across the image.

    Attributes:
        prune_opa: Gaussians with a lower opacity are pruned.
        grow_grad2d: Gaussians with a larger mean screen gradient are cloned or split; about 8e-4 with `absgrad`.
        grow_scale3d: Growing Gaussians with a larger maximum scale are split, others are cloned.
        grow_scale2d: Gaussians with a larger radius, as a fraction of the image, are split until
            `refine_scale2d_stop_iter`.
        prune_scale3d: Gaussians with a larger maximum scale are pruned, after the first reset of opacities.
        prune_scale2d: Gaussians with a larger radius are pruned as well, until `refine_scale2d_stop_iter`.
        refine_scale2d_stop_iter: Step until which `grow_scale2d` and `prune_scale2d` apply.
        refine_start_iter: Step after which Gaussians are refined.
        refine_stop_iter: Step before which Gaussians are refined.
        reset_every: Number of steps between resets of opacities.
        refine_every: Number of steps between refinements.
        pause_refine_after_reset: Number of steps without refinement after each reset.
        absgrad: Use `means2d.absgrad` (AbsGS, arXiv 2404.10484) instead of the gradient of `means2d`.
        revised_opacity: Lower the opacity of split Gaussians so that two of them cover as much as one did.
        verbose: Print the number of changed Gaussians.
        key_for_gradient: Entry of `info` whose gradient is used.
        cap_max: Maximum number of Gaussians; those with the largest gradients grow first. None for no limit.
        generator: Random generator of the positions of split Gaussians; PyTorch's global one if None.
    """

    prune_opa: float = 0.005
    grow_grad2d: float = 0.0002
    grow_scale3d: float = 0.01
    grow_scale2d: float = 0.05
    prune_scale3d: float = 0.1
    prune_scale2d: float = 0.15
    refine_scale2d_stop_iter: int = 0
    refine_start_iter: int = 500
    refine_stop_iter: int = 15_000
    reset_every: int = 3000
    refine_every: int = 100
    pause_refine_after_reset: int = 0
    absgrad: bool = False
    revised_opacity: bool = False
    verbose: bool = False
    key_for_gradient: str = "means2d"
    cap_max: int | None = None
    generator: torch.Generator | None = None

    arguments = ("shard",)

    def initialize_state(self, scene_scale: float = 1.0) -> State:
        """Returns a state without statistics.

        Its entries are `grad2d`, the sums of the norms of screen gradients; `count`, the numbers of images; `radii`,
        the maximum radii as fractions of the image's larger side (each is None at first, then [N]); and `scene_scale`.

        Args:
            scene_scale: Extent of the scene, in world units.
        """
        return {"grad2d": None, "count": None, "radii": None, "scene_scale": scene_scale}

    def refines(self, step: int) -> bool:
        """Returns whether Gaussians are added or removed in this step."""
        return (
            self.refine_start_iter < step < self.refine_stop_iter
            and step % self.refine_every == 0
            and step % self.reset_every >= self.pause_refine_after_reset
        )

    def for_surfels(self) -> Self:
        """Returns the strategy with the settings of 2DGS."""
        return dataclasses.replace(self, key_for_gradient="gradient_2dgs", absgrad=False, prune_opa=0.05)

    def step_pre_backward(
        self, params: Parameters, optimizers: Optimizers, state: State, step: int, info: dict[str, Any]
    ) -> None:
        """Retains the gradient of the projected means. Call it before the backward pass.

        Args:
            params, optimizers: See :meth:`check_sanity`. If parameters were replaced, their optimizers are updated,
                with a warning; see :func:`.rows.follow_replaced`.
            state, step: Not used.
            info: `meta` of :func:`tsplat.rasterization`.

        Raises:
            ArgumentError: `info` does not have the entry `key_for_gradient`.
        """
        if self.key_for_gradient not in info:
            raise ArgumentError(f"info: expected {self.key_for_gradient}, found {sorted(info)}")
        follow_replaced(params, optimizers)
        info[self.key_for_gradient].retain_grad()

    @torch.no_grad()
    def step_post_backward(
        self,
        params: Parameters,
        optimizers: Optimizers,
        state: State,
        step: int,
        info: dict[str, Any],
        packed: bool = False,
        scene: Follower | None = None,
        shard: Shard | None = None,
    ) -> None:
        """Refines the Gaussians and resets opacities, in steps in which this is due. Call it after the backward pass.

        Only refinements reset statistics, so statistics accumulate during a pause.

        Args:
            params, optimizers: See :meth:`check_sanity`; modified in place.
            state: The result of :meth:`initialize_state`, modified in place.
            step: Number of the step.
            info: `meta` of :func:`tsplat.rasterization`.
            packed: Whether `info` comes from a call with `packed=True`.
            scene: Data with a row per Gaussian; its hooks are called after each change.
            shard: The shard of the scene that `params` hold, if it is sharded; not together with `scene`. The call is
                then collective, and the generators of all ranks must have the same state.

        Raises:
            ArgumentError: An argument is invalid, or all Gaussians would be pruned. Nothing has been changed, unless a
                subclass overrides which Gaussians grow or are pruned.
        """
        if step >= self.refine_stop_iter:
            return
        refines, resets = self.refines(step), step % self.reset_every == 0 and step > 0
        if refines or resets:
            check_parameters(params, optimizers)
        if resets:
            check_opacity("twice prune_opa", 2 * self.prune_opa)
        # Overridden methods may change tensors in place.
        before = {k: v.clone() if refines and isinstance(v, Tensor) else v for k, v in state.items()}
        self._update_state(params, state, info, packed=packed)
        if refines:
            ranks = None if shard is None else shard.ranks
            try:
                self._check_refinement(params, state, step, ranks)
            except ArgumentError:
                state.clear()
                state.update(before)
                raise
            order = None if shard is None else RowOrder(len(params["means"]), params["means"].device)
            # Overrides written for gsplat 1.5 lack these parameters, so None is not passed.
            options: dict[str, Any] = {"scene": order if scene is None else scene, "ranks": ranks}
            options = {name: value for name, value in options.items() if value is not None}
            n_duplicated, n_split = self._grow_gs(params, optimizers, state, step, **options)
            n_grown = count(ranks, len(params["means"]))[1]
            n_pruned = self._prune_gs(params, optimizers, state, step, **options)
            if self.verbose:
                # The messages of gsplat, which programs parse.
                print(f"Step {step}: {n_duplicated} GSs duplicated, {n_split} GSs split. Now having {n_grown} GSs.")
                print(f"Step {step}: {n_pruned} GSs pruned. Now having {n_grown - n_pruned} GSs.")
            if order is not None and ranks is not None:
                reshard(params, optimizers, state, order, ranks)
            state.update({name: torch.zeros_like(state[name]) for name in STATISTICS if state.get(name) is not None})
        if resets:
            reset_opa(params, optimizers, state, 2 * self.prune_opa)

    @torch.no_grad()
    def _update_state(self, params: Parameters, state: State, info: dict[str, Any], packed: bool = False) -> None:
        """Adds the screen gradients, counts and radii of the Gaussians that are visible in this step.

        `info` has `width` and `height` in pixels; `n_cameras`, by which the loss was divided; the entry
        `key_for_gradient` with its gradient [..., N, 2] in pixels; and `radii` [..., N, 2] in pixels. If it is packed,
        both have the shape [nnz, 2], and `gaussian_ids` [nnz] are added.
        """
        n = len(params["means"])
        v_means2d = self._gradient(state, info, packed, n)
        # Converts from pixels to coordinates from -1 to 1, and from the mean loss over cameras to each camera's loss.
        size = v_means2d.new_tensor([info["width"], info["height"]])
        gradients = (v_means2d * (0.5 * info["n_cameras"]) * size).norm(dim=-1)
        radii = info["radii"].amax(-1).to(gradients) / size.max()
        if packed:
            ids = info["gaussian_ids"]
        else:
            visible = (info["radii"] > 0).all(-1)
            ids, gradients, radii = visible.nonzero()[:, -1], gradients[visible], radii[visible]
        old = {
            name: gradients.new_zeros(n) if state[name] is None else state[name] for name in STATISTICS if name in state
        }
        new = {
            "grad2d": old["grad2d"] + sum_by_id(gradients, ids, n),
            "count": old["count"] + sum_by_id(torch.ones_like(gradients), ids, n),
        }
        if "radii" in old:
            new["radii"] = old["radii"].scatter_reduce(0, ids, radii, "amax")
        state.update(new)

    def _gradient(self, state: State, info: dict[str, Any], packed: bool, n: int) -> Tensor:
        """Returns the gradient of the projected means, after checking the arguments of :meth:`_update_state`."""
        key = self.key_for_gradient
        for name in (key, "radii", "width", "height", "n_cameras", *(("gaussian_ids",) if packed else ())):
            if name not in info:
                raise ArgumentError(f"info: expected {name}, found {sorted(info)}")
        gradient: Tensor | None = getattr(info[key], "absgrad", None) if self.absgrad else info[key].grad
        if gradient is None:
            raise ArgumentError(
                f"info: {key} has no {'absgrad' if self.absgrad else 'gradient'}; call step_pre_backward before the "
                "backward pass"
                + (", and rasterization with absgrad=True" if self.absgrad else "")
                + "; with_eval3d=True (3DGUT) has no such gradient, so use MCMCStrategy (simple_trainer.py mcmc)"
            )
        rows = len(info["gaussian_ids"]) if packed else n
        for name, tensor in ((key, gradient), ("radii", info["radii"])):
            if tensor.shape != (*gradient.shape[:-2], rows, 2):
                expected = "[nnz, 2]" if packed else "[..., N, 2]"
                raise ShapeError(f"info: expected {name} {expected} with {rows} rows, found {list(tensor.shape)}")
        for name in STATISTICS:
            if name not in state and name != "radii":
                raise ArgumentError(f"state: expected {name}, found {sorted(state)}; call initialize_state")
            if state.get(name) is not None and state[name].shape != (n,):
                raise ShapeError(f"state: expected {name} [{n}], found {list(state[name].shape)}")
        return gradient

    def _check_refinement(self, params: Parameters, state: State, step: int, ranks: RankGroup | None) -> None:
        """Raises the errors of growing and pruning, before anything is changed."""
        if "scene_scale" not in state:
            raise ArgumentError(f"state: expected scene_scale, found {sorted(state)}; call initialize_state")
        if step < self.refine_scale2d_stop_iter and state.get("radii") is None:
            raise ArgumentError(f"state: refine_scale2d_stop_iter needs radii, found {sorted(state)}")
        cls = type(self)
        if (cls._grow_gs, cls._prune_gs) != (DefaultStrategy._grow_gs, DefaultStrategy._prune_gs):
            return
        # A Gaussian survives if it, or each of its halves, survives. Clones survive with their originals.
        _, to_split = self._growth_masks(params, state, step, ranks)
        logits, log_scales = params["opacities"].detach().flatten(), params["scales"].detach()
        if self.revised_opacity:
            logits = torch.where(to_split, revise_opacities(logits), logits)
        log_scales = torch.where(to_split[:, None], log_scales - LOG_SPLIT, log_scales)
        self._check_survivors(self._prune_mask(logits.sigmoid(), log_scales, state, step), step, ranks)

    def _growth_masks(
        self, params: Parameters, state: State, step: int, ranks: RankGroup | None
    ) -> tuple[Tensor, Tensor]:
        """Returns masks [N] of the Gaussians to clone and of those to split."""
        gradients = state["grad2d"] / state["count"].clamp_min(1)
        high = gradients > self.grow_grad2d
        small = params["scales"].detach().exp().amax(-1) <= self.grow_scale3d * state["scene_scale"]
        to_clone, to_split = high & small, high & ~small
        if step < self.refine_scale2d_stop_iter:
            to_split |= state["radii"] > self.grow_scale2d
        if self.cap_max is not None:
            # Each clone and each split adds one Gaussian; small Gaussians with large radii may be cloned and split.
            added = to_clone.long() + to_split.long()
            n_max = max(0, self.cap_max - count(ranks, len(gradients))[1])
            # Bits of nonnegative floats have the order of the floats.
            bits = gradients.double().nan_to_num(torch.inf).clamp_min(0).view(torch.int64)
            chosen = select_smallest(torch.iinfo(torch.int64).max - bits, added, n_max, ranks)
            to_clone, to_split = to_clone & chosen, to_split & chosen
        return to_clone, to_split

    @torch.no_grad()
    def _grow_gs(
        self,
        params: Parameters,
        optimizers: Optimizers,
        state: State,
        step: int,
        scene: Follower | None = None,
        ranks: RankGroup | None = None,
    ) -> tuple[int, int]:
        """Clones and splits Gaussians, and returns the numbers of cloned and split ones over all ranks."""
        to_clone, to_split = self._growth_masks(params, state, step, ranks)
        n_cloned, n_split = int(to_clone.sum()), int(to_split.sum())
        duplicate(params, optimizers, state, to_clone, scene)
        # New clones are not split.
        to_split = torch.cat([to_split, to_split.new_zeros(n_cloned)])
        split(params, optimizers, state, to_split, self.revised_opacity, scene, generator=self.generator, ranks=ranks)
        return count(ranks, n_cloned)[1], count(ranks, n_split)[1]

    def _prune_mask(self, opacities: Tensor, log_scales: Tensor, state: State, step: int) -> Tensor:
        """Returns a mask [N] of the Gaussians to remove."""
        pruned = opacities < self.prune_opa
        if step > self.reset_every:
            pruned |= log_scales.exp().amax(-1) > self.prune_scale3d * state["scene_scale"]
            if step < self.refine_scale2d_stop_iter:
                pruned |= state["radii"] > self.prune_scale2d
        return pruned

    @staticmethod
    def _check_survivors(pruned: Tensor, step: int, ranks: RankGroup | None) -> None:
        n = count(ranks, len(pruned))[1]
        if count(ranks, int(pruned.sum()))[1] == n:
            raise ArgumentError(
                f"prune_opa: all {n} Gaussians would be pruned at step {step}; the run has diverged, or the "
                "thresholds do not suit the scene's scale"
            )

    @torch.no_grad()
    def _prune_gs(
        self,
        params: Parameters,
        optimizers: Optimizers,
        state: State,
        step: int,
        scene: Follower | None = None,
        ranks: RankGroup | None = None,
    ) -> int:
        """Removes transparent and too large Gaussians, and returns their number over all ranks.

        Raises ArgumentError if none would remain.
        """
        pruned = self._prune_mask(opacities_of(params), params["scales"].detach(), state, step)
        self._check_survivors(pruned, step, ranks)
        remove(params, optimizers, state, pruned, scene)
        return count(ranks, int(pruned.sum()))[1]
