"""The MCMC strategy ("3D Gaussian Splatting as Markov Chain Monte Carlo", Kheradmand et al., 2024)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .operations import (
    Optimizers,
    Parameters,
    State,
    check_parameters,
    covariances,
    sample,
    standard_normal,
    update_parameters,
)

COPIES_MAX = 51
"""Larger numbers of copies of one Gaussian are treated as this number."""


@dataclasses.dataclass
class MCMCStrategy:
    """Relocates dead Gaussians to live ones, adds 5 % at a time up to a cap, and adds noise to the means.

    Attributes:
        cap_max: Maximum number of Gaussians.
        noise_lr: Scale of the noise, in units of the means' learning rate.
        refine_start_iter: Step after which Gaussians are relocated and added.
        refine_stop_iter: Step before which Gaussians are relocated and added.
        refine_every: Number of steps between refinements.
        min_opacity: Gaussians with at most this opacity are dead.
        verbose: Print the number of changed Gaussians.
        generator: Random generator of noise and samples; PyTorch's global one if None.
    """

    cap_max: int = 1_000_000
    noise_lr: float = 5e5
    refine_start_iter: int = 500
    refine_stop_iter: int = 25_000
    refine_every: int = 100
    min_opacity: float = 0.005
    verbose: bool = False
    generator: torch.Generator | None = None

    def initialize_state(self, scene_scale: float = 1.0) -> State:
        """Returns an empty state; `scene_scale` is ignored, and exists so that strategies are interchangeable."""
        return {}

    def check_sanity(self, params: Parameters, optimizers: Optimizers) -> None:
        """Raises `ArgumentError` unless each parameter has an optimizer of its own; see :func:`check_parameters`."""
        check_parameters(params, optimizers)

    def refines(self, step: int) -> bool:
        """Whether Gaussians are relocated or added in this step."""
        return self.refine_start_iter < step < self.refine_stop_iter and step % self.refine_every == 0

    def step_pre_backward(
        self, params: Parameters, optimizers: Optimizers, state: State, step: int, info: dict[str, Any]
    ) -> None:
        """Does nothing; exists so that strategies are interchangeable."""

    @torch.no_grad()
    def step_post_backward(
        self,
        params: Parameters,
        optimizers: Optimizers,
        state: State,
        step: int,
        info: dict[str, Any],
        lr: float,
        shard: tuple[int, int] | None = None,
    ) -> None:
        """Relocates and adds Gaussians if this step is due, and adds noise. To be called after the optimizers' step.

        Args:
            lr: Learning rate of the means, in world units.
            shard: If `params` hold a shard of the scene: the index of its first Gaussian and the number of all
                Gaussians, so that the noise does not depend on the sharding. Shards cannot be refined.
        """
        if self.refines(step):
            n_moved = self._relocate(params, optimizers)
            n_added = self._grow(params, optimizers)
            if self.verbose:
                print(f"step {step}: {n_moved} relocated, {n_added} added, {len(params['means'])} Gaussians")
        self._add_noise(params, lr * self.noise_lr, *(shard or (0, len(params["means"]))))

    def _relocate(self, params: Parameters, optimizers: Optimizers) -> int:
        """Moves dead Gaussians to live ones, sampled by opacity; returns how many."""
        opacities = params["opacities"].detach().sigmoid()
        dead = opacities <= self.min_opacity
        n, alive = int(dead.sum()), (~dead).nonzero().squeeze(1)
        if n == 0 or alive.numel() == 0:
            return 0
        chosen = alive[sample(opacities[alive], n, self.generator)]
        share = self._sharing(params, chosen)

        def relocated(name: str, p: Tensor) -> Tensor:
            p = share(name, p)
            p[dead] = p[chosen]
            return p

        def cleared(moment: Tensor) -> Tensor:
            # Also those of the relocated Gaussians, which are at another place now.
            moment[chosen] = moment[dead] = 0
            return moment

        update_parameters(params, optimizers, relocated, cleared)
        return n

    def _grow(self, params: Parameters, optimizers: Optimizers) -> int:
        """Adds copies of Gaussians, sampled by opacity; returns how many."""
        n = len(params["means"])
        n_added = max(0, min(self.cap_max, int(1.05 * n)) - n)
        if n_added == 0:
            return 0
        chosen = sample(params["opacities"].detach().sigmoid(), n_added, self.generator)
        share = self._sharing(params, chosen)

        def grown(name: str, p: Tensor) -> Tensor:
            p = share(name, p)
            return torch.cat([p, p[chosen]])

        update_parameters(params, optimizers, grown, lambda m: torch.cat([m, m.new_zeros(n_added, *m.shape[1:])]))
        return n_added

    def _sharing(self, params: Parameters, chosen: Tensor) -> Callable[[str, Tensor], Tensor]:
        """Returns a change of parameters after which k + 1 copies of a Gaussian chosen k times look as it did alone."""
        copies = torch.bincount(chosen, minlength=len(params["means"]))[chosen] + 1
        opacities, scales = share_appearance(
            params["opacities"].detach()[chosen].sigmoid(), params["scales"].detach()[chosen].exp(), copies
        )
        eps = torch.finfo(opacities.dtype).eps
        new = {"opacities": opacities.clamp(self.min_opacity, 1 - eps).logit(), "scales": scales.log()}

        def share(name: str, p: Tensor) -> Tensor:
            p = p.clone()
            if name in new:
                p[chosen] = new[name]
            return p

        return share

    def _add_noise(self, params: Parameters, scale: float, first: int, n_gaussians: int) -> None:
        """Adds noise with each Gaussian's covariance to the means of those that are nearly transparent."""
        means = params["means"]
        gate = torch.sigmoid(100 * ((1 - params["opacities"].detach().sigmoid()) - 0.995))
        samples = standard_normal((n_gaussians, 3), means, self.generator)[first : first + len(means)]
        noise = samples * (gate * scale)[:, None]
        means.data += (covariances(params).to(noise) @ noise[..., None])[..., 0]


def share_appearance(opacities: Tensor, scales: Tensor, copies: Tensor) -> tuple[Tensor, Tensor]:
    """Opacity and scales with which k copies of a Gaussian look as it did alone (equation 9 of the paper).

    Args:
        opacities: [N] after sigmoid.
        scales: [N, 3] after exp.
        copies: [N] int64 numbers of copies k, at least 1; numbers above 51 are treated as 51.

    Returns:
        Opacities [N], o_new = 1 - (1 - o)^(1/k); and scales [N, 3], multiplied by o and divided by the sum over
        i = 1..k, j = 0..i-1 of (-1)^j C(i-1, j) / sqrt(j + 1) o_new^(j+1).
    """
    copies = copies.clamp_max(COPIES_MAX)
    o = opacities.double()
    new = 1 - (1 - o) ** (1 / copies.double())
    # The sum of C(i-1, j) over i is C(k, j+1).
    binomials = torch.tensor(
        [[math.comb(k, j + 1) for j in range(COPIES_MAX)] for k in range(COPIES_MAX + 1)],
        dtype=torch.float64, device=o.device,
    )  # fmt: skip
    j = torch.arange(COPIES_MAX, device=o.device)
    signs = 1.0 - 2.0 * (j % 2)
    terms = binomials[copies] * signs / (j + 1).double().sqrt() * new[:, None] ** (j + 1)
    factor = o / terms.sum(-1)
    return new.to(opacities.dtype), (scales.double() * factor[:, None]).to(scales.dtype)
