# %% [markdown]
# # Depth supervision
#
# With few photographs, Gaussians reproduce the training views and still lie at wrong depths. Known depths of a few
# pixels help: from the points of structure-from-motion, a laser scanner, or a depth camera. This page trains on eight
# photographs with and without a loss on the rendered depth.

# %%
import matplotlib.pyplot as plt
import torch

from tsplat import l1_ssim_loss, rasterization
from tsplat.ops import Adam
from tsplat.scene import Gaussians, procedural_capture

STEPS = 400
N = 3000  # Gaussians
N_DEPTHS = 500  # known depths per view
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# ## Data
#
# Depths are known at a few random pixels of each training view. Here, they are those of a dense and exact point
# cloud, which tsplat renders as a depth image. `View.sparse` has the same form in captures that `read_capture` reads
# from COLMAP: x and y in pixels, and the depth along z.

# %%
capture = procedural_capture(128, 96, n_train=8, n_test=2, n_points=40_000, position_noise=0.0).to(device)
background = torch.tensor([capture.background], device=device)


def render(gaussians, view):
    """The color [H, W, 3], the expected depth [H, W] and the opacity [H, W] of a view."""
    (image,), (alpha,), _ = rasterization(
        gaussians.means, gaussians.quats, gaussians.scales, gaussians.opacities, gaussians.sh0,
        view.camera.viewmat[None], view.camera.K[None], view.width, view.height,
        sh_degree=0, backgrounds=background, render_mode="RGB+ED",
    )  # fmt: skip
    return image[..., :3], image[..., 3], alpha[..., 0]


def sparse_depths(view):
    """Depths at random pixels that show a surface, [N_DEPTHS, 3]: x, y, depth."""
    _, depth, alpha = render(scan, view)
    rows, columns = (alpha > 0.99).nonzero()[torch.randperm(int((alpha > 0.99).sum()))[:N_DEPTHS].to(device)].unbind(1)
    return torch.stack([columns + 0.5, rows + 0.5, depth[rows, columns]], 1)


scan = Gaussians.from_points(capture.points, capture.colors, sh_degree=0, opacity=0.99, scale=0.6)
sparse = [sparse_depths(view) for view in capture.train]

# %% [markdown]
# ## The loss
#
# `render_mode="RGB+ED"` renders colors and, as the last channel, the expected depth: the mean depth of what a pixel
# shows. It is differentiable like the colors. `grid_sample` reads it at the known points. Inverse depths are
# compared, so that near surfaces count more than far ones.


# %%
def depth_loss(depth, points):
    size = points.new_tensor([depth.shape[1], depth.shape[0]])
    grid = (2 * points[:, :2] / size - 1)[None, None]  # pixel centers lie at +0.5, hence align_corners=False
    found = torch.nn.functional.grid_sample(depth[None, None], grid, align_corners=False)[0, 0, 0]
    return (1 / found.clamp_min(0.1) - 1 / points[:, 2]).abs().mean()


def train(depth_weight):
    """Trains from random points; returns the Gaussians."""
    torch.manual_seed(0)
    points = (torch.rand(N, 3) * 2 - 1) * torch.tensor([1.8, 0.5, 1.8]) - torch.tensor([0, 0.4, 0])
    start = Gaussians.from_points(points.to(device), torch.rand(N, 3).to(device), sh_degree=0)
    parameters = [tensor.requires_grad_() for tensor in (start.means, start.log_scales, start.quats)]
    parameters += [tensor.requires_grad_() for tensor in (start.opacity_logits, start.sh0)]
    rates = [5e-3, 2e-2, 1.5e-2, 5e-2, 2e-2]
    optimizer = Adam([{"params": [p], "lr": rate} for p, rate in zip(parameters, rates)], eps=1e-15)
    for step in range(STEPS):
        i = step % len(capture.train)
        view = capture.train[i]
        image, depth, _ = render(start, view)
        loss = l1_ssim_loss(image, view.pixels) + depth_weight * depth_loss(depth, sparse[i])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return start


# %%
@torch.no_grad()
def evaluate(gaussians):
    """Mean depth error on held-out views, in world units, and PSNR in dB."""
    depth_errors, squares = [], []
    for view in capture.test:
        _, expected, surface = render(scan, view)
        image, depth, _ = render(gaussians, view)
        depth_errors.append((depth - expected).abs()[surface > 0.99].mean())
        squares.append((image.clamp(0, 1) - view.pixels).square().mean())
    return float(torch.stack(depth_errors).mean()), float(-10 * torch.stack(squares).mean().log10())


results = {"without depths": train(0.0), f"with {N_DEPTHS} depths per view": train(2.0)}
scores = {name: evaluate(gaussians) for name, gaussians in results.items()}
for name, (error, psnr) in scores.items():
    print(f"{name}: depth error {error:.3f}, PSNR {psnr:.2f} dB on held-out views")
(error_without, psnr_without), (error_with, psnr_with) = scores.values()
assert error_with < 0.7 * error_without

# %%
figure, axes = plt.subplots(1, 4, figsize=(14, 3), layout="constrained")
axes[0].imshow(capture.test[0].image.numpy(force=True))
axes[0].set(title="held-out view", xticks=[], yticks=[])
for axis, (name, gaussians) in zip(axes[1:], {"exact": scan, **results}.items()):
    _, depth, alpha = render(gaussians, capture.test[0])
    shown = axis.imshow(depth.where(alpha > 0.5, torch.nan).numpy(force=True), vmin=2.5, vmax=5.5, cmap="viridis")
    axis.set(title=f"depth, {name}", xticks=[], yticks=[])
figure.colorbar(shown, ax=axes)
figure.savefig("depth_supervision.png")
