# %% [markdown]
# # Fit an image with 2D Gaussians
#
# The smallest program that shows what a rasterizer of Gaussians is for: it starts from random ellipses, renders them,
# compares the rendering with an image, and lets gradient descent move them.

# %%
import matplotlib.pyplot as plt
import torch
from torch.nn.functional import pad

from tsplat import l1_ssim_loss, rasterization
from tsplat.scene import procedural_capture

STEPS = 500
N = 2000  # Gaussians
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# The target is an image that tsplat draws itself. For an image of your own, write `target =
# torch.from_numpy(plt.imread("image.png")[..., :3].copy()).to(device)`.

# %%
target = procedural_capture(240, 180, n_train=1, n_test=1, n_points=1).train[0].pixels.to(device)  # [H, W, 3] in [0, 1]
height, width, _ = target.shape

# %% [markdown]
# The Gaussians lie in the plane z = 1, and a world unit is ten pixels. Each has a position, two scales, a rotation,
# an opacity and a color. Optimizers work best on values without limits, so scales are stored as logarithms, and
# opacities and colors before the sigmoid.

# %%
splats = {
    "means": torch.rand(N, 2, device=device) * torch.tensor([width / 10, height / 10], device=device),
    "scales": torch.full((N, 2), -1.3, device=device),
    "rotations": torch.randn(N, 2, device=device),
    "opacities": torch.zeros(N, device=device),
    "colors": torch.randn(N, 3, device=device),
}
optimizer = torch.optim.Adam([tensor.requires_grad_() for tensor in splats.values()], lr=0.03)
viewmat, K = torch.eye(4, device=device), torch.diag(torch.tensor([10.0, 10.0, 1.0], device=device))

# %% [markdown]
# `rasterization` renders Gaussians in three dimensions. These are flat: their third scale is 0, and they rotate about
# z only, by quaternions (w, 0, 0, z), which need not be normalized. The camera is orthographic. The loss is that of
# 3D Gaussian Splatting, 0.8 L1 + 0.2 (1 - SSIM). All else is as in any training loop.

# %%
images, psnrs = [], []
for _ in range(STEPS):
    (image,), _, _ = rasterization(
        means=pad(splats["means"], (0, 1), value=1.0),
        quats=pad(splats["rotations"][:, :1], (0, 3)) + pad(splats["rotations"][:, 1:], (3, 0)),
        scales=pad(splats["scales"].exp(), (0, 1)),
        opacities=splats["opacities"].sigmoid(), colors=splats["colors"].sigmoid(),
        viewmats=viewmat[None], Ks=K[None], width=width, height=height, camera_model="ortho")  # fmt: skip
    images.append(image.detach().clamp(0, 1))
    psnrs.append(-10 * (images[-1] - target).square().mean().log10().item())
    l1_ssim_loss(image, target).backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"{N} Gaussians: PSNR {psnrs[0]:.1f} -> {psnrs[-1]:.1f} dB")
assert psnrs[-1] > psnrs[0] + 10

# %%
figure, axes = plt.subplots(1, 4, figsize=(12, 2.6), layout="constrained")
for axis, step in zip(axes, [0, STEPS // 10, STEPS - 1, None]):
    axis.imshow((target if step is None else images[step]).numpy(force=True))
    axis.set(title="target" if step is None else f"step {step}: {psnrs[step]:.1f} dB", xticks=[], yticks=[])
figure.savefig("fit_image.png")
