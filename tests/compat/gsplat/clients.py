"""Training loops that call gsplat as its simple_trainer and nerfstudio's splatfacto do, on a small scene."""

import dataclasses
import functools
import math

import torch
from torch.nn import functional

from tests.support.training_scenes import HEIGHT, WIDTH, make_gaussians, make_views
from tsplat.compat.gsplat import SelectiveAdam
from tsplat.compat.gsplat.cuda._torch_impl import _eval_sh_bases_fast
from tsplat.compat.gsplat.losses import l1_loss, ssim_loss
from tsplat.compat.gsplat.rendering import rasterization, rasterization_2dgs, rasterization_2dgs_inria_wrapper
from tsplat.compat.gsplat.scene import GaussianScene
from tsplat.compat.gsplat.stage import Stage
from tsplat.compat.gsplat.strategy import DefaultStrategy, MCMCStrategy
from tsplat.training.losses import psnr

N, N_VIEWS, STEPS = 90, 4, 17
REFINE = dict(refine_start_iter=2, refine_every=5)


@functools.cache
def make_data():
    """Cameras to world [V, 4, 4], intrinsics [V, 3, 3] and images [V, H, W, 3] of Gaussians."""
    views = make_views(make_gaussians(sh_degree=1), N_VIEWS)
    viewmats = torch.stack([view.camera.viewmat for view in views])
    images = torch.stack([view.image for view in views])[..., :3].float() / 255
    return torch.linalg.inv(viewmats), torch.stack([view.camera.K for view in views]), images


def initial_points():
    generator = torch.Generator().manual_seed(11)
    return 0.5 * torch.randn(N, 3, generator=generator), torch.rand(N, 3, generator=generator)


@dataclasses.dataclass
class SimpleTrainer:
    """The options of simple_trainer that change its calls of gsplat; ``with_stage`` for those of 1.6.

    ``model_type`` other than "3dgs": simple_trainer_2dgs, with its losses on normals and distortion."""

    strategy: DefaultStrategy | MCMCStrategy = dataclasses.field(default_factory=DefaultStrategy)
    batch_size: int = 1
    sh_degree: int = 2
    packed: bool = False
    sparse_grad: bool = False
    visible_adam: bool = False
    antialiased: bool = False
    pose_opt: bool = False
    app_opt: bool = False
    depth_loss: bool = False
    random_bkgd: bool = False
    with_ut: bool = False
    with_stage: bool = False
    sh_fp16: bool = False
    model_type: str = "3dgs"

    def __post_init__(self):
        points, rgbs = initial_points()
        values = {
            "means": (points, 5e-3),
            "scales": (torch.full((N, 3), math.log(0.15)), 2e-2),
            "quats": (torch.rand(N, 4), 1e-2),
            "opacities": (torch.full((N,), 0.3).logit(), 5e-2),
        }
        if self.app_opt:
            values |= {"features": (torch.rand(N, 8), 2e-2), "colors": (rgbs.logit(eps=1e-3), 5e-2)}
            self.embeddings = torch.nn.Embedding(N_VIEWS, 4)
            self.head = torch.nn.Linear(4 + 8 + (self.sh_degree + 1) ** 2, 3)
        else:
            coefficients = torch.zeros(N, (self.sh_degree + 1) ** 2, 3)
            coefficients[:, 0] = (rgbs - 0.5) / 0.28209479177387814
            # Slices: these parameters are not contiguous until the first refinement.
            values |= {"sh0": (coefficients[:, :1], 5e-2), "shN": (coefficients[:, 1:], 5e-2 / 20)}
        self.splats = torch.nn.ParameterDict({name: torch.nn.Parameter(value) for name, (value, _) in values.items()})
        kind = torch.optim.SparseAdam if self.sparse_grad else SelectiveAdam if self.visible_adam else torch.optim.Adam
        b = self.batch_size
        self.optimizers = {
            name: kind(
                [{"params": self.splats[name], "lr": lr * math.sqrt(b), "name": name}],
                eps=1e-15 / math.sqrt(b),
                betas=(1 - b * (1 - 0.9), 1 - b * (1 - 0.999)),
            )
            for name, (_, lr) in values.items()
        }
        self.scene, self.render = None, self.rasterize
        if self.with_stage:
            self.scene = GaussianScene.from_splats(self.splats, id="scene", signal={"ids": torch.arange(N)})
            self.splats, stage = self.scene.splats, Stage()
            stage.add_scene(self.scene, self.rasterize)
            self.render = functools.partial(stage.render, self.scene.id)
        self.pose_deltas = torch.nn.Parameter(torch.zeros(N_VIEWS, 3))
        self.others = []
        if self.pose_opt:
            self.others.append(torch.optim.Adam([self.pose_deltas], lr=1e-3))
        if self.app_opt:
            self.others.append(torch.optim.Adam([*self.embeddings.parameters(), *self.head.parameters()], lr=1e-3))
        self.strategy.check_sanity(self.splats, self.optimizers)
        is_default = isinstance(self.strategy, DefaultStrategy)
        self.state = self.strategy.initialize_state(**(dict(scene_scale=1.5) if is_default else {}))

    def rasterize(
        self, camtoworlds, Ks, width, height, *, sh_degree, image_ids=None, rasterize_mode=None, splats=None, **options
    ):
        splats = self.splats if splats is None else splats
        means = splats["means"]
        if self.app_opt:
            directions = functional.normalize(means[None] - camtoworlds[:, None, :3, 3], dim=-1)
            bases = torch.zeros(*directions.shape[:2], (self.sh_degree + 1) ** 2)
            n_bases = (sh_degree + 1) ** 2
            bases[..., :n_bases] = _eval_sh_bases_fast(n_bases, directions)
            c, n = directions.shape[:2]
            embeddings = torch.zeros(c, 4) if image_ids is None else self.embeddings(image_ids)
            columns = (embeddings[:, None].expand(-1, n, -1), splats["features"][None].expand(c, -1, -1), bases)
            colors = torch.sigmoid(self.head(torch.cat(columns, -1)) + splats["colors"])  # [C, N, 3]
        else:
            dtype = torch.float16 if self.sh_fp16 else torch.float32
            colors = torch.cat([splats[name].to(dtype) for name in ("sh0", "shN")], 1)
            options["sh_degree"] = sh_degree
        options |= dict(
            means=means,
            quats=splats["quats"],
            scales=torch.exp(splats["scales"]),
            opacities=torch.sigmoid(splats["opacities"]),
            colors=colors,
            viewmats=torch.linalg.inv(camtoworlds),
            Ks=Ks,
            width=width,
            height=height,
            packed=self.packed,
            absgrad=self.strategy.absgrad if isinstance(self.strategy, DefaultStrategy) else False,
            sparse_grad=self.sparse_grad,
        )
        if self.model_type != "3dgs":
            return self.rasterize_surfels(**options)
        return rasterization(
            rasterize_mode=rasterize_mode or ("antialiased" if self.antialiased else "classic"),
            distributed=False,
            camera_model="pinhole",
            with_ut=self.with_ut,
            with_eval3d=self.with_ut,
            **options,
        )

    def rasterize_surfels(self, **options):
        if self.model_type == "2dgs":
            renders, alphas, normals, normals_from_depth, distort, _, info = rasterization_2dgs(**options)
        else:
            (renders, alphas), info = rasterization_2dgs_inria_wrapper(**options)
            normals, normals_from_depth, distort = info["normals_rend"], info["normals_surf"], info["render_distloss"]
        consistency = (normals * normals_from_depth * alphas.detach()).sum(-1)
        self.regularization = 0.01 * (1 - consistency).mean() + 0.01 * distort.mean()
        return renders, alphas, info

    def render_options(self):
        if self.model_type != "3dgs":
            return dict(render_mode="RGB+D", distloss=True)
        return dict(render_mode="RGB+ED" if self.depth_loss else "RGB")

    def train(self, steps=STEPS):
        camtoworlds_all, Ks_all, images = make_data()
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(self.optimizers["means"], gamma=0.01 ** (1 / 100))]
        for step in range(steps):
            ids = (torch.arange(self.batch_size) + step * self.batch_size) % N_VIEWS
            camtoworlds, Ks, pixels = camtoworlds_all[ids], Ks_all[ids], images[ids]
            if self.pose_opt:
                transforms = torch.eye(4).repeat(self.batch_size, 1, 1)
                transforms[:, :3, 3] = self.pose_deltas[ids]
                camtoworlds = camtoworlds @ transforms
            renders, alphas, info = self.render(
                camtoworlds=camtoworlds,
                Ks=Ks,
                width=WIDTH,
                height=HEIGHT,
                sh_degree=min(step // 5, self.sh_degree),
                near_plane=0.01,
                far_plane=1e10,
                image_ids=ids,
                **self.render_options(),
            )
            colors = renders[..., :3]
            if self.random_bkgd:
                colors = colors + torch.rand(1, 3) * (1 - alphas)
            self.strategy.step_pre_backward(
                params=self.splats, optimizers=self.optimizers, state=self.state, step=step, info=info
            )
            loss = l1_loss(colors, pixels).mean()
            if self.with_stage:
                loss = loss.lerp(ssim_loss(colors.permute(0, 3, 1, 2), pixels.permute(0, 3, 1, 2)), 0.2)
            if self.model_type != "3dgs":
                loss += self.regularization
            if self.depth_loss:
                depths = renders[..., 3]
                # The gradient of 1 / depth is NaN where nothing is rendered.
                disparities = torch.where(depths > 0, 1 / depths, torch.zeros_like(depths))
                loss += 0.01 * functional.l1_loss(disparities, torch.full_like(disparities, 1 / 3))
            loss.backward()
            self.step_optimizers(info)
            for scheduler in schedulers:
                scheduler.step()
            options = dict(packed=self.packed)
            if isinstance(self.strategy, MCMCStrategy):
                options = dict(lr=schedulers[0].get_last_lr()[0])
            if self.with_stage:
                options["scene"] = self.scene
            self.strategy.step_post_backward(
                params=self.splats, optimizers=self.optimizers, state=self.state, step=step, info=info, **options
            )

    def step_optimizers(self, info):
        if self.sparse_grad:
            for parameter in self.splats.values():
                if parameter.grad is None or parameter.grad.is_sparse:
                    continue
                parameter.grad = torch.sparse_coo_tensor(
                    indices=info["gaussian_ids"][None],
                    values=parameter.grad[info["gaussian_ids"]],
                    size=parameter.size(),
                    is_coalesced=self.batch_size == 1,
                )
        arguments = []
        if self.visible_adam and self.packed:
            visible = torch.zeros_like(self.splats["opacities"], dtype=bool)
            arguments = [visible.scatter_(0, info["gaussian_ids"], 1)]
        elif self.visible_adam:
            arguments = [(info["radii"] > 0).all(-1).any(0)]
        for optimizer in self.optimizers.values():
            optimizer.step(*arguments)
            optimizer.zero_grad(set_to_none=True)
        for optimizer in self.others:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def evaluate(self):
        """Mean PSNR over the views, in dB."""
        camtoworlds, Ks, images = make_data()
        values = []
        for i in range(N_VIEWS):
            colors, _, _ = self.render(
                camtoworlds=camtoworlds[i : i + 1], Ks=Ks[i : i + 1], width=WIDTH, height=HEIGHT,
                sh_degree=self.sh_degree, near_plane=0.01, far_plane=1e10, **self.render_options(),
            )  # fmt: skip
            values.append(psnr(colors[0, ..., :3].clamp(0, 1), images[i]).item())
        return sum(values) / N_VIEWS


class Splatfacto(torch.nn.Module):
    """Calls gsplat as splatfacto does: opacities [N, 1], colors split into ``features_dc`` and ``features_rest``."""

    def __init__(self, strategy, sh_degree=2, rasterize_mode="classic", depth_in_training=False):
        super().__init__()
        points, rgbs = initial_points()
        k = (sh_degree + 1) ** 2
        dc = (rgbs - 0.5) / 0.28209479177387814 if sh_degree else rgbs.logit(eps=1e-3)
        values = dict(
            means=points,
            scales=torch.full((N, 1), math.log(0.15)).repeat(1, 3),
            quats=torch.randn(N, 4),
            features_dc=dc,
            features_rest=torch.zeros(N, k - 1, 3),
            opacities=torch.full((N, 1), 0.3).logit(),
        )
        self.gauss_params = torch.nn.ParameterDict({name: torch.nn.Parameter(value) for name, value in values.items()})
        self.camera_shift = torch.nn.Parameter(torch.zeros(3))
        self.strategy, self.sh_degree = strategy, sh_degree
        self.rasterize_mode, self.depth_in_training = rasterize_mode, depth_in_training
        is_default = isinstance(strategy, DefaultStrategy)
        self.strategy_state = strategy.initialize_state(**(dict(scene_scale=1.0) if is_default else {}))
        rates = dict(means=5e-3, scales=2e-2, quats=1e-2, features_dc=5e-2, features_rest=2e-3, opacities=5e-2)
        self.optimizers = {
            name: torch.optim.Adam([self.gauss_params[name]], lr=rate, eps=1e-15) for name, rate in rates.items()
        }
        self.optimizers["camera_opt"] = torch.optim.Adam([self.camera_shift], lr=1e-4, eps=1e-15)
        self.schedulers = {
            "means": torch.optim.lr_scheduler.LambdaLR(self.optimizers["means"], lambda step: 0.99**step)
        }
        self.step = 0

    def get_outputs(self, viewmat, K, kept=None):
        """Renders a view; in evaluation also a crop, the Gaussians where ``kept`` is true."""
        p = {name: value if kept is None else value[kept] for name, value in self.gauss_params.items()}
        colors, sh_degree = torch.cat((p["features_dc"][:, None, :], p["features_rest"]), dim=1), None
        if self.sh_degree > 0:
            sh_degree = min(self.step // 5, self.sh_degree)
        else:
            colors = torch.sigmoid(colors).squeeze(1)
        render_mode = "RGB+ED" if self.depth_in_training or not self.training else "RGB"
        render, alpha, self.info = rasterization(
            means=p["means"],
            quats=p["quats"],
            scales=torch.exp(p["scales"]),
            opacities=torch.sigmoid(p["opacities"]).squeeze(-1),
            colors=colors,
            viewmats=viewmat,
            Ks=K,
            width=WIDTH,
            height=HEIGHT,
            packed=False,
            near_plane=0.01,
            far_plane=1e10,
            render_mode=render_mode,
            sh_degree=sh_degree,
            sparse_grad=False,
            absgrad=self.strategy.absgrad if isinstance(self.strategy, DefaultStrategy) else False,
            rasterize_mode=self.rasterize_mode,
        )
        if self.training:
            self.strategy.step_pre_backward(
                self.gauss_params, self.optimizers, self.strategy_state, self.step, self.info
            )
        alpha = alpha[:, ...]
        background = torch.rand(3) if self.training else torch.zeros(3)
        rgb = torch.clamp(render[:, ..., :3] + (1 - alpha) * background, 0.0, 1.0)
        depth = None
        if render_mode == "RGB+ED":
            depth = torch.where(alpha > 0, render[:, ..., 3:4], render[:, ..., 3:4].detach().max()).squeeze(0)
        return rgb.squeeze(0), depth

    def fit(self, steps=STEPS):
        camtoworlds, Ks, images = make_data()
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        for step in range(self.step, self.step + steps):
            self.step = step
            view = self.step % N_VIEWS
            for optimizer in self.optimizers.values():
                optimizer.zero_grad()
            viewmat = torch.linalg.inv(camtoworlds[view : view + 1]).clone()
            viewmat[:, :3, 3] += self.camera_shift
            rgb, _ = self.get_outputs(viewmat, Ks[view : view + 1])
            scaler.scale(torch.abs(images[view] - rgb).mean()).backward()
            for optimizer in self.optimizers.values():
                if any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
                    scaler.step(optimizer)
            scaler.update()
            for scheduler in self.schedulers.values():
                scheduler.step()
            options = dict(packed=False)
            if isinstance(self.strategy, MCMCStrategy):
                options = dict(lr=self.schedulers["means"].get_last_lr()[0])
            self.strategy.step_post_backward(
                params=self.gauss_params,
                optimizers=self.optimizers,
                state=self.strategy_state,
                step=self.step,
                info=self.info,
                **options,
            )

    @torch.no_grad()
    def evaluate(self):
        """Mean PSNR over the views, in dB."""
        camtoworlds, Ks, images = make_data()
        self.eval()
        values = []
        for i in range(N_VIEWS):
            rgb, depth = self.get_outputs(torch.linalg.inv(camtoworlds[i : i + 1]), Ks[i : i + 1])
            assert depth.shape == (HEIGHT, WIDTH, 1)
            values.append(psnr(rgb.clamp(0, 1), images[i]).item())
        self.train()
        return sum(values) / N_VIEWS
