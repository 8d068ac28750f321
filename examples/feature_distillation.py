# %% [markdown]
# # Distill features into Gaussians
#
# Networks such as DINO, CLIP or SAM describe each patch of an image by a vector of features. Distilled into
# Gaussians, the features become consistent between views, have the resolution of the rendering, and can be searched
# in 3D. Colors of `rasterization` may have any number of channels; this page renders 16.

# %%
import matplotlib.pyplot as plt
import torch

from tsplat import rasterization
from tsplat.ops import Adam
from tsplat.scene import Gaussians, procedural_capture
from tsplat.training import Config, fit
from tsplat.viewing import render as render_color

STEPS = 300
D = 16  # channels of the features
PATCH = 4  # pixels along the edge of a patch of the teacher
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# ## Scene and teacher
#
# The teacher stands for a trained network. It maps the mean color of each patch to 16 features, so that similar
# colors have similar features (random Fourier features: Rahimi and Recht, 2007). Like that of a trained network, its
# output is smaller than the photograph.

# %%
capture = procedural_capture(160, 120, n_train=24, n_test=2, n_points=4000).to(device)
# learning rates for a short run; the defaults of Config are for 30,000 steps
rates = dict(means_rate=1e-3, scales_rate=2e-2, quats_rate=1.5e-2, sh0_rate=1.5e-2, shN_rate=1.5e-3)
config = Config(steps=STEPS, background=capture.background, **rates)
scene = fit(Gaussians.from_points(capture.points, capture.colors, sh_degree=1), capture.train, config)

frequencies, phases = 3 * torch.randn(3, D, device=device), 2 * torch.pi * torch.rand(D, device=device)


def teacher(view):
    """Features of a photograph, [H / PATCH, W / PATCH, D]."""
    patches = torch.nn.functional.avg_pool2d(view.pixels.permute(2, 0, 1), PATCH).permute(1, 2, 0)
    return (patches @ frequencies + phases).sin()


# %% [markdown]
# ## Distillation
#
# The scene is not changed. Each Gaussian gets a vector of features, which is rendered in place of its color at the
# teacher's resolution: `K` is divided by the size of a patch. The background has features, too; `backgrounds` is
# differentiable like everything else.

# %%
features = torch.zeros(len(scene), D, device=device, requires_grad=True)
sky = torch.zeros(1, D, device=device, requires_grad=True)


def render(view, downscale):
    """Features of a view, [H / downscale, W / downscale, D]."""
    K = view.camera.K / torch.tensor([[downscale], [downscale], [1.0]], device=device)
    (image,), _, _ = rasterization(
        scene.means, scene.quats, scene.scales, scene.opacities, features, view.camera.viewmat[None], K[None],
        view.width // downscale, view.height // downscale, backgrounds=sky,
    )  # fmt: skip
    return image


optimizer = Adam([features, sky], lr=0.02)
losses = []
for step in range(STEPS):
    view = capture.train[step % len(capture.train)]
    loss = (render(view, PATCH) - teacher(view)).square().sum(-1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())

# %% [markdown]
# On views that were not used for training, the rendered features are close to the teacher's. The cosine of their
# angle is 1 where they are equal.

# %%
view = capture.test[0]
with torch.no_grad():
    coarse, sharp, expected = render(view, PATCH), render(view, 1), teacher(view)
similarity = torch.cosine_similarity(coarse, expected, dim=-1).mean().item()
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, mean cosine on a held-out view: {similarity:.3f}")
assert losses[-1] < 0.3 * losses[0]
assert similarity > 0.8

# %% [markdown]
# ## Search
#
# Take the features of one pixel, here on the yellow stripe of the ball, and compare them with those of all Gaussians.
# The result is a selection in 3D: it can be rendered from any side, moved or removed.

# %%
column, row = 48, 52
query = sharp[row, column]
found = torch.cosine_similarity(features.detach(), query, dim=-1) > 0.8
selection = scene.map(lambda tensor: tensor[found])
print(f"{len(selection)} of {len(scene)} Gaussians found")
assert 0 < len(selection) < len(scene) // 2

# %% [markdown]
# To show 16 channels as colors, project them onto their three main directions.

# %%
_, _, directions = torch.pca_lowrank(expected.flatten(0, 1), 3)
limit = (expected @ directions).abs().max()
images = {
    "held-out view, query": view.pixels,
    "the teacher's features": 0.5 + 0.5 * expected @ directions / limit,
    "rendered features": 0.5 + 0.5 * sharp @ directions / limit,
    "Gaussians found": render_color(selection, view.camera),
}
figure, axes = plt.subplots(1, 4, figsize=(14, 3.1), layout="constrained")
for axis, (title, image) in zip(axes, images.items()):
    axis.imshow(image.clamp(0, 1).numpy(force=True))
    axis.set(title=title, xticks=[], yticks=[])
axes[0].plot(column, row, "kx")
figure.savefig("feature_distillation.png")
