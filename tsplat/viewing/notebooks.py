"""Display of models and images in notebooks."""

import dataclasses
import html
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, BackendError, MemoryBudgetError, ShapeError
from ..rendering import render
from ..scene.formats.checkpoints import open_model
from ..scene.gaussians import Gaussians, drop_invalid
from ..scene.images import encode_png
from ..support.extras import require
from .run_cameras import find_background, find_cameras
from .scene_pages import write_page
from .start_views import first_view

IMAGE_SIZE = (320, 240)
"""Size in pixels of the image that a notebook shows for a model."""


@dataclasses.dataclass(frozen=True, repr=False)
class Display:
    """Value that a notebook displays if it is the last one of a cell.

    Attributes:
        image: [H, W, 3] RGB, uint8 or floats, for front ends without HTML.
        page: HTML page that is embedded in a frame; empty for an image.
        description: Result of `repr`.
    """

    image: Tensor
    page: str
    description: str

    def __repr__(self) -> str:
        return f"Display({self.description})"

    def _repr_png_(self) -> bytes:
        return encode_png(self.image)

    def _repr_html_(self) -> str | None:
        if not self.page:
            return None
        height, width, _ = self.image.shape
        style = f'width="{width}" height="{height}" style="border: 0; max-width: 100%" allow="fullscreen"'
        return f'<iframe title="{html.escape(self.description)}" {style} srcdoc="{html.escape(self.page)}"></iframe>'


def show(shown: Tensor | Gaussians | str | os.PathLike[str], *, width: int = 800, height: int = 600) -> Display:
    """Displays an image or a model in a notebook, as the last value of a cell. Requires the extra ``io``.

    A model is shown by the viewer of :func:`write_page`, in a frame that contains the whole page: 2.8 MB and the model
    are stored in the notebook. Front ends without HTML show an image of the model.

    Args:
        shown: An image [H, W, 3] or [1, H, W, 3], uint8 or floats, which are clamped to [0, 1]; a model; or a path for
            :func:`tsplat.scene.open_model`, of which the first view is shown.
        width, height: Size of the frame of a model in pixels.

    Raises:
        ShapeError: The image has another shape.
        ArgumentError, FileError, MissingExtraError, UnsupportedError: As :func:`write_page` and
            :func:`tsplat.scene.open_model`.

    Example::

        import torch
        from tsplat.scene import Gaussians
        from tsplat.viewing import show

        points = torch.rand(500, 3)
        show(Gaussians.from_points(points, points), width=320, height=240)
    """
    require("PIL")
    if isinstance(shown, Tensor):
        image = shown[0] if shown.dim() == 4 and shown.shape[0] == 1 else shown
        if image.dim() != 3 or image.shape[-1] != 3:
            raise ShapeError(f"shown: expected an image [H, W, 3] or [1, H, W, 3], found {list(shown.shape)}")
        return Display(image.detach(), "", f"image, {image.shape[1]}×{image.shape[0]}")
    options: dict[str, Any] = {}
    if isinstance(shown, Gaussians):
        gaussians, start = shown, first_view(shown)
    else:
        gaussians = drop_invalid(open_model(shown), warnings.warn)
        start = first_view(gaussians, find_cameras(shown))
        options["background"] = find_background(shown) or (0.0, 0.0, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        write_page(path, gaussians, start, **options)
        page = path.read_text("utf-8")
    image = render(gaussians, start.camera(width, height), **options).detach()
    return Display(image, page, repr(gaussians))


@torch.no_grad()
def draw(gaussians: Gaussians) -> bytes | None:
    """Returns an image of a model as a PNG file; None if no Gaussian is visible or it cannot be rendered."""
    try:
        return encode_png(render(gaussians, first_view(gaussians).camera(*IMAGE_SIZE)))
    except (ArgumentError, BackendError, MemoryBudgetError):
        return None


Gaussians.draw = draw
