"""A training loop that calls Inria's packages as the programs of 2023 and 2024 do, on a small scene."""

import dataclasses
import functools

import torch

from tests.support.training_scenes import HEIGHT, WIDTH, make_gaussians, make_views
from tsplat import quat_scale_to_covar_preci
from tsplat.compat.inria import GaussianRasterizationSettings, GaussianRasterizer, SparseGaussianAdam
from tsplat.compat.inria.fused_ssim import fused_ssim
from tsplat.compat.inria.simple_knn._C import distCUDA2
from tsplat.training.losses import psnr

N, N_VIEWS, STEPS, REFINE_EVERY = 90, 4, 17, 5
RATES = dict(xyz=5e-3, f_dc=5e-2, f_rest=2.5e-3, opacity=5e-2, scaling=2e-2, rotation=1e-2)


def camera_settings(viewmat, K, width, height):
    """The settings of a camera [4, 4] with intrinsics [3, 3]: transposed matrices, and tangents of half the angles."""
    (fx, _, cx), (_, fy, cy), _ = K.tolist()
    near, far = 0.01, 100.0
    projection = torch.zeros(4, 4, dtype=viewmat.dtype)
    projection[0, 0], projection[0, 2] = 2 * fx / width, 2 * cx / width - 1
    projection[1, 1], projection[1, 2] = 2 * fy / height, 2 * cy / height - 1
    projection[2, 2], projection[2, 3], projection[3, 2] = far / (far - near), -far * near / (far - near), 1
    return dict(
        image_width=width,
        image_height=height,
        tanfovx=width / (2 * fx),
        tanfovy=height / (2 * fy),
        viewmatrix=viewmat.T,
        projmatrix=(projection @ viewmat).T,
        campos=torch.linalg.inv(viewmat)[:3, 3],
    )


@functools.cache
def make_data():
    """Settings of the cameras, and images [V, 3, H, W] of Gaussians."""
    views = make_views(make_gaussians(sh_degree=1), N_VIEWS)
    cameras = [camera_settings(view.camera.viewmat, view.camera.K, WIDTH, HEIGHT) for view in views]
    return cameras, torch.stack([view.image for view in views])[..., :3].movedim(-1, 1).float() / 255


@dataclasses.dataclass
class Trainer:
    """The options of train.py that change its calls.

    Attributes:
        generation: 2023 or 2024.
        sparse_adam: Train with SparseGaussianAdam.
        antialiasing: Value of the setting, for 2024.
        separate_sh: Pass `dc` and the other coefficients separately, as 2024 does where SparseGaussianAdam exists.
        depth_loss: Add a loss on inverse depths.
        exposure: Train a matrix [3, 4] per view that is applied to the colors.
        covariances: Pass covariances instead of scales and rotations.
    """

    generation: int = 2024
    sparse_adam: bool = False
    antialiasing: bool = False
    separate_sh: bool = True
    depth_loss: bool = False
    exposure: bool = False
    covariances: bool = False
    sh_degree: int = 2
    step: int = 0
    resets: tuple[int, ...] = ()

    def __post_init__(self):
        generator = torch.Generator().manual_seed(11)
        points, k = 0.5 * torch.randn(N, 3, generator=generator), (self.sh_degree + 1) ** 2
        distances = torch.clamp_min(distCUDA2(points), 1e-7)
        values = dict(
            xyz=points,
            f_dc=(torch.rand(N, 1, 3, generator=generator) - 0.5) / 0.28209479177387814,
            f_rest=torch.zeros(N, k - 1, 3),
            opacity=torch.full((N, 1), 0.3).logit(),
            scaling=torch.log(distances.sqrt())[:, None].repeat(1, 3),
            rotation=torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(N, 1),
        )
        self.exposures = torch.nn.Parameter(torch.eye(3, 4).repeat(N_VIEWS, 1, 1))
        self.exposure_optimizer = torch.optim.Adam([self.exposures], lr=1e-2)
        self.make_optimizer(values)
        self.clear_statistics()

    def make_optimizer(self, values):
        groups = [
            {"params": [torch.nn.Parameter(value)], "lr": RATES[name], "name": name} for name, value in values.items()
        ]
        self.optimizer = (SparseGaussianAdam if self.sparse_adam else torch.optim.Adam)(groups, lr=0.0, eps=1e-15)

    @property
    def params(self):
        return {group["name"]: group["params"][0] for group in self.optimizer.param_groups}

    def clear_statistics(self):
        n = len(self.params["xyz"])
        self.gradients, self.counts, self.max_radii2D = torch.zeros(n, 1), torch.zeros(n, 1), torch.zeros(n)

    def render(self, view):
        """Image [3, H, W], inverse depths [1, H, W] or None, radii [N], and the tensor that receives 2D gradients."""
        p, cameras = self.params, make_data()[0]
        screenspace_points = torch.zeros_like(p["xyz"], requires_grad=True) + 0
        if torch.is_grad_enabled():
            screenspace_points.retain_grad()
        settings = GaussianRasterizationSettings(
            **cameras[view],
            bg=torch.zeros(3),
            scale_modifier=1.0,
            sh_degree=min(self.step // 5, self.sh_degree),
            prefiltered=False,
            debug=False,
            **(dict(antialiasing=self.antialiasing) if self.generation == 2024 else {}),
        )
        scales, rotations = torch.exp(p["scaling"]), torch.nn.functional.normalize(p["rotation"])
        shape = dict(scales=scales, rotations=rotations, cov3D_precomp=None)
        if self.covariances:
            covars, _ = quat_scale_to_covar_preci(rotations, scales, compute_preci=False, triu=True)
            shape = dict(scales=None, rotations=None, cov3D_precomp=covars)
        if self.generation == 2024 and self.separate_sh:
            shs = dict(dc=p["f_dc"], shs=p["f_rest"])
        else:
            shs = dict(shs=torch.cat((p["f_dc"], p["f_rest"]), dim=1))
        image, radii, *invdepths = GaussianRasterizer(raster_settings=settings)(
            means3D=p["xyz"], means2D=screenspace_points, **shs, colors_precomp=None,
            opacities=torch.sigmoid(p["opacity"]), **shape,
        )  # fmt: skip
        assert len(invdepths) == (self.generation == 2024)
        if self.exposure:
            matrix = self.exposures[view]
            image = (image.permute(1, 2, 0) @ matrix[:3, :3]).permute(2, 0, 1) + matrix[:3, 3, None, None]
        if self.generation == 2024:
            image = image.clamp(0, 1)
        return image, invdepths[0] if invdepths else None, radii, screenspace_points

    def train(self, steps=STEPS):
        _, images = make_data()
        for _ in range(steps):
            self.step += 1
            view = self.step % N_VIEWS
            image, invdepths, radii, screenspace_points = self.render(view)
            loss = 0.8 * torch.abs(image - images[view]).mean()
            loss = loss + 0.2 * (1.0 - fused_ssim(image.unsqueeze(0), images[view].unsqueeze(0)))
            if self.depth_loss:
                loss += 0.01 * torch.abs(invdepths - 1 / 3).mean()
            loss.backward()
            with torch.no_grad():
                self.update_statistics(radii, screenspace_points.grad)
                if self.step > 2 and self.step % REFINE_EVERY == 0:
                    self.refine()
                if self.step in self.resets:
                    self.reset_opacity()
                self.step_optimizers(radii)

    def update_statistics(self, radii, gradients):
        visible = radii > 0 if self.generation == 2023 else (radii > 0).nonzero()
        self.max_radii2D[visible] = torch.max(self.max_radii2D[visible], radii[visible])
        self.gradients[visible] += torch.norm(gradients[visible, :2], dim=-1, keepdim=True)
        self.counts[visible] += 1

    def step_optimizers(self, radii):
        """Updates the parameters. After a refinement, they have no gradients and `radii` have the previous N."""
        self.exposure_optimizer.step()
        self.exposure_optimizer.zero_grad(set_to_none=True)
        self.optimizer.step(*((radii > 0, radii.shape[0]) if self.sparse_adam else ()))
        self.optimizer.zero_grad(set_to_none=True)

    def refine(self):
        """Clones the Gaussians with large gradients and removes the most transparent ones; new moments are zero."""
        gradients = (self.gradients / self.counts).nan_to_num(0.0)[:, 0]
        cloned = (gradients > gradients.quantile(0.8)).nonzero()[:, 0]
        opacities = self.params["opacity"][:, 0]
        kept = opacities.argsort(stable=True)[len(opacities) // 10 :].sort().values
        for group in self.optimizer.param_groups:
            value = group["params"][0]
            self.replace(group, torch.cat([value[kept], value[cloned]]), lambda moment: torch.cat(
                [moment[kept], torch.zeros_like(moment[cloned])]
            ))  # fmt: skip
        self.clear_statistics()

    def reset_opacity(self):
        (group,) = (group for group in self.optimizer.param_groups if group["name"] == "opacity")
        value = torch.sigmoid(group["params"][0]).clamp_max(0.25).logit()
        self.replace(group, value, torch.zeros_like)

    def replace(self, group, value, change):
        """Replaces the tensor of a parameter group, and changes its moments."""
        state = self.optimizer.state.pop(group["params"][0])
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = change(state[name])
        group["params"][0] = torch.nn.Parameter(value)
        self.optimizer.state[group["params"][0]] = state

    def capture(self):
        """A checkpoint: tensors and the state of the optimizer."""
        values = {name: parameter.detach() for name, parameter in self.params.items()}
        return self.step, values, (self.gradients, self.counts, self.max_radii2D), self.optimizer.state_dict()

    def restore(self, checkpoint):
        self.step, values, (self.gradients, self.counts, self.max_radii2D), state = checkpoint
        self.make_optimizer(values)
        self.optimizer.load_state_dict(state)

    @torch.no_grad()
    def evaluate(self):
        """Mean PSNR over the views, in dB."""
        _, images = make_data()
        return sum(psnr(self.render(i)[0].clamp(0, 1), images[i]).item() for i in range(N_VIEWS)) / N_VIEWS
