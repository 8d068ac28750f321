"""Renders a training view, and computes the loss and the gradients of all parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..config import Capacities
from ..errors import UnsupportedError
from ..precision import full_precision
from ..rendering import kind_of_call, render_views
from ..runtime.backend import launchers
from ..runtime.process_group import RankGroup
from ..scene.cameras import Camera
from ..scene.capture.views import Color, View
from ..scene.gaussians import Gaussians
from ..stages.capacity import Capacity, any_overflow, deferred, max_needed
from .configuration import TYPICAL_EXTENT, Config
from .densification import Densification
from .exposure_gains import gains_of_points
from .gradient_step import GradientStep
from .losses import Loss, loss, psnr, view_losses
from .parameters import Parameters
from .perspective_views import compares_perspective, is_whole, perspective_camera, perspective_view
from .update_pass import Capture, UpdatePass
from .view_corrections import ViewGains, apply_exposure
from .view_passes import ViewInputs, ViewPasses, ViewResults

Meta = dict[str, Any]

GAINS_START = 0.1
"""Fraction of the run after which gains of views are estimated; before, holes of the model would count as darkness."""


class ViewKind(NamedTuple):
    """Properties of a view, besides tensors, on which its gradients depend.

    Attributes:
        camera: Size, model and shutter of the camera, and which tensors it has.
        degree: Of the spherical harmonics in use.
        observes: Whether gains are estimated.
        knows: Whether gains are known.
    """

    camera: tuple[Any, ...]
    degree: int
    observes: bool
    knows: bool


class ViewGradients:
    """Renders the views of a step, and adds the gradients of their losses to the parameters.

    The arguments are those of the trainer, with all training views, ``views_per_step`` set, and the extent of the scene
    in world units.

    Attributes:
        gains: The gains of the views, or None.
        prior_scales: By the names of this rank's views, the last scale with which their priors of depth fit.
        received_rows: Number of rows of projected Gaussians that this rank received, including its own. 0 unless
            sharded.
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
        self._first_degree = max(ranks.all_gather_object(used_degree(gaussians)))
        on_gpu = self._device.type == "cuda" and config.backend != "reference"
        self._capacity: Capacity = "auto" if config.capacity == "on" or (config.capacity == "auto" and on_gpu) else None
        self.prior_scales: dict[str, Tensor] = {}
        self._losses = view_losses(config, extent, gaussians.surfels, self.prior_scales)
        n = config.views_per_step
        self.gains = ViewGains(len(views), gaussians.means.detach(), n) if config.gains else None
        scale_weight = config.scale_weight * TYPICAL_EXTENT / extent
        self._regularization = {"opacities": config.opacity_weight, "scales": scale_weight}
        self.received_rows = 0
        reason, no_graphs = self._without_passes(), self._without_graphs()
        if config.graph == "on" and (no_graphs or reason):
            raise UnsupportedError(f"graph: not implemented {no_graphs or reason}; use auto or off")
        by_graphs = config.graph != "off" and not no_graphs
        self._passes = None if reason else ViewPasses(self._differentiate, self._make_update, by_graphs=by_graphs)

    def find_gains(self) -> None:
        """Fits the gains that are known before training, unless they were restored. A collective call."""
        if self.gains is None or self.gains.known:
            return
        logs = self._ranks.all_gather_object(gains_of_points(self._views) if self._ranks.is_main else None)[0]
        if logs is not None:
            self.gains.set_known(logs)

    def compute(
        self, step: int, views: Sequence[int], backgrounds: Sequence[Color], n_gaussians: int
    ) -> tuple[Tensor, list[Meta]]:
        """Renders this rank's views and computes the gradients of their losses and of the regularization.

        `views` are the indices of the views of all ranks, `backgrounds` RGB in [0, 1] of each, `n_gaussians` those of
        all ranks. Returns sums of loss and PSNR over this rank's views, [2], and the ``meta`` of each rendering.
        """
        kind = None
        if self._passes is not None:
            camera = self._shown_by(step, views[0], self._views[views[0]].camera)
            kind = self._kind(step, camera)
            if results := self._replay(self._passes, kind, step, views[0], camera, backgrounds[0]):
                return results
        results = self._compute(step, views, backgrounds, kind)
        weighted = [name for name, weight in self._regularization.items() if weight]
        self._regularize(n_gaussians, {name: self._parameters.gradient(name) for name in weighted})
        return results

    def update_pass(self, *, adds_noise: bool) -> UpdatePass | None:
        """Returns the pass that updates the parameters with the last gradients; None if there is none."""
        return None if self._passes is None else self._passes.update_pass(adds_noise=adds_noise)

    def _compute(
        self, step: int, views: Sequence[int], backgrounds: Sequence[Color], kind: ViewKind | None
    ) -> tuple[Tensor, list[Meta]]:
        """Does what :meth:`compute` does, without passes and regularization; again if a capacity was too small.

        `kind` is that of the view, of which passes learn what its lists need.

        A GPU then still computes the backward pass while this waits for the forward pass.
        """
        with deferred() as calls:
            results = self._accumulate(step, views, backgrounds, self._capacity)
        if self._passes is not None:
            self._passes.learn(kind, lambda: _needed(calls, results[1]))
        if self._capacity is None or not any(self._ranks.any([any_overflow(calls)], self._device)):
            return results
        self._parameters.clear_gradients()
        if self.gains is not None:
            self.gains.discard()
        return self._accumulate(step, views, backgrounds, None)

    def _regularize(self, n_gaussians: int, gradients: Mapping[str, Tensor | None]) -> None:
        """Adds to gradients those of the mean opacity and the mean scale, over the Gaussians of all ranks."""
        if not any(self._regularization.values()):
            return
        # Gradients of replicated Gaussians are summed over ranks later.
        factor = self._gradient_step.scaler.get_scale() / n_gaussians / (1 if self._sharded else self._ranks.world_size)
        weights = self._regularization
        launchers(self._device, self._config.backend).mcmc_regularization(
            *[self._parameters.params[name].detach() for name in weights],
            *[gradients[name] if weight else None for name, weight in weights.items()],
            factor * weights["opacities"],
            factor * weights["scales"] / 3,
        )

    def release_memory(self) -> None:
        """Releases memory that is kept between steps. The next step allocates it again."""
        if self._passes is not None:
            self._passes.release()

    def _accumulate(
        self, step: int, views: Sequence[int], backgrounds: Sequence[Color], capacity: Capacity
    ) -> tuple[Tensor, list[Meta]]:
        """Renders this rank's views and adds the gradients of their losses. Returns as :meth:`compute`.

        Ranks take turns of a view each. If Gaussians are sharded, they render together, views of each kind in a call.
        """
        strategy = self._densification.strategy
        keeps_meta = len(views) == 1 or (strategy is not None and strategy.reads_rendering)
        figures, metas = [self._parameters.params["means"].new_zeros(2)], []
        for first in range(0, len(views), self._ranks.world_size):
            own, turn = first + self._ranks.rank, range(first, min(first + self._ranks.world_size, len(views)))
            calls: dict[object, list[int]] = {}
            for i in turn:
                calls.setdefault(self._kind_of_call(step, views[i]) if self._sharded else None, []).append(i)
            for places in calls.values():
                if own in places:
                    view_figures, meta = self._fit(step, views[own], backgrounds[own], capacity)
                    figures.append(view_figures)
                else:
                    meta = self._join(step, views[places[0]], capacity)
                # It holds the memory of its call: of several, only what the strategy reads is kept.
                metas.append(meta if keeps_meta else {"n_cameras": meta["n_cameras"]})
        return torch.stack(figures).sum(0), metas

    def _fit(self, step: int, index: int, background: Color, capacity: Capacity) -> tuple[Tensor, Meta]:
        """Renders a view and adds the gradients of its loss. Returns loss and PSNR, [2], and ``meta``."""
        with full_precision():
            camera = self._shown_by(step, index, self._parameters.camera_of(index, self._views[index].camera))
        view = self._shown(step, index, camera)
        with self._autocasting():
            images, alphas, meta = self._render(camera, background, capacity, self._degree(step), step=step)
            target = view.pixels
            image, image_loss, change = self._compare(index, images, target, view.mask, observes=self._observes(step))
            total = image_loss + sum((loss(images, alphas, meta, view) for loss in self._losses_of(step)), 0.0)
        self._densification.before_backward(step, meta)
        self._observe(index, change)
        self._gradient_step.backward(total / self._config.views_per_step)
        return _figures(image_loss, image, target), meta

    def _observe(self, index: int, gain_change: Tensor | None) -> None:
        if gain_change is not None:
            assert self.gains is not None
            self.gains.observe(index, gain_change)

    def _compare(
        self, index: int | Tensor, images: Tensor, target: Tensor, mask: Tensor | None, *, observes: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Applies the corrections of a view to its rendering [1, H, W, D], and compares it with its photograph.

        Returns the image [H, W, 3] that was compared, the loss [], and the change of the gains, [3], or None.
        """
        image, change = images[0, ..., :3], None
        if self.gains is not None:
            if observes:
                change = self.gains.estimate(index, image.detach(), target, mask)
            image = self.gains.apply(index, image)
        if self._config.exposure:
            image = apply_exposure(image, self._parameters.params["exposures"][index])
        if mask is not None:
            image = torch.where(mask[..., None], image, target)
        return image, loss(image, target), change

    def _join(self, step: int, index: int, capacity: Capacity) -> Meta:
        """Joins a collective render without a view of its own; other ranks' cameras may see this rank's Gaussians.

        `index` is one of the views that the other ranks render, which all have the same size and camera model. Returns
        ``meta``, with the other ranks' cameras if the scene is sharded, and without any otherwise.
        """
        with full_precision():
            camera = self._shown_by(step, index, self._parameters.camera_of(index, self._views[index].camera))
        with self._autocasting():
            backdrop, degree = self._config.backdrop, self._degree(step)
            images, _, meta = self._render(camera, backdrop, capacity, degree, step=step, n_cameras=0)
        self._densification.before_backward(step, meta)
        self._gradient_step.backward(images.sum())
        return meta

    def _render(
        self,
        camera: Camera,
        background: Color | Tensor,
        capacity: Capacity,
        degree: int,
        *,
        step: int = 0,
        n_cameras: int | None = None,
    ) -> tuple[Tensor, Tensor, Meta]:
        """Renders a view, [1, H, W, D], or joins a collective render without a camera, [0, H, W, D].

        Losses of depths and normals depend on the step. Returns as :func:`render_views`.
        """
        needs_depth = any(loss.needs_depth for loss in self._losses_of(step))
        strategy = self._densification.strategy
        images, alphas, meta = render_views(
            self._parameters.gaussians(),
            [camera],
            n_cameras=n_cameras,
            background=background,
            sh_degree=degree,
            render_mode="RGB+ED" if needs_depth else "RGB",
            absgrad=strategy is not None and strategy.absgrad,
            group=self._ranks.group if self._sharded else None,
            backend=self._config.backend,
            capacity=capacity,
        )
        if self._sharded:
            self.received_rows += len(meta["received"]["camera_ids"])
        return images, alphas, meta

    def _shown(self, step: int, index: int, camera: Camera) -> View:
        """Returns what a step compares: a view, or a perspective view of a panorama, which has a camera."""
        view = self._views[index]
        return perspective_view(view, step, camera) if self._is_perspective(step, index) else view

    def _shown_by(self, step: int, index: int, camera: Camera) -> Camera:
        """Returns the camera of what a step compares, given that of its view with corrections."""
        return perspective_camera(camera, step) if self._is_perspective(step, index) else camera

    def _kind_of_call(self, step: int, index: int) -> object:
        """Returns what the cameras of one call have in common."""
        return kind_of_call(self._shown_by(step, index, self._views[index].camera))

    def _is_perspective(self, step: int, index: int) -> bool:
        """Returns whether a step compares a perspective view in place of a view."""
        return compares_perspective(self._views[index].camera, step, self._config.perspective_share)

    def _degree(self, step: int) -> int:
        return min(self._sh_degree, max(self._first_degree, step // self._sh_interval))

    def _losses_of(self, step: int) -> list[Loss]:
        """Returns the losses of a step besides those of colors."""
        return [loss for loss in self._losses if step / self._config.steps >= loss.start]

    def _observes(self, step: int) -> bool:
        """Returns whether gains are estimated."""
        return self.gains is not None and not self.gains.known and step >= GAINS_START * self._config.steps

    def _autocasting(self) -> torch.autocast:
        return torch.autocast(self._device.type, self._autocast, enabled=self._autocast is not None)

    # --- passes

    def _without_passes(self) -> str:
        """Returns why gradients cannot be computed by passes, as the end of a sentence; empty if they can."""
        config = self._config
        if self._ranks.world_size > 1 or config.views_per_step > 1:
            return "for several views in a step"
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

    def _without_graphs(self) -> str:
        """Returns why CUDA graphs cannot replay passes, as the end of a sentence; empty if they can."""
        if self._device.type != "cuda":
            return f"on {self._device.type}"
        return "with capacity off" if self._capacity is None else ""

    def _kind(self, step: int, camera: Camera) -> ViewKind:
        described = (camera.width, camera.height, camera.model, camera.readout, camera.near, *camera.tensors())
        knows = self.gains is not None and self.gains.known
        return ViewKind(described, self._degree(step), self._observes(step), knows)

    def _replay(
        self, passes: ViewPasses, kind: ViewKind, step: int, index: int, camera: Camera, background: Color
    ) -> tuple[Tensor, list[Meta]] | None:
        """Computes the gradients of a view by a pass, if there can be one yet. Returns as :meth:`compute`."""

        def make_inputs() -> ViewInputs:
            pixels = self._shown(step, index, camera).pixels
            place = torch.tensor([index], device=self._device, dtype=torch.int64)
            return ViewInputs(place, camera, pixels, self._parameters.params["means"].detach().new_tensor(background))

        state = [*self._parameters.params.values()]
        if self.gains is not None:
            state.append(self.gains.logs)
        results = passes.results(kind, make_inputs, state)
        if results is None:
            return None
        for parameter, gradient in zip(self._parameters.params.values(), results.gradients, strict=True):
            parameter.grad = gradient
        self._observe(index, results.gain_change)
        return results.figures, [{"n_cameras": 1}]

    def _differentiate(self, kind: ViewKind, inputs: ViewInputs, room: Capacities) -> ViewResults:
        """Renders a view, and computes the gradients of its loss, without waiting for the device."""
        with self._autocasting(), deferred():
            images, _, meta = self._render(inputs.camera, inputs.background, room, kind.degree)
            compared = self._compare(inputs.index, images, inputs.pixels, None, observes=kind.observes)
        image, image_loss, change = compared
        parameters = self._parameters.params
        computed = torch.autograd.grad(image_loss, [*parameters.values()], allow_unused=True)
        gradients = [
            None if gradient is None else gradient.contiguous() for gradient in computed
        ]  # as updates read them
        self._regularize(len(parameters["means"]), dict(zip(parameters, gradients)))
        needed = meta.source.intersections.whole.needed  # type: ignore[attr-defined]
        return ViewResults(_figures(image_loss, image, inputs.pixels), needed, change, gradients)

    def _make_update(self, adds_noise: bool, capture: Capture) -> UpdatePass:
        owners = self._parameters, self._gradient_step, self._densification, self.gains
        return UpdatePass(*owners, adds_noise=adds_noise, capture=capture)


def _needed(calls: Sequence[Any], metas: Sequence[Meta]) -> Capacities:
    """Returns what the lists of calls needed, given those with a capacity and the ``meta`` of all. Waits for them."""
    if calls:
        return max_needed(calls)
    return Capacities(*[max(meta["memory"]["n_intersections"] for meta in metas)] * 4)


def _figures(image_loss: Tensor, image: Tensor, target: Tensor) -> Tensor:
    """Loss and PSNR, [2], without gradients."""
    return torch.stack([image_loss.detach(), psnr(image.detach().clamp(0, 1), target)])


def used_degree(gaussians: Gaussians) -> int:
    """Returns the highest degree of spherical harmonics with a coefficient that is not zero."""
    used = [
        degree
        for degree in range(1, gaussians.sh_degree + 1)
        if gaussians.shN[:, degree**2 - 1 : (degree + 1) ** 2 - 1].any()
    ]
    return max(used, default=0)
