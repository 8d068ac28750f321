"""Relocation, growth to a cap, and noise ("3D Gaussian Splatting as Markov Chain Monte Carlo", Kheradmand et al.)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from .operations import Optimizers, Parameters, State, check_parameters, covariances, draw, normal, update

COPIES_MAX = 51
"""Gaussians in one place are taken for at most so many."""


@dataclasses.dataclass
class MCMCStrategy:
    """Moves dead Gaussians to live ones, adds 5 % at a time up to a cap, and adds noise to means.

    Attributes:
        cap_max: Gaussians at most.
        noise_lr: Size of the noise, in units of the means' learning rate.
        refine_start_iter, refine_stop_iter, refine_every: Steps between which, and how often, Gaussians move or come.
        min_opacity: Opacity at or below which one is dead.
        verbose: Whether to print what was done.
        generator: Of everything that is drawn; PyTorch's own if None.
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
        """There is nothing to gather; `scene_scale` is not needed, and taken so that strategies can be exchanged."""
        return {}

    def check_sanity(self, params: Parameters, optimizers: Optimizers) -> None:
        """Raises `ArgumentError` where parameters and optimizers do not go together."""
        check_parameters(params, optimizers)

    def refines(self, step: int) -> bool:
        """Whether Gaussians are moved or added at this step."""
        return self.refine_start_iter < step < self.refine_stop_iter and step % self.refine_every == 0

    def step_pre_backward(
        self, params: Parameters, optimizers: Optimizers, state: State, step: int, info: dict[str, Any]
    ) -> None:
        """Nothing to do before the loss is differentiated."""

    @torch.no_grad()
    def step_post_backward(
        self,
        params: Parameters,
        optimizers: Optimizers,
        state: State,
        step: int,
        info: dict[str, Any],
        lr: float,
        share: tuple[int, int] | None = None,
    ) -> None:
        """After the optimizers' step: relocates and grows when it is time, and adds noise.

        Args:
            lr: Learning rate of the means, world units.
            share: Where params are a part of the scene's rows, which one is its first and how many there are, so that
                noise is that of the whole; such a part cannot be refined.
        """
        if self.refines(step):
            n_moved = self._relocate(params, optimizers)
            n_added = self._grow(params, optimizers)
            if self.verbose:
                print(f"step {step}: {n_moved} relocated, {n_added} added, {len(params['means'])} Gaussians")
        self._add_noise(params, lr * self.noise_lr, *(share or (0, len(params["means"]))))

    def _relocate(self, params: Parameters, optimizers: Optimizers) -> int:
        opacities = params["opacities"].detach().sigmoid()
        dead = opacities <= self.min_opacity
        n, alive = int(dead.sum()), (~dead).nonzero().squeeze(1)
        if n == 0 or alive.numel() == 0:
            return 0
        chosen = alive[draw(opacities[alive], n, self.generator)]
        shared = self._shared(params, chosen)

        def moved(name: str, p: Tensor) -> Tensor:
            p = shared(name, p)
            p[dead] = p[chosen]
            return p

        def forgotten(moment: Tensor) -> Tensor:
            # Of those that moved as well: they are at another place now.
            moment[chosen] = moment[dead] = 0
            return moment

        update(params, optimizers, moved, forgotten)
        return n

    def _grow(self, params: Parameters, optimizers: Optimizers) -> int:
        n = len(params["means"])
        n_added = max(0, min(self.cap_max, int(1.05 * n)) - n)
        if n_added == 0:
            return 0
        chosen = draw(params["opacities"].detach().sigmoid(), n_added, self.generator)
        shared = self._shared(params, chosen)

        def grown(name: str, p: Tensor) -> Tensor:
            p = shared(name, p)
            return torch.cat([p, p[chosen]])

        update(params, optimizers, grown, lambda m: torch.cat([m, m.new_zeros(n_added, *m.shape[1:])]))
        return n_added

    def _shared(self, params: Parameters, chosen: Tensor) -> Any:
        """A change of parameters: each Gaussian chosen k times looks, k + 1 times in one place, as it did once."""
        copies = torch.bincount(chosen, minlength=len(params["means"]))[chosen] + 1
        opacities, scales = share(
            params["opacities"].detach()[chosen].sigmoid(), params["scales"].detach()[chosen].exp(), copies
        )
        eps = torch.finfo(opacities.dtype).eps
        new = {"opacities": opacities.clamp(self.min_opacity, 1 - eps).logit(), "scales": scales.log()}

        def change(name: str, p: Tensor) -> Tensor:
            p = p.clone()
            if name in new:
                p[chosen] = new[name]
            return p

        return change

    def _add_noise(self, params: Parameters, size: float, first: int, total: int) -> None:
        """Noise shaped by each Gaussian's covariance, for those that are nearly transparent."""
        means = params["means"]
        gate = torch.sigmoid(100 * ((1 - params["opacities"].detach().sigmoid()) - 0.995))
        drawn = normal((total, 3), means, self.generator)[first : first + len(means)]
        noise = drawn * (gate * size)[:, None]
        means.data += (covariances(params).to(noise) @ noise[..., None])[..., 0]


def share(opacities: Tensor, scales: Tensor, copies: Tensor) -> tuple[Tensor, Tensor]:
    """Opacity and scales with which so many Gaussians in one place look as one did (equation 9 of the paper).

    Args:
        opacities, scales: [N] after sigmoid, [N, 3] after exp.
        copies: [N] int64, at least 1; more than 51 are taken for 51.

    Returns:
        [N], 1 - (1 - o)^(1/k); and [N, 3], scales times o over the sum for i = 1..k, j = 0..i-1 of
        (-1)^j C(i-1, j) / sqrt(j + 1) o_new^(j+1).
    """
    copies = copies.clamp_max(COPIES_MAX)
    o = opacities.double()
    new = 1 - (1 - o) ** (1 / copies.double())
    # The sum over i of C(i-1, j) is C(k, j+1).
    binomials = torch.tensor(
        [[math.comb(k, j + 1) for j in range(COPIES_MAX)] for k in range(COPIES_MAX + 1)],
        dtype=torch.float64, device=o.device,
    )  # fmt: skip
    j = torch.arange(COPIES_MAX, device=o.device)
    signs = 1.0 - 2.0 * (j % 2)
    terms = binomials[copies] * signs / (j + 1).double().sqrt() * new[:, None] ** (j + 1)
    factor = o / terms.sum(-1)
    return new.to(opacities.dtype), (scales.double() * factor[:, None]).to(scales.dtype)
