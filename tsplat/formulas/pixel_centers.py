"""Centers of pixels, which are 0.5 from the edges of the image."""

import torch
from torch import Tensor


def pixel_centers(width: int, height: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Returns x [width] and y [height] of pixel centers, in the dtype and on the device of a tensor."""
    x, y = (torch.arange(n, dtype=like.dtype, device=like.device) + 0.5 for n in (width, height))
    return x, y
