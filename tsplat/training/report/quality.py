"""Locates errors of a model: metrics of image regions, the worst patches, and floaters."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d

from ...config import SSIM_K1, SSIM_K2, SSIM_TAPS, Backend
from ...precision import in_full_precision
from ...rendering import render, render_views
from ...scene.cameras import Camera
from ...scene.extents import with_near_planes
from ...scene.gaussians import Gaussians
from ...scene.sh_colors import colors_to_sh0

REGIONS = ("sharp", "flat", "border")
"""Regions of an image: the border; inside of it, the pixels with the largest brightness gradients; and all others."""

SHARP, BORDER = 1 / 3, 16
"""Fraction of the pixels inside the border that are sharp; ratio of the shorter side to the width of the border."""

PATCH, PATCH_MIN, PER_VIEW = 4, 16, 2
"""Ratio of the image's shorter side to that of a patch, minimum side of a patch, and maximum number per view."""

FLOATER_DEPTH_RATIO = 0.8
"""A Gaussian floats in a view if its depth is less than this fraction of the expected depth at its center."""


class RegionScore(NamedTuple):
    """PSNR in dB and SSIM of a region, None if it has no pixels; the PSNR of equal images is infinite."""

    psnr: float | None
    ssim: float | None


class Patch(NamedTuple):
    """A square of an image: the index of the view, the first row and column, the side, and the PSNR in dB."""

    view: int
    top: int
    left: int
    side: int
    psnr: float

    def crop(self, image: Tensor) -> Tensor:
        """Returns the patch of an image [H, W, 3]."""
        return image[self.top : self.top + self.side, self.left : self.left + self.side]


def region_masks(target: Tensor) -> dict[str, Tensor]:
    """Returns the mask, [H, W] bool, of each of :data:`REGIONS` of a photograph [H, W, 3] uint8."""
    brightness = target.float().mean(-1)
    strength = torch.stack(torch.gradient(brightness)).square().sum(0)
    margin = max(1, min(brightness.shape) // BORDER)
    inside = torch.zeros_like(brightness, dtype=torch.bool)
    inside[margin:-margin, margin:-margin] = True
    limit = float(np.quantile(strength[inside].cpu().numpy(), 1 - SHARP)) if inside.any() else 0.0
    sharp = inside & (strength > limit)
    return dict(zip(REGIONS, (sharp, inside & ~sharp, ~inside)))


def score_regions(target: Tensor, rendered: Tensor) -> dict[str, RegionScore]:
    """Compares a rendering with its photograph, both [H, W, 3] uint8, region by region.

    SSIM is the mean over windows that lie inside the image and have their center in the region; the border has few.
    """
    x, y = rendered.float() / 255, target.float() / 255
    squares, similarity, radius = (x - y).square().mean(-1), ssim_map(x, y), len(SSIM_TAPS) // 2
    scores = {}
    for name, region in region_masks(target).items():
        centers = region[radius:-radius, radius:-radius]
        scores[name] = RegionScore(
            float(-10 * squares[region].mean().log10()) if region.any() else None,
            float(similarity[centers].mean()) if centers.any() else None,
        )
    return scores


@in_full_precision
def ssim_map(image: Tensor, target: Tensor) -> Tensor:
    """Returns the SSIM of each window inside images [H, W, C] in [0, 1], averaged over channels, [H - 10, W - 10]."""
    x, y = image.movedim(-1, 0), target.movedim(-1, 0)
    taps = torch.tensor(SSIM_TAPS, dtype=x.dtype, device=x.device)
    maps = torch.cat([x, y, x * x, y * y, x * y])[:, None]
    means = conv2d(conv2d(maps, taps.view(1, 1, 1, -1)), taps.view(1, 1, -1, 1))[:, 0]
    mean_x, mean_y, mean_xx, mean_yy, mean_xy = means.chunk(5)
    product = mean_x * mean_y
    luminance = (2 * product + SSIM_K1**2) / (mean_x**2 + mean_y**2 + SSIM_K1**2)
    structure = (2 * (mean_xy - product) + SSIM_K2**2) / (mean_xx - mean_x**2 + mean_yy - mean_y**2 + SSIM_K2**2)
    return (luminance * structure).mean(0)


def worst_patches(images: Sequence[tuple[Tensor, Tensor]], n: int) -> list[Patch]:
    """Returns the n patches with the largest squared error, the worst first; they do not overlap."""
    patches = []
    for view, (target, rendered) in enumerate(images):
        side = min(*target.shape[:2], max(PATCH_MIN, min(target.shape[:2]) // PATCH))
        squares = (target.float() - rendered.float()).div(255).square().mean(-1)
        errors = avg_pool2d(squares[None, None], side)[0, 0].cpu()
        values, places = errors.flatten().topk(min(PER_VIEW, errors.numel()))
        for error, place in zip(values.tolist(), places.tolist()):
            row, column = divmod(place, errors.shape[1])
            patches.append(Patch(view, row * side, column * side, side, -10 * float(np.log10(max(error, 1e-12)))))
    return sorted(patches, key=lambda patch: (patch.psnr, patch.view))[:n]


@torch.no_grad()
def floater_shares(gaussians: Gaussians, cameras: Sequence[Camera], backend: Backend = "auto") -> list[float]:
    """Returns, for each camera, the fraction of all rendering weights that belongs to floating Gaussians."""
    shares = []
    for camera in with_near_planes(cameras, gaussians.means):
        depth, _, meta = render_views(gaussians, [camera], render_mode="ED", backend=backend)
        x, y = meta["means2d"][0].nan_to_num(0.0).clamp(-1e6, 1e6).long().unbind(-1)
        surface = depth[0, y.clamp(0, camera.height - 1), x.clamp(0, camera.width - 1), 0]
        in_front = (meta["depths"][0] < FLOATER_DEPTH_RATIO * surface).float()
        # All Gaussians are black, except those in front, which are white.
        marked = dataclasses.replace(
            gaussians, sh0=colors_to_sh0(in_front)[:, None, None].expand(-1, 1, 3), shN=gaussians.shN[:, :0]
        )
        shares.append(float(render(marked, camera, backend=backend).mean()))
    return shares
