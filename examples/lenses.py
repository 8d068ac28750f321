# %% [markdown]
# # Lenses and rolling shutters
#
# A wall of lines through five cameras: without distortion, with two kinds of lens distortion, with a fisheye lens, and
# with a rolling shutter that reads its rows from top to bottom while the camera turns.

# %%
import math

import matplotlib.pyplot as plt
import torch

from tsplat import RollingShutterType, rasterization

SIZE, SPACING = 240, 0.02
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# Lines on a wall at z = 2, red across and blue upright, made of small round Gaussians.

# %%
along = torch.arange(-3, 3, SPACING)
red, blue = (torch.tensor(color).expand(len(along), 3) for color in ([0.8, 0.2, 0.1], [0.1, 0.3, 0.8]))
means, colors = [], []
for place in torch.linspace(-2.4, 2.4, 13):
    fixed, two = torch.full_like(along, place), torch.full_like(along, 2.0)
    means += [torch.stack([along, fixed, two], -1), torch.stack([fixed, along, two], -1)]
    colors += [red, blue]
n = sum(map(len, means))
scene = dict(
    means=torch.cat(means),
    quats=torch.tensor([[1.0, 0, 0, 0]]).expand(n, 4),
    scales=torch.full((n, 3), 0.015),
    opacities=torch.full((n,), 0.9),
    colors=torch.cat(colors),
    viewmats=torch.eye(4)[None],
    backgrounds=torch.ones(1, 3),
)
scene = {name: tensor.to(device) for name, tensor in scene.items()}

# %% [markdown]
# What each camera passes to `rasterization()`, besides `with_ut=True`. The last one is turned by 12 degrees about the
# vertical axis when its last row is read.

# %%
c, s = math.cos(math.radians(12)), math.sin(math.radians(12))
turned = torch.tensor([[[c, 0, s, 0], [0, 1, 0, 0], [-s, 0, c, 0], [0, 0, 0, 1]]], device=device)


def coefficients(*values):
    return torch.tensor([values], device=device)


cameras = {
    "without distortion": {},
    "barrel distortion": dict(radial_coeffs=coefficients(-0.2, 0, 0, 0, 0, 0)),
    "tilted sensor": dict(  # tangential and thin prism
        tangential_coeffs=coefficients(0, 0.05), thin_prism_coeffs=coefficients(0, 0, 0.1, 0)
    ),
    "fisheye": dict(camera_model="fisheye", radial_coeffs=coefficients(-0.02, 0, 0, 0)),
    "rolling shutter": dict(rolling_shutter=RollingShutterType.ROLLING_TOP_TO_BOTTOM, viewmats_rs=turned),
}

# %%
figure, axes = plt.subplots(1, len(cameras), figsize=(2.5 * len(cameras), 2.8))
for axis, (name, options) in zip(axes, cameras.items()):
    focal = (0.45 if name == "fisheye" else 0.7) * SIZE
    Ks = torch.tensor([[[focal, 0, SIZE / 2], [0, focal, SIZE / 2], [0, 0, 1]]], device=device)
    image, alpha, _ = rasterization(**scene, Ks=Ks, width=SIZE, height=SIZE, with_ut=True, **options)
    print(f"{name}: lines cover {float((alpha > 0.5).float().mean()):.0%} of the image")
    axis.imshow(image[0].clamp(0, 1).cpu().numpy())
    axis.set_title(name, fontsize=13)
    axis.set(xticks=[], yticks=[])
figure.tight_layout()
figure.savefig("lenses.png", dpi=100)
