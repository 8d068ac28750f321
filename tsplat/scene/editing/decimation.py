"""Decimation: reduces the number of Gaussians while changing the rendered images as little as possible.

The number is reduced by equal factors in several rounds. Each round computes how much images change without each
Gaussian (:mod:`.importance`), and merges the least important Gaussians into their neighbors (:mod:`.moments`).
Optionally, the result is optimized on images of the original. docs/decisions/0029 has measurements.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...config import Backend
from ...errors import ArgumentError, UnsupportedError
from ...scalars import check_size
from ...support.progress import ShowStage
from ..cameras import Camera, choose_evenly, resize_camera
from ..extents import with_near_planes
from ..gaussians import PARAMETERS, Gaussians, drop_invalid
from ..rendered_views import render_views
from .importance import importance
from .moments import merge_into_neighbors

N_ROUNDS = 8
N_VIEWS, N_ROUND_VIEWS = 60, 30
"""Maximum number of views, chosen at even intervals; and number of views per round, which repeats views if there are
fewer."""

SIZE_MAX = 400
"""Longest side of the rendered images in pixels."""

RATES = {"log_scales": 1.5e-3, "quats": 6e-4, "opacity_logits": 1e-2, "sh0": 1e-3, "shN": 1e-4}
MEANS_RATE = 0.03
"""Learning rates of Adam; the rate of the means is relative to the median scale. All decay to zero in the last half."""

RATES_ERROR, RATES_FACTOR_MAX = 0.008, 4.0
"""Root mean squared image error for which the rates were tuned, and the limit of their factor. The rates are
proportional to the error, up to this limit."""


def decimate_gaussians(
    gaussians: Gaussians,
    n: int,
    cameras: Sequence[Camera],
    *,
    finetune: int = 200,
    backend: Backend = "auto",
    seed: int = 0,
    on_progress: ShowStage = lambda stage, done, total: None,
) -> Gaussians:
    """Reduces a model to `n` Gaussians, merged so that its images change little.

    Gaussians that no camera sees are removed first. The result depends on `seed`, and is not differentiable.

    Args:
        gaussians: Model on the device to render on. Invalid Gaussians are removed.
        n: Number of Gaussians to keep; if the model has fewer, all are kept.
        cameras: Cameras whose images should change little. They should surround the model at the distances of later
            views. At most 60 are used, at up to 400 pixels. Cameras without a near plane get one that suits the visible
            scene.
        finetune: Number of steps in which all parameters are optimized on images of `gaussians` afterwards; 0 for none.
        backend: As for :func:`tsplat.rasterization`.
        seed: Random seed of the importance estimate.
        on_progress: Called with a stage, the finished amount, and the total.

    Raises:
        ArgumentError: `n` is not positive, `finetune` is negative, or there is no camera.
        UnsupportedError: The Gaussians are 2D.
        MissingExtraError: SciPy, which finds neighbors, is not installed.
        BackendError: The backend is not available.

    Example::

        import torch
        from tsplat.scene import Camera, Gaussians, decimate_gaussians, intrinsics, orbit

        gaussians = Gaussians.from_points(torch.rand(200, 3) - 0.5, torch.rand(200, 3))
        K = intrinsics(64, 48, fov=50)
        poses = orbit((0, 0, 0), radius=2, azimuths=range(0, 360, 60), elevations=[20] * 6)
        small = decimate_gaussians(gaussians, 100, [Camera(pose, K, 64, 48) for pose in poses], finetune=20)
        assert len(small) == 100
    """
    check_size("n", n)
    if gaussians.surfels:
        raise UnsupportedError("gaussians: 2D Gaussians cannot be decimated; prune those of low opacity instead")
    finetune = check_size("finetune", finetune, or_zero=True)
    if not cameras:
        raise ArgumentError("cameras: expected at least one, found none")
    original = drop_invalid(gaussians, lambda _: None).map(lambda tensor: tensor.detach().float())
    if len(original) <= n:
        return original
    views = [resize_camera(camera, SIZE_MAX) for camera in choose_evenly(cameras, N_VIEWS)]
    views = with_near_planes(views, original.means)
    generator = torch.Generator().manual_seed(seed)
    decimated = _merge(original, n, views, backend, generator, on_progress)
    return _finetune(decimated, original, views, finetune, backend, generator, on_progress) if finetune else decimated


def _merge(
    gaussians: Gaussians,
    n: int,
    cameras: Sequence[Camera],
    backend: Backend,
    generator: torch.Generator,
    on_progress: ShowStage,
) -> Gaussians:
    """Runs the rounds of merging."""
    n_before, done = len(gaussians), itertools.count(1)
    views = itertools.cycle([*cameras[::2], *cameras[1::2]])

    def on_view() -> None:
        on_progress("merging", next(done), N_ROUNDS * N_ROUND_VIEWS)

    for i in range(N_ROUNDS):
        n_kept = round(n_before * (n / n_before) ** ((i + 1) / N_ROUNDS))
        round_views = list(itertools.islice(views, N_ROUND_VIEWS))
        errors, weights = importance(gaussians, round_views, backend=backend, generator=generator, on_view=on_view)
        kept = torch.zeros_like(errors, dtype=torch.bool)
        kept[errors.argsort(descending=True, stable=True)[:n_kept]] = True
        gaussians = merge_into_neighbors(gaussians, kept, weights)
    return gaussians


def _finetune(
    gaussians: Gaussians,
    original: Gaussians,
    cameras: Sequence[Camera],
    steps: int,
    backend: Backend,
    generator: torch.Generator,
    on_progress: ShowStage,
) -> Gaussians:
    """Minimizes the squared difference from images of the original, on backgrounds of random colors."""

    def render(model: Gaussians, camera: Camera) -> tuple[Tensor, Tensor]:
        images, alphas, _ = render_views(model, [camera], background=None, backend=backend)
        return images[0], alphas[0]

    def on_background(image: Tensor, alpha: Tensor, background: Tensor) -> Tensor:
        return image + (1 - alpha) * background

    with torch.no_grad():
        targets = [render(original, camera) for camera in cameras]
        sample = range(0, len(cameras), max(1, len(cameras) // 8))
        errors = [render(gaussians, cameras[i])[0] - targets[i][0] for i in sample]
    error = math.sqrt(sum(float(image.square().mean()) for image in errors) / len(errors))
    factor = min(max(error / RATES_ERROR, 1.0), RATES_FACTOR_MAX)
    tensors: dict[str, Any] = {name: tensor.clone().requires_grad_() for name, tensor in gaussians.tensors().items()}
    rates = {**RATES, "means": MEANS_RATE * float(gaussians.scales.median())}
    groups = [{"params": [tensors[name]], "lr": factor * rates[name]} for name in PARAMETERS if tensors[name].numel()]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99), eps=1e-15)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 2 - 2 * step / steps))
    order: list[int] = []
    for step in range(steps):
        order = order or torch.randperm(len(cameras), generator=generator, device="cpu").tolist()
        i = order.pop()
        background = torch.rand(3, generator=generator, dtype=torch.float32, device="cpu").to(gaussians.means)
        optimized = dataclasses.replace(gaussians, **tensors)
        difference = on_background(*render(optimized, cameras[i]), background) - on_background(*targets[i], background)
        optimizer.zero_grad()
        torch.autograd.backward(difference.square().mean())
        optimizer.step()
        schedule.step()
        on_progress("finetune", step + 1, steps)
    return optimized.map(Tensor.detach)
