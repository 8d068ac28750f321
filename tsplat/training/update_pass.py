"""The update of steps without refinement as one replayed pass: Adam, gains, noise, and flat axes of 2D Gaussians."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..passes.traced_functions import TracedFunction
from .densification import Densification
from .gradient_step import GradientStep
from .parameters import Parameters
from .view_corrections import ViewGains

Record = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes a function that launches kernels, and returns a function that replays these launches."""


class UpdatePass:
    """Updates parameters from gradients at fixed addresses. The first update is traced while it is computed.

    Learning rates, the random key and the scale of the noise change from step to step, so the pass reads them from
    memory. Writing them needs no synchronization, as each step waits for its view and thus for the previous update.

    Args:
        adds_noise: Whether the strategy adds noise.
        record: Records the launches of the pass, in a CUDA graph if graphs are used.
        scratch: Memory that the pass may use while it runs, [n] uint8; it is shared with the rendering.
    """

    def __init__(
        self,
        parameters: Parameters,
        gradient_step: GradientStep,
        densification: Densification,
        gains: ViewGains | None,
        *,
        adds_noise: bool,
        record: Record,
        scratch: Tensor,
    ) -> None:
        self._parameters = parameters
        self._gradient_step = gradient_step
        self._densification = densification
        self._gains = gains
        self._adds_noise = adds_noise
        self._record = record
        self._scratch = scratch
        self._adam_steps = [(gradient_step.repeated(group), masked) for group, masked in gradient_step.groups()]
        means = parameters.params["means"]
        # [2]: the random key, and the bits of the fp64 scale of the noise.
        self._noise_on_cpu = self._noise = torch.zeros(2, dtype=torch.int64, device="cpu", pin_memory=means.is_cuda)
        if means.is_cuda:
            self._noise = self._noise_on_cpu.to(means.device)
        self._run: Callable[[], None] | None = None

    def fits(self, *, adds_noise: bool) -> bool:
        """Returns whether the parameters, gradients and moments are still the tensors that the pass was bound to."""
        return adds_noise == self._adds_noise and all(step.is_current() for step, _ in self._adam_steps)

    def step(self, scaler: float | None) -> None:
        """Updates the parameters, given the scale of the noise."""
        for step, _ in self._adam_steps:
            step.advance()
        if scaler is not None:
            self._noise_on_cpu.numpy()[0] = self._densification.draw_key()
            self._noise_on_cpu.numpy().view(np.float64)[1] = scaler
            if self._noise is not self._noise_on_cpu:
                self._noise.copy_(self._noise_on_cpu, non_blocking=True)
        if self._run is not None:
            self._run()
            return
        tensors = [self._noise, *[tensor for step, _ in self._adam_steps for tensor in step.tensors]]
        _, run = TracedFunction(self._update, tensors).bind(tensors, self._scratch)
        self._run = self._record(run)

    @torch.no_grad()
    def _update(self) -> list[Tensor | None]:
        parameters, gradient_step = self._parameters, self._gradient_step
        gradient_step.clip()
        visible = gradient_step.visible()
        for step, masked in self._adam_steps:
            step.launch(visible if masked else None)
        if self._gains is not None:
            self._gains.update()
        if self._adds_noise:
            key, scaler = self._noise[0], self._noise[1].view(torch.float64)
            self._densification.add_noise(key, scaler)
        parameters.reset_third_scales()
        return []
