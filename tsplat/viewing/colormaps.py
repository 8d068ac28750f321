"""Colormaps for scalar images such as depth and error."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_colormap(values: Tensor) -> Tensor:
    """Maps [H, W] values in [0, 1] to Matplotlib's magma colormap, black to pale yellow; returns [H, W, 3] uint8."""
    from matplotlib import colormaps

    return torch.from_numpy(colormaps["magma"](values.clamp(0, 1).cpu().numpy(), bytes=True)[..., :3].copy())
