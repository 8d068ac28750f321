"""Colormaps for scalar images such as depth and error."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..precision import fp64
from ..support.extras import require
from .markup import Html, escape

DEPTH_QUANTILES = (0.01, 0.99)
"""Quantiles of inverse depth at the ends of the colormap."""

DEPTH_FLOOR = 0.15
"""Colormap position of the farthest surface; empty pixels are at 0."""

ALPHA_MIN = 1 / 255
"""Alpha above which the depth of a pixel is shown over a checkerboard."""

CHECKS, CHECK_SIZE = (0.22, 0.32), 8
"""Gray values of a checkerboard, and the size of its squares in pixels."""

Limits = tuple[Tensor, Tensor]


def apply_colormap(values: Tensor, name: str = "magma") -> Tensor:
    """Colors values [H, W] in [0, 1] by a colormap of Matplotlib. Returns [H, W, 3] uint8, on the CPU."""
    require("matplotlib")
    from matplotlib import colormaps

    return torch.from_numpy(colormaps[name](values.clamp(0, 1).cpu().numpy(), bytes=True)[..., :3].copy())


def depth_limits(depths: Tensor, alphas: Tensor) -> Limits | None:
    """Returns the range of inverse depth for the ends of a colormap; None if the image is empty."""
    inverse, seen = _inverse(depths, alphas)
    if not bool(seen.any()):
        return None
    low, high = inverse[seen].quantile(inverse.new_tensor(DEPTH_QUANTILES)).unbind()
    return low, torch.maximum(high, low * (1 + 1e-6))


def color_depths(depths: Tensor, alphas: Tensor, limits: Limits | None) -> Tensor:
    """Colors depths [H, W] by inverse depth, where bright is near; returns [H, W, 3] in [0, 1]."""
    inverse, seen = _inverse(depths, alphas)
    values = DEPTH_FLOOR + (1 - DEPTH_FLOOR) * _between(inverse, limits)
    return apply_colormap(torch.where(seen, values, 0.0)).to(depths.device).float() / 255


def color_depths_over_checks(
    depths: Tensor, alphas: Tensor, limits: Limits | None, name: str, inverted: bool
) -> Tensor:
    """Colors depths over a checkerboard, by alpha. If `inverted`, the far end of the range has the last color.

    Returns [H, W, 3].
    """
    inverse, _ = _inverse(depths, alphas, ALPHA_MIN)
    values = _between(inverse, limits)
    colors = apply_colormap(1 - values if inverted else values, name).to(depths.device).float() / 255
    rows, columns = (torch.arange(n, device=depths.device) // CHECK_SIZE % 2 for n in depths.shape)
    dark, bright = fp64(CHECKS).to(depths).unbind()
    checks = torch.where(rows[:, None] == columns, dark, bright)
    return torch.lerp(checks[..., None].expand_as(colors), colors, alphas.clamp(0, 1)[..., None])


def _between(inverse: Tensor, limits: Limits | None) -> Tensor:
    low, high = limits or (inverse.new_zeros(()), inverse.new_ones(()))
    return (inverse - low) / (high - low)


def _inverse(depths: Tensor, alphas: Tensor, alpha_min: float = 0.5) -> tuple[Tensor, Tensor]:
    """Returns inverse depths [H, W], and a mask [H, W] of pixels that show a surface."""
    seen = alphas > alpha_min
    return torch.where(seen, 1 / depths.clamp_min(1e-12), 0.0), seen


def color_bar(name: str, labels: Sequence[str], *, ends: tuple[float, float] = (0.0, 1.0)) -> Html:
    """Returns a colormap of Matplotlib between two positions as HTML, with labels at equal distances below."""
    colors = apply_colormap(torch.linspace(*ends, 17, dtype=torch.float32, device="cpu")[None], name)[0].tolist()
    stops = ", ".join(f"rgb({r}, {g}, {b})" for r, g, b in colors)
    texts = Html("").join(Html(f"<span>{escape(label)}</span>") for label in labels)
    return Html(
        f'<div style="margin: 0.2em 0.8em"><div style="height: 0.8em; background: linear-gradient(to right, {stops})">'
        f'</div><div style="display: flex; justify-content: space-between; font-size: 0.8em">{texts}</div></div>'
    )
