"""The controls of cameras: moving to a camera, frusta in the scene, and comparison of photographs with renders."""

import math
from functools import partial
from typing import Any

import numpy as np

from ...errors import ArgumentError
from ...scene.cameras import Camera
from ...scene.capture.views import View
from ...scene.images import downscale
from ..colormaps import color_bar
from .callbacks import Page, escape_markdown
from .comparison import DIFFERENCE_COLORMAP, MODES, Comparison, Image, fit
from .poses import Frusta
from .renderer import Pose
from .viewed_models import ViewedModel

FRUSTA = ("none", "outlines", "photographs")
MAX_FRUSTA = 500
THUMBNAIL_WIDTH = 96
"""Width in pixels of photographs in frusta."""

GAINS = (1, 20)
"""Range of factors by which differences are multiplied."""

KNOB_DEPTH, KNOB_SIZE = 1.0, 0.02
"""Distance of the handle of a split from the camera, and its radius relative to half the image height."""


AT_VIEW = 2e-4
"""Maximum difference between the client's camera and a view's camera for a comparison: in rotation matrices, and in
positions relative to the model's distance."""


class CamerasTab:
    """The tab of cameras of one client."""

    def __init__(self, page: Page) -> None:
        self._page = page
        gui, callbacks = page.client.gui, page.callbacks
        self._frusta = Frusta(page, "cameras")
        self._knob: tuple[Any, Any] = (None, None)
        self._camera: Camera | None = None
        self._split = 0.5
        self._none = gui.add_markdown("This model has no cameras.", visible=False)
        self._name = gui.add_markdown("")
        self._index = gui.add_slider("View", 0, 1, 1, 0)
        callbacks.on_update(self._index, self._go, by_client=True)
        self._steps = gui.add_button_group("Step", ("Previous (P)", "Next (N)"))
        previous, following = (partial(self._step, steps) for steps in (-1, 1))
        callbacks.on_click(self._steps, lambda: (previous if self._steps.value.startswith("P") else following)())
        for key, label, step in (("P", "Previous view", previous), ("N", "Next view", following)):
            gui.add_command(label, hotkey=key).on_trigger(lambda _, step=step: callbacks.enqueue(step))
        self._back = gui.add_button("Go to view", hint="Moves back to the camera of this view")
        callbacks.on_click(self._back, self._go)
        self._mode = gui.add_dropdown("Compare", MODES, hint="Compares the render with the photograph of the view")
        callbacks.on_update(self._mode, self._compare, by_client=True)
        self._gain = gui.add_slider("Difference ×", *GAINS, 1, 4, visible=False)
        callbacks.on_update(self._gain, self._compare, by_client=True)
        self._legend = gui.add_html("", visible=False)
        self._shown = gui.add_dropdown("Show cameras", FRUSTA)
        callbacks.on_update(self._shown, self._show_frusta, by_client=True)

    def show_model(self, model: ViewedModel) -> None:
        """Sets the controls to the cameras of a model."""
        n = len(model.cameras)
        self._camera = None
        self._shown.value, self._mode.value = FRUSTA[0], MODES[0]
        self._show_frusta()
        self._none.visible = not n
        for handle in (self._name, self._index, self._steps, self._back, self._shown):
            handle.visible = n > 0
        self._mode.visible = n > 0 and bool(model.views or model.read_views)
        self._gain.visible = self._legend.visible = False
        # A slider cannot have a single value.
        self._index.max = max(n - 1, 1)
        self._index.value = 0
        self._show_name()

    def comparison(self, pose: Pose) -> Comparison | None:
        """Returns the comparison to show at a pose of the canvas; None unless it is the pose of the chosen view."""
        camera, mode = self._camera, self._mode.value
        model = self._page.model()
        tolerance = AT_VIEW * math.dist(model.eye, model.target)
        view = None
        if mode != "off" and camera is not None and _is_at(pose, camera, tolerance):
            view = model.views.get(camera.name)
        self._frusta.allowed = view is None
        self._frusta.hide()
        self._place_knob(pose if view is not None and mode == "split" else None)
        return None if view is None else Comparison(view, mode, self._split, self._gain.value)

    def _show_name(self) -> None:
        if self._page.model().cameras:
            camera = self._chosen()
            kind = "test view" if camera.is_test else "training view"
            name = f"**{escape_markdown(camera.name)}** · " if camera.name else ""
            self._name.content = f"{name}{kind} · {camera.width}×{camera.height}"

    def _chosen(self) -> Camera:
        cameras = self._page.model().cameras
        if not cameras:
            raise ArgumentError("View: this model has no cameras")
        return cameras[min(int(self._index.value), len(cameras) - 1)]

    def _step(self, step: int) -> None:
        n = len(self._page.model().cameras)
        if n:
            self._index.value = (self._index.value + step) % n
            self._go()

    def _choose(self, index: int) -> None:
        self._index.value = index
        self._go()

    def _go(self) -> None:
        """Moves to the chosen view, and compares it in the chosen mode."""
        self._camera = self._chosen()
        self._show_name()
        if self._mode.value == "off":
            self._page.move_to(self._camera)
        else:
            self._compare()

    def _compare(self) -> None:
        """Moves to the chosen view, and shows the chosen comparison."""
        is_difference = self._mode.value == "difference"
        self._gain.visible = self._legend.visible = is_difference
        bar = color_bar(DIFFERENCE_COLORMAP, ["0", f"{1 / self._gain.value:.2g} of full intensity"])
        self._legend.content = str(bar)  # viser does not serialize subclasses of str
        if self._mode.value == "off":
            self._page.change()
            return
        self._camera = self._chosen()
        if self._find_view(self._camera.name) is None:
            raise ArgumentError(
                f"Compare: the photograph {self._camera.name!r} was not found; to give its scene folder: tsplat view "
                "RUN --scene SCENE"
            )
        self._page.move_to(self._camera)

    def _place_knob(self, pose: Pose | None) -> None:
        """Places the handle of a split in front of the camera; without a pose, removes it."""
        _, handle = self._knob
        if pose is None:
            if handle is not None:
                handle.remove()
            self._knob = None, None
            return
        assert self._camera is not None
        width, _ = fit(self._camera, pose.width, pose.height)
        half = KNOB_DEPTH * math.tan(pose.fov / 2)
        x = (2 * self._split - 1) * half * width / pose.height
        rotation = pose.viewmat[:3, :3].double().numpy()
        position = rotation.T @ (np.array([x, 0, KNOB_DEPTH]) - pose.viewmat[:3, 3].double().numpy())
        if handle is None:
            handle = self._page.client.scene.add_icosphere(
                "/split", KNOB_SIZE * half, (255, 255, 255), cast_shadow=False, receive_shadow=False, position=position
            )
            handle.on_drag(self._drag)
        else:
            handle.position = position
        self._knob = pose, handle

    def _drag(self, event: Any) -> None:
        """Moves the split to the pointer; screen positions are in [0, 1] across the canvas."""
        pose, _ = self._knob
        if pose is not None and self._camera is not None:
            width, _ = fit(self._camera, pose.width, pose.height)
            self._split = min(max(0.5 + (event.end_screen_pos[0] - 0.5) * pose.width / width, 0.0), 1.0)
            self._page.callbacks.enqueue(self._page.change)

    def _show_frusta(self) -> None:
        """Draws the frusta of the first MAX_FRUSTA cameras, unless they are hidden."""
        cameras = self._page.model().cameras[:MAX_FRUSTA] if self._shown.value != FRUSTA[0] else []

        def color(index: int) -> tuple[int, int, int]:
            return (230, 120, 20) if cameras[index].is_test else (30, 110, 230)

        def photograph(index: int) -> Image | None:
            camera = cameras[index]
            view = self._find_view(camera.name) if self._shown.value == FRUSTA[2] else None
            width = min(THUMBNAIL_WIDTH, camera.width)
            height = max(1, round(camera.height * width / camera.width))
            return None if view is None else downscale(view.image.cpu(), width, height).numpy()

        self._frusta.draw(cameras, self._choose, color, photograph)

    def _find_view(self, name: str) -> View | None:
        view = self._page.model().find_view(name, self._page.show_message)
        self._page.show_message("")  # hides the message that photographs are being read
        return view


def _is_at(pose: Pose, camera: Camera, tolerance: float) -> bool:
    """Returns whether a pose equals that of a camera, up to rounding by the page."""
    viewmat = camera.viewmat.to(pose.viewmat)
    apart = pose.viewmat[:3, :3].T @ pose.viewmat[:3, 3] - viewmat[:3, :3].T @ viewmat[:3, 3]
    turned = (pose.viewmat[:3, :3] - viewmat[:3, :3]).abs().max()
    return bool(apart.norm() < tolerance and turned < AT_VIEW)
