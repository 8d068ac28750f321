# %% [markdown]
# # Render depth and normals
#
# A trained scene contains more than colors. This page renders depth, and normals in two forms: from the depth image,
# and from the shapes of the Gaussians.

# %%
import matplotlib.pyplot as plt
import torch
from torch.nn.functional import normalize

from tsplat import quat_scale_to_covar_preci, rasterization
from tsplat.scene import Gaussians, procedural_capture
from tsplat.training import Config, fit

STEPS = 400
device = "cuda" if torch.cuda.is_available() else "cpu"

# %%
capture = procedural_capture(160, 120, n_train=24, n_test=2, n_points=12_000, position_noise=0.01).to(device)
# learning rates for a short run; the defaults of Config are for 30,000 steps
rates = dict(means_rate=3e-4, scales_rate=2e-2, quats_rate=1.5e-2, sh0_rate=1.5e-2, shN_rate=1.5e-3)
config = Config(steps=STEPS, background=capture.background, **rates)
scene = fit(Gaussians.from_points(capture.points, capture.colors, sh_degree=1), capture.train, config)
view = capture.test[0]


def render(colors, render_mode, **options):
    image, alpha, _ = rasterization(
        scene.means, scene.quats, scene.scales, scene.opacities, colors, view.camera.viewmat[None], view.camera.K[None],
        view.width, view.height, render_mode=render_mode, **options,
    )  # fmt: skip
    return image[0], alpha[0, ..., 0]


# %% [markdown]
# ## Depth
#
# Depth is z in the camera's frame, in world units, and the last channel of the image. `"ED"` is the expected depth,
# the mean over what a pixel shows; `"D"` is accumulated depth, which is not divided by the opacity. `"RGB+ED"`
# renders colors as well. Where nothing is shown, depth is 0.

# %%
background = torch.tensor([capture.background], device=device)
image, alpha = render(scene.sh_coeffs(1), "RGB+ED", sh_degree=1, backgrounds=background)
depth, surface = image[..., 3], alpha > 0.5

# %% [markdown]
# ## Normals from depth
#
# Every pixel with its depth is a point in space. The normal is perpendicular to the differences between neighboring
# points. It points towards the camera.


# %%
def points_of(depth):
    """World coordinates of the points that an image of depths shows, [H, W, 3]."""
    y, x = torch.meshgrid(
        torch.arange(view.height, device=device) + 0.5, torch.arange(view.width, device=device) + 0.5, indexing="ij"
    )
    rays = torch.stack([x, y, torch.ones_like(x)], -1) @ torch.linalg.inv(view.camera.K).T
    camera_to_world = torch.linalg.inv(view.camera.viewmat)
    return (rays * depth[..., None]) @ camera_to_world[:3, :3].T + camera_to_world[:3, 3]


points = points_of(depth)
across, down = torch.gradient(points, dim=(1, 0))
normals_of_depth = normalize(down.cross(across, dim=-1), dim=-1)

# %% [markdown]
# ## Normals of Gaussians
#
# On a surface, a Gaussian becomes flat: its shortest axis is the normal. It is an eigenvector of the covariance, that
# of the smallest eigenvalue, up to its sign. Rendered like colors, normals are averaged over what a pixel shows.

# %%
covariances, _ = quat_scale_to_covar_preci(scene.quats, scene.scales, compute_preci=False)
axes_of_gaussians = torch.linalg.eigh(covariances).eigenvectors[..., 0]  # eigenvalues ascend
to_camera = torch.linalg.inv(view.camera.viewmat)[:3, 3] - scene.means
axes_of_gaussians = axes_of_gaussians * (axes_of_gaussians * to_camera).sum(-1, keepdim=True).sign()
normals_of_gaussians = normalize(render(axes_of_gaussians, "RGB")[0], dim=-1)

# %% [markdown]
# ## How good are they?
#
# The table top is horizontal, and y points down: its normal is (0, -1, 0). Which pixels show it follows from their
# height.

# %%
table = surface & (points[..., 1].abs() < 0.03)
up = torch.tensor([0.0, -1.0, 0.0], device=device)
for name, normals in {"depth": normals_of_depth, "Gaussians": normals_of_gaussians}.items():
    angle = (normals[table] @ up).clamp(-1, 1).acos().rad2deg().median().item()
    print(f"normals of {name}: off by {angle:.1f} degrees on the table (median)")
    assert angle < 20

# %%
images = {
    "color": image[..., :3],
    "depth": depth.where(surface, torch.nan),
    "normals of depth": (0.5 + 0.5 * normals_of_depth).where(surface[..., None], 1.0),
    "normals of Gaussians": (0.5 + 0.5 * normals_of_gaussians).where(surface[..., None], 1.0),
}
figure, axes = plt.subplots(1, 4, figsize=(14, 3.1), layout="constrained")
for axis, (title, shown) in zip(axes, images.items()):
    axis.imshow((shown if title == "depth" else shown.clamp(0, 1)).numpy(force=True))
    axis.set(title=title, xticks=[], yticks=[])
figure.savefig("render_depth_and_normals.png")
