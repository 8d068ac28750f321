"""Adaptive density control of 3D Gaussian Splatting (Kerbl et al., 2023, section 5.2)."""

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
    """Clones small and splits large Gaussians that move much on screen, prunes, and resets opacities.

    Lengths are in units of the scene's scale, screen gradients with the screen going from -1 to 1, as in gsplat.

    Attributes:
        prune_opa: Opacity below which a Gaussian goes.
        grow_grad2d: Mean screen gradient above which one is cloned or split; about 8e-4 with `absgrad`.
        grow_scale3d: Largest scale up to which it is cloned, above which split.
        grow_scale2d: Radius, relative to the picture, above which one is split before `refine_scale2d_stop_iter`.
        prune_scale3d: Largest scale above which one goes, once opacities have been reset.
        prune_scale2d: The same for the radius, before `refine_scale2d_stop_iter`.
        refine_scale2d_stop_iter: Step until which radii count.
        refine_start_iter, refine_stop_iter, refine_every: Steps between which, and how often, Gaussians change.
        reset_every: Steps between resets of opacities.
        pause_refine_after_reset: Steps after each reset in which nothing changes.
        absgrad: Whether to read `means2d.absgrad` (AbsGS, arXiv 2404.10484) in place of its gradient.
        revised_opacity: Whether split Gaussians get the opacity of which two cover like one.
        verbose: Whether to print what was done.
        cap_max: Gaussians at most, those whose gradients are largest first; None for any number.
        key_for_gradient: Which entry of `info` has the gradient.
        generator: Of the places of split Gaussians; PyTorch's own if None.
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
        """The figures that are gathered between refinements; `scene_scale` in world units."""
        return {"grad2d": None, "count": None, "radii": None, "scene_scale": scene_scale}

    def check_sanity(self, params: Parameters, optimizers: Optimizers) -> None:
        """Raises `ArgumentError` where parameters and optimizers do not go together."""
        check_parameters(params, optimizers)

    def refines(self, step: int) -> bool:
        """Whether Gaussians are added or removed at this step."""
        return (
            self.refine_start_iter < step < self.refine_stop_iter
            and step % self.refine_every == 0
            and step % self.reset_every >= self.pause_refine_after_reset
        )

    def step_pre_backward(
        self, params: Parameters, optimizers: Optimizers, state: State, step: int, info: dict[str, Any]
    ) -> None:
        """Before the loss is differentiated: asks for the gradient of the projected means.

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
        """After the loss was differentiated, and before or after the optimizers' step: refines when it is time."""
        if step >= self.refine_stop_iter:
            return
        self._gather(params, state, info, packed)
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

    def _gather(self, params: Parameters, state: State, info: dict[str, Any], packed: bool) -> None:
        means2d = info[self.key_for_gradient]
        found: Tensor | None = getattr(means2d, "absgrad", None) if self.absgrad else means2d.grad
        if found is None:
            raise ArgumentError(
                f"info: {self.key_for_gradient} has no {'absgrad' if self.absgrad else 'gradient'}; call "
                "step_pre_backward before the loss is differentiated"
                + (", and rasterization with absgrad=True" if self.absgrad else "")
            )
        # From pixels to a screen from -1 to 1, and from a mean over cameras to one.
        size = found.new_tensor([info["width"], info["height"]])
        gradients = (found * (0.5 * info["n_cameras"]) * size).norm(dim=-1)
        radii = info["radii"].amax(-1).to(gradients) / size.max()
        n = len(params["means"])
        if packed:
            ids = info["gaussian_ids"]
        else:
            seen = (info["radii"] > 0).all(-1)
            ids, gradients, radii = seen.nonzero()[:, -1], gradients[seen], radii[seen]
        for name in ("grad2d", "count", "radii"):
            if state[name] is None:
                state[name] = gradients.new_zeros(n)
        state["grad2d"] += sum_by_id(gradients, ids, n)
        state["count"] += sum_by_id(torch.ones_like(gradients), ids, n)
        state["radii"].scatter_reduce_(0, ids, radii, "amax")

    def _grow(self, params: Parameters, optimizers: Optimizers, state: State, step: int) -> tuple[int, int]:
        gradients = state["grad2d"] / state["count"].clamp_min(1)
        high = gradients > self.grow_grad2d
        small = params["scales"].detach().exp().amax(-1) <= self.grow_scale3d * state["scene_scale"]
        cloned, halved = high & small, high & ~small
        if step < self.refine_scale2d_stop_iter:
            halved |= state["radii"] > self.grow_scale2d
        if self.cap_max is not None:
            room = max(0, self.cap_max - len(gradients))
            if int((cloned | halved).sum()) > room:
                # Each adds one.
                ranks = torch.where(cloned | halved, gradients, -1.0).argsort(descending=True, stable=True)
                kept = torch.zeros_like(cloned)
                kept[ranks[:room]] = True
                cloned, halved = cloned & kept, halved & kept
        n_cloned, n_split = int(cloned.sum()), int(halved.sum())
        duplicate(params, optimizers, state, cloned)
        # Fresh copies stay whole.
        halved = torch.cat([halved, halved.new_zeros(n_cloned)])
        split(params, optimizers, state, halved, revised_opacity=self.revised_opacity, generator=self.generator)
        return n_cloned, n_split

    def _prune(self, params: Parameters, optimizers: Optimizers, state: State, step: int) -> int:
        gone = params["opacities"].detach().sigmoid() < self.prune_opa
        if step > self.reset_every:
            gone |= params["scales"].detach().exp().amax(-1) > self.prune_scale3d * state["scene_scale"]
            if step < self.refine_scale2d_stop_iter:
                gone |= state["radii"] > self.prune_scale2d
        if gone.all():
            raise ArgumentError(
                f"prune_opa: every one of {len(gone)} Gaussians would go at step {step}; the run has diverged, or the "
                "thresholds do not fit the scene's scale"
            )
        remove(params, optimizers, state, gone)
        return int(gone.sum())
