"""The controls and plots of training, which are updated while the page is visible."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from .callbacks import SECONDARY, Callbacks, escape_markdown
from .live_training import SHARE_MAX, LiveTraining
from .training_state import TrainingState, format_speed

PLOT_HEIGHT = 150
"""Height of a plot in pixels."""

PLOT_PADDING = (12, 24, 0, 0)
"""Pixels above, right, below and left of a plot, for half a label at the ends of its axes."""

INTERVAL = 0.5
"""Seconds between updates of a page."""

PROBE_SIZE = 16
"""Width and height of the image that a page is asked to render. Slow browsers render a fraction of the resolution."""

BLUE, ORANGE = "#4c9be8", "#e8944c"


class TrainingTab:
    """The tab of training, which shows its state and controls it."""

    def __init__(self, gui: Any, training: LiveTraining, callbacks: Callbacks) -> None:
        self._gui, self._training = gui, training
        self._status = gui.add_markdown("")
        self._pause = gui.add_button("Pause")
        callbacks.on_click(self._pause, self._toggle)
        self._step = gui.add_button("One step", color=SECONDARY, hint="Take one step, and pause")
        callbacks.on_click(self._step, self._take_step)
        self._save = gui.add_button("Save checkpoint", color=SECONDARY)
        callbacks.on_click(self._save, training.save_checkpoint)
        self._share = gui.add_slider(
            "Time for images (%)",
            0,
            round(100 * SHARE_MAX),
            5,
            round(100 * training.share),
            hint="Share of the time for images while training runs",
        )
        callbacks.on_update(self._share, lambda: training.set_share(self._share.value / 100), by_client=True)
        self._plots = (
            self._add_plot("PSNR", "dB", BLUE),
            self._add_plot("Gaussians in thousands", "thousands", ORANGE),
        )
        self._shown: TrainingState | None = None
        self.update()

    def update(self) -> None:
        """Shows the current state."""
        state = self._training.state()
        if state == self._shown:
            return
        self._shown = state
        self._status.content = describe(state)
        self._pause.label = "Resume" if state.paused else "Pause"
        self._pause.visible = self._step.visible = self._share.visible = not state.finished
        self._save.visible = state.can_save
        # Another client may have moved it.
        if self._share.value != round(100 * state.share):
            self._share.value = round(100 * state.share)
        for plot, (steps, values), scale in zip(self._plots, self._training.curves(), (1, 1000), strict=True):
            plot.data = (steps, values / scale)

    def _toggle(self) -> None:
        if self._training.state().paused:
            self._training.resume()
        else:
            self._training.pause()
        self.update()

    def _take_step(self) -> None:
        self._training.take_step()
        self.update()

    def _add_plot(self, title: str, label: str, color: str) -> Any:
        return self._gui.add_uplot(
            (np.zeros(0), np.zeros(0)),
            ({"label": "step"}, {"label": label, "stroke": color, "width": 2}),
            title=title,
            scales={"x": {"time": False, "range": (0, max(self._training.steps, 1))}},
            height=PLOT_HEIGHT,
            padding=PLOT_PADDING,
        )


class LivePage:
    """A thread that updates a page while it is visible: controls and plots by `update`, and the image by `refresh`.

    Before each update, the page is asked to render a tiny image. Browsers do not render hidden pages, so no images are
    rendered for these.
    """

    def __init__(
        self, client: Any, training: LiveTraining, update: Callable[[], None], refresh: Callable[[], None]
    ) -> None:
        self._client, self._training = client, training
        self._update, self._refresh = update, refresh
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="tsplat-page", daemon=True).start()

    def close(self) -> None:
        """Ends the updates."""
        self._closed.set()

    def _run(self) -> None:
        shown: tuple[int, bool] | None = None
        while not self._closed.wait(INTERVAL):
            try:
                self._client.get_render(PROBE_SIZE, PROBE_SIZE)
            except RuntimeError:  # the client has disconnected, or its page is hidden
                continue
            if self._closed.is_set():
                return
            self._update()
            if shown != (newest := (self._training.step, self._training.paused)):
                shown = newest
                self._refresh()


def describe(state: TrainingState) -> str:
    """Returns the state of training as a few lines of Markdown."""
    phase = ", ended" if state.finished else ", paused" if state.paused else ""
    lines = [f"**Step {state.step:,} of {state.steps:,}**{phase}"]
    if state.speed is not None and not state.finished:
        lines.append(format_speed(state.speed))
    if state.loss is not None:
        lines.append(f"PSNR {state.psnr:.2f} dB, loss {state.loss:.4f}")
    lines.append(f"{state.n_gaussians:,} Gaussians")
    if state.result:
        lines.append(escape_markdown(state.result))
    return "  \n".join(lines)
