"""The controls that one client sees beside the image."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...config import MAGNITUDE_MAX
from ...errors import ArgumentError
from ...scene.cropping import Box, Corner, crop_option
from .callbacks import Callbacks
from .comparison import COMPARISONS, Comparison
from .keyframes import SECONDS_MAX
from .renderer import CAMERA_MODELS, COLORMAPS, MODES, Settings
from .viewed_models import ViewedModel

RESOLUTIONS = {"full": 1, "half": 2, "quarter": 4}
FOV_RANGE = (5, 150)
"""Vertical field of view in degrees."""

MOVING = "Drag to turn, with the right button to move, wheel to zoom; or W A S D, Q E and the arrow keys."

ON_SERVER = "On the computer that runs tsplat"


@dataclasses.dataclass
class Actions:
    """What the controls do. Messages that actions return are shown, and so are errors.

    Attributes:
        change: The settings have changed.
        choose_model: Another model was chosen.
        open_model: Reads a file and adds its model, and returns a message; None where this is not possible.
        reset_view: Shows the model as at first.
        set_fov: Sets the vertical field of view, in degrees.
        show_view: Goes to the chosen view, and compares it with its photograph.
        compare: Compares the render with the photograph of the chosen view.
        show_frusta: Shows or hides the cameras.
        export: Writes the Gaussians in the crop box to a file, and returns a message.
        add_keyframe: Adds the current camera to the video.
        clear_keyframes: Removes all keyframes.
        save_keyframes, load_keyframes: Writes the keyframes to a file, or reads them, and returns a message.
        preview: Moves along the video in a number of seconds.
        video: Writes the video to a file in a number of seconds, and returns a message.
    """

    change: Callable[[], None]
    choose_model: Callable[[], None]
    open_model: Callable[[str], str] | None
    reset_view: Callable[[], None]
    set_fov: Callable[[float], None]
    show_view: Callable[[], None]
    compare: Callable[[], None]
    show_frusta: Callable[[bool], None]
    export: Callable[[str], str]
    add_keyframe: Callable[[], None]
    clear_keyframes: Callable[[], None]
    save_keyframes: Callable[[str], str]
    load_keyframes: Callable[[str], str]
    preview: Callable[[float], None]
    video: Callable[[str, float], str]


class Panel:
    """The controls of one client.

    Args:
        gui: `gui` of the client of viser.
        models: Models to choose from.
        actions: What the controls do.
        callbacks: Runs the actions.
        add_training: Adds the controls of a training, in a tab of their own; None without a training.
    """

    def __init__(
        self,
        gui: Any,
        models: Sequence[ViewedModel],
        actions: Actions,
        callbacks: Callbacks,
        add_training: Callable[[], None] | None = None,
    ) -> None:
        self._gui, self._models, self._actions, self._callbacks = gui, list(models), actions, callbacks
        self.status = gui.add_markdown("")
        self._replace = gui.add_button("Replace", color="red", visible=False)
        self._confirmed: Callable[[], str | None] = _nothing
        callbacks.on_long_click(self._replace, lambda: self._confirmed())
        self.model_name = gui.add_dropdown("Model", [model.name for model in models], visible=len(models) > 1)
        callbacks.on_update(self.model_name, actions.choose_model)
        if actions.open_model is not None:
            self._add_opening(actions.open_model)
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

    @property
    def view(self) -> int:
        """Index of the chosen camera of the model."""
        return int(self._view.value)

    @view.setter
    def view(self, index: int) -> None:
        self._view.value = index

    @property
    def comparison(self) -> Comparison:
        """How the chosen view is compared with its photograph."""
        comparison: Comparison = self._comparison.value
        return comparison

    def settings(self) -> Settings:
        """Returns the settings of the controls.

        Raises:
            ArgumentError: They do not fit together.
        """
        red, green, blue = (value / 255 for value in self._background.value)
        return Settings(
            show=self._show.value,
            colormap=self._colormap.value,
            sh_degree=int(self._sh_degree.value),
            background=(red, green, blue),
            antialiased=self._antialiased.value,
            model=self._camera_model.value,
            near=self._near.value,
            far=self._far.value,
            radius_clip=self._radius_clip.value,
            eps2d=self._eps2d.value,
            crop=self._box() if self._crop.value else None,
        )

    def _box(self) -> Box:
        low, high = self._low.value, self._high.value
        for axis, least, most in zip("xyz", low, high, strict=True):
            if least > most:
                raise ArgumentError(
                    f"Crop: the lower corner is above the upper one in {axis}, {least:g} > {most:g}; change one of them"
                )
        return tuple(low), tuple(high)

    def add_model(self, model: ViewedModel) -> None:
        """Adds a model to choose from, and chooses it."""
        self._models.append(model)
        self.model_name.options = [model.name for model in self._models]
        self.model_name.visible = True
        self.model_name.value = model.name

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
        self._crop.value = False
        self._reset_box()
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
        """Shows a line above the controls, in bold between double asterisks."""
        bold = "**" if text.startswith("**") and text.endswith("**") and len(text) > 4 else ""
        self.status.content = f"{bold}{escape_markdown(text.removeprefix(bold).removesuffix(bold))}{bold}"

    def ask(self, name: str | None, action: Callable[[], str | None] | None = None) -> None:
        """Shows a button that replaces a file by an action, or hides it without a name."""
        self._confirmed = action or _nothing
        self._replace.label, self._replace.visible = f"Replace {name}", name is not None

    def show_keyframes(self, n: int) -> None:
        """Shows the number of keyframes."""
        self._count.content = f"{n or 'No'} keyframe{'' if n == 1 else 's'}"

    def show_photograph(self, image: np.ndarray[Any, Any], name: str) -> None:
        """Shows an image beside the controls, with its name; of shape [h, w, 3], uint8."""
        self._photograph.image = image
        self._photograph.label = name
        self._comparison.visible = self._photograph.visible = True

    def _add_opening(self, open_model: Callable[[str], str]) -> None:
        gui = self._gui
        with gui.add_folder("Another model", expand_by_default=False):
            path = gui.add_text("Model to open", "", hint=f"Anything that tsplat view shows. {ON_SERVER}")
            self._callbacks.on_long_click(gui.add_button("Open"), lambda: open_model(_name_in(path)))

    def _add_view(self) -> None:
        gui = self._gui
        gui.add_markdown(MOVING)
        self._callbacks.on_click(
            gui.add_button("Reset view", hint="Camera, field of view and up direction as at first"),
            self._actions.reset_view,
        )
        self._show = self._control(gui.add_dropdown("Show", list(MODES)))
        self._colormap = self._control(gui.add_dropdown("Colormap", list(COLORMAPS), hint="Of depth and alpha"))
        self._sh_degree = self._control(gui.add_slider("SH degree", 0, 1, 1, 0))
        self._background = self._control(gui.add_rgb("Background", (0, 0, 0)))
        self._resolution = self._control(gui.add_dropdown("Resolution", list(RESOLUTIONS)))
        self._fov = gui.add_slider("Field of view", *FOV_RANGE, 1, 50, hint="Vertical, in degrees")
        self._callbacks.on_update(self._fov, lambda: self._actions.set_fov(self._fov.value), by_client=True)
        self._camera_model = self._control(gui.add_dropdown("Camera model", list(CAMERA_MODELS)))
        self._antialiased = self._control(gui.add_checkbox("Antialiased", False, hint="rasterize_mode='antialiased'"))
        with gui.add_folder("Rasterization", expand_by_default=False):
            defaults = Settings()
            self._near = self._control(gui.add_number("near_plane", defaults.near, min=0.0, max=MAGNITUDE_MAX))
            self._far = self._control(gui.add_number("far_plane", defaults.far, min=0.0, max=MAGNITUDE_MAX))
            self._radius_clip = self._control(
                gui.add_number("radius_clip", defaults.radius_clip, min=0.0, max=1e4, step=0.5)
            )
            self._eps2d = self._control(gui.add_number("eps2d", defaults.eps2d, min=0.0, max=100.0, step=0.05))

    def _add_cameras(self) -> None:
        gui, actions, callbacks = self._gui, self._actions, self._callbacks
        self._no_cameras = gui.add_markdown("This model has no cameras.", visible=False)
        self._view = gui.add_slider("View", 0, 1, 1, 0)
        self._go = gui.add_button("Go to view")
        callbacks.on_click(self._go, actions.show_view)
        self._frusta = gui.add_checkbox("Show cameras", False)
        callbacks.on_update(self._frusta, lambda: actions.show_frusta(self._frusta.value), by_client=True)
        self._comparison = gui.add_dropdown("Image", list(COMPARISONS), visible=False)
        callbacks.on_update(self._comparison, actions.compare, by_client=True)
        self._photograph = gui.add_image(np.zeros((8, 8, 3), np.uint8), visible=False)

    def _add_crop(self) -> None:
        gui = self._gui
        self._crop = self._control(gui.add_checkbox("Crop", False, hint="Show only Gaussians with centers in the box"))
        self._low = self._control(gui.add_vector3("Lower corner", (0.0, 0.0, 0.0), step=0.01))
        self._high = self._control(gui.add_vector3("Upper corner", (0.0, 0.0, 0.0), step=0.01))
        self._callbacks.on_click(gui.add_button("Whole model", hint="The box of all centers"), self._reset_box)
        self._option = gui.add_markdown("", visible=False)
        for handle in (self._crop, self._low, self._high):
            self._callbacks.on_update(handle, self._show_option)
        path = gui.add_text("Model file", "cropped.ply", hint=ON_SERVER)
        self._callbacks.on_long_click(gui.add_button("Export"), lambda: self._actions.export(_name_in(path)))

    def _reset_box(self) -> None:
        """Sets the box to that of all centers, rounded to the steps of the controls."""
        low, high, digits = _bounds(self.model)
        for handle, corner in ((self._low, low), (self._high, high)):
            handle.step, handle.precision = 10.0**-digits, max(digits, 0) + 2
            handle.value = corner

    def _show_option(self) -> None:
        """Shows the box for the command line."""
        self._option.visible = False
        if self._crop.value:
            option = crop_option(self._box())
            self._option.content = f"As an option of `tsplat export` and `tsplat convert`:\n\n`{option}`"
            self._option.visible = True

    def _add_video(self) -> None:
        gui, actions, callbacks = self._gui, self._actions, self._callbacks
        callbacks.on_click(gui.add_button("Add keyframe"), actions.add_keyframe)
        self._count = gui.add_markdown("No keyframes")
        callbacks.on_click(gui.add_button("Remove all"), actions.clear_keyframes)
        keyframes = gui.add_text("Keyframe file", "keyframes.json", hint=ON_SERVER)
        callbacks.on_long_click(gui.add_button("Save keyframes"), lambda: actions.save_keyframes(_name_in(keyframes)))
        callbacks.on_long_click(gui.add_button("Load keyframes"), lambda: actions.load_keyframes(_name_in(keyframes)))
        seconds = gui.add_number("Seconds", 4.0, min=0.1, max=float(SECONDS_MAX))
        callbacks.on_long_click(gui.add_button("Preview"), lambda: actions.preview(seconds.value))
        video = gui.add_text(
            "Video file",
            "video.gif",
            hint=".mp4, .webm, .gif, a folder for PNGs, or .json for the cameras of all frames",
        )
        callbacks.on_long_click(gui.add_button("Save video"), lambda: actions.video(_name_in(video), seconds.value))

    def _control(self, handle: Any) -> Any:
        """Returns a control after connecting it, so that a change of its value renders again."""
        self._callbacks.on_update(handle, self._actions.change)
        return handle


def escape_markdown(text: str) -> str:
    """Returns a line of text as Markdown. Pages of viser run scripts in Markdown, and names of files are not ours."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", re.sub(r"([\\`\[\]])", r"\\\1", " ".join(text.split())))


def _nothing() -> None:
    """The action of a button that is not shown."""


def _name_in(handle: Any) -> str:
    """Returns the file name in a text control.

    Raises:
        ArgumentError: It is not the name of a file.
    """
    if not handle.value or "\0" in handle.value:
        raise ArgumentError(f"{handle.label}: expected the name of a file, found {handle.value!r}")
    return str(handle.value)


def _bounds(model: ViewedModel) -> tuple[Corner, Corner, int]:
    """Returns the box of all centers, rounded outward, and the decimals of its steps, below a hundredth of the model.

    Most of a model counts for the steps, as Gaussians may lie far outside.
    """
    means = model.gaussians.means.cpu().double().numpy()
    if len(means) == 0:
        return (0.0, 0.0, 0.0), (0.0, 0.0, 0.0), 2
    low, high = np.quantile(means, (0.02, 0.98), axis=0)
    extent = float((high - low).max())
    digits = 2 - math.floor(math.log10(extent)) if extent > 0 else 2
    # Digits of fp32, beyond which it has no decimals.
    digits = min(digits, 5 - math.floor(math.log10(max(float(abs(means).max()), 1e-30))))
    x0, y0, z0 = (round(math.floor(value * 10**digits) / 10**digits, 12) + 0.0 for value in means.min(0))
    x1, y1, z1 = (round(math.ceil(value * 10**digits) / 10**digits, 12) + 0.0 for value in means.max(0))
    return (x0, y0, z0), (x1, y1, z1), digits
