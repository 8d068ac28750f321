# %% [markdown]
# # Render your first Gaussians
#
# This example places Gaussians on a sphere, renders them from a camera, and shows what else a rendering returns: depth,
# coverage, and where each Gaussian lands in the image. It needs no data.

# %%
import matplotlib.pyplot as plt
import torch

from tsplat import rasterization
from tsplat.scene import intrinsics, look_at

device = "cuda" if torch.cuda.is_available() else "cpu"
width, height = 320, 240

# %% [markdown]
# ## Gaussians
#
# Points on a sphere, evenly spaced along a spiral. Each Gaussian is a flat disk: its shortest axis, z before rotation,
# is turned to the normal of the sphere. Quaternions are `wxyz`; the one that turns z to the unit vector n has the
# direction (1 + n_z, -n_y, n_x, 0), of any length.

# %%
n = 2000
turns = torch.arange(n, device=device) + 0.5
z = 1 - 2 * turns / n
angles = turns * torch.pi * (1 + 5**0.5)
radii = (1 - z**2).sqrt()
means = torch.stack([radii * angles.cos(), radii * angles.sin(), z], -1)
quats = torch.stack([1 + z, -means[:, 1], means[:, 0], torch.zeros_like(z)], -1)
scales = torch.tensor([0.035, 0.035, 0.005], device=device).expand(n, 3)
opacities = torch.full((n,), 0.9, device=device)
colors = 0.5 + 0.5 * means  # by position

# %% [markdown]
# ## A camera
#
# It is three units from the center. World frames are arbitrary; here, y points down, as in most captures.

# %%
viewmat = look_at(eye=(1.0, -1.2, -2.6), target=(0.0, 0.0, 0.0)).to(device)
K = intrinsics(width, height, fov=50.0).to(device)

# %% [markdown]
# ## Rendering
#
# Leading dimensions are cameras: one here. `"RGB+ED"` adds the expected depth as a fourth channel.

# %%
image, alpha, meta = rasterization(
    means, quats, scales, opacities, colors, viewmat[None], K[None], width, height, render_mode="RGB+ED"
)
print("image", list(image.shape), "alpha", list(alpha.shape))
print(len(meta["gaussian_ids"]), "of", n, "Gaussians are visible")
print(meta["memory"]["n_intersections"], "intersections with tiles of", meta["tile_size"], "pixels")

# %%
depth = image[0, ..., 3].where(alpha[0, ..., 0] > 0.5, torch.nan)
figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
axes[0].imshow(image[0, ..., :3].clamp(0, 1).numpy(force=True))
axes[0].set_title("colors")
axes[1].imshow(depth.numpy(force=True))
axes[1].set_title("expected depth")
nearest = meta["depths"].argsort()[:200].cpu()
centers = meta["means2d"].cpu()[nearest].numpy(force=True)
axes[2].imshow(alpha[0, ..., 0].numpy(force=True), cmap="gray")
axes[2].plot(*centers.T, "o", color="tab:orange", markersize=2)
axes[2].set_title("alpha, centers of the nearest 200")
for axis in axes:
    axis.set(xticks=[], yticks=[])
figure.savefig("render.png")

# %% [markdown]
# ## Gradients
#
# Everything is differentiable. Here: in which direction a larger radius of all disks would change the coverage.

# %%
factor = torch.ones((), device=device, requires_grad=True)
_, alpha, _ = rasterization(means, quats, scales * factor, opacities, colors, viewmat[None], K[None], width, height)
alpha.mean().backward()
print(f"coverage {alpha.mean():.3f}, its derivative by the size {factor.grad:.3f}")
