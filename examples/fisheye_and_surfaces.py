# %% [markdown]
# # Train fisheye photographs, and a surface
#
# Two things that a training can do besides the usual: use photographs of a fisheye lens as they were taken, and fit 2D
# Gaussians, discs that lie on surfaces and have normals. For a scene on disk, these are `tsplat train SCENE --camera
# native` and `tsplat train SCENE --primitive 2dgs`; this page calls the same trainer.

# %%
import dataclasses

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import grid_sample, normalize

from tsplat.rendering import render_views
from tsplat.scene import Camera, Gaussians, View, procedural_capture
from tsplat.training import Config, evaluate, fit

STEPS = 400
WIDTH, HEIGHT = 160, 120
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# ## A fisheye capture
#
# OpenCV's fisheye lens shows a point at the angle t from its axis at the distance f t (1 + k1 t^2 + ...) from the
# center of the image. To photograph with it, each of its pixels looks up where its ray hits the image of a pinhole
# camera at the same place. The inverse of the polynomial is found by iteration.

# %%
capture = procedural_capture(2 * WIDTH, 2 * HEIGHT, n_train=24, n_test=3, n_points=4000, supersampling=1).to(device)
FOCAL, K1 = 1.15 * WIDTH, -0.5
K = torch.tensor([[FOCAL, 0, WIDTH / 2], [0, FOCAL, HEIGHT / 2], [0, 0, 1]], device=device)
lens = torch.tensor([K1, 0, 0, 0], device=device)


def through_fisheye(view):
    y, x = torch.meshgrid(torch.arange(HEIGHT) + 0.5, torch.arange(WIDTH) + 0.5, indexing="ij")
    offset = (torch.stack([x, y], -1).to(device) - K[:2, 2]) / FOCAL
    distance = offset.norm(dim=-1, keepdim=True)
    angle = distance
    for _ in range(20):
        angle = distance / (1 + K1 * angle**2)
    at = view.camera.K[0, 0] * angle.tan() * offset / distance + view.camera.K[:2, 2]
    grid = 2 * at / at.new_tensor([view.width, view.height]) - 1
    pixels = grid_sample(view.pixels.movedim(-1, 0)[None], grid[None], align_corners=False)[0].movedim(0, -1)
    camera = Camera(view.camera.viewmat, K, WIDTH, HEIGHT, model="fisheye", distortion=lens, name=view.name)
    return View((255 * pixels).round().to(torch.uint8), camera, mask=(grid.abs() < 1).all(-1))


train, test = ([through_fisheye(view) for view in views] for views in (capture.train, capture.test))
print(f"{float(train[0].mask.float().mean()):.0%} of a fisheye image shows what the pinhole camera saw")

# %% [markdown]
# ## Training on them as they are
#
# The camera of a view says what its lens is, and `fit` projects by the unscented transform, which works for every lens.
# Masked pixels are left out of loss and evaluation. The same photographs as if their lens had no distortion are
# the comparison: an equidistant lens with the same focal length.

# %%
# learning rates for a short run; the defaults of Config are for 30,000 steps
rates = dict(means_rate=1e-3, scales_rate=2e-2, quats_rate=1.5e-2, sh0_rate=1.5e-2, shN_rate=1.5e-3)
config = Config(steps=STEPS, background=capture.background, **rates)
start = Gaussians.from_points(capture.points, capture.colors, sh_degree=1)


def without_distortion(view):
    return view.replaced(camera=dataclasses.replace(view.camera, distortion=None))


psnr, models = {}, {}
for name, change in {"with its lens": lambda view: view, "without distortion": without_distortion}.items():
    models[name] = fit(start, [change(view) for view in train], config)
    psnr[name] = evaluate(models[name], [change(view) for view in test], background=capture.background).psnr
    print(f"fisheye {name}: PSNR {psnr[name]:.2f} dB on test views")
assert psnr["with its lens"] > psnr["without distortion"] + 1

# %% [markdown]
# ## A surface
#
# 2D Gaussians are for pinhole cameras. `as_surfels` makes discs of the initial Gaussians, and `normal_weight` aligns
# them with the depth map that they render. `meta` of a rendering has the normals, in the world frame.

# %%
small = procedural_capture(WIDTH, HEIGHT, n_train=24, n_test=3, n_points=4000, position_noise=0.01).to(device)
discs = Gaussians.from_points(small.points, small.colors, sh_degree=1).as_surfels()
surface = fit(discs, small.train, dataclasses.replace(config, normal_weight=0.05))
camera = small.test[0].camera
with torch.no_grad():
    image, alpha, meta = render_views(surface, [camera], background=small.background, render_mode="RGB+ED")
normals = normalize(meta["render_normals"][0], dim=-1)
print(f"2D Gaussians: PSNR {evaluate(surface, small.test, background=small.background).psnr:.2f} dB on test views")

# %% [markdown]
# The table top is horizontal, and y points down: its normal is (0, -1, 0). Its pixels are those whose point, from
# depth, is at the height 0.

# %%
y, x = torch.meshgrid(torch.arange(HEIGHT) + 0.5, torch.arange(WIDTH) + 0.5, indexing="ij")
rays = torch.stack([x, y, torch.ones_like(x)], -1).to(device) @ torch.linalg.inv(camera.K).T
to_world = torch.linalg.inv(camera.viewmat)
heights = ((rays * image[0, ..., 3:]) @ to_world[:3, :3].T + to_world[:3, 3])[..., 1]
table = (alpha[0, ..., 0] > 0.5) & (heights.abs() < 0.03)
angle = (-normals[table][:, 1]).clamp(-1, 1).acos().rad2deg().median().item()
print(f"normals of 2D Gaussians: off by {angle:.1f} degrees on the table (median)")
assert angle < 45  # of discs with random directions: 60

# %%
with torch.no_grad():
    fisheye, _, _ = render_views(models["with its lens"], [test[0].camera], background=capture.background)
images = {
    "a fisheye photograph": test[0].pixels,
    "rendered with its lens": fisheye[0].clamp(0, 1),
    "2D Gaussians": image[0, ..., :3].clamp(0, 1),
    "their normals": torch.where(alpha[0] > 0.5, 0.5 + 0.5 * normals, 1.0),
}
figure, axes = plt.subplots(1, 4, figsize=(14, 3.1), layout="constrained")
for axis, (title, shown) in zip(axes, images.items()):
    axis.imshow(shown.numpy(force=True))
    axis.set(title=title, xticks=[], yticks=[])
figure.savefig("fisheye_and_surfaces.png")
