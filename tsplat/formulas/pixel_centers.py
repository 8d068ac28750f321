"""Coordinates of pixel centers: i + 0.5."""

import torch
from torch import Tensor


def pixel_centers(width: int, height: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Returns x [width] and y [height] of pixel centers, in the dtype and on the device of `like`."""
    x, y = (torch.arange(n, dtype=like.dtype, device=like.device) + 0.5 for n in (width, height))
    return x, y
