"""The controls of the crop box, its edges in the scene, and the export of the cropped model."""

import itertools
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...config import MAGNITUDE_MAX
from ...errors import ArgumentError
from ...scene.cropping import crop_option, raise_if_empty
from ...scene.formats.models import write_model
from ...scene.option_types import Box
from ..scene_pages import is_page, write_page
from ..start_views import StartView
from .callbacks import ON_SERVER, SECONDARY, UNITS, Page, name_in
from .viewed_models import ViewedModel

BOX_COLOR = (255, 200, 40)
ARROW_SCALE = 0.2
"""Size of the arrows at the corners, relative to the distance between the first camera and the point it looks at."""

EDGES = np.array([
    (ends, np.where(np.arange(3) == axis, 1, ends))
    for axis in range(3) for ends in itertools.product((0, 1), repeat=3) if ends[axis] == 0
])  # fmt: skip
"""[12, 2, 3] ends of the edges of a box: index of the corner, 0 or 1, that has each coordinate."""


class CropTab:
    """The tab of the crop box of one client."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._drawn: Box | None = None
        self._lines: Any = None
        self._arrows: tuple[Any, ...] = ()
        gui, callbacks = page.client.gui, page.callbacks
        self._crop = gui.add_checkbox("Crop", False, hint="Show only Gaussians with centers in the box")
        self._low = gui.add_vector3(f"Lower corner {UNITS}", (0.0, 0.0, 0.0), step=0.01)
        self._high = gui.add_vector3(f"Upper corner {UNITS}", (0.0, 0.0, 0.0), step=0.01)
        callbacks.on_click(
            gui.add_button("Whole model", color=SECONDARY, hint="Sets the box to that of all centers"), self._reset
        )
        self._option = gui.add_markdown("", visible=False)
        for handle in (self._crop, self._low, self._high):
            callbacks.on_update(handle, page.change)
            callbacks.on_update(handle, self._show_option)
        path = gui.add_text("Model file", "cropped.ply", hint=ON_SERVER)
        callbacks.on_long_click(gui.add_button("Export"), lambda: page.write(name_in(path), self._export))

    def show_model(self, model: ViewedModel) -> None:
        """Sets the box to the bounds of a model."""
        self._crop.value = False
        self._reset()

    def box(self) -> Box | None:
        """Returns the crop box; None if cropping is off. Raises ArgumentError if it is inverted."""
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
        """Draws the edges of the box, and arrows that move its corners; for None, removes them."""
        if box == self._drawn:
            return
        self._drawn = box
        if self._lines is not None:
            self._lines.remove()
            self._lines = None
        scene = self._page.client.scene
        if box is None:
            for arrows in self._arrows:
                arrows.remove()
            self._arrows = ()
            return
        corners = np.array(box)[EDGES, range(3)]  # [12, 2, 3]
        self._lines = scene.add_line_segments("/crop", corners, BOX_COLOR, thickness=2, thickness_units="screen")
        if not self._arrows:
            model = self._page.model()
            self._arrows = tuple(
                scene.add_transform_controls(
                    f"/crop_{name}",
                    scale=ARROW_SCALE * math.dist(model.eye, model.target),
                    disable_rotations=True,
                    translation_limits=((-MAGNITUDE_MAX, MAGNITUDE_MAX),) * 3,
                    position=corner,
                )
                for name, corner in zip(("lower", "upper"), box, strict=True)
            )
            for arrows, handle in zip(self._arrows, (self._low, self._high), strict=True):
                arrows.on_update(partial(self._drag, handle))
            return
        for arrows, corner in zip(self._arrows, box, strict=True):
            # Arrows that are being dragged are already in place.
            if not np.allclose(arrows.position, corner, atol=self._low.step):
                arrows.position = corner

    def _drag(self, handle: Any, event: Any) -> None:
        """Moves a corner to its arrows, in steps of the control, but not beyond the other corner."""
        digits = round(-math.log10(handle.step))
        low, high = np.array(self._low.value), np.array(self._high.value)
        position = np.round(event.target.position, digits)
        corner = np.minimum(position, high) if handle is self._low else np.maximum(position, low)
        handle.value = tuple(float(value) for value in corner)

    def _reset(self) -> None:
        """Sets the box to the bounds of all centers, rounded to the steps of the controls."""
        low, high, digits = self._page.model().bounds()
        for handle, corner in ((self._low, low), (self._high, high)):
            handle.step, handle.precision = 10.0**-digits, max(digits, 0) + 2
            handle.value = corner

    def _show_option(self) -> None:
        """Shows the box as an option of the command line."""
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
        """Returns the current camera as the start view of an HTML file."""
        camera = self._page.client.camera
        slope = math.tan(camera.fov / 2)
        slopes = (slope * max(camera.image_width, 1) / max(camera.image_height, 1), slope)
        return StartView(camera.position, camera.look_at, self._page.model().up, slopes)
