"""The controls that one client sees beside the image."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import ArgumentError
from .renderer import CAMERA_MODELS, COLORMAPS, MODES, Settings
from .viewed_models import ViewedModel

RESOLUTIONS = {"full": 1, "half": 2, "quarter": 4}
COMPARISONS = ("photograph", "render", "difference", "split")
FOV_RANGE = (5, 150)
"""Vertical field of view in degrees."""


@dataclasses.dataclass
class Actions:
    """What the controls do.

    Attributes:
        change: The settings have changed.
        choose_model: Another model was chosen.
        set_fov: Sets the vertical field of view, in degrees.
        show_view: Goes to the camera with an index.
        compare: Compares the render with the photograph of the camera with an index.
        show_frusta: Shows or hides the cameras.
        export: Writes the Gaussians in the crop box to a file, and returns a message.
        keyframe: Adds the current camera to the video, and returns the number of keyframes.
        clear: Removes all keyframes.
        preview: Moves along the video in a number of seconds.
        video: Writes the video to a file in a number of seconds, and returns a message.
    """

    change: Callable[[], None]
    choose_model: Callable[[], None]
    set_fov: Callable[[float], None]
    show_view: Callable[[int], None]
    compare: Callable[[int, str], None]
    show_frusta: Callable[[bool], None]
    export: Callable[[str], str]
    keyframe: Callable[[], int]
    clear: Callable[[], None]
    preview: Callable[[float], None]
    video: Callable[[str, float], str]


class Panel:
    """The controls of one client.

    Args:
        gui: `gui` of the client of viser.
        models: Models to choose from.
        actions: What the controls do.
        add_training: Adds the controls of a training, in a tab of their own; None without a training.
    """

    def __init__(
        self,
        gui: Any,
        models: Sequence[ViewedModel],
        actions: Actions,
        add_training: Callable[[], None] | None = None,
    ) -> None:
        self._gui, self._models, self._actions = gui, list(models), actions
        self._busy = threading.Lock()
        self.status = gui.add_markdown("")
        self.model_name = gui.add_dropdown("Model", [model.name for model in models], visible=len(models) > 1)
        self.model_name.on_update(lambda _: actions.choose_model())
        tabs = gui.add_tab_group()
        if add_training is not None:
            with tabs.add_tab("Training"):
                add_training()
        with tabs.add_tab("View"):
            self._add_view()
        with tabs.add_tab("Cameras"):
            self._add_cameras()
        with tabs.add_tab("Crop"):
            self._add_crop()
        with tabs.add_tab("Video"):
            self._add_video()
        self.show_model(self.model)

    @property
    def model(self) -> ViewedModel:
        """The chosen model."""
        return next(model for model in self._models if model.name == self.model_name.value)

    @property
    def divisor(self) -> int:
        """Factor by which images are smaller than the canvas."""
        return RESOLUTIONS[self._resolution.value]

    def settings(self) -> Settings:
        """Returns the settings of the controls.

        Raises:
            ArgumentError: They do not fit together.
        """
        low, high = self._low.value, self._high.value
        red, green, blue = (value / 255 for value in self._background.value)
        return Settings(
            show=self._show.value,
            colormap=self._colormap.value,
            sh_degree=int(self._sh_degree.value),
            background=(red, green, blue),
            antialiased=self._antialiased.value,
            camera_model=self._camera_model.value,
            near=self._near.value,
            far=self._far.value,
            radius_clip=self._radius_clip.value,
            eps2d=self._eps2d.value,
            crop=(tuple(low), tuple(high)) if self._crop.value else None,
        )

    def show_model(self, model: ViewedModel) -> None:
        """Sets the controls to the values of a model."""
        gaussians = model.gaussians
        red, green, blue = (round(255 * value) for value in model.background)
        self._background.value = (red, green, blue)
        # A slider with one value is not possible.
        self._sh_degree.max = max(gaussians.sh_degree, 1)
        self._sh_degree.value = gaussians.sh_degree
        self._sh_degree.visible = gaussians.sh_degree > 0
        self._antialiased.value = gaussians.antialiased
        self._fov.value = min(max(model.fov, FOV_RANGE[0]), FOV_RANGE[1])
        low, high = (np.zeros(3), np.zeros(3)) if len(gaussians) == 0 else _bounds(model)
        self._crop.value = False
        self._low.value, self._high.value = tuple(low.tolist()), tuple(high.tolist())
        has_cameras = bool(model.cameras)
        self._no_cameras.visible = not has_cameras
        for handle in (self._view, self._go, self._frusta):
            handle.visible = has_cameras
        self._view.max = max(len(model.cameras) - 1, 1)
        self._view.value = 0
        self._frusta.value = False
        self._comparison.visible = self._photograph.visible = False
        self._comparison.value = COMPARISONS[0]

    def show_status(self, text: str) -> None:
        """Shows a line of Markdown above the controls."""
        self.status.content = text

    def show_photograph(self, image: np.ndarray[Any, Any], name: str) -> None:
        """Shows an image beside the controls, with its name; of shape [h, w, 3], uint8."""
        self._photograph.image = image
        self._photograph.label = name
        self._comparison.visible = self._photograph.visible = True

    def _add_view(self) -> None:
        gui = self._gui
        self._show = self._control(gui.add_dropdown("Show", list(MODES)))
        self._colormap = self._control(gui.add_dropdown("Colormap", list(COLORMAPS), hint="Of depth and alpha"))
        self._sh_degree = self._control(gui.add_slider("SH degree", 0, 1, 1, 0))
        self._background = self._control(gui.add_rgb("Background", (0, 0, 0)))
        self._resolution = self._control(gui.add_dropdown("Resolution", list(RESOLUTIONS)))
        self._fov = gui.add_slider("Field of view", *FOV_RANGE, 1, 50, hint="Vertical, in degrees")
        self._fov.on_update(_by_client(lambda: self._actions.set_fov(self._fov.value)))
        self._camera_model = self._control(gui.add_dropdown("Camera model", list(CAMERA_MODELS)))
        self._antialiased = self._control(gui.add_checkbox("Antialiased", False, hint="rasterize_mode='antialiased'"))
        with gui.add_folder("Rasterization", expand_by_default=False):
            defaults = Settings()
            self._near = self._control(gui.add_number("near_plane", defaults.near, min=0.0))
            self._far = self._control(gui.add_number("far_plane", defaults.far, min=0.0))
            self._radius_clip = self._control(gui.add_number("radius_clip", defaults.radius_clip, min=0.0, step=0.5))
            self._eps2d = self._control(gui.add_number("eps2d", defaults.eps2d, min=0.0, step=0.05))

    def _add_cameras(self) -> None:
        gui = self._gui
        self._no_cameras = gui.add_markdown("This model has no cameras.", visible=False)
        self._view = gui.add_slider("View", 0, 1, 1, 0)
        self._go = gui.add_button("Go to view")
        self._go.on_click(lambda _: self._actions.show_view(int(self._view.value)))
        self._frusta = gui.add_checkbox("Show cameras", False)
        self._frusta.on_update(_by_client(lambda: self._actions.show_frusta(self._frusta.value)))
        self._comparison = gui.add_dropdown("Image", list(COMPARISONS), visible=False)
        self._comparison.on_update(
            _by_client(lambda: self._actions.compare(int(self._view.value), self._comparison.value))
        )
        self._photograph = gui.add_image(np.zeros((8, 8, 3), np.uint8), visible=False)

    def _add_crop(self) -> None:
        gui = self._gui
        self._crop = self._control(gui.add_checkbox("Crop", False, hint="Show only Gaussians with centers in the box"))
        self._low = self._control(gui.add_vector3("Lower corner", (0.0, 0.0, 0.0)))
        self._high = self._control(gui.add_vector3("Upper corner", (0.0, 0.0, 0.0)))
        self._path = gui.add_text("Model file", "cropped.ply", hint="On the computer that runs tsplat")
        button = gui.add_button("Export")
        button.on_click(lambda _: self._run(lambda: self._actions.export(self._path.value)))

    def _add_video(self) -> None:
        gui = self._gui
        add = gui.add_button("Add keyframe")
        self._count = gui.add_markdown("No keyframes")
        add.on_click(lambda _: self._show_count(self._actions.keyframe()))
        clear = gui.add_button("Remove all")
        clear.on_click(lambda _: self._clear())
        self._seconds = gui.add_number("Seconds", 4.0, min=0.1, max=600.0)
        preview = gui.add_button("Preview")
        preview.on_click(lambda _: self._run(lambda: self._actions.preview(self._seconds.value)))
        self._video = gui.add_text(
            "Video file", "video.gif", hint=".mp4, .webm, .gif, a folder for PNGs, or .json for cameras"
        )
        save = gui.add_button("Save video")
        save.on_click(lambda _: self._run(lambda: self._actions.video(self._video.value, self._seconds.value)))

    def _clear(self) -> None:
        self._actions.clear()
        self._show_count(0)

    def _show_count(self, n: int) -> None:
        self._count.content = f"{n or 'No'} keyframe{'' if n == 1 else 's'}"

    def _control(self, handle: Any) -> Any:
        """Returns a control after connecting it, so that a change of its value renders again."""
        handle.on_update(lambda _: self._actions.change())
        return handle

    def _run(self, action: Callable[[], str | None]) -> None:
        """Runs an action that takes long, one at a time, and shows what it returns or why it failed."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            message = action()
        except (ArgumentError, OSError, RuntimeError) as error:
            message = f"**{error}**"
        finally:
            self._busy.release()
        if message:
            self.show_status(message)


def _by_client(action: Callable[[], None]) -> Callable[[Any], None]:
    """Returns a callback for changes that a client makes, not for values that the program sets."""
    return lambda event: action() if event.client is not None else None


def _bounds(model: ViewedModel) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    means = model.gaussians.means.cpu().double().numpy()
    return means.min(0), means.max(0)
