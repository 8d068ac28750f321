"""How good Gaussians are on views, by the usual measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from ..backend import Backend
from ..scene.captures import View
from ..scene.gaussians import Gaussians
from .losses import psnr, ssim
from .rendering import Color, render


@dataclasses.dataclass(frozen=True)
class Score:
    """A view rendered and compared with its picture.

    Attributes:
        view: The view.
        image: [H, W, 3] as rendered, clamped to [0, 1].
        psnr: In dB.
        ssim: Over windows inside the picture.
    """

    view: View
    image: Tensor
    psnr: float
    ssim: float


@torch.no_grad()
def evaluate(
    gaussians: Gaussians,
    views: Sequence[View],
    *,
    background: Color = (0.0, 0.0, 0.0),
    backend: Backend = "auto",
) -> list[Score]:
    """Renders each view with all degrees there are, and measures.

    Raises:
        ArgumentError: A picture is smaller than the window of SSIM; or as :func:`tsplat.rasterization`.
    """
    scores = []
    for view in views:
        image = render(
            gaussians, view.viewmat, view.K, view.width, view.height, background=background, backend=backend
        ).clamp(0, 1)
        scores.append(Score(view, image, float(psnr(image, view.pixels)), float(ssim(image, view.pixels))))
    return scores


def mean_psnr(scores: Sequence[Score]) -> float:
    """The mean of the views' PSNR, not the PSNR of their mean error."""
    return sum(score.psnr for score in scores) / len(scores)


def mean_ssim(scores: Sequence[Score]) -> float:
    return sum(score.ssim for score in scores) / len(scores)
