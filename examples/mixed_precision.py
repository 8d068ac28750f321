# %% [markdown]
# # Mixed precision
#
# Networks train faster in half precision; the projection of Gaussians needs all digits. This page trains both
# together under `torch.autocast`: Gaussians carry features in bf16, the rasterizer blends them in fp32, and a small
# network decodes the feature image to colors in bf16.

# %%
import matplotlib.pyplot as plt
import torch

from tsplat import l1_ssim_loss, rasterization
from tsplat.scene import Gaussians, procedural_capture
from tsplat.training import psnr

STEPS = 300
D = 16  # channels of the features
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# ## What stays in fp32
#
# | | dtype under autocast | reason |
# | --- | --- | --- |
# | means, quats, scales, opacities | parameters in fp32 | fp16 positions have three digits |
# | colors and features | fp32 or half precision | read without a copy, at half the memory and bandwidth |
# | `rasterization`, forward and backward | fp32, whatever the autocast state | sums of many small terms |
# | image losses and Adam of tsplat | fp32 | small differences |
# | networks | half precision, chosen by autocast | matrix products are fast on tensor cores |
#
# Autocast does not change what `rasterization` computes. The image is fp32, and equal to that of the fp32 call with
# the same values:

# %%
capture = procedural_capture(128, 96, n_train=24, n_test=2, n_points=4000).to(device)
start = Gaussians.from_points(capture.points, capture.colors, sh_degree=0)
half_features = torch.randn(len(start), D, device=device).bfloat16()


def render(view, means, log_scales, quats, opacity_logits, features):
    (image,), _, _ = rasterization(
        means, quats, log_scales.exp(), opacity_logits.sigmoid(), features,
        view.camera.viewmat[None], view.camera.K[None], view.width, view.height,
    )  # fmt: skip
    return image


geometry = (start.means, start.log_scales, start.quats, start.opacity_logits)
with torch.autocast(device, dtype=torch.bfloat16):
    mixed = render(capture.train[0], *geometry, half_features)
assert mixed.dtype == torch.float32
assert torch.equal(mixed, render(capture.train[0], *geometry, half_features.float()))

# %% [markdown]
# ## Training
#
# The master copy of the features is fp32, as for any parameter of a mixed-precision run; it is converted in each
# step. `GradScaler` keeps small gradients of fp16 from becoming zero. bf16 has the range of fp32 and needs none.


# %%
def train(dtype):
    """Trains with autocast to a dtype; returns the PSNR and the image of a test view."""
    torch.manual_seed(0)
    parameters = [tensor.clone().requires_grad_() for tensor in (*geometry, torch.randn(len(start), D, device=device))]
    decoder = torch.nn.Sequential(torch.nn.Linear(D, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3)).to(device)
    rates = [2e-3, 1e-2, 5e-3, 5e-2, 2e-2]
    groups = [{"params": [p], "lr": rate} for p, rate in zip(parameters, rates)]
    optimizer = torch.optim.Adam([*groups, {"params": decoder.parameters(), "lr": 5e-3}])
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)

    def decode(view):
        with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
            features = render(view, *parameters[:4], parameters[4].to(dtype))  # [H, W, D] fp32
            return decoder(features).sigmoid()  # [H, W, 3] of the given dtype

    for step in range(STEPS):
        view = capture.train[step % len(capture.train)]
        loss = l1_ssim_loss(decode(view), view.pixels)  # computed in fp32
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    view = capture.test[0]
    with torch.no_grad():
        image = decode(view).float()
    assert all(parameter.dtype == torch.float32 for parameter in parameters)
    return float(psnr(image, view.pixels)), image


results = {"fp32": train(torch.float32), "bf16": train(torch.bfloat16)}
for name, (quality, _) in results.items():
    print(f"{name}: PSNR {quality:.2f} dB on a test view")
assert results["bf16"][0] > results["fp32"][0] - 1
assert results["bf16"][0] > 15

# %%
figure, axes = plt.subplots(1, 3, figsize=(12, 3.3), layout="constrained")
images = {f"{name}: {quality:.1f} dB": image for name, (quality, image) in results.items()}
for axis, (title, image) in zip(axes, {**images, "target": capture.test[0].pixels}.items()):
    axis.imshow(image.numpy(force=True))
    axis.set(title=title, xticks=[], yticks=[])
figure.savefig("mixed_precision.png")

# %% [markdown]
# With `dtype=torch.float16`, the same function trains with gradient scaling. `tsplat train --precision bf16` or
# `fp16` does all this for the built-in trainer.
