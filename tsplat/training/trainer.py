"""The trainer: fits Gaussians to views with known cameras, one step at a time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, UnsupportedError
from ..precision import full_precision
from ..runtime.modes import restored_modes
from ..runtime.process_group import RankGroup
from ..runtime.spare_rows import without_spare_rows
from ..scene.capture.image_cache import ImageCache
from ..scene.capture.views import StoredView, View
from ..scene.editing.importance import removal_errors
from ..scene.extents import camera_positions, median_depth, scene_scale
from ..scene.formats.checkpoints import has_rows
from ..scene.gaussians import Gaussians
from ..scene.option_types import Color
from ..scene.rendered_views import kind_of_call
from ..strategies.sharding import count
from ..support.interruption import DeferredSignals
from .configuration import Config
from .densification import Densification, merge_info
from .gradient_step import CHECK_INTERVAL, GradientStep, autocast_dtype, resolve_visible_adam
from .near_planes import views_with_near_planes
from .observers import DivergedError, Observer, Progress
from .parameters import Parameters, check_geometry, rows_of_rank
from .rng_state import generator_state, set_generator_state
from .sampling import ViewSampler
from .view_gradients import ViewGradients

PREFETCH_STEPS = 8
"""Number of steps for which images are prefetched."""

SHARE_MARGIN = 17 / 16
"""Number of Gaussians that a rank may have before they are resharded, relative to its share."""

REMOVAL_VIEWS = 30
"""Number of views, at most, with which the strategy finds which Gaussians to remove."""


class Trainer:
    """Trains Gaussians on views with Adam, while a strategy adds and removes Gaussians.

    The loss is 0.8 L1 + 0.2 (1 - SSIM), plus the terms whose weights in `config` are positive.

    Views come in random permutations, so that each comes once before any comes again. On one device and PyTorch build,
    equal arguments give bit-identical results, also when training is interrupted and resumed with :meth:`state` and
    :meth:`restore`; on a GPU, PyTorch's own operations need deterministic algorithms for that. The caller's grad mode,
    inference mode and autocast state do not matter. A trainer of one rank can be copied and pickled; copies have no
    observers.

    Args:
        gaussians: All initial Gaussians or, if `is_shard`, the shard that this rank holds; not modified.
        views: All training views, on the Gaussians' device.
        config: Settings of training.
        ranks: The ranks that train together, all called with equal arguments. Each renders its share of a step's views.
            Depending on ``config.parallel``, it holds a shard of the Gaussians or all of them.
        observers: Called before and after each step.
        is_shard: See `gaussians`.
        extent: Extent of the scene, in world units; None to compute it from the cameras and the Gaussians.

    Attributes:
        config: The settings, with ``views_per_step`` set.
        ranks: The ranks that train together.
        sharded: Whether this rank holds only a shard of the Gaussians.
        step: Number of steps taken.
        n_gaussians: Number of Gaussians of all ranks.
        device: Device of the Gaussians.
        extent: Extent of the scene, in world units, see :func:`scene_extent`.
        observers: The observers; more can be appended.

    Raises:
        ArgumentError: There are no Gaussians or no views, or a setting does not apply to 2D or to 3D Gaussians.
        UnsupportedError: fp16 with a sharded scene, or an observer that does not support several ranks.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        gaussians: Gaussians,
        views: Sequence[View],
        config: Config,
        ranks: RankGroup | None = None,
        observers: Sequence[Observer] = (),
        *,
        is_shard: bool = False,
        extent: float | None = None,
    ) -> None:
        self.ranks = ranks = ranks or RankGroup()
        self.sharded = ranks.world_size > 1 and config.parallel == "shard"
        is_shard &= self.sharded
        n = count(ranks if is_shard else None, len(gaussians))[1]
        if not n or not views:
            raise ArgumentError(
                f"training: expected at least one Gaussian and one view, found {n:,} Gaussians and {len(views):,} views"
            )
        views = tuple(views)  # a copy, as the caller may change the list
        check_geometry(gaussians, views, config)
        self.observers = list(observers)
        for observer in observers:
            observer.check_ranks(ranks.world_size)
        self.config = config = dataclasses.replace(
            config,
            views_per_step=config.views_per_step or ranks.world_size,
            visible_adam=resolve_visible_adam(config.visible_adam, gaussians.means, views, ranks),
        )
        self.device = gaussians.means.device
        autocast = autocast_dtype(config.precision, self.device)
        if self.sharded and autocast is torch.float16:
            raise UnsupportedError("precision: fp16 is not implemented for shards; use bf16 or parallel='replicate'")
        self.step = 0
        self.n_gaussians = n
        self._cache = views[0].source.cache if isinstance(views[0], StoredView) else None
        shard = gaussians if is_shard else gaussians.select(rows_of_rank(config, ranks)(n))
        self._views = views = views_with_near_planes(views, shard, ranks)
        self.extent = self._find_extent(views, shard) if extent is None else extent
        n_expected = expected_count(config, n)
        self._parameters = Parameters(
            shard,
            views,
            self.extent,
            config,
            math.ceil(SHARE_MARGIN * n_expected / ranks.world_size) if self.sharded else math.ceil(n_expected),
        )
        self._densification = Densification(self._parameters, config, self.extent, ranks, self.sharded)
        self._gradient_step = GradientStep(
            self._parameters,
            ranks,
            sharded=self.sharded,
            clip=config.clip_gradients,
            visible_only=config.visible_adam == "on",
            autocast=autocast,
        )
        self._view_gradients = ViewGradients(
            views,
            self._parameters,
            self._densification,
            self._gradient_step,
            config,
            ranks,
            sharded=self.sharded,
            extent=self.extent,
            autocast=autocast,
        )
        self._gains = self._view_gradients.gains
        self._sampler = ViewSampler(len(views), config.seed)
        self._background_generator = torch.Generator().manual_seed(config.seed)

    def __repr__(self) -> str:
        progress = f"step {self.step:,} of {self.config.steps:,}"
        return f"Trainer({progress}, {self.n_gaussians:,} Gaussians, {len(self._views):,} views, {self.device})"

    @property
    def received_rows(self) -> int:
        """Total number of projected Gaussians that this rank received from all ranks, including itself. 0 unless
        sharded."""
        return self._view_gradients.received_rows

    @property
    def gaussians(self) -> Gaussians:
        """This rank's current Gaussians, detached; later steps change them in place."""
        return self._parameters.gaussians(detached=True)

    @property
    def lens_changes(self) -> Tensor | None:
        """Learned change of the coefficients of each lens, [n, 4]; None without `lens_refinement`."""
        changes = self._parameters.params.get("lenses")
        return None if changes is None else changes.detach()

    @property
    def prior_scales(self) -> dict[str, Tensor]:
        """The last scale fitted to the depth prior of each of this rank's views, by the view's name."""
        return self._view_gradients.prior_scales

    def known_gains(self, views: Sequence[View]) -> Tensor | None:
        """Returns the gains of held-out views, [V, 3]; None unless gains were estimated from sparse points."""
        return None if self._gains is None else self._gains.of_held_out(self._views, views)

    def with_lenses(self, views: Sequence[View]) -> Sequence[View]:
        """Returns views, training or held-out, with the learned lenses of their cameras."""
        lenses = self._parameters.params.get("lenses")
        return views if lenses is None else self._parameters.lenses.apply_to_views(views, lenses)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.ranks.world_size > 1:
            raise UnsupportedError(
                f"trainer: copying one of {self.ranks.world_size} ranks is not implemented; use state() and restore()"
            )
        tensors, figures = self.state()
        tensors = {name: without_spare_rows(tensor) for name, tensor in tensors.items()}
        gaussians = self.gaussians.map(without_spare_rows)
        return _restored, (gaussians, self._views, self.config, self.extent, tensors, figures)

    def advance(self) -> Progress:
        """Takes one step, and notifies the observers before and after it.

        Ctrl-C, and other signals with a Python handler, are handled after the step, so that training can continue.

        Raises:
            Interrupted: An observer ended training; no step was taken.
            DivergedError: The loss, the gradients or the Gaussians are no longer finite.
            ArgumentError: See :func:`tsplat.rasterization`.
        """
        for observer in self.observers:
            observer.before_step(self.step, self.gaussians)
        if self.step == 0:  # a restored state contains the gains
            with restored_modes(), torch.inference_mode(False):
                self._view_gradients.find_gains()
        with DeferredSignals(), restored_modes(), torch.inference_mode(False), full_precision():
            progress = self._take_step()
        for observer in self.observers:
            observer.after_step(progress)
        return progress

    def _take_step(self) -> Progress:
        config = self.config
        means_lr = self._parameters.set_rates(self.step)
        # All ranks draw the views and backgrounds of the whole step.
        draws = [(self._sampler.next(), self._draw_background()) for _ in range(config.views_per_step)]
        views, backgrounds = zip(*(self._grouped_by_camera(draws) if self.sharded else draws), strict=True)
        if self._cache is not None:
            self._prefetch(self._cache, views)
        metrics, metas = self._view_gradients.compute(self.step, views, backgrounds, self.n_gaussians)
        warning = self._gradient_step.sum_and_check(self.step)
        if warning is not None or not self._update_with_pass(means_lr):
            self._update(metas, self._views[views[0]], means_lr, skipped=warning is not None)
        self._parameters.limit_needles(self.step)
        gaussians = self.gaussians
        mean_loss, mean_psnr = (self.ranks.all_reduce(metrics) / config.views_per_step).unbind()
        if self.step % CHECK_INTERVAL == 0:
            self._check_finite(gaussians, mean_loss)
        self.step += 1
        return Progress(
            self.step,
            config.steps,
            loss=mean_loss,
            psnr=mean_psnr,
            gaussians=gaussians,
            n_gaussians=self.n_gaussians,
            warning=warning,
            waited=None if self._cache is None else self._cache.waited,
        )

    def _update_with_pass(self, means_lr: float) -> bool:
        """Updates the parameters by replaying a pass. Returns False if there is no pass for this step."""
        if not self._densification.only_adds_noise(self.step):
            return False
        scaler = self._densification.noise_scaler(self.step, means_lr)
        # On a CPU, noise is drawn only for Gaussians that it may move. Their number varies, so it cannot be in a pass.
        in_pass = scaler is not None and self._parameters.params["means"].is_cuda
        update = self._view_gradients.update_pass(adds_noise=in_pass)
        if update is None:
            return False
        update.step(scaler if in_pass else None)
        if scaler is not None and not in_pass:
            self._densification.add_noise(self._densification.draw_key(), scaler)
        self._parameters.clear_gradients()
        return True

    def _update(self, metas: list[dict[str, Any]], view: View, means_lr: float, *, skipped: bool) -> None:
        """Updates the parameters with their gradients, unless the step is skipped, and calls the strategy."""
        loss_scale = self._gradient_step.scaler.get_scale()
        if not skipped:
            self._gradient_step.update()
        self._parameters.clear_gradients()
        self._parameters.center_exposures()
        if self._gains is not None:
            self._gains.update(self.ranks)
        strategy = self._densification.strategy
        if strategy is not None and not skipped:
            gather = None if self.sharded or self.ranks.world_size == 1 else self.ranks.all_gather
            if strategy.refines(self.step):
                self._view_gradients.release_memory()
            n_cameras = self.config.views_per_step
            info: dict[str, Any] = {"n_cameras": n_cameras}
            if strategy.reads_rendering:
                info = merge_info(metas, view, loss_scale, n_cameras, gather, strategy.key_for_gradient)
            self.n_gaussians = self._densification.after_update(
                self.step, info, means_lr, self.n_gaussians, self._removal_errors
            )
        self._parameters.reset_third_scales()

    def _removal_errors(self) -> Tensor:
        """Returns by how much training images change without each Gaussian, [N], as squared errors summed over views.

        A collective call, which renders up to :data:`REMOVAL_VIEWS` views, others in other steps. Gaussians must not be
        sharded.
        """
        n, n_views = len(self._views), min(len(self._views), REMOVAL_VIEWS)
        indices = [(self.step + i * n // n_views) % n for i in range(n_views)]
        own = indices[self.ranks.rank :: self.ranks.world_size]
        errors = removal_errors(
            self.gaussians,
            [self._parameters.camera_of(index, self._views[index].camera).map(torch.detach) for index in own],
            [self._views[index].mask for index in own],
            backend=self.config.backend,
            generator=torch.Generator().manual_seed(self.config.seed + self.step),
        )
        return self.ranks.all_reduce(errors)

    def _find_extent(self, views: Sequence[View], shard: Gaussians) -> float:
        depth = median_depth([view.camera for view in views], shard.means)
        return scene_extent(views, sorted(self.ranks.all_gather_object(depth))[self.ranks.world_size // 2])

    def _grouped_by_camera(self, draws: list[tuple[int, Color]]) -> list[tuple[int, Color]]:
        """Reorders the views and backgrounds of a step, so that views that one call can render are adjacent."""
        groups: dict[object, list[tuple[int, Color]]] = {}
        for index, background in draws:
            groups.setdefault(kind_of_call(self._views[index].camera), []).append((index, background))
        return [draw for group in groups.values() for draw in group]

    def _prefetch(self, cache: ImageCache, views: Sequence[int]) -> None:
        """Starts reading the images that this rank renders in this step and the next ones."""
        indices = [*views, *self._sampler.upcoming(PREFETCH_STEPS * len(views))]
        own_views = [self._views[index] for index in indices[self.ranks.rank :: self.ranks.world_size]]
        cache.prefetch(view.source for view in own_views if isinstance(view, StoredView))

    def _draw_background(self) -> Color:
        if not self.config.random_background:
            return self.config.backdrop
        r, g, b = torch.rand(3, generator=self._background_generator, dtype=torch.float32, device="cpu").tolist()
        return r, g, b

    def _check_finite(self, gaussians: Gaussians, mean_loss: Tensor) -> None:
        # Non-finite Gaussians are not rendered, so the loss alone does not reveal them.
        n_invalid = int(self.ranks.all_reduce((~gaussians.valid).sum()))
        if n_invalid or not math.isfinite(float(mean_loss)):
            raise DivergedError(
                f"training: at step {self.step} the loss is {float(mean_loss):.4g} and {n_invalid} of "
                f"{self.n_gaussians:,} Gaussians are not finite; check the learning rates and the data"
            )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns the state of training for :meth:`restore`: tensors by name, and JSON values.

        If the scene is sharded, tensors with a row per Gaussian have only this rank's rows.
        """
        tensors, adam_steps = self._parameters.state()
        strategy_tensors, strategy_figures = self._densification.state()
        if self._gains is not None:
            tensors["gains/logs"] = self._gains.logs
        figures = {
            "gains_known": self._gains is not None and self._gains.known,
            "step": self.step,
            "adam_steps": adam_steps,
            **strategy_figures,
            "sampler": self._sampler.state(),
            "backgrounds": generator_state(self._background_generator),
            **self._gradient_step.state(),
        }
        return tensors | strategy_tensors, figures

    @property
    def per_gaussian_names(self) -> frozenset[str]:
        """Names of the tensors of :meth:`state` that have a row per Gaussian."""
        n = len(self._parameters.params["means"])
        return frozenset(name for name, tensor in self.state()[0].items() if has_rows(name, tensor, n))

    @torch.inference_mode(False)
    def restore(self, tensors: dict[str, Tensor], figures: dict[str, Any], *, is_shard: bool = False) -> None:
        """Continues from the state of a trainer with the same views and configuration, on any number of ranks.

        A trainer whose last step raised an error can be restored, too.

        Args:
            tensors: The tensors of :meth:`state`, with the rows of all Gaussians or, if `is_shard`, this rank's shard.
            figures: The JSON values of :meth:`state`.
            is_shard: See `tensors`.

        Raises:
            ArgumentError: The state belongs to other views or another configuration.
        """
        self._parameters.check_names(tensors)
        self._sampler.restore(figures["sampler"])
        n = len(tensors["params/means"])
        is_shard &= self.sharded
        self.n_gaussians = count(self.ranks if is_shard else None, n)[1]
        rows = slice(None) if is_shard else rows_of_rank(self.config, self.ranks)(n)
        tensors = {
            name: (tensor[rows] if has_rows(name, tensor, n) else tensor).to(self.device).clone()
            for name, tensor in tensors.items()
        }
        self._parameters.restore(tensors, figures["adam_steps"])
        self._densification.restore(tensors, figures)
        self._gradient_step.restore(figures)
        if self._gains is not None:
            self._gains.logs.copy_(tensors["gains/logs"])
            self._gains.known = figures.get("gains_known", False)
            self._gains.discard()  # changes of a step that raised an error
        set_generator_state(self._background_generator, figures["backgrounds"])
        self.step = figures["step"]


def expected_count(config: Config, n: int) -> float:
    """Returns the expected number of Gaussians after the last refinement, for n initial ones."""
    strategy = config.strategy
    growth = None if strategy is None else strategy.expected_growth()
    cap = config.max_gaussians if strategy is None or strategy.cap_max is None else strategy.cap_max
    return max(n, min(config.max_gaussians, cap, (growth or 1.0) * n))


def _restored(
    gaussians: Gaussians,
    views: Sequence[View],
    config: Config,
    extent: float,
    tensors: dict[str, Tensor],
    figures: dict[str, Any],
) -> Trainer:
    """Returns a trainer that continues from a state."""
    trainer = Trainer(gaussians, views, config, extent=extent)
    trainer.restore(tensors, figures)
    return trainer


def scene_extent(views: Sequence[View], depth: float = 0.0) -> float:
    """Returns 1.1 times the largest distance of a camera from the mean camera position, in world units.

    Cameras that are far from the others are ignored. The extent is at least a hundredth of `depth`, the median depth of
    the scene, in case all photographs were taken from one position; if that is 0 too, it is 1e-6.
    """
    return scene_scale(camera_positions([view.camera.viewmat for view in views]), depth) or 1e-6
