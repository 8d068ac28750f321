"""`install()` and ``python -m tsplat.compat.inria``, with the training loops of both generations."""

import re

import pytest

RUN = "import runpy; runpy.run_module('tsplat.compat.inria', run_name='__main__')"
"""As ``python -m tsplat.compat.inria``."""

MODEL = """
import math
import sys
import torch
from diff_gaussian_rasterization import GaussianRasterizationSettings, GaussianRasterizer
from simple_knn._C import distCUDA2

class Camera:
    image_width, image_height = 32, 24
    FoVx, FoVy = 0.9, 2 * math.atan(math.tan(0.45) * 24 / 32)
    world_view_transform = torch.eye(4)
    camera_center = torch.zeros(3)
    full_proj_transform = torch.zeros(4, 4)

camera = Camera()
for axis, fov in enumerate((camera.FoVx, camera.FoVy)):
    camera.full_proj_transform[axis, axis] = 1 / math.tan(fov / 2)
camera.full_proj_transform[2, 2:] = torch.tensor([1.0, 1.0])
camera.full_proj_transform[3, 2] = -0.01

class Model:
    max_sh_degree = active_sh_degree = 1

    def __init__(self, n):
        points = torch.randn(n, 3) * 0.6 + torch.tensor([0.0, 0.0, 3.0])
        dist2 = torch.clamp_min(distCUDA2(points), 1e-7)
        opacity = torch.logit(0.3 * torch.ones(n, 1))
        rotation = torch.zeros(n, 4)
        rotation[:, 0] = 1
        self._xyz = torch.nn.Parameter(points)
        self._features_dc = torch.nn.Parameter(torch.randn(n, 1, 3))
        self._features_rest = torch.nn.Parameter(torch.zeros(n, 3, 3))
        self._scaling = torch.nn.Parameter(torch.log(torch.sqrt(dist2))[..., None].repeat(1, 3))
        self._rotation = torch.nn.Parameter(rotation)
        self._opacity = torch.nn.Parameter(opacity)
        self.max_radii2D = torch.zeros(n)
        self.xyz_gradient_accum = torch.zeros(n, 1)
        self.denom = torch.zeros(n, 1)

    def groups(self):
        rates = dict(_xyz=0.005, _features_dc=0.05, _features_rest=0.005, _opacity=0.05, _scaling=0.02, _rotation=0.01)
        return [{"params": [getattr(self, name)], "lr": rate, "name": name} for name, rate in rates.items()]

def settings(pc, bg_color, **further):
    return GaussianRasterizationSettings(
        image_height=int(camera.image_height), image_width=int(camera.image_width),
        tanfovx=math.tan(camera.FoVx * 0.5), tanfovy=math.tan(camera.FoVy * 0.5), bg=bg_color, scale_modifier=1.0,
        viewmatrix=camera.world_view_transform, projmatrix=camera.full_proj_transform,
        sh_degree=pc.active_sh_degree, campos=camera.camera_center, prefiltered=False, debug=False, **further,
    )

def statistics(gaussians, viewspace_point_tensor, visibility_filter, radii):
    kept = torch.max(gaussians.max_radii2D[visibility_filter], radii[visibility_filter])
    gaussians.max_radii2D[visibility_filter] = kept
    gradients = viewspace_point_tensor.grad[visibility_filter, :2]
    gaussians.xyz_gradient_accum[visibility_filter] += torch.norm(gradients, dim=-1, keepdim=True)
    gaussians.denom[visibility_filter] += 1

def report(gaussians, losses):
    gradients = gaussians.xyz_gradient_accum / gaussians.denom
    visible = gaussians.denom[:, 0] > 0
    assert gradients[visible].isfinite().all() and (gradients[visible] > 0).any()
    assert torch.equal(gaussians.max_radii2D > 0, visible)
    assert losses[-1] < 0.8 * losses[0], losses
    print("trained", len(losses))

torch.manual_seed(0)
gaussians = Model(80)
background = torch.zeros(3)
gt_image = torch.rand(3, 24, 32) * 0.2 + torch.linspace(0.1, 0.8, 32)
losses = []
"""

TRAINING_2023 = (
    MODEL
    + """
from fused_ssim import fused_ssim

optimizer = torch.optim.Adam(gaussians.groups(), lr=0.0, eps=1e-15)
for iteration in range(8):
    screenspace_points = torch.zeros_like(gaussians._xyz, requires_grad=True) + 0
    screenspace_points.retain_grad()
    rasterizer = GaussianRasterizer(raster_settings=settings(gaussians, background))
    image, radii = rasterizer(
        means3D=gaussians._xyz, means2D=screenspace_points,
        shs=torch.cat((gaussians._features_dc, gaussians._features_rest), dim=1), colors_precomp=None,
        opacities=torch.sigmoid(gaussians._opacity), scales=torch.exp(gaussians._scaling),
        rotations=torch.nn.functional.normalize(gaussians._rotation), cov3D_precomp=None,
    )
    Ll1 = torch.abs(image - gt_image).mean()
    loss = 0.8 * Ll1 + 0.2 * (1.0 - fused_ssim(image[None], gt_image[None]))
    loss.backward()
    with torch.no_grad():
        losses.append(loss.item())
        statistics(gaussians, screenspace_points, radii > 0, radii)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
report(gaussians, losses)
"""
)

TRAINING_2024 = (
    MODEL
    + """
try:
    from fused_ssim import fused_ssim
    FUSED_SSIM_AVAILABLE = True
except ImportError:
    FUSED_SSIM_AVAILABLE = False
try:
    from diff_gaussian_rasterization import SparseGaussianAdam
    SPARSE_ADAM_AVAILABLE = True
except ImportError:
    SPARSE_ADAM_AVAILABLE = False
try:
    from diff_gaussian_rasterization._C import fusedssim
except ImportError:
    pass
assert FUSED_SSIM_AVAILABLE and SPARSE_ADAM_AVAILABLE

optimizer = SparseGaussianAdam(gaussians.groups(), lr=0.0, eps=1e-15)
gt_invdepth = torch.full((1, 24, 32), 0.3)
for iteration in range(8):
    screenspace_points = torch.zeros_like(gaussians._xyz, requires_grad=True) + 0
    screenspace_points.retain_grad()
    rasterizer = GaussianRasterizer(raster_settings=settings(gaussians, background, antialiasing=True))
    image, radii, invdepth = rasterizer(
        means3D=gaussians._xyz, means2D=screenspace_points, dc=gaussians._features_dc, shs=gaussians._features_rest,
        colors_precomp=None, opacities=torch.sigmoid(gaussians._opacity), scales=torch.exp(gaussians._scaling),
        rotations=torch.nn.functional.normalize(gaussians._rotation), cov3D_precomp=None,
    )
    visibility_filter = (radii > 0).nonzero()
    Ll1 = torch.abs(image.clamp(0, 1) - gt_image).mean()
    loss = 0.8 * Ll1 + 0.2 * (1.0 - fused_ssim(image.unsqueeze(0), gt_image.unsqueeze(0)))
    loss = loss + 0.1 * torch.abs(invdepth - gt_invdepth).mean()
    loss.backward()
    with torch.no_grad():
        losses.append(loss.item())
        statistics(gaussians, screenspace_points, visibility_filter, radii)
        visible = radii > 0
        before = gaussians._xyz.detach().clone()
        optimizer.step(visible, radii.shape[0])
        assert torch.equal((gaussians._xyz != before).any(1) | visible, visible)
        optimizer.zero_grad(set_to_none=True)
report(gaussians, losses)
"""
)


def test_modules_are_imported_under_their_names(forks):
    result = forks.run("""
import sys
from tsplat.compat.inria import install
assert "diff_gaussian_rasterization" not in sys.modules
install()
install()
import diff_gaussian_rasterization, fused_ssim, simple_knn
from diff_gaussian_rasterization import GaussianRasterizationSettings, GaussianRasterizer, SparseGaussianAdam
from simple_knn._C import distCUDA2
import tsplat.compat.inria
assert diff_gaussian_rasterization is tsplat.compat.inria
assert fused_ssim.fused_ssim.__module__ == "tsplat.compat.inria.fused_ssim"
assert simple_knn._C.distCUDA2 is distCUDA2
try:
    from diff_gaussian_rasterization import _C
except ImportError:
    print("no _C")
""")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout == "no _C\n"


@pytest.mark.parametrize("imported", ["diff_gaussian_rasterization", "simple_knn._C", "fused_ssim"])
def test_install_replaces_all_packages_or_none(forks, imported):
    result = forks.run(
        """
import sys, types
name = sys.argv[1]
sys.modules[name] = types.ModuleType(name)
from tsplat.compat.inria import AlreadyImportedError, install
try:
    install()
except AlreadyImportedError as error:
    print(error)
packages = ("diff_gaussian_rasterization", "simple_knn", "fused_ssim")
assert [name for name in sys.modules if name.split(".")[0] in packages] == [name]
""",
        imported,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    package = imported.partition(".")[0]
    assert re.match(
        rf"{package}: 1 of its modules are imported already; call tsplat.compat.inria.install\(\) before", result.stdout
    )


@pytest.mark.slow
@pytest.mark.parametrize("script", [TRAINING_2023, TRAINING_2024], ids=["2023", "2024"])
def test_training_loop_runs_unchanged(tmp_path, forks, script):
    (tmp_path / "train.py").write_text(script)
    result = forks.run(RUN, tmp_path / "train.py")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout == "trained 8\n"


def test_modules_of_forks_are_imported_under_their_names(forks):
    result = forks.run("""
from tsplat.compat.inria import install
install()
install()
from diff_surfel_rasterization import GaussianRasterizationSettings, GaussianRasterizer
from diff_gaussian_rasterization_ms import GaussianRasterizer as Counting
print(GaussianRasterizer.__name__, Counting.__name__)
for module in ("forward_lite", "gaussian_rasterizer"):
    try:
        exec(f"from {module} import GaussianRasterizer")
    except ImportError as error:
        print(str(error).partition(";")[0])
""")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.splitlines() == [
        "SurfelRasterizer WeightsRasterizer",
        "forward_lite: a module of the fork Spacetime Gaussians",
        "gaussian_rasterizer: a module of the fork Gaussian-SLAM",
    ]


def test_command_chooses_what_is_returned(tmp_path, forks):
    (tmp_path / "show.py").write_text(
        "import os, sys\nimport diff_gaussian_rasterization\nprint(os.environ['TSPLAT_INRIA_RETURNS'], sys.argv[1:])\n"
    )
    for option in (["--returns", "color,radii,depth"], ["--returns=color,radii,depth"]):
        result = forks.run(RUN, *option, tmp_path / "show.py", "--returns", "other")
        assert result.stdout == "color,radii,depth ['--returns', 'other']\n", result.stderr[-3000:]
    for option in (["--returns"], ["--returns", "depht"]):
        result = forks.run(RUN, *option, tmp_path / "show.py")
        assert result.returncode == 2
        assert "error: --returns: expected comma-separated names" in result.stderr
