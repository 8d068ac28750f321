"""Colormaps for scalar images such as depth and error."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .markup import Html, escape

DEPTH_QUANTILES = (0.01, 0.99)
"""Quantiles of inverse depth that the colormap spans."""

DEPTH_FLOOR = 0.15
"""Colormap position of the farthest surface; empty pixels are at 0."""

Limits = tuple[Tensor, Tensor]


def apply_colormap(values: Tensor, name: str = "magma") -> Tensor:
    """Maps [H, W] values in [0, 1] to a colormap of Matplotlib, such as magma, black to pale yellow.

    Returns:
        [H, W, 3] uint8, on the CPU.
    """
    from matplotlib import colormaps

    return torch.from_numpy(colormaps[name](values.clamp(0, 1).cpu().numpy(), bytes=True)[..., :3].copy())


def depth_limits(depths: Tensor, alphas: Tensor) -> Limits | None:
    """Returns the range of inverse depth that a colormap shows; None for an image that shows nothing.

    Args:
        depths, alphas: [H, W].
    """
    inverse, seen = _inverse(depths, alphas)
    if not bool(seen.any()):
        return None
    low, high = inverse[seen].quantile(inverse.new_tensor(DEPTH_QUANTILES)).unbind()
    return low, torch.maximum(high, low * (1 + 1e-6))


def color_depths(depths: Tensor, alphas: Tensor, limits: Limits | None, name: str = "magma") -> Tensor:
    """Colors depths by their inverse, bright is near; returns [H, W, 3] in [0, 1].

    Args:
        depths, alphas: [H, W].
        limits: See :func:`depth_limits`.
        name: Colormap of Matplotlib.
    """
    inverse, seen = _inverse(depths, alphas)
    low, high = limits or (inverse.new_zeros(()), inverse.new_ones(()))
    values = DEPTH_FLOOR + (1 - DEPTH_FLOOR) * (inverse - low) / (high - low)
    return apply_colormap(torch.where(seen, values, 0.0), name).to(depths.device) / 255


def _inverse(depths: Tensor, alphas: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse depths [H, W], and [H, W] bool, True where there is a surface."""
    seen = alphas > 0.5
    return torch.where(seen, 1 / depths.clamp_min(1e-12), 0.0), seen


def color_bar(name: str, labels: Sequence[str]) -> Html:
    """Returns a colormap of Matplotlib as HTML, with labels at equal distances below it, the first on the left."""
    colors = apply_colormap(torch.linspace(0, 1, 17)[None], name)[0].tolist()
    stops = ", ".join(f"rgb({r}, {g}, {b})" for r, g, b in colors)
    texts = Html("").join(Html(f"<span>{escape(label)}</span>") for label in labels)
    return Html(
        f'<div style="margin: 0.2em 0.8em"><div style="height: 0.8em; background: linear-gradient(to right, {stops})">'
        f'</div><div style="display: flex; justify-content: space-between; font-size: 0.8em">{texts}</div></div>'
    )
