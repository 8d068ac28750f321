"""Custom training loop with gsplat's API: `rasterization`, a strategy and `torch.optim.Adam`.

Run it with `python docs/custom_training_loop.py`.
"""

import math

import torch

from tsplat import l1_ssim_loss, rasterization
from tsplat.scene import procedural_capture
from tsplat.strategies import DefaultStrategy, MCMCStrategy


def train(strategy_name: str = "default", steps: int = 600, device: str = "cpu") -> tuple[float, float, int]:
    """Returns the PSNR of a held-out view before and after training, and the number of Gaussians."""
    torch.manual_seed(0)
    capture = procedural_capture(88, 66, n_train=12, n_test=1, n_points=300, seed=0).to(device)
    background = torch.tensor([capture.background], device=device)
    n = len(capture.points)
    splats = torch.nn.ParameterDict(
        {
            "means": capture.points,
            "scales": torch.full((n, 3), math.log(0.06)),
            "quats": torch.tensor([[1.0, 0, 0, 0]]).repeat(n, 1),
            "opacities": torch.full((n,), -1.0),
            "colors": capture.colors.clamp(0.01, 0.99).logit(),
        }
    ).to(device)
    lrs = {"means": 2e-3, "scales": 1e-2, "quats": 4e-3, "opacities": 5e-2, "colors": 2e-2}
    optimizers = {name: torch.optim.Adam([splats[name]], lr=lr, eps=1e-15) for name, lr in lrs.items()}
    schedule = dict(refine_start_iter=20, refine_stop_iter=steps // 2 + 20, refine_every=20)
    if strategy_name == "default":
        strategy = DefaultStrategy(**schedule, grow_grad2d=0.002, reset_every=10**6)
    else:
        strategy = MCMCStrategy(**schedule, cap_max=2000, noise_lr=5e3)
    strategy.check_sanity(splats, optimizers)
    state = strategy.initialize_state(scene_scale=2.0)

    def render(view):
        return rasterization(
            splats["means"], splats["quats"], splats["scales"].exp(), splats["opacities"].sigmoid(),
            splats["colors"].sigmoid(), view.viewmat[None], view.K[None], view.width, view.height,
            backgrounds=background, packed=False,
        )  # fmt: skip

    @torch.no_grad()
    def psnr(view):
        return -10 * math.log10((render(view)[0][0].clamp(0, 1) - view.pixels).square().mean().item())

    before = psnr(capture.test[0])
    for step in range(steps):
        view = capture.train[step % len(capture.train)]
        image, _, info = render(view)
        strategy.step_pre_backward(splats, optimizers, state, step, info)
        l1_ssim_loss(image[0], view.pixels).backward()
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
        extra = {"lr": lrs["means"]} if strategy_name == "mcmc" else {}
        strategy.step_post_backward(splats, optimizers, state, step, info, **extra)
    return before, psnr(capture.test[0]), len(splats["means"])


if __name__ == "__main__":
    print("PSNR {:.2f} -> {:.2f} dB with {} Gaussians".format(*train()))
