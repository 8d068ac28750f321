"""The panel of controls beside a client's image."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ...config import MAGNITUDE_MAX
from ..colormaps import color_bar
from ..markup import escape
from .callbacks import ON_SERVER, SECONDARY, UNITS, Action, Callbacks, escape_markdown, name_in
from .folder import TRANSFER_MAX
from .poses import FOV_RANGE
from .renderer import CAMERA_MODELS, COLORMAPS, DEPTHS, MODES, Settings
from .viewed_models import ViewedModel

RESOLUTIONS = {"full": 1, "half": 2, "quarter": 4}
DRAWN_BY = {"the server": "server", "this browser": "browser"}
FULL_SCREEN = (
    '<div style="padding: 0 0.6em 0.5em"><button type="button" style="width: 100%; height: 1.9em; border: 0; '
    'border-radius: 2px; background: #343a40; color: white; font: inherit; font-size: 0.875em; cursor: pointer" '
    'onclick="document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen()"'
    ">Full screen</button></div>"
)
"""A button in HTML, as browsers enter full screen only in the handler of a click on the page."""

NAVIGATION_HELP = (
    '<div style="padding: 0 0.7em 0.5em; font-size: 0.875em">'
    '<span class="tsplat-mouse">Drag to rotate, drag with the right button to pan, scroll to zoom. '
    "Keys: arrows rotate, W A S D, Q E move.</span>"
    '<span class="tsplat-touch">One finger rotates, two fingers pan and zoom.</span></div>'
)
"""Help for mouse and touch; the page's style shows one of both."""


@dataclasses.dataclass
class Actions:
    """Actions of the controls. Messages that they return, and their errors, are shown.

    `open_model` reads a file and adds its model; `upload` does the same for the name and content of a file. Both are
    None if models cannot be added. `set_fov` takes the vertical field of view in degrees.
    """

    change: Callable[[], None]
    choose_model: Callable[[], None]
    open_model: Callable[[str], str] | None
    upload: Callable[[str, bytes], str] | None
    reset_view: Callable[[], None]
    turn_upright: Callable[[], None]
    set_up: Callable[[], str]
    screenshot: Callable[[], str]
    set_fov: Callable[[float], None]
    draw_by: Callable[[], None]


class Panel:
    """The controls of one client. Other tabs are added by :meth:`add_tab` and `add_training`, None without training."""

    def __init__(
        self,
        gui: Any,
        models: Sequence[ViewedModel],
        actions: Actions,
        callbacks: Callbacks,
        add_training: Callable[[], None] | None,
    ) -> None:
        self._gui, self._models, self._actions, self._callbacks = gui, list(models), actions, callbacks
        self._status = gui.add_markdown("")
        self._message = gui.add_markdown("", visible=False)
        self._is_note, self._message_lock = False, threading.Lock()
        self._dismiss = gui.add_button("Dismiss", color=SECONDARY, visible=False)
        self._dismiss.on_click(lambda _: callbacks.dismiss())
        self._confirm = gui.add_button("Replace", color="red", visible=False)
        self._confirmed: Action = lambda: None
        self._offer = gui.add_button("Download", visible=False)
        self._offered: Action = lambda: None
        callbacks.on_long_click(self._offer, lambda: self._offered())
        callbacks.on_long_click(self._confirm, lambda: self._confirmed())
        self._range: tuple[float, float] | None = None
        self._title, self._is_ready = gui.add_html(""), False
        self.model_name = gui.add_dropdown("Model", [model.name for model in models], visible=len(models) > 1)
        callbacks.on_update(self.model_name, actions.choose_model)
        if actions.open_model is not None and actions.upload is not None:
            self._add_opening(actions.open_model, actions.upload)
        self._tabs = gui.add_tab_group()
        if add_training is not None:
            with self._tabs.add_tab("Training"):
                add_training()
        with self._tabs.add_tab("View"):
            self._add_view()

    def add_tab(self, name: str) -> AbstractContextManager[Any]:
        """Returns a context manager in which the controls of a new tab are added."""
        tab: AbstractContextManager[Any] = self._tabs.add_tab(name)
        return tab

    @property
    def model(self) -> ViewedModel:
        """The chosen model."""
        return next(model for model in self._models if model.name == self.model_name.value)

    @property
    def divisor(self) -> int:
        """Factor by which images are smaller than the canvas, as chosen."""
        return RESOLUTIONS[self._resolution.value]

    def settings(self) -> Settings:
        """Returns the settings of the controls, except the crop box; raises ArgumentError if they conflict."""
        red, green, blue = (value / 255 for value in self._background.value)
        return Settings(
            show=self._show.value,
            colormap=self._colormap.value,
            depths=(self._nearest.value, self._farthest.value) if self._fixed.value else None,
            inverted=self._inverted.value,
            sh_degree=int(self._sh_degree.value),
            background=(red, green, blue),
            antialiased=self._antialiased.value,
            model=self._camera_model.value,
            near=self._near.value,
            far=self._far.value,
            radius_clip=self._radius_clip.value,
            eps2d=self._eps2d.value,
        )

    @property
    def drawn_by(self) -> str:
        """The choice of where images are drawn, ``"server"`` or ``"browser"``."""
        return DRAWN_BY[self._drawn_by.value]

    def offer_drawing(self, offered: bool, drawn_by: str | None = None) -> None:
        """Shows or hides the choice of where images are drawn, and sets it to `drawn_by`, if given."""
        self._drawn_by.visible = offered
        if drawn_by is not None and drawn_by != self.drawn_by:
            self._drawn_by.value = next(label for label, value in DRAWN_BY.items() if value == drawn_by)

    def add_model(self, model: ViewedModel) -> None:
        """Adds a model to the list, and selects it."""
        self._models.append(model)
        self.model_name.options = [model.name for model in self._models]
        self.model_name.visible = True
        self.model_name.value = model.name

    def show_model(self, model: ViewedModel) -> None:
        """Sets the controls to the values of a model."""
        gaussians = model.gaussians
        self._show_title(model)
        red, green, blue = (round(255 * value) for value in model.background)
        self._background.value = (red, green, blue)
        # A slider cannot have a single value.
        self._sh_degree.max = max(gaussians.sh_degree, 1)
        self._sh_degree.value = gaussians.sh_degree
        self._sh_degree.visible = gaussians.sh_degree > 0
        self._antialiased.value = gaussians.antialiased
        for handle in (self._antialiased, self._camera_model, self._eps2d):
            handle.visible = not gaussians.surfels
        if gaussians.surfels:
            self._camera_model.value = "pinhole"
        self._fixed.value = False
        digits = model.bounds()[2]
        for handle in (self._near, self._nearest, self._farthest):
            handle.step, handle.precision = 10.0**-digits, max(digits, 0) + 2
        self._near.value = min(max(float(f"{model.near:.3g}"), 0.0), MAGNITUDE_MAX)
        self._fov.value = min(max(model.fov, FOV_RANGE[0]), FOV_RANGE[1])

    def show_ready(self) -> None:
        """Removes the cover of the page, once the first image or an error has been sent."""
        if not self._is_ready:
            self._is_ready = True
            self._show_title(self.model)

    def _show_title(self, model: ViewedModel) -> None:
        ready = " data-ready" if self._is_ready else ""
        self._title.content = f'<span data-title="{escape(model.name)} · tsplat"{ready}></span>'

    def show_status(self, *lines: str) -> None:
        """Shows lines about the image."""
        self._status.content = "  \n".join(escape_markdown(line) for line in lines)

    def show_depths(self, depths: tuple[float, float] | None) -> None:
        """Shows the color bar of an image, given the nearest and farthest depth; for None, that of alpha."""
        alpha = self._show.value == "alpha"
        self._legend.visible = alpha or depths is not None
        if depths is not None:
            self._range = depths
            middle = 2 / (1 / depths[0] + 1 / depths[1])
            labels = [f"{depth:.3g}" for depth in (depths[0], middle, depths[1])]
            labels[2] += " scene units"
            ends = (0.0, 1.0) if self._inverted.value else (1.0, 0.0)
            self._legend.content = str(color_bar(self._colormap.value, labels, ends=ends))
        elif alpha:
            self._legend.content = str(color_bar(self._colormap.value, ["0", "alpha", "1"]))

    def show_message(self, text: str) -> None:
        """Shows a message below the status; an empty one hides it. One in `**` is bold, with a button that hides it."""
        with self._message_lock:
            self._is_note = False
            self._set_message(text)

    def show_note(self, text: str) -> None:
        """Shows a note, unless a message is shown; an empty one hides the last note, but no message."""
        with self._message_lock:
            if self._is_note or not self._message.visible:
                self._is_note = True
                self._set_message(text)

    def _set_message(self, text: str) -> None:
        if not text and not self._message.visible:
            return
        bold = "**" if text.startswith("**") and text.endswith("**") and len(text) > 4 else ""
        if bold:
            self.show_ready()
        self._message.content = f"{bold}{escape_markdown(text.removeprefix(bold).removesuffix(bold))}{bold}"
        self._message.visible, self._dismiss.visible = bool(text), bool(bold)

    def ask(self, label: str | None, action: Action) -> None:
        """Shows a button that runs an action, such as replacing a file; hides it without a label."""
        self._confirmed = action
        self._confirm.label, self._confirm.visible = label or "", label is not None

    def offer(self, name: str | None, action: Action) -> None:
        """Shows a button whose action downloads a file; hides it without a name."""
        self._offered = action
        self._offer.label, self._offer.visible = f"Download {name}", name is not None

    def _add_opening(self, open_model: Callable[[str], str], upload: Callable[[str, bytes], str]) -> None:
        gui = self._gui
        with gui.add_folder("Another model", expand_by_default=False):
            path = gui.add_text("Model to open", "", hint=f"Any path that tsplat view accepts. {ON_SERVER}")
            self._callbacks.on_long_click(gui.add_button("Open"), lambda: open_model(name_in(path)))
            hint = f"A model of this computer, up to {TRANSFER_MAX >> 30} GiB; or drop one on the page"
            self._callbacks.on_upload(gui.add_upload_button("Upload a file", color=SECONDARY, hint=hint), upload)

    def _add_view(self) -> None:
        gui = self._gui
        gui.add_html(NAVIGATION_HELP)
        self._callbacks.on_click(
            gui.add_button("Reset view", hint="Resets the camera, the field of view and the up direction"),
            self._actions.reset_view,
        )
        self._callbacks.on_click(
            gui.add_button("Turn upright", color=SECONDARY, hint="Turns the camera upright, without moving it"),
            self._actions.turn_upright,
        )
        self._callbacks.on_click(
            gui.add_button("Up from this view", color=SECONDARY, hint="Sets the up direction to that of the image"),
            self._actions.set_up,
        )
        self._callbacks.on_long_click(
            gui.add_button("Screenshot", color=SECONDARY, hint="Downloads the image as PNG, without the controls"),
            self._actions.screenshot,
        )
        gui.add_html(FULL_SCREEN)
        self._show = self._control(gui.add_dropdown("Show", list(MODES)))
        self._colormap = self._control(gui.add_dropdown("Colormap", list(COLORMAPS), visible=False))
        self._legend = gui.add_html("", visible=False)
        self._inverted = self._control(gui.add_checkbox("Inverted", False, visible=False))
        self._fixed = gui.add_checkbox("Fixed range", False, visible=False, hint="Otherwise, each image has its own")
        self._callbacks.on_update(self._fixed, self._fix_range)
        self._nearest, self._farthest = (
            self._control(gui.add_number(label, value, min=0.0, max=MAGNITUDE_MAX, visible=False))
            for label, value in ((f"Nearest {UNITS}", 1.0), (f"Farthest {UNITS}", 10.0))
        )
        self._callbacks.on_update(self._show, self._show_range)
        self._sh_degree = self._control(gui.add_slider("SH degree", 0, 1, 1, 0))
        self._background = self._control(gui.add_rgb("Background", (0, 0, 0)))
        self._resolution = self._control(gui.add_dropdown("Resolution", list(RESOLUTIONS)))
        hint = "This browser draws with WebGL on its GPU; the server draws what it cannot show, such as depth"
        self._drawn_by = gui.add_dropdown("Drawn by", list(DRAWN_BY), visible=False, hint=hint)
        self._callbacks.on_update(self._drawn_by, self._actions.draw_by)
        self._fov = gui.add_slider("Field of view (°)", *FOV_RANGE, 1, 50, hint="Vertical")
        self._callbacks.on_update(self._fov, lambda: self._actions.set_fov(self._fov.value), by_client=True)
        self._camera_model = self._control(gui.add_dropdown("Camera model", list(CAMERA_MODELS)))
        self._antialiased = self._control(gui.add_checkbox("Antialiased", False, hint="rasterize_mode='antialiased'"))
        with gui.add_folder("Rasterization", expand_by_default=False):
            defaults = Settings()
            self._near = self._control(gui.add_number(f"near_plane {UNITS}", defaults.near, min=0.0, max=MAGNITUDE_MAX))
            self._far = self._control(gui.add_number(f"far_plane {UNITS}", defaults.far, min=0.0, max=MAGNITUDE_MAX))
            self._radius_clip = self._control(
                gui.add_number("radius_clip (px)", defaults.radius_clip, min=0.0, max=1e4, step=0.5)
            )
            self._eps2d = self._control(gui.add_number("eps2d (px²)", defaults.eps2d, min=0.0, max=100.0, step=0.05))

    def _show_range(self) -> None:
        """Shows the controls that apply to the shown quantity."""
        is_depth = self._show.value in DEPTHS
        self._colormap.visible = is_depth or self._show.value == "alpha"
        self._inverted.visible = self._fixed.visible = is_depth
        self._nearest.visible = self._farthest.visible = is_depth and self._fixed.value

    def _fix_range(self) -> None:
        """Fixes the range of the colormap, starting with that of the newest image."""
        if self._fixed.value and self._range is not None:
            self._nearest.value, self._farthest.value = (float(f"{depth:.3g}") for depth in self._range)
        self._show_range()
        self._actions.change()

    def _control(self, handle: Any) -> Any:
        """Connects a control, so that changes of its value render again, and returns it."""
        self._callbacks.on_update(handle, self._actions.change)
        return handle
