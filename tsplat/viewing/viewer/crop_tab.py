"""The controls of the crop box, its edges in the scene, and the export of what is in it."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ArgumentError
from ...scene.cropping import Box, crop_option, raise_if_empty
from ...scene.formats import write_model
from ..scene_pages import is_page, write_page
from ..start_views import StartView
from .callbacks import ON_SERVER, Page, name_in
from .viewed_models import ViewedModel

BOX_COLOR = (255, 200, 40)
EDGES = np.array([
    (ends, np.where(np.arange(3) == axis, 1, ends))
    for axis in range(3) for ends in itertools.product((0, 1), repeat=3) if ends[axis] == 0
])  # fmt: skip
"""[12, 2, 3] edges of a box: which corner has the coordinate of each of their ends."""


class CropTab:
    """The crop box of one client.

    Args:
        page: What the controls know of their client.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self._drawn: tuple[Box | None, Any] = (None, None)
        gui, callbacks = page.client.gui, page.callbacks
        self._crop = gui.add_checkbox("Crop", False, hint="Show only Gaussians with centers in the box")
        self._low = gui.add_vector3("Lower corner", (0.0, 0.0, 0.0), step=0.01)
        self._high = gui.add_vector3("Upper corner", (0.0, 0.0, 0.0), step=0.01)
        callbacks.on_click(gui.add_button("Whole model", hint="The box of all centers"), self._reset)
        self._option = gui.add_markdown("", visible=False)
        for handle in (self._crop, self._low, self._high):
            callbacks.on_update(handle, page.change)
            callbacks.on_update(handle, self._show_option)
        path = gui.add_text("Model file", "cropped.ply", hint=ON_SERVER)
        callbacks.on_long_click(gui.add_button("Export"), lambda: page.write(name_in(path), self._export))

    def show_model(self, model: ViewedModel) -> None:
        """Sets the box to that of a model."""
        self._crop.value = False
        self._reset()

    def box(self) -> Box | None:
        """Returns the box that crops; None where nothing is cropped.

        Raises:
            ArgumentError: It is inverted.
        """
        if not self._crop.value:
            return None
        low, high = self._low.value, self._high.value
        for axis, least, most in zip("xyz", low, high, strict=True):
            if least > most:
                raise ArgumentError(
                    f"Crop: the lower corner is above the upper one in {axis}, {least:g} > {most:g}; change one of them"
                )
        return tuple(low), tuple(high)

    def draw(self, box: Box | None) -> None:
        """Draws the edges of the box into the scene; none where it is None."""
        drawn, handle = self._drawn
        if box == drawn:
            return
        if handle is not None:
            handle.remove()
        self._drawn = box, None
        if box is not None:
            corners = np.array(box)[EDGES, range(3)]  # [12, 2, 3]
            lines = self._page.client.scene.add_line_segments
            self._drawn = box, lines("/crop", corners, BOX_COLOR, thickness=2, thickness_units="screen")

    def _reset(self) -> None:
        """Sets the box to that of all centers, rounded to the steps of the controls."""
        low, high, digits = self._page.model().bounds()
        for handle, corner in ((self._low, low), (self._high, high)):
            handle.step, handle.precision = 10.0**-digits, max(digits, 0) + 2
            handle.value = corner

    def _show_option(self) -> None:
        """Shows the box for the command line."""
        self._option.visible = False
        box = self.box()
        if box is not None:
            self._option.content = f"As an option of `tsplat export` and `tsplat convert`:\n\n`{crop_option(box)}`"
            self._option.visible = True

    def _export(self, path: Path) -> str:
        settings = self._page.settings()
        gaussians = self._page.model().renderer.cropped(settings.crop).map(lambda tensor: tensor.cpu())
        if settings.crop is not None:
            raise_if_empty(gaussians, settings.crop)
        if not is_page(path):
            write_model(path, gaussians)
            return f"Wrote {len(gaussians):,} Gaussians"
        page = write_page(path, gaussians, self._start_view(), background=settings.background, title=path.stem)
        return f"Wrote {len(gaussians):,} Gaussians, {page.size / 1e6:.1f} MB,"

    def _start_view(self) -> StartView:
        """The current camera, for an HTML file."""
        camera = self._page.client.camera
        slope = math.tan(camera.fov / 2)
        slopes = (slope * max(camera.image_width, 1) / max(camera.image_height, 1), slope)
        return StartView(camera.position, camera.look_at, self._page.model().up, slopes)
