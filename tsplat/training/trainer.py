"""Fits Gaussians to pictures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, UnsupportedError
from ..ops.adam import Adam
from ..scene.capture.views import Color, View
from ..scene.gaussians import PARAMETERS, Gaussians
from ..stages.backend import full_precision
from ..stages.memory import FREE_SHARE, free_memory
from ..strategies import MCMCStrategy
from ..strategies.operations import update, update_state
from ..viewing.rendering import render_views
from .adjustments import exposed, moved, no_exposures, no_motions
from .config import Config
from .losses import depth_error, loss, psnr
from .metas import joined
from .precision import autocast_dtype
from .processes.group import Team
from .progress import DivergedError, OnStep, Progress
from .sampling import Sampler, generator_state, set_generator_state

RENAMED = {"log_scales": "scales", "opacity_logits": "opacities"}

CHECKED_EVERY = 100
"""Steps between looks at whether loss and Gaussians are numbers, each of which waits for a GPU."""

SKIPPED_MAX = 10
"""Steps in a row whose gradients may not be finite before training has diverged."""

COPIES = 9
"""Parameters, gradients, two moments, and what replaces them while Gaussians are added."""


class Trainer:
    """Minimises 0.8 L1 + 0.2 (1 - SSIM) over views by Adam; a strategy, if any, adds and removes Gaussians.

    Views come in random permutations, each once before any comes again. On one device and PyTorch build, equal
    arguments give equal results with the host backend, and so does going on from :meth:`state`.

    Args:
        gaussians: Where to start, the whole scene; not changed.
        views: Pictures and cameras, on the Gaussians' device, of all ranks.
        team: The ranks that train together, with equal arguments. Each renders its share of a step's views, of the
            whole scene or, where ``config.parallel`` is ``"shard"``, of its own part of it and what the others send.

    Raises:
        ArgumentError: There are no Gaussians or no views.
        UnsupportedError: Gradient scaling of a scene in shards.
    """

    def __init__(self, gaussians: Gaussians, views: Sequence[View], config: Config, team: Team | None = None) -> None:
        if not len(gaussians) or not views:
            raise ArgumentError(
                f"training: found {len(gaussians)} Gaussians and {len(views)} views; it needs some of both"
            )
        self.team = team = team or Team()
        self.sharded = team.size > 1 and config.parallel == "shard"
        self.config = config = dataclasses.replace(config, views_per_step=config.views_per_step or team.size)
        self.step = 0
        self.n_gaussians = len(gaussians)
        self._views = views
        self._extent = scene_extent(views)
        self._degree = gaussians.sh_degree
        self._sh_interval = min(config.sh_interval, math.ceil(config.steps / (gaussians.sh_degree + 1)))
        self.device = gaussians.means.device
        self._antialiased = config.antialiased or gaussians.antialiased
        self._params: dict[str, Tensor] = {}
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        own = team.rows(len(gaussians)) if self.sharded else slice(None)
        for name in PARAMETERS:
            self._learn(RENAMED.get(name, name), gaussians.tensors()[name][own])
        self._scene = tuple(self._params)
        self._strategy_generator = torch.Generator().manual_seed(config.seed)
        self._strategy = None
        self._strategy_state: dict[str, Any] = {}
        if config.strategy is not None:
            generator = config.strategy.generator or self._strategy_generator
            self._strategy_generator = generator
            self._strategy = dataclasses.replace(config.strategy, generator=generator)
            self._strategy.check_sanity(*self._of_scene())
            self._strategy_state = self._strategy.initialize_state(self._extent)
        if config.pose_refinement:
            self._learn("motions", no_motions(len(views), gaussians.means))
        if config.exposure:
            self._learn("exposures", no_exposures(len(views), gaussians.means))
        self._sampler = Sampler(len(views), config.seed)
        self._backgrounds = torch.Generator().manual_seed(config.seed)
        self._autocast = autocast_dtype(config.precision, self.device)
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=self._autocast is torch.float16)
        if self.sharded and self._scaler.is_enabled():
            raise UnsupportedError("precision: fp16 is not implemented for a scene in shards; use bf16 or replicate")
        self._skipped = 0
        self.received_rows = 0
        """Rows of projected Gaussians that this rank was sent, its own included, since training began here."""

    def _learn(self, name: str, start: Tensor) -> None:
        n = self.config.views_per_step
        parameter = torch.nn.Parameter(start.detach().clone())
        # Epsilon as in the field: gradients of single Gaussians are far below Adam's usual 1e-8.
        self._optimizers[name] = Adam(
            [parameter],
            lr=0.0,
            betas=(0.9**n, 0.999**n),
            eps=1e-15 / math.sqrt(n),
            backend=self.config.backend,
        )
        self._params[name] = parameter

    @property
    def gaussians(self) -> Gaussians:
        """As they are now, of this rank, without gradients; they go on changing."""
        return self._gaussians().map(lambda tensor: tensor.detach())

    def whole(self) -> Gaussians:
        """The Gaussians of all ranks; called by all of them."""
        return self.gaussians.map(self.team.gather) if self.sharded else self.gaussians

    def advance(self) -> Progress:
        """Takes a step.

        Raises:
            DivergedError: The loss or a Gaussian is no longer a number.
            ArgumentError: As :func:`tsplat.rasterization`.
        """
        config = self.config
        lr = self._set_rates()
        # Every rank draws for all of them.
        indices = [self._sampler.next() for _ in range(config.views_per_step)]
        backgrounds = [self._background() for _ in indices]
        figures, metas = [self._params["means"].new_zeros(2)], []
        for turn in range(0, len(indices), self.team.size):
            own = turn + self.team.rank
            if own < len(indices):
                error, fidelity, meta = self._fit_view(indices[own], backgrounds[own])
                figures.append(torch.stack([error, fidelity]))
            else:
                meta = self._accompany(indices[turn])
            metas.append(meta)
        self._regularize()
        scale = self._scaler.get_scale()
        trouble = self._update()
        if self._strategy is not None and trouble is None:
            view = self._views[indices[0]]
            gather = None if self.sharded or self.team.size == 1 else self.team.gather
            meta = joined(metas, view, scale, config.views_per_step, gather)
            self._densify(meta, lr)
        still = self.gaussians
        error, fidelity = (self.team.sum(torch.stack(figures).sum(0)) / config.views_per_step).unbind()
        if self.step % CHECKED_EVERY == 0:
            # Gaussians that are not finite are not drawn, so that the loss alone would not tell.
            unsound = int(self.team.sum((~still.valid).sum()))
            if unsound or not math.isfinite(float(error)):
                raise DivergedError(
                    f"training: at step {self.step} the loss is {float(error):.4g} and {unsound} of {self.n_gaussians} "
                    "Gaussians are not finite; check the rates and the data"
                )
        self.step += 1
        return Progress(self.step, config.steps, error, fidelity, still, self.n_gaussians, trouble)

    def _set_rates(self) -> float:
        """Sets every rate for this step. Returns that of the means."""
        config = self.config
        decay: float = config.means_decay ** (self.step / config.steps)
        rates = {
            "means": config.means_rate * self._extent * decay,
            "scales": config.scales_rate,
            "quats": config.quats_rate,
            "opacities": config.opacities_rate,
            "sh0": config.sh0_rate,
            "shN": config.shN_rate,
            "motions": config.pose_rate * decay,
            "exposures": config.exposure_rate * decay,
        }
        for name, optimizer in self._optimizers.items():
            optimizer.param_groups[0]["lr"] = rates[name] * math.sqrt(config.views_per_step)
        return rates["means"] * math.sqrt(config.views_per_step)

    def _background(self) -> Color:
        if not self.config.random_background:
            return self.config.backdrop
        r, g, b = torch.rand(3, generator=self._backgrounds).tolist()
        return r, g, b

    def _fit_view(self, index: int, background: Color) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Adds a view's share to the gradients. Returns its loss, its PSNR, and `meta` of its picture."""
        config, view = self.config, self._views[index]
        moving = self._gaussians()
        with torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None):
            images, meta = self._render(moving, index, background)
            image, depth = images[0, ..., :3], images[0, ..., 3] if images.shape[-1] > 3 else None
            truth = view.pixels
            if config.exposure:
                image = exposed(image, self._params["exposures"][index])
            if view.mask is not None:
                image = torch.where(view.mask[..., None], image, truth)
            error = loss(image, truth)
            total = error
            if depth is not None and view.sparse is not None and len(view.sparse):
                total = total + config.depth_weight * self._extent * depth_error(depth, view.sparse)
        if self._strategy is not None:
            self._strategy.step_pre_backward(*self._of_scene(), self._strategy_state, self.step, meta)
        self._scaler.scale(total / config.views_per_step).backward()  # type: ignore[no-untyped-call]
        return error.detach(), psnr(image.detach().clamp(0, 1), truth), meta

    def _accompany(self, index: int) -> dict[str, Any]:
        """Takes part in a turn that has no view for this rank: what it has of the scene is seen by others' cameras.

        Args:
            index: Of one of the turn's views, which all have one size.

        Returns:
            `meta`, of others' cameras where the scene is in shards, and otherwise of none.
        """
        with torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None):
            images, meta = self._render(self._gaussians(), index, self.config.backdrop, n_cameras=0)
        if self._strategy is not None:
            self._strategy.step_pre_backward(*self._of_scene(), self._strategy_state, self.step, meta)
        self._scaler.scale(images.sum()).backward()  # type: ignore[no-untyped-call]
        return meta

    def _regularize(self) -> None:
        """Adds to the gradients the share of mean opacity and mean scale, of the Gaussians of all ranks."""
        config = self.config
        if not (config.opacity_weight or config.scale_weight):
            return
        moving = self._gaussians()
        total = moving.means.new_zeros(())
        if config.opacity_weight:
            total = total + config.opacity_weight / self.n_gaussians * moving.opacities.sum()
        if config.scale_weight:
            total = total + config.scale_weight / (3 * self.n_gaussians) * moving.scales.sum()
        # Ranks that have the same Gaussians add up what each finds.
        self._scaler.scale(total if self.sharded else total / self.team.size).backward()  # type: ignore[no-untyped-call]

    def _render(
        self, moving: Gaussians, index: int, background: Color, *, n_cameras: int = 1
    ) -> tuple[Tensor, dict[str, Any]]:
        """A view's picture, [1, H, W, D], with its `meta`; of no camera, [0, H, W, D], where others have one."""
        config, view = self.config, self._views[index]
        viewmat = view.viewmat
        if config.pose_refinement:
            with full_precision(self.device):
                motion = self._params["motions"][index]
                viewmat = moved(viewmat, torch.cat([motion[:3], self._extent * motion[3:]]))
        images, _, meta = render_views(
            moving,
            viewmat[None][:n_cameras],
            view.K[None][:n_cameras],
            view.width,
            view.height,
            background=background,
            sh_degree=min(self._degree, self.step // self._sh_interval),
            render_mode="RGB+ED" if config.depth_weight else "RGB",
            absgrad=getattr(self._strategy, "absgrad", False),
            group=self.team.group if self.sharded else None,
            backend=config.backend,
        )
        if self.sharded:
            self.received_rows += len(meta["received"]["camera_ids"])
        return images, meta

    def _update(self) -> str | None:
        """Takes the optimizers' step, unless a gradient is not finite. Returns what went wrong."""
        if self.team.size > 1:
            for name, parameter in self._params.items():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                if not (self.sharded and name in self._scene):
                    parameter.grad = self.team.sum(parameter.grad)
        for optimizer in self._optimizers.values():
            self._scaler.unscale_(optimizer)
        trouble = None
        # Looking waits for a GPU; with gradient scaling the scaler looks, and leaves out steps itself.
        if not self._scaler.is_enabled() and (self.device.type == "cpu" or self.step % CHECKED_EVERY == 0):
            gradients = {name: p.grad for name, p in self._params.items() if p.grad is not None}
            found = [not math.isfinite(float(gradient.norm())) for gradient in gradients.values()]
            broken = [n for n, flag in zip(gradients, self.team.any(found, self.device), strict=True) if flag]
            self._skipped = self._skipped + 1 if broken else 0
            if self._skipped >= SKIPPED_MAX:
                raise DivergedError(
                    f"training: the gradients of {', '.join(broken)} were not finite in {SKIPPED_MAX} steps in a row, "
                    f"the last at step {self.step}; check the rates and the data"
                )
            if broken:
                trouble = f"at step {self.step} the gradients of {', '.join(broken)} are not finite; it was left out"
        if trouble is None:
            for name, optimizer in self._optimizers.items():
                if self.config.clip_gradients:
                    self._clip(name)
                self._scaler.step(optimizer)
        self._scaler.update()
        for optimizer in self._optimizers.values():
            optimizer.zero_grad()
        return trouble

    def _clip(self, name: str) -> None:
        gradient = self._params[name].grad
        if gradient is not None:
            squares = gradient.square().sum()
            norm = (self.team.sum(squares) if self.sharded and name in self._scene else squares).sqrt()
            gradient *= (self.config.clip_gradients / norm.clamp_min(1e-30)).clamp_max(1)

    def _densify(self, meta: dict[str, Any], lr: float) -> None:
        """Lets the strategy add, move and remove Gaussians; of shards, all ranks do it with the whole scene."""
        strategy = self._strategy
        assert strategy is not None
        refines = strategy.refines(self.step)
        if refines:
            self._guard_memory()
        gathers = refines and self.sharded
        if gathers:
            self._exchange_rows(self.team.gather)
            means2d = self._gather_columns(meta["means2d"])
            for name in ("grad", "absgrad"):
                gradient = getattr(meta["means2d"], name, None)
                if gradient is not None:
                    setattr(means2d, name, self._gather_columns(gradient))
            meta = {**meta, "means2d": means2d, "radii": self._gather_columns(meta["radii"])}
        params, optimizers = self._of_scene()
        arguments = (params, optimizers, self._strategy_state, self.step, meta)
        if isinstance(strategy, MCMCStrategy):
            first = self.team.rows(self.n_gaussians).start if self.sharded else 0
            share = None if refines else (first, self.n_gaussians)
            strategy.step_post_backward(*arguments, lr=lr, share=share)
        else:
            strategy.step_post_backward(*arguments)
        self._params.update(params)
        if refines:
            self.n_gaussians = len(params["means"])
        if gathers:
            self._exchange_rows(lambda tensor: tensor[self.team.rows(self.n_gaussians)].clone())

    def _exchange_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Applies a change of rows to the scene's parameters, their moments, and what the strategy has gathered."""
        params, optimizers = self._of_scene()
        n = len(params["means"])
        update(params, optimizers, lambda _, parameter: change(parameter), change)
        update_state(self._strategy_state, n, change)
        self._params.update(params)

    def _gather_columns(self, tensor: Tensor) -> Tensor:
        """Of rows by camera and Gaussian, [C, N of this rank, ...] -> [C, N of all, ...]."""
        return self.team.gather(tensor.detach().transpose(0, 1).contiguous()).transpose(0, 1)

    def _guard_memory(self) -> None:
        """Tells the strategy how many Gaussians there may be, before it adds more than any rank has memory for."""
        strategy = self._strategy
        assert strategy is not None
        each = COPIES * sum(self._params[name][0].numel() * self._params[name].element_size() for name in self._scene)
        room = min(self.team.collect(int(FREE_SHARE * free_memory(self.device)) // each))
        most = min(self.config.max_gaussians, self.n_gaussians + room)
        assert self.config.strategy is not None
        strategy.cap_max = min(most, self.config.strategy.cap_max or most)

    def _of_scene(self) -> tuple[dict[str, Any], dict[str, torch.optim.Optimizer]]:
        """The Gaussians' parameters with their optimizers, as strategies take them."""
        return {n: self._params[n] for n in self._scene}, {n: self._optimizers[n] for n in self._scene}

    def _gaussians(self) -> Gaussians:
        """The parameters, which strategies know by the field's names, as Gaussians."""
        return Gaussians(
            **{name: self._params[RENAMED.get(name, name)] for name in PARAMETERS}, antialiased=self._antialiased
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that training goes on from: tensors by name, and figures that JSON can hold."""
        tensors = {f"params/{name}": p.detach() for name, p in self._params.items()}
        adam_steps = {}
        for name, optimizer in self._optimizers.items():
            state = optimizer.state.get(self._params[name])
            if state:
                tensors |= {f"adam/{name}/{moment}": state[moment] for moment in ("exp_avg", "exp_avg_sq")}
                adam_steps[name] = int(state["step"])
        gathered = {k: v for k, v in self._strategy_state.items() if isinstance(v, Tensor)}
        tensors |= {f"strategy/{key}": value for key, value in gathered.items()}
        figures = {
            "step": self.step,
            "adam_steps": adam_steps,
            "strategy": {k: v for k, v in self._strategy_state.items() if k not in gathered},
            "strategy_generator": generator_state(self._strategy_generator),
            "sampler": self._sampler.state(),
            "backgrounds": generator_state(self._backgrounds),
            "scaler": self._scaler.state_dict(),
            "skipped": self._skipped,
        }
        return tensors, figures

    @property
    def row_names(self) -> frozenset[str]:
        """The tensors of :meth:`state` that have a row for each Gaussian, those of this rank where it has a shard."""
        n = len(self._params["means"])
        return frozenset(name for name, tensor in self.state()[0].items() if self._has_rows(name, tensor, n))

    def _has_rows(self, name: str, tensor: Tensor, n: int) -> bool:
        """Whether a tensor of :meth:`state` has a row for each of n Gaussians."""
        kind, key = name.split("/")[:2]
        return tensor.shape[:1] == (n,) if kind == "strategy" else key in self._scene

    def restore(self, tensors: dict[str, Tensor], figures: dict[str, Any]) -> None:
        """Goes on from a state, of the same views and configuration.

        Args:
            tensors: Of the whole scene, also where this rank has a shard of it.

        Raises:
            ArgumentError: The state is of other views, or of a configuration that learns something else.
        """
        found = {name.removeprefix("params/") for name in tensors if name.startswith("params/")}
        if found != set(self._params):
            raise ArgumentError(
                f"checkpoint: it holds {sorted(found)}, and the configuration asks for {sorted(self._params)}; "
                "continue with the configuration that it was made with"
            )
        self._sampler.restore(figures["sampler"])
        n = self.n_gaussians = len(tensors["params/means"])
        own = self.team.rows(n) if self.sharded else slice(None)

        def rows(name: str) -> Tensor:
            tensor = tensors[name]
            tensor = tensor[own] if self._has_rows(name, tensor, n) else tensor
            return tensor.to(self.device).clone()

        for name, optimizer in self._optimizers.items():
            parameter = torch.nn.Parameter(rows(f"params/{name}"))
            self._params[name] = parameter
            optimizer.param_groups[0]["params"] = [parameter]
            optimizer.state.clear()
            if name in figures["adam_steps"]:
                moments = {m: rows(f"adam/{name}/{m}") for m in ("exp_avg", "exp_avg_sq")}
                for moment in moments.values():
                    if moment.shape != parameter.shape:
                        raise ArgumentError(
                            f"checkpoint: the moments of {name} are {list(moment.shape)}, "
                            f"but it is {list(parameter.shape)}"
                        )
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(figures["adam_steps"][name])),
                    **moments,
                }
        self._gaussians()  # shapes that do not go together are named here
        self._strategy_state.update(figures["strategy"])
        for name in tensors:
            if name.startswith("strategy/"):
                self._strategy_state[name.removeprefix("strategy/")] = rows(name)
        set_generator_state(self._strategy_generator, figures["strategy_generator"])
        set_generator_state(self._backgrounds, figures["backgrounds"])
        self._scaler.load_state_dict(figures["scaler"])
        self._skipped = figures["skipped"]
        self.step = figures["step"]


def scene_state(gaussians: Gaussians) -> dict[str, Tensor]:
    """The parameters of a scene under the names that :meth:`Trainer.state` has for them."""
    return {f"params/{RENAMED.get(name, name)}": tensor for name, tensor in gaussians.tensors().items()}


def fit(
    gaussians: Gaussians, views: Sequence[View], config: Config | None = None, on_step: OnStep | None = None
) -> Gaussians:
    """Trains from start to end; see :class:`Trainer`.

    Returns:
        The Gaussians after the last step, without gradients.

    Raises:
        ArgumentError: There are no Gaussians or no views; or as :func:`tsplat.rasterization`.
        DivergedError: The loss or a Gaussian is no longer a number.
    """
    trainer = Trainer(gaussians, views, config or Config())
    while trainer.step < trainer.config.steps:
        progress = trainer.advance()
        if on_step is not None and on_step(progress):
            break
    return trainer.gaussians


def scene_extent(views: Sequence[View]) -> float:
    """1.1 times how far the farthest camera is from the middle of all, world units; at least a hair above zero."""
    viewmats = torch.stack([view.viewmat for view in views]).double()
    centers = torch.linalg.inv(viewmats)[:, :3, 3]
    return max(1.1 * float((centers - centers.mean(0)).norm(dim=-1).amax()), 1e-6)
