# %% [markdown]
# # Write your own densification strategy
#
# A strategy decides when Gaussians are added, moved and removed. This one splits those that contribute most to the
# error of the images, and prunes the transparent ones: error-based densification, following "Revising densification
# in Gaussian splatting" (Rota Bulò et al., 2024), in about 30 lines.

# %%
import dataclasses

import matplotlib.pyplot as plt
import torch

from tsplat import l1_ssim_loss, rasterization
from tsplat.ops import Adam
from tsplat.scene import Gaussians, procedural_capture
from tsplat.strategies import Strategy
from tsplat.strategies.operations import remove, split
from tsplat.training import psnr

STEPS = 400
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# ## The strategy
#
# A strategy derives from `Strategy`, which checks parameters and optimizers, and has two hooks: one before and one
# after the backward pass. Its statistics live in `state`, a dictionary. Tensors in it that have a row per Gaussian
# follow the Gaussians through `split` and `remove`, and so do the moments of the optimizers.


# %%
@dataclasses.dataclass
class ErrorStrategy(Strategy):
    """Splits the Gaussians with the largest share of the images' error.

    Attributes:
        cap_max: Maximum number of Gaussians.
        refine_every: Number of steps between refinements.
        refine_stop_iter: Step before which Gaussians are refined.
        share: Share of the Gaussians to split at a time.
        min_opacity: Gaussians with a lower opacity are removed.
    """

    cap_max: int = 4000
    refine_every: int = 25
    refine_stop_iter: int = 300
    share: float = 0.15
    min_opacity: float = 0.01

    def initialize_state(self, n):
        return {"errors": torch.zeros(n, device=device)}

    def step_pre_backward(self, params, optimizers, state, step, info, error):
        # d/ds of the sum over pixels of error * image(s), for a signal s per Gaussian, is the sum of error * weight.
        signal, image = info["signal"], info["render_extra_signals"]
        (errors,) = torch.autograd.grad((image[0, ..., 0] * error).sum(), signal, retain_graph=True)
        state["errors"] += errors[:, 0]

    @torch.no_grad()
    def step_post_backward(self, params, optimizers, state, step, info):
        if step == 0 or step % self.refine_every or step >= self.refine_stop_iter:
            return
        n = len(params["means"])
        k = min(int(self.share * n), self.cap_max - n)
        chosen = torch.zeros(n, dtype=torch.bool, device=device)
        chosen[state["errors"].topk(max(k, 0)).indices] = True
        split(params, optimizers, state, chosen)
        remove(params, optimizers, state, params["opacities"].sigmoid() < self.min_opacity)
        state["errors"].zero_()


# %% [markdown]
# How much a Gaussian contributes to the error is the sum over pixels of the pixel's error times the Gaussian's weight
# in it. The rasterizer computes such sums as gradients: `extra_signals` are further channels, rendered beside the
# colors into `meta["render_extra_signals"]`. For a signal of one channel, its gradient is the sum that is needed.
#
# To see whether the error is a good choice, compare it with chance:


# %%
class RandomStrategy(ErrorStrategy):
    """Splits as many Gaussians, chosen at random."""

    def step_pre_backward(self, params, optimizers, state, step, info, error):
        state["errors"] = torch.rand_like(state["errors"])


# %% [markdown]
# ## Training with it
#
# The loop calls both hooks. It starts from few points.

# %%
capture = procedural_capture(128, 96, n_train=24, n_test=3, n_points=1000).to(device)
background = torch.tensor([[*capture.background, 0.0]], device=device)  # the last channel is the signal
rates = {"means": 5e-3, "scales": 2e-2, "quats": 1.5e-2, "opacities": 5e-2, "colors": 2e-2}


def train(strategy):
    torch.manual_seed(0)
    start = Gaussians.from_points(capture.points, capture.colors, sh_degree=0)
    values = [
        start.means,
        start.log_scales,
        start.quats,
        start.opacity_logits,
        capture.colors.clamp(0.01, 0.99).logit(),
    ]
    splats = {name: torch.nn.Parameter(value.clone()) for name, value in zip(rates, values)}
    optimizers = {name: Adam([splats[name]], lr=rate, eps=1e-15) for name, rate in rates.items()}

    def render(view):
        signal = torch.ones(len(splats["means"]), 1, device=device, requires_grad=True)
        (image,), _, info = rasterization(
            splats["means"], splats["quats"], splats["scales"].exp(), splats["opacities"].sigmoid(),
            splats["colors"].sigmoid(), view.camera.viewmat[None], view.camera.K[None], view.width, view.height,
            backgrounds=background, extra_signals=signal,
        )  # fmt: skip
        return image, {**info, "signal": signal}

    strategy.check_sanity(splats, optimizers)
    state = strategy.initialize_state(len(start))
    for step in range(STEPS):
        view = capture.train[int(torch.randint(len(capture.train), ()))]
        image, info = render(view)
        error = (image.detach() - view.pixels).abs().mean(-1)
        strategy.step_pre_backward(splats, optimizers, state, step, info, error)
        l1_ssim_loss(image, view.pixels).backward()
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
        strategy.step_post_backward(splats, optimizers, state, step, info)
    images = [render(view)[0].detach().clamp(0, 1) for view in capture.test]
    quality = sum(float(psnr(image, view.pixels)) for image, view in zip(images, capture.test)) / len(images)
    return quality, images[0], f"{len(splats['means'])} Gaussians, {quality:.1f} dB"


schedule = dict(refine_every=max(STEPS // 16, 1), refine_stop_iter=STEPS * 3 // 4)
results = {
    "no refinement": train(ErrorStrategy(cap_max=len(capture.points), **schedule)),
    "split at random": train(RandomStrategy(**schedule)),
    "split by error": train(ErrorStrategy(**schedule)),
}
for name, (_, _, description) in results.items():
    print(f"{name}: {description}")
assert results["split by error"][0] > results["no refinement"][0] + 0.5

# %%
figure, axes = plt.subplots(1, 4, figsize=(14, 3.3), layout="constrained")
results["a test view"] = (0.0, capture.test[0].pixels, "target")
for axis, (name, (_, image, description)) in zip(axes, results.items()):
    axis.imshow(image.numpy(force=True))
    axis.set(title=f"{name}\n{description}", xticks=[], yticks=[])
figure.savefig("own_strategy.png")
