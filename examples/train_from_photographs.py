# %% [markdown]
# # Train from photographs
#
# A complete training loop: photographs with cameras, initial points, rasterization, loss, Adam, and a strategy that
# adds Gaussians where they are missing. `tsplat train SCENE --out RUN` does the same with checkpoints, evaluation and
# a report; write a loop of your own to change what happens in a step.

# %%
import matplotlib.pyplot as plt
import torch

from tsplat import l1_ssim_loss, rasterization
from tsplat.ops import Adam
from tsplat.scene import Gaussians, procedural_capture, rasterization_arguments, read_capture, write_model
from tsplat.strategies import DefaultStrategy, MCMCStrategy
from tsplat.training import psnr, scene_extent

SCENE = ""  # a folder with photographs and cameras; empty for a small scene that tsplat draws itself
STRATEGY = "mcmc"  # or "default"
STEPS = 600
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# `read_capture` reads COLMAP models and `transforms.json`. Every eighth view is held out for evaluation. `tsplat
# prepare PHOTOS --out SCENE` computes cameras for photographs that have none.

# %%
if SCENE:
    capture = read_capture(SCENE, downscale=4).to(device)
else:
    capture = procedural_capture(160, 120, n_train=24, n_test=3, n_points=2000).to(device)
extent, background = scene_extent(capture.train), torch.tensor([capture.background], device=device)

# %% [markdown]
# One Gaussian per point, as large as the distance to its neighbors. Parameters are those before activation:
# logarithms of scales, logits of opacities. Each has an optimizer of its own, because strategies change both
# together. The rates are for a few hundred steps; for 30,000, divide all but that of the opacities by about five.

# %%
start = Gaussians.from_points(capture.points, capture.colors, sh_degree=1)
tensors = [start.means, start.log_scales, start.quats, start.opacity_logits, start.sh0, start.shN]
rates = {"means": 1e-3 * extent, "scales": 2e-2, "quats": 1.5e-2, "opacities": 5e-2, "sh0": 1.5e-2, "shN": 1.5e-3}
splats = {name: torch.nn.Parameter(tensor) for name, tensor in zip(rates, tensors)}
optimizers = {name: Adam([splats[name]], lr=rate, eps=1e-15) for name, rate in rates.items()}
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizers["means"], gamma=0.05 ** (1 / STEPS))

# %% [markdown]
# `MCMCStrategy` moves Gaussians that became transparent and adds 5 % at a time up to `cap_max`; `DefaultStrategy`
# clones and splits Gaussians with large gradients on the screen. Both are made for 30,000 steps, so a short run needs
# another schedule.

# %%
refine = dict(refine_start_iter=STEPS // 10, refine_stop_iter=STEPS * 3 // 4, refine_every=max(STEPS // 40, 1))
if STRATEGY == "mcmc":
    strategy = MCMCStrategy(cap_max=3 * len(start), noise_lr=5e3, **refine)
else:
    strategy = DefaultStrategy(grow_grad2d=1e-3, reset_every=10**6, **refine)
strategy.check_sanity(splats, optimizers)
state = strategy.initialize_state(scene_scale=extent)


# %%
def render(view):
    return rasterization(
        splats["means"], splats["quats"], splats["scales"].exp(), splats["opacities"].sigmoid(),
        torch.cat([splats["sh0"], splats["shN"]], 1),
        **rasterization_arguments([view.camera]), sh_degree=1, backgrounds=background, packed=False,
    )  # fmt: skip


@torch.no_grad()
def test_psnr():
    return sum(float(psnr(render(view)[0][0].clamp(0, 1), view.pixels)) for view in capture.test) / len(capture.test)


# %%
before = test_psnr()
for step in range(STEPS):
    view = capture.train[int(torch.randint(len(capture.train), ()))]
    (image,), _, info = render(view)
    strategy.step_pre_backward(splats, optimizers, state, step, info)
    l1_ssim_loss(image, view.pixels).backward()
    for optimizer in optimizers.values():
        optimizer.step()
        optimizer.zero_grad()
    extra = {"lr": schedule.get_last_lr()[0]} if STRATEGY == "mcmc" else {}
    strategy.step_post_backward(splats, optimizers, state, step, info, **extra)
    schedule.step()
after, n = test_psnr(), len(splats["means"])
print(f"test views: PSNR {before:.2f} -> {after:.2f} dB, {len(start)} -> {n} Gaussians")
assert after > before + 3 and n > len(start)

# %% [markdown]
# The result is saved in the layout that viewers read; `tsplat view scene.ply` shows it.

# %%
write_model("scene.ply", Gaussians(*[splats[name].detach() for name in rates]))

# %%
comparison = torch.cat([capture.test[0].pixels, render(capture.test[0])[0][0].clamp(0, 1)], 1)
figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
axis.imshow(comparison.numpy(force=True))
axis.set(title="a test view: photograph and rendering", xticks=[], yticks=[])
figure.savefig("train_from_photographs.png")
