"""How good Gaussians are on views, by the usual measures."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from ..arguments import check_choice
from ..config import Backend
from ..scene.capture.views import Color, View
from ..scene.gaussians import Gaussians
from ..support.extras import require
from ..viewing.rendering import render
from .losses import psnr, ssim
from .processes.group import Team


@dataclasses.dataclass(frozen=True)
class Score:
    """A view rendered and compared with its picture.

    Attributes:
        view: The view.
        image: [H, W, 3] as rendered, clamped to [0, 1]; where the view has a mask, its own picture outside. Empty where
            another rank rendered it.
        psnr: In dB.
        ssim: Over windows inside the picture.
        seconds: To render it.
        lpips: By the network asked for.
    """

    view: View
    image: Tensor
    psnr: float
    ssim: float
    seconds: float = 0.0
    lpips: float | None = None


@torch.no_grad()
def evaluate(
    gaussians: Gaussians,
    views: Sequence[View],
    *,
    background: Color = (0.0, 0.0, 0.0),
    lpips: str | None = None,
    backend: Backend = "auto",
    team: Team | None = None,
) -> list[Score]:
    """Renders each view with all degrees there are, and measures.

    Args:
        lpips: The network of the perceptual distance (Zhang et al., 2018), "alex", "vgg" or "squeeze", if it is wanted.
        team: Ranks that call this together, all with all Gaussians and views, of which each renders its share. The
            scores are of all views on every rank, the pictures its own.

    Raises:
        ArgumentError: A picture is smaller than the window of SSIM; or as :func:`tsplat.rasterization`.
        MissingExtraError: torchmetrics or torchvision is not installed, which LPIPS needs.
    """
    distance = None if lpips is None else _perceptual(lpips, gaussians.means.device)
    team = team or Team()
    scores = []
    for view in team.share(views):
        _wait(gaussians.means.device)
        began = time.perf_counter()
        image = render(
            gaussians,
            view.viewmat,
            view.K,
            view.width,
            view.height,
            background=background,
            backend=backend,
        ).clamp(0, 1)
        _wait(gaussians.means.device)
        seconds = time.perf_counter() - began
        if view.mask is not None:
            image = torch.where(view.mask[..., None], image, view.pixels)
        scores.append(
            Score(
                view,
                image,
                float(psnr(image, view.pixels)),
                float(ssim(image, view.pixels)),
                seconds,
                None if distance is None else distance(image, view.pixels),
            )
        )
    figures = team.collect([(score.psnr, score.ssim, score.seconds, score.lpips) for score in scores])
    elsewhere = torch.empty(0)
    return [
        scores[i // team.size]
        if i % team.size == team.rank
        else Score(view, elsewhere, *figures[i % team.size][i // team.size])
        for i, view in enumerate(views)
    ]


def report(scores: Sequence[Score]) -> dict[str, Any]:
    """Figures of views for JSON: means, and one by one."""
    views = [
        {
            "name": score.view.name,
            "psnr": shown(score.psnr),
            "ssim": score.ssim,
            "seconds": round(score.seconds, 6),
            **({} if score.lpips is None else {"lpips": score.lpips}),
        }
        for score in scores
    ]
    means = {"psnr": shown(mean_psnr(scores)), "ssim": mean_ssim(scores)}
    distances = [score.lpips for score in scores if score.lpips is not None]
    if distances:
        means["lpips"] = sum(distances) / len(distances)
    return {**means, "seconds_per_image": sum(score.seconds for score in scores) / len(scores), "views": views}


def shown(value: float) -> float | None:
    """JSON has no infinity, which is the PSNR of equal pictures."""
    return value if math.isfinite(value) else None


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _perceptual(network: str, device: torch.device) -> Callable[[Tensor, Tensor], float]:
    """LPIPS of two pictures [H, W, 3] in [0, 1]."""
    check_choice("lpips", network, ("alex", "vgg", "squeeze"))
    require("torchmetrics", "torchvision")
    from torchmetrics.image.lpip import LearnedPerceptualImagePatchSimilarity

    metric = LearnedPerceptualImagePatchSimilarity(network, normalize=True).to(device)

    def distance(image: Tensor, truth: Tensor) -> float:
        return float(metric(*(rearrange(picture, "h w c -> 1 c h w") for picture in (image, truth))))

    return distance


def mean_psnr(scores: Sequence[Score]) -> float:
    """The mean of the views' PSNR, not the PSNR of their mean error."""
    return sum(score.psnr for score in scores) / len(scores)


def mean_ssim(scores: Sequence[Score]) -> float:
    return sum(score.ssim for score in scores) / len(scores)
