"""Densification during training: applies a strategy to the Gaussians, within the free memory of all ranks."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..ops.adam import MOMENTS
from ..runtime.memory import FREE_SHARE, free_memory
from ..runtime.process_group import RankGroup
from ..scene.capture.views import View
from ..strategies import Strategy
from ..strategies.random_numbers import draw_key
from ..strategies.sharding import Shard, count
from .configuration import TYPICAL_EXTENT, Config
from .parameters import Parameters
from .rng_state import generator_state, set_generator_state

STEP_COPIES = 2
"""Memory per Gaussian of a step, besides parameters and moments, in copies of its parameters: gradients and rendering.
It is free during a refinement, which needs less: it moves one tensor at a time."""


class Densification:
    """Calls a copy of the configuration's strategy, which adds, moves and removes Gaussians.

    If the scene is sharded, each rank holds only its shard, and the result is that of a single process. `extent` is the
    extent of the scene, in world units.
    """

    def __init__(self, parameters: Parameters, config: Config, extent: float, ranks: RankGroup, sharded: bool) -> None:
        self.strategy: Strategy | None = None
        self.strategy_state: dict[str, Any] = {}
        self._parameters = parameters
        self._config = config
        self._ranks = ranks
        self._sharded = sharded
        self._extent = extent
        self._generator = torch.Generator().manual_seed(config.seed)
        if config.strategy is not None:
            self._generator = config.strategy.generator or self._generator
            self.strategy = copy.copy(config.strategy)
            self.strategy.generator = self._generator
            if sharded and "shard" not in self.strategy.arguments:
                raise UnsupportedError(
                    f"strategy: {type(self.strategy).__name__} does not take a shard of the Gaussians; use "
                    "parallel='replicate', or let its step_post_backward take `shard`"
                )
            self.strategy.check_sanity(*parameters.for_strategy())
            self.strategy_state = self.strategy.initialize_state(extent)

    def before_backward(self, step: int, meta: dict[str, Any]) -> None:
        """Passes the ``meta`` of a rendered view to the strategy, before the backward pass."""
        if self.strategy is not None:
            self.strategy.step_pre_backward(*self._parameters.for_strategy(), self.strategy_state, step, meta)

    def only_adds_noise(self, step: int) -> bool:
        """Returns whether the strategy does nothing but add noise in a step: it neither refines nor reads `meta`."""
        strategy = self.strategy
        return strategy is None or not (strategy.reads_rendering or strategy.refines(step))

    def noise_scaler(self, step: int, lr: float) -> float | None:
        """Returns the scale of a step's noise, given the learning rate of the means; None for no noise."""
        return None if self.strategy is None else self.strategy.noise_scaler(step, self._noise_rate(lr))

    def draw_key(self) -> int:
        """Draws the random key of a step's noise."""
        return draw_key(self._generator)

    @torch.no_grad()
    def add_noise(self, key: int | Tensor, scaler: float | Tensor) -> None:
        """Adds the strategy's noise, given its random key, [] int64, and its scale, [] fp64."""
        assert self.strategy is not None
        self.strategy.add_noise(self._parameters.params, key, scaler, self._config.backend)

    def _noise_rate(self, lr: float) -> float:
        """Returns the learning rate of the means, rescaled so that noise is proportional to the scene's extent.

        The strategy multiplies the rate by a covariance, which is a squared length, but noise is a length.
        """
        return lr * (TYPICAL_EXTENT / self._extent) ** 2

    def after_update(
        self, step: int, info: dict[str, Any], lr: float, n_gaussians: int, importance: Callable[[], Tensor]
    ) -> int:
        """Calls the strategy after the optimizer step, and returns the new number of Gaussians of all ranks.

        `info` is the merged ``meta`` of the step's views, `lr` the learning rate of the means in world units, and
        `n_gaussians` the number of Gaussians of all ranks.
        """
        strategy = self.strategy
        assert strategy is not None
        refines = strategy.refines(step)
        if refines:
            self._limit_by_memory(n_gaussians)
        params, optimizers = self._parameters.for_strategy()
        shard = Shard(self._ranks, n_gaussians) if self._sharded else None
        available = {
            "lr": self._noise_rate(lr),
            "shard": shard,
            "backend": self._config.backend,
            "importance": importance,
        }
        arguments = {name: available[name] for name in strategy.arguments}
        strategy.step_post_backward(params, optimizers, self.strategy_state, step, info, **arguments)
        return count(self._ranks if self._sharded else None, len(params["means"]))[1] if refines else n_gaussians

    def _limit_by_memory(self, n_gaussians: int) -> None:
        """Limits the strategy to the number of Gaussians that fit into the memory of the rank with the least."""
        assert self.strategy is not None and self._config.strategy is not None
        kept = step = 0  # bytes per Gaussian
        for name in self._parameters.gaussian_names:
            row, moments = self._parameters.params[name][0], self._parameters.optimizers[name].moments_dtype
            kept += row.numel() * (row.itemsize + len(MOMENTS) * (moments or row.dtype).itemsize)
            step += row.numel() * row.itemsize * STEP_COPIES
        means = self._parameters.params["means"]
        device = means.device
        # Ranks on CPUs may share their memory.
        n_stepped = n_gaussians if self._sharded and device.type != "cuda" else len(means)
        n_free = max(0, int(FREE_SHARE * free_memory(device)) - n_stepped * step) // (kept + step)
        n_free = min(self._ranks.all_gather_object(n_free))
        # Shards have equal sizes.
        n_free *= self._ranks.world_size if self._sharded and device.type == "cuda" else 1
        n_max = min(self._config.max_gaussians, n_gaussians + n_free)
        self.strategy.cap_max = min(n_max, self._config.strategy.cap_max or n_max)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns the state for :meth:`restore`: the strategy's tensors as ``strategy/NAME``, and JSON values."""
        # The table of binomial coefficients is constant.
        values = {name: value for name, value in self.strategy_state.items() if name != "binoms"}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        figures = {
            "strategy": {name: value for name, value in values.items() if name not in tensors},
            "strategy_generator": generator_state(self._generator),
        }
        return {f"strategy/{name}": tensor for name, tensor in tensors.items()}, figures

    def restore(self, tensors: dict[str, Tensor], figures: dict[str, Any]) -> None:
        """Continues from a state."""
        if self.strategy is not None:
            self.strategy_state = self.strategy.initialize_state(self._extent)
        self.strategy_state.update(figures["strategy"])
        for name, tensor in tensors.items():
            if name.startswith("strategy/"):
                self.strategy_state[name.removeprefix("strategy/")] = tensor
        set_generator_state(self._generator, figures["strategy_generator"])


def merge_info(
    metas: list[dict[str, Any]],
    view: View,
    loss_scale: float,
    n_cameras: int,
    gather: Callable[[Tensor], Tensor] | None,
    key: str,
) -> dict[str, Any]:
    """Merges the ``meta`` of several rasterization calls into that of one call with all their cameras.

    This is the ``info`` that strategies receive for a step whose views were rendered one at a time. Calls are unpacked.
    `key` is the strategy's ``key_for_gradient``: gradients of this entry are divided by `loss_scale` and converted to
    pixels of `view`. Radii are scaled by the longer side of `view` over that of each image. `n_cameras` is the number
    of cameras of all ranks; `gather` concatenates [C, N, ...] over ranks, and is None if this rank has all cameras.
    """
    first = metas[0]
    if gather is None and n_cameras == 1 and loss_scale == 1:
        return first if first["n_cameras"] == 1 else {**first, "n_cameras": 1}
    size, longest = first[key].new_tensor([view.width, view.height]), max(view.width, view.height)

    def concatenate(tensors: list[Tensor]) -> Tensor:
        tensor = torch.cat(tensors)
        return tensor if gather is None else gather(tensor)

    def gradients(name: str) -> Tensor | None:
        per_call = [getattr(meta[key], name, None) for meta in metas]
        if any(gradient is None for gradient in per_call):
            return None
        if loss_scale != 1:
            # Values that overflow because of the scale carry no information; the scaler skips such a step.
            per_call = [gradient.nan_to_num(0.0, 0.0, 0.0) for gradient in per_call if gradient is not None]
        sizes = [size.new_tensor([meta["width"], meta["height"]]) for meta in metas]
        return concatenate([g * (s / size) / loss_scale for g, s in zip(per_call, sizes, strict=True)])

    centers = concatenate([meta[key].detach() for meta in metas])
    if first[key].retains_grad or first[key].is_leaf:
        centers.grad = gradients("grad")
    if getattr(first[key], "absgrad", None) is not None:
        setattr(centers, "absgrad", gradients("absgrad"))  # noqa: B010 - not an attribute of Tensor's type
    return {
        **first,
        key: centers,
        "radii": concatenate([meta["radii"] * (longest / max(meta["width"], meta["height"])) for meta in metas]),
        "n_cameras": n_cameras,
        "width": view.width,
        "height": view.height,
    }
