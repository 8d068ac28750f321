"""Adaptive density control, the strategy of 3D Gaussian Splatting (Kerbl et al., 2023, section 5.2)."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ..data import sum_by_id
from ..errors import ArgumentError
from .operations import Optimizers, Parameters, State, check_parameters, duplicate, remove, reset_opacities, split


@dataclasses.dataclass
class DefaultStrategy:
    """Clones small and splits large Gaussians with large screen gradients, prunes, and resets opacities.

    As in gsplat, scales are in units of the scene's scale, and screen gradients are with respect to coordinates from -1
    to 1 across the image.

    Attributes:
        prune_opa: Gaussians with a lower opacity are pruned.
        grow_grad2d: Gaussians with a larger mean screen gradient are cloned or split; about 8e-4 with `absgrad`.
        grow_scale3d: Gaussians with a larger maximum scale are split, others are cloned.
        grow_scale2d: Gaussians with a larger radius, as a fraction of the image, are split until
            `refine_scale2d_stop_iter`.
        prune_scale3d: Gaussians with a larger maximum scale are pruned, after the first reset of opacities.
        prune_scale2d: Gaussians with a larger radius are pruned as well, until `refine_scale2d_stop_iter`.
        refine_scale2d_stop_iter: Step until which radii are used.
        refine_start_iter: Step after which Gaussians are refined.
        refine_stop_iter: Step before which Gaussians are refined.
        reset_every: Number of steps between resets of opacities.
        refine_every: Number of steps between refinements.
        pause_refine_after_reset: Number of steps without refinement after each reset.
        absgrad: Use `means2d.absgrad` (AbsGS, arXiv 2404.10484) instead of the gradient of `means2d`.
        revised_opacity: Lower the opacity of split Gaussians so that two of them cover as much as one did.
        verbose: Print the number of changed Gaussians.
        key_for_gradient: Entry of `info` whose gradient is used.
        cap_max: Maximum number of Gaussians, those with the largest gradients first; None for no limit.
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

    def initialize_state(self, scene_scale: float = 1.0) -> State:
        """Returns an empty state; `scene_scale` is in world units."""
        return {"grad2d": None, "count": None, "radii": None, "scene_scale": scene_scale}

    def check_sanity(self, params: Parameters, optimizers: Optimizers) -> None:
        """Raises `ArgumentError` unless each parameter has an optimizer of its own; see :func:`check_parameters`."""
        check_parameters(params, optimizers)

    def refines(self, step: int) -> bool:
        """Whether Gaussians are added or removed in this step."""
        return (
            self.refine_start_iter < step < self.refine_stop_iter
            and step % self.refine_every == 0
            and step % self.reset_every >= self.pause_refine_after_reset
        )

    def step_pre_backward(
        self, params: Parameters, optimizers: Optimizers, state: State, step: int, info: dict[str, Any]
    ) -> None:
        """Retains the gradient of the projected means. To be called before the backward pass.

        Args:
            info: `meta` of :func:`tsplat.rasterization`.
        """
        if self.key_for_gradient not in info:
            raise ArgumentError(f"info: expected {self.key_for_gradient}, found {sorted(info)}")
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
    ) -> None:
        """Refines the Gaussians if this step is due. To be called after the backward pass.

        Args:
            info: `meta` of :func:`tsplat.rasterization`.
            packed: Whether `info` is that of a call with `packed=True`.
        """
        if step >= self.refine_stop_iter:
            return
        self._accumulate(params, state, info, packed)
        if step > self.refine_start_iter and step % self.refine_every == 0:
            if self.refines(step):
                n_cloned, n_split = self._grow(params, optimizers, state, step)
                n_pruned = self._prune(params, optimizers, state, step)
                if self.verbose:
                    n = len(params["means"])
                    print(f"step {step}: {n_cloned} cloned, {n_split} split, {n_pruned} pruned, {n} Gaussians")
            for name in ("grad2d", "count", "radii"):
                state[name] = None
        if step % self.reset_every == 0 and step > 0:
            reset_opacities(params, optimizers, 2 * self.prune_opa)

    def _accumulate(self, params: Parameters, state: State, info: dict[str, Any], packed: bool) -> None:
        """Adds the screen gradients, counts and radii of the Gaussians that are visible in this step."""
        means2d = info[self.key_for_gradient]
        found: Tensor | None = getattr(means2d, "absgrad", None) if self.absgrad else means2d.grad
        if found is None:
            raise ArgumentError(
                f"info: {self.key_for_gradient} has no {'absgrad' if self.absgrad else 'gradient'}; call "
                "step_pre_backward before the backward pass"
                + (", and rasterization with absgrad=True" if self.absgrad else "")
            )
        # From pixels to coordinates from -1 to 1, and from the mean loss over cameras to the loss of each.
        size = found.new_tensor([info["width"], info["height"]])
        gradients = (found * (0.5 * info["n_cameras"]) * size).norm(dim=-1)
        radii = info["radii"].amax(-1).to(gradients) / size.max()
        n = len(params["means"])
        if packed:
            ids = info["gaussian_ids"]
        else:
            visible = (info["radii"] > 0).all(-1)
            ids, gradients, radii = visible.nonzero()[:, -1], gradients[visible], radii[visible]
        for name in ("grad2d", "count", "radii"):
            if state[name] is None:
                state[name] = gradients.new_zeros(n)
        state["grad2d"] += sum_by_id(gradients, ids, n)
        state["count"] += sum_by_id(torch.ones_like(gradients), ids, n)
        state["radii"].scatter_reduce_(0, ids, radii, "amax")

    def _grow(self, params: Parameters, optimizers: Optimizers, state: State, step: int) -> tuple[int, int]:
        """Clones and splits Gaussians; returns how many."""
        gradients = state["grad2d"] / state["count"].clamp_min(1)
        high = gradients > self.grow_grad2d
        small = params["scales"].detach().exp().amax(-1) <= self.grow_scale3d * state["scene_scale"]
        to_clone, to_split = high & small, high & ~small
        if step < self.refine_scale2d_stop_iter:
            to_split |= state["radii"] > self.grow_scale2d
        if self.cap_max is not None:
            room = max(0, self.cap_max - len(gradients))
            if int((to_clone | to_split).sum()) > room:
                # Each clone and each split adds one Gaussian.
                order = torch.where(to_clone | to_split, gradients, -1.0).argsort(descending=True, stable=True)
                chosen = torch.zeros_like(to_clone)
                chosen[order[:room]] = True
                to_clone, to_split = to_clone & chosen, to_split & chosen
        n_cloned, n_split = int(to_clone.sum()), int(to_split.sum())
        duplicate(params, optimizers, state, to_clone)
        # New clones are not split.
        to_split = torch.cat([to_split, to_split.new_zeros(n_cloned)])
        split(params, optimizers, state, to_split, revised_opacity=self.revised_opacity, generator=self.generator)
        return n_cloned, n_split

    def _prune(self, params: Parameters, optimizers: Optimizers, state: State, step: int) -> int:
        """Removes Gaussians; returns how many."""
        pruned = params["opacities"].detach().sigmoid() < self.prune_opa
        if step > self.reset_every:
            pruned |= params["scales"].detach().exp().amax(-1) > self.prune_scale3d * state["scene_scale"]
            if step < self.refine_scale2d_stop_iter:
                pruned |= state["radii"] > self.prune_scale2d
        if pruned.all():
            raise ArgumentError(
                f"prune_opa: all {len(pruned)} Gaussians would be pruned at step {step}; the run has diverged, or the "
                "thresholds do not suit the scene's scale"
            )
        remove(params, optimizers, state, pruned)
        return int(pruned.sum())
