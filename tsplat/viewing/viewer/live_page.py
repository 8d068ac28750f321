"""Keeps a page that shows a training up to date while it is visible."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .live_training import LiveTraining

INTERVAL = 0.5
"""Seconds between updates of a page."""

PROBE = 16
"""Width and height of the image that a page is asked to draw. Slow browsers draw at a fraction of the resolution."""


class LivePage:
    """A thread that updates a page while it is visible.

    Browsers draw nothing in hidden pages. Before each update, the page is asked for a tiny image of itself, so that
    nothing is rendered for one that is hidden.

    Args:
        client: Client handle of viser.
        training: The training.
        update: Updates the controls and plots.
        refresh: Renders the image again.
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
                self._client.get_render(PROBE, PROBE)
            except RuntimeError:  # the client has gone, or draws nothing
                continue
            if self._closed.is_set():
                return
            self._update()
            if shown != (newest := (self._training.step, self._training.paused)):
                shown = newest
                self._refresh()
