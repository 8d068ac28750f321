"""Rendering, loss and gradients of training views."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..config import Capacities, Capacity
from ..errors import UnsupportedError
from ..precision import full_precision
from ..runtime.backend import launchers
from ..runtime.process_group import RankGroup
from ..scene.cameras import Camera
from ..scene.capture.views import View
from ..scene.gaussians import Gaussians
from ..scene.option_types import Color
from ..scene.rendered_views import kind_of_call, render_views
from ..stages.meta import released_rows
from ..stages.overflow_checks import any_overflow, deferred, max_needed
from .configuration import TYPICAL_EXTENT, Config
from .densification import Densification
from .exposure_gains import gains_of_points
from .gradient_step import GradientStep, visible_share
from .losses import Loss, loss, psnr, view_losses
from .parameters import Parameters
from .perspective_views import compares_perspective, is_whole, perspective_camera, perspective_view
from .sampling import calls_of_ranks
from .selection import DenseGradients, Selection, SummedGradients, select, union
from .update_pass import UpdatePass
from .view_corrections import ViewGains, apply_exposure
from .view_passes import ViewInputs, ViewPasses, ViewResults

GAINS_START = 0.1
"""Fraction of the run after which gains of views are estimated; before, holes of the model would look like darkness."""

SELECTION_SHARE_MAX = 0.5
"""Maximum mean fraction of the Gaussians that a view shows at which selections are used; see :mod:`.selection`."""


class ViewKind(NamedTuple):
    """Everything but tensors on which the gradients of a view depend: the key of its pass.

    Attributes:
        camera: Size, model and shutter of the camera, and which tensors it has.
        sh_degree: Degree of the spherical harmonics in use.
        estimates_gains: Whether gains are estimated from the view.
        gains_known: Whether gains were known before training.
        n_rows: Number of rows of Gaussians that the view may show; None for all.
    """

    camera: tuple[Any, ...]
    sh_degree: int
    estimates_gains: bool
    gains_known: bool
    n_rows: int | None


class ViewGradients:
    """Renders the views of a step, and adds the gradients of their losses to the parameters.

    The arguments are the trainer's: all training views, settings with ``views_per_step`` set, and the extent of the
    scene in world units.

    Attributes:
        gains: The gains of the views, or None.
        prior_scales: The last scale that fits the depth prior of each of this rank's views, by the view's name.
        received_rows: Total number of projected Gaussians that this rank received from all ranks, including itself. 0
            unless sharded.
    """

    def __init__(
        self,
        views: Sequence[View],
        parameters: Parameters,
        densification: Densification,
        gradient_step: GradientStep,
        config: Config,
        ranks: RankGroup,
        *,
        sharded: bool,
        extent: float,
        autocast: torch.dtype | None,
    ) -> None:
        self._views = views
        self._parameters = parameters
        self._densification = densification
        self._gradient_step = gradient_step
        self._config = config
        self._ranks = ranks
        self._sharded = sharded
        self._autocast = autocast
        gaussians = parameters.gaussians()
        self._device = gaussians.means.device
        self._sh_degree = gaussians.sh_degree
        self._sh_interval = min(config.sh_interval, math.ceil(config.steps / (gaussians.sh_degree + 1)))
        self._initial_degree = max(ranks.all_gather_object(used_degree(gaussians)))
        on_gpu = self._device.type == "cuda" and config.backend != "reference"
        self._capacity: Capacity = "auto" if config.capacity == "on" or (config.capacity == "auto" and on_gpu) else None
        self.prior_scales: dict[str, Tensor] = {}
        self._losses = view_losses(config, extent, gaussians.surfels, self.prior_scales)
        n = config.views_per_step
        self.gains = ViewGains(len(views), gaussians.means.detach(), n) if config.gains else None
        scale_weight = config.scale_weight * TYPICAL_EXTENT / extent
        self._regularization = {"opacities": config.opacity_weight, "scales": scale_weight}
        self.received_rows = 0
        no_passes, no_graphs = self._no_passes_reason(), self._no_graphs_reason()
        if config.graph == "on" and (no_graphs or no_passes):
            raise UnsupportedError(f"graph: not implemented {no_graphs or no_passes}; use auto or off")
        uses_graphs = config.graph != "off" and not no_graphs
        self._passes = None
        if not no_passes:
            make_update = functools.partial(UpdatePass, parameters, gradient_step, densification, self.gains)
            self._passes = ViewPasses(self._differentiate, make_update, uses_graphs=uses_graphs, keeps_results=n == 1)
        self._dense_gradients = DenseGradients(parameters)
        self._selects_rows = not self._no_selection_reason(gaussians)

    def find_gains(self) -> None:
        """Estimates gains from sparse points before training, unless they were restored. A collective call."""
        if self.gains is None or self.gains.known:
            return
        logs = self._ranks.all_gather_object(gains_of_points(self._views) if self._ranks.is_main else None)[0]
        if logs is not None:
            self.gains.set_known(logs)

    def compute(
        self, step: int, views: Sequence[int], backgrounds: Sequence[Color], n_gaussians: int
    ) -> tuple[Tensor, list[dict[str, Any]]]:
        """Renders this rank's views and computes the gradients of their losses and of the regularization.

        `views` are the indices of the views of all ranks, `backgrounds` RGB in [0, 1] of each, and `n_gaussians` is the
        number of Gaussians of all ranks. Returns the sums of loss and PSNR over this rank's views, [2], and the
        ``meta`` of each rendering.
        """
        if self._passes is not None:
            return self._compute_by_passes(self._passes, step, views, backgrounds)
        selection = self._select_of_shard(step, views) if self._selects_rows else None
        metrics, metas = self._compute(step, views, backgrounds, selection)
        if selection is None:
            self._regularize(n_gaussians, self._parameters.params, self._regularized_gradients())
        else:
            self._store_sums(selection.rows, selection.gradients(), n_gaussians)
        return metrics, metas

    @property
    def _reads_rendering(self) -> bool:
        """Returns whether the strategy reads ``meta`` of renderings."""
        strategy = self._densification.strategy
        return strategy is not None and strategy.reads_rendering

    def update_pass(self, *, adds_noise: bool) -> UpdatePass | None:
        """Returns the pass that updates the parameters with the last gradients; None if these are not from one pass."""
        if self._passes is None or self._config.views_per_step > 1:
            return None
        return self._passes.update_pass(adds_noise=adds_noise)

    def _select(self, camera: Camera) -> Tensor | None:
        """Returns the rows of the Gaussians that a camera may see; None for all. See :func:`.selection.select`."""
        return select(self._parameters.gaussians(detached=True), camera) if self._selects_rows else None

    def _select_of_shard(self, step: int, views: Sequence[int]) -> Selection | None:
        """Selects the Gaussians of this rank that the views of any rank may show; None for all.

        Other ranks may have selections of other sizes, or none.
        """
        cameras = self._cameras_for_step(step, views)
        n = len(self._parameters.params["means"])
        rows = union([self._select(camera) for camera in cameras], n)
        if rows is None or len(rows) > SELECTION_SHARE_MAX * n:
            return None
        n_calls = len(list(self._calls_of_ranks(step, views)))
        rows = rows if len(rows) else rows.new_zeros(1)
        renders_once = n_calls == 1 and self._capacity is None  # otherwise, views may be rendered again
        return Selection(self._parameters, rows, renders_once=renders_once, refills=True)

    def _calls_of_ranks(self, step: int, views: Sequence[int]) -> Iterator[tuple[int, bool]]:
        """Yields the calls that render the views of a step; see :func:`.sampling.calls_of_ranks`."""
        kinds: list[object] = [None] * len(views)
        if self._sharded:
            kinds = [kind_of_call(camera) for camera in self._cameras_for_step(step, views)]
        return calls_of_ranks(kinds, self._ranks)

    def _compute(
        self,
        step: int,
        views: Sequence[int],
        backgrounds: Sequence[Color],
        selection: Selection | None,
    ) -> tuple[Tensor, list[dict[str, Any]]]:
        """Computes :meth:`compute` by rasterization calls, without regularization.

        The gradients of a selection of a shard are those of its parameters. If lists exceed their capacity, the views
        are rendered again without a capacity.
        """
        with deferred() as calls:  # a GPU computes the backward pass while Python waits for the forward pass
            results = self._accumulate(step, views, backgrounds, self._capacity, selection)
        if self._capacity is None or not any(self._ranks.any([any_overflow(calls)], self._device)):
            return results
        self._parameters.clear_gradients()
        if selection is not None:
            selection.clear_gradients()
        if self.gains is not None:
            self.gains.discard()
        return self._accumulate(step, views, backgrounds, None, selection)

    def _compute_by_passes(
        self, passes: ViewPasses, step: int, views: Sequence[int], backgrounds: Sequence[Color]
    ) -> tuple[Tensor, list[dict[str, Any]]]:
        """Computes :meth:`compute` one view after the other, by passes where there are any."""
        cameras = self._cameras_for_step(step, views)
        selections = [self._select(camera) for camera in cameras]
        n_gaussians = len(self._parameters.params["means"])
        if len(views) == 1:
            results = self._view_results(passes, step, views[0], cameras[0], backgrounds[0], selections[0])
            gradients = dict(zip(self._parameters.params, results.gradients, strict=True))
            self._store_gradients(results.rows, gradients, n_gaussians)
            return results.metrics, [{"n_cameras": 1}]
        sums = SummedGradients(self._parameters, selections)
        metrics = []
        for index, camera, background, rows in zip(views, cameras, backgrounds, sums.selections, strict=True):
            results = self._view_results(passes, step, index, camera, background, rows)
            sums.add(rows, results.gradients)
            metrics.append(results.metrics.clone())  # the next view may write to the same memory
        self._store_sums(sums.rows, sums.gradients, n_gaussians)
        return torch.stack(metrics).sum(0), [{"n_cameras": 1}] * len(views)

    def _view_results(
        self, passes: ViewPasses, step: int, index: int, camera: Camera, background: Color, rows: Tensor | None
    ) -> ViewResults:
        """Computes the gradients of a view by a pass. The first view of a kind is computed by a rasterization call, and
        again without a capacity if its lists exceed it."""
        kind = self._view_kind(step, camera, rows)
        inputs = functools.partial(self._view_inputs, step, index, camera, background, rows)
        state = [*self._parameters.params.values(), *([] if self.gains is None else [self.gains.logs])]
        results = passes.results(kind, inputs, state)
        if results is None:
            results = self._differentiate(kind, inputs(), self._capacity)
            if results.needed[-1]:
                results = self._differentiate(kind, inputs(), None)
            passes.add_kind(kind, Capacities(*results.needed[:-1].tolist()))
        self._add_gain_change(index, results.gain_change)
        return results

    def _regularized_gradients(self) -> dict[str, Tensor]:
        """Returns the gradients of parameters to which :meth:`_regularize` adds."""
        return {name: self._parameters.gradient(name) for name, weight in self._regularization.items() if weight}

    def _regularize(
        self, n_gaussians: int, params: Mapping[str, Tensor], gradients: Mapping[str, Tensor | None]
    ) -> None:
        """Adds the gradients of the weighted mean opacity and mean scale, over the Gaussians of all ranks."""
        if not any(self._regularization.values()):
            return
        # Gradients of replicated Gaussians are summed over ranks later.
        factor = self._gradient_step.scaler.get_scale() / n_gaussians / (1 if self._sharded else self._ranks.world_size)
        weights = self._regularization
        launchers(self._device, self._config.backend).mcmc_regularization(
            *[params[name].detach() for name in weights],
            *[gradients[name] if weight else None for name, weight in weights.items()],
            factor * weights["opacities"],
            factor * weights["scales"] / 3,
        )

    def release_memory(self) -> None:
        """Releases memory that is kept between steps. The next step allocates it again."""
        if self._passes is not None:
            self._passes.release()
        self._dense_gradients.release()

    def _accumulate(
        self,
        step: int,
        views: Sequence[int],
        backgrounds: Sequence[Color],
        capacity: Capacity,
        selection: Selection | None,
    ) -> tuple[Tensor, list[dict[str, Any]]]:
        """Renders this rank's views and adds the gradients of their losses. Returns as :meth:`compute`.

        If Gaussians are sharded, the ranks render together; see :func:`calls_of_ranks`.
        """
        metrics, metas = [self._parameters.params["means"].new_zeros(2)], []
        for i, is_own in self._calls_of_ranks(step, views):
            if is_own:
                view_metrics, meta = self._forward_backward(step, views[i], backgrounds[i], capacity, selection)
                metrics.append(view_metrics)
            else:
                meta = self._render_for_others(step, views[i], capacity, selection)
            metas.append(meta)
        return torch.stack(metrics).sum(0), metas

    def _forward_backward(
        self, step: int, index: int, background: Color, capacity: Capacity, selection: Selection | None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Renders a view and adds the gradients of its loss. Returns loss and PSNR, [2], and ``meta``."""
        camera = self._corrected_camera(step, index)
        view = self._view_for_step(step, index, camera)
        losses = self._active_losses(step)
        with self._autocasting():
            gaussians = (selection or self._parameters).gaussians()
            images, alphas, meta = self._render(
                gaussians, camera, background, capacity, self._sh_degree_at(step), losses
            )
            target = view.pixels
            image, image_loss, gain_change = self._photometric_loss(
                index, images, target, view.mask, estimates_gains=self._estimates_gains(step)
            )
            total = image_loss + sum((term(images, alphas, meta, view) for term in losses), 0.0)
        self._densification.before_backward(step, meta)
        meta = self._entries_kept(meta)
        self._add_gain_change(index, gain_change)
        self._gradient_step.backward(total / self._config.views_per_step)
        return _loss_and_psnr(image_loss, image, target), meta

    def _add_gain_change(self, index: int, gain_change: Tensor | None) -> None:
        if gain_change is not None:
            assert self.gains is not None
            self.gains.add_change(index, gain_change)

    def _photometric_loss(
        self, index: int | Tensor, images: Tensor, target: Tensor, mask: Tensor | None, *, estimates_gains: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Applies the color corrections of a view to its rendering [1, H, W, D], and computes the loss of colors.

        Returns the corrected image [H, W, 3], the loss [], and the change of the gains, [3], or None.
        """
        image, gain_change = images[0, ..., :3], None
        if self.gains is not None:
            if estimates_gains:
                gain_change = self.gains.estimate(index, image.detach(), target, mask)
            image = self.gains.apply(index, image)
        if self._config.exposure:
            image = apply_exposure(image, self._parameters.params["exposures"][index])
        if mask is not None:
            image = torch.where(mask[..., None], image, target)
        return image, loss(image, target), gain_change

    def _render_for_others(
        self, step: int, index: int, capacity: Capacity, selection: Selection | None
    ) -> dict[str, Any]:
        """Joins a collective render without a view of its own, as other ranks' cameras may see this rank's Gaussians.

        `index` is one of the views that the other ranks render, which all have the same size and camera model. Returns
        ``meta``. It has the other ranks' cameras if the scene is sharded, and no cameras otherwise.
        """
        camera = self._corrected_camera(step, index)
        with self._autocasting():
            images, _, meta = self._render(
                (selection or self._parameters).gaussians(),
                camera,
                self._config.backdrop,
                capacity,
                self._sh_degree_at(step),
                self._active_losses(step),
                n_cameras=0,
            )
        self._densification.before_backward(step, meta)
        meta = self._entries_kept(meta)
        self._gradient_step.backward(images.sum())
        return meta

    def _entries_kept(self, meta: dict[str, Any]) -> dict[str, Any]:
        """Returns what is read of ``meta`` after the backward pass. The others keep the memory of the call alive."""
        return meta if self._reads_rendering else {"n_cameras": meta["n_cameras"]}

    def _render(
        self,
        gaussians: Gaussians,
        camera: Camera,
        background: Color | Tensor,
        capacity: Capacity,
        sh_degree: int,
        losses: Sequence[Loss] = (),
        *,
        n_cameras: int | None = None,
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Renders a view, [1, H, W, D], or joins a collective render without a camera, [0, H, W, D].

        Depth is rendered if one of the additional `losses` needs it. Returns as :func:`render_views`.
        """
        strategy = self._densification.strategy
        with released_rows():
            images, alphas, meta = render_views(
                gaussians,
                [camera],
                n_cameras=n_cameras,
                background=background,
                sh_degree=sh_degree,
                render_mode="RGB+ED" if any(term.needs_depth for term in losses) else "RGB",
                absgrad=strategy is not None and strategy.absgrad,
                # A rank projects its Gaussians on the cameras of all ranks; a packed call only keeps what they show.
                packed=self._sharded and not self._reads_rendering,
                group=self._ranks.group if self._sharded else None,
                backend=self._config.backend,
                capacity=capacity,
            )
        if self._sharded:
            self.received_rows += len(meta["received"]["camera_ids"])
        return images, alphas, meta

    def _view_for_step(self, step: int, index: int, camera: Camera) -> View:
        """Returns the view to compare with: the training view, or a perspective view of its panorama."""
        view = self._views[index]
        return perspective_view(view, step, camera) if self._is_perspective(step, index) else view

    def _corrected_camera(self, step: int, index: int) -> Camera:
        """Returns the camera to render, with the learned motion and lens of its view."""
        with full_precision():
            return self._camera_for_step(step, index, self._parameters.camera_of(index, self._views[index].camera))

    def _cameras_for_step(self, step: int, views: Sequence[int]) -> list[Camera]:
        """Returns the cameras of training views, or of the perspective views that a step trains on."""
        return [self._camera_for_step(step, index, self._views[index].camera) for index in views]

    def _camera_for_step(self, step: int, index: int, camera: Camera) -> Camera:
        """Returns the given camera, or that of a perspective view if the step trains on one."""
        return perspective_camera(camera, step) if self._is_perspective(step, index) else camera

    def _is_perspective(self, step: int, index: int) -> bool:
        """Returns whether a step trains on a perspective view in place of the panorama."""
        return compares_perspective(self._views[index].camera, step, self._config.perspective_share)

    def _sh_degree_at(self, step: int) -> int:
        return min(self._sh_degree, max(self._initial_degree, step // self._sh_interval))

    def _active_losses(self, step: int) -> list[Loss]:
        """Returns the additional losses that have started by a step."""
        return [term for term in self._losses if step / self._config.steps >= term.start]

    def _estimates_gains(self, step: int) -> bool:
        return self.gains is not None and not self.gains.known and step >= GAINS_START * self._config.steps

    def _autocasting(self) -> torch.autocast:
        return torch.autocast(self._device.type, self._autocast, enabled=self._autocast is not None)

    # --- passes

    def _no_passes_reason(self) -> str:
        """Returns why gradients cannot be computed by passes, as the end of a sentence; empty if they can."""
        config = self._config
        if self._ranks.world_size > 1 or (config.views_per_step > 1 and self._device.type != "cpu"):
            return "for several views in a step"
        return self._no_kinds_reason()

    def _no_kinds_reason(self) -> str:
        """Returns why gradients of a view depend on more than its kind and the Gaussians, as the end of a sentence."""
        config = self._config
        if config.backend not in ("auto", "triton") or self._autocast is torch.float16:
            return "with another backend than Triton, or fp16"
        if config.strategy is not None and config.strategy.reads_rendering:
            return f"with {type(config.strategy).__name__}, which reads what was rendered"
        learned = [name for name in ("pose_refinement", "lens_refinement", "exposure") if getattr(config, name)]
        if learned or self._losses:
            return f"with {learned[0] if learned else 'losses of depths and normals'}"
        panoramas = [view.camera for view in self._views if view.camera.is_panorama]
        if self._config.perspective_share and not all(map(is_whole, panoramas)):
            return "for perspective views of parts of panoramas"
        return "for views with masks" if any(view.mask is not None for view in self._views) else ""

    def _no_graphs_reason(self) -> str:
        """Returns why CUDA graphs cannot replay passes, as the end of a sentence; empty if they can."""
        if self._device.type != "cuda":
            return f"on {self._device.type}"
        return "with capacity off" if self._capacity is None else ""

    def _no_selection_reason(self, gaussians: Gaussians) -> str:
        """Returns why selections are not used; empty if they are."""
        if self._device.type != "cpu" or (self._no_kinds_reason() if self._sharded else self._passes is None):
            return "without passes, or on a GPU, where counting selected Gaussians would synchronize"
        if gaussians.surfels or self._config.clip_gradients:
            return "for 2D Gaussians, or if gradients are clipped by their norm, which would be summed in another order"
        share = visible_share(gaussians.means, [view.camera for view in self._views], self._ranks)
        return "where views show most of the scene" if share > SELECTION_SHARE_MAX else ""

    def _view_kind(self, step: int, camera: Camera, rows: Tensor | None) -> ViewKind:
        camera_kind = (camera.width, camera.height, camera.model, camera.readout, camera.near, *camera.tensors())
        gains_known = self.gains is not None and self.gains.known
        n_rows = None if rows is None else len(rows)
        return ViewKind(camera_kind, self._sh_degree_at(step), self._estimates_gains(step), gains_known, n_rows)

    def _view_inputs(self, step: int, index: int, camera: Camera, background: Color, rows: Tensor | None) -> ViewInputs:
        """Returns the tensors of a view on which its gradients depend."""
        pixels = self._view_for_step(step, index, camera).pixels
        index_tensor = torch.tensor([index], device=self._device, dtype=torch.int64)
        color = self._parameters.params["means"].detach().new_tensor(background)
        return ViewInputs(index_tensor, camera, pixels, color, rows)

    def _store_gradients(self, rows: Tensor | None, gradients: Mapping[str, Tensor | None], n_gaussians: int) -> None:
        """Stores gradients of `rows`, or of all Gaussians, on the parameters.

        Adds those of the regularization of `n_gaussians` to gradients of all Gaussians that come from `rows`.
        """
        params = self._parameters.params
        if rows is None:
            for name, parameter in params.items():
                parameter.grad = gradients[name]
        elif self._config.visible_adam == "on":
            self._parameters.set_row_gradients(rows, gradients)
        else:
            self._dense_gradients.update(rows, gradients, self._regularization)
            self._regularize(n_gaussians, params, self._regularized_gradients())

    def _store_sums(self, rows: Tensor | None, gradients: Mapping[str, Tensor | None], n_gaussians: int) -> None:
        """Stores gradients without regularization, and adds that of `n_gaussians`, of all ranks."""
        params = self._parameters.params
        if rows is not None and self._config.visible_adam == "on":
            of_rows = {name: params[name].detach() for name, weight in self._regularization.items() if weight}
            of_rows = {name: tensor.index_select(0, rows) for name, tensor in of_rows.items()}
            self._regularize(n_gaussians, params | of_rows, gradients)
        self._store_gradients(rows, gradients, n_gaussians)
        if rows is None:
            self._regularize(n_gaussians, params, self._regularized_gradients())

    def _differentiate(self, kind: ViewKind, inputs: ViewInputs, capacity: Capacity) -> ViewResults:
        """Renders a view and computes the gradients of its loss.

        Does not wait for the device if `capacity` is a capacity per list, as in passes.
        """
        parameters: Parameters | Selection = self._parameters
        if inputs.rows is not None:
            parameters = Selection(self._parameters, inputs.rows, renders_once=True, refills=False)
        params = parameters.params
        n_views = self._config.views_per_step
        with self._autocasting(), deferred() as calls:
            images, _, meta = self._render(
                parameters.gaussians(), inputs.camera, inputs.background, capacity, kind.sh_degree
            )
            image, image_loss, gain_change = self._photometric_loss(
                inputs.index, images, inputs.pixels, None, estimates_gains=kind.estimates_gains
            )
        # Adam's kernel reads contiguous gradients.
        gradients = [
            None if gradient is None else gradient.contiguous()
            for gradient in torch.autograd.grad(image_loss / n_views, [*params.values()], allow_unused=True)
        ]
        if n_views == 1 and (inputs.rows is None or self._config.visible_adam == "on"):
            self._regularize(len(self._parameters.params["means"]), params, dict(zip(params, gradients)))
        if isinstance(capacity, Capacities):
            needed = meta.source.intersections.whole.needed  # type: ignore[attr-defined]
        else:
            counted = max_needed(calls) if calls else Capacities.of_lists(meta["memory"]["n_intersections"])
            needed = torch.tensor([*counted, any_overflow(calls)], dtype=torch.int64, device="cpu")
        rows = None if inputs.rows is None else inputs.rows.clone()
        metrics = _loss_and_psnr(image_loss, image, inputs.pixels)
        return ViewResults(metrics, needed, gain_change, rows, gradients)


def _loss_and_psnr(image_loss: Tensor, image: Tensor, target: Tensor) -> Tensor:
    """Returns loss and PSNR, [2], without gradients."""
    return torch.stack([image_loss.detach(), psnr(image.detach().clamp(0, 1), target)])


def used_degree(gaussians: Gaussians) -> int:
    """Returns the highest degree of spherical harmonics with a coefficient that is not zero."""
    used = [
        degree
        for degree in range(1, gaussians.sh_degree + 1)
        if gaussians.shN[:, degree**2 - 1 : (degree + 1) ** 2 - 1].any()
    ]
    return max(used, default=0)
