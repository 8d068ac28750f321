"""Photographs beside their renders."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from ...scene.capture.views import View
from ...scene.images import downscale

Comparison = Literal["photograph", "render", "difference", "split"]
COMPARISONS: tuple[Comparison, ...] = get_args(Comparison)

PHOTOGRAPH_WIDTH = 480
"""Width in pixels of photographs beside the controls."""

Image = np.ndarray[Any, Any]
"""[h, w, 3] uint8."""


def shrink(view: View) -> Image:
    """Returns the photograph of a view in the size in which it is shown."""
    width = min(view.width, PHOTOGRAPH_WIDTH)
    image = view.image if width == view.width else downscale(view.image, width, round(view.height * width / view.width))
    return image.cpu().numpy()


def combine(photograph: Image, render: Image, what: Comparison) -> Image:
    """Returns the render, the difference of the two, or the left half of one beside the right half of the other."""
    if what == "render":
        return render
    if what == "difference":
        difference: Image = np.abs(photograph.astype(np.int16) - render).astype(np.uint8)
        return difference
    half = photograph.shape[1] // 2
    split: Image = np.concatenate([photograph[:, :half], render[:, half:]], axis=1)
    return split
