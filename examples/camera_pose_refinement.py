# %% [markdown]
# # Refine camera poses
#
# `rasterization` is differentiable with respect to `viewmats`. This page uses the gradient to find where photographs
# were taken: it trains a scene, perturbs the poses of new photographs by several degrees, and recovers them from the
# images alone.

# %%
import matplotlib.pyplot as plt
import torch

from tsplat import rasterization
from tsplat.ops import Adam
from tsplat.scene import Gaussians, procedural_capture
from tsplat.training import Config, fit

STEPS = 200
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# First a scene, trained on views whose poses are known.

# %%
capture = procedural_capture(128, 96, n_train=24, n_test=6, n_points=3000).to(device)
# learning rates for a short run; the defaults of Config are for 30,000 steps
rates = dict(means_rate=1e-3, scales_rate=2e-2, quats_rate=1.5e-2, sh0_rate=1.5e-2, shN_rate=1.5e-3)
config = Config(steps=2 * STEPS, background=capture.background, **rates)
scene = fit(Gaussians.from_points(capture.points, capture.colors, sh_degree=1), capture.train, config)

# %% [markdown]
# ## A motion with six parameters
#
# A pose has six degrees of freedom, a matrix [4, 4] has sixteen entries. The exponential map turns three rotations
# and three translations into a rigid motion, which is the identity at zero. `viewmat @ motion` moves the scene about
# its origin in front of the camera. `motion @ viewmat` would move the camera about its own center, which converges
# slowly: a camera that turns and one that moves sideways see nearly the same change.

# %%
AXES = torch.zeros(6, 4, 4, device=device)
for i, (row, column) in enumerate([(2, 1), (0, 2), (1, 0)]):
    AXES[i, row, column], AXES[i, column, row] = 1, -1  # rotation about axis i
    AXES[3 + i, i, 3] = 1  # translation along axis i


def rigid_motion(motion):
    """Rotation vectors in radians and translations, [C, 6] -> matrices [C, 4, 4]."""
    return torch.linalg.matrix_exp(torch.einsum("ci,ijk->cjk", motion, AXES))


def pose_errors(viewmats, expected):
    """Median rotation error in degrees and median distance of the camera positions."""
    found, expected = torch.linalg.inv(viewmats.double()), torch.linalg.inv(expected.double())
    cosines = ((found[:, :3, :3] * expected[:, :3, :3]).sum((1, 2)) - 1) / 2
    distances = (found - expected)[:, :3, 3].norm(dim=-1)
    return cosines.clamp(-1, 1).acos().rad2deg().median().item(), distances.median().item()


# %% [markdown]
# ## Photographs with wrong poses
#
# Six photographs that were not used for training. Their poses are off by five degrees and 0.2 units; the scene is 3.5
# units wide.

# %%
photographs = torch.stack([view.pixels for view in capture.test])
expected = torch.stack([view.camera.viewmat for view in capture.test])
Ks = torch.stack([view.camera.K for view in capture.test])
noise = torch.nn.functional.normalize(torch.randn(len(expected), 2, 3, device=device), dim=-1)
noise = noise * torch.tensor([[0.087], [0.2]], device=device)  # radians, world units
initial = rigid_motion(noise.flatten(1)) @ expected


def render(viewmats):
    images, _, _ = rasterization(
        scene.means, scene.quats, scene.scales, scene.opacities, scene.sh_coeffs(1), viewmats, Ks,
        photographs.shape[2], photographs.shape[1], sh_degree=1,
        backgrounds=torch.tensor([capture.background], device=device).repeat(len(viewmats), 1),
    )  # fmt: skip
    return images


# %% [markdown]
# ## Refinement
#
# All cameras are refined at once: their losses do not depend on each other. The loss compares blurred images first,
# and sharper ones as the poses improve, because gradients of fine texture point nowhere if it is far from where it
# belongs.


# %%
def blur(images, width):
    """Averages over windows of the given width, an odd number of pixels."""
    channels = images.permute(0, 3, 1, 2)
    return torch.nn.functional.avg_pool2d(channels, width, stride=1, padding=width // 2, count_include_pad=False)


motion = torch.zeros(len(initial), 6, device=device, requires_grad=True)
optimizer = Adam([motion], lr=2e-2)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.05 ** (1 / STEPS))
errors = []
for step in range(STEPS):
    viewmats = initial @ rigid_motion(motion)
    errors.append(pose_errors(viewmats.detach(), expected))
    width = (9, 5, 1)[min(3 * step // STEPS, 2)]
    loss = (blur(render(viewmats), width) - blur(photographs, width)).abs().mean((1, 2, 3)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
refined = (initial @ rigid_motion(motion)).detach()
errors.append(pose_errors(refined, expected))
print("rotation {:.2f} degrees, position {:.3f}".format(*errors[0]))
print("rotation {:.2f} degrees, position {:.3f} after refinement".format(*errors[-1]))
assert errors[-1][0] < 0.2 * errors[0][0]
assert errors[-1][1] < 0.2 * errors[0][1]

# %%
figure, axes = plt.subplots(1, 4, figsize=(14, 2.8), layout="constrained")
images = {
    "photograph": photographs[0],
    "difference before": (render(initial)[0] - photographs[0]).abs(),
    "difference after": (render(refined)[0] - photographs[0]).abs(),
}
for axis, (title, image) in zip(axes, images.items()):
    axis.imshow(image.clamp(0, 1).numpy(force=True))
    axis.set(title=title, xticks=[], yticks=[])
axes[3].semilogy(errors, label=["rotation, degrees", "position, units"])
axes[3].set(title="median pose errors", xlabel="step")
axes[3].legend()
figure.savefig("camera_pose_refinement.png")

# %% [markdown]
# To train a scene and refine its poses at the same time, put `motion` of the training views into the training loop,
# with a learning rate of about 1e-5; `tsplat train --pose-refinement` does this.
