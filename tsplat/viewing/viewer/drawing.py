"""Drawing of models in the browser, by WebGL: files that a page loads, and reports that it sends.

A frame below viser's canvas contains a page like those of ``tsplat export``, which follows viser's camera. The script
in ``head.html`` creates it, and sends requests that report the browser's graphics and when the model is loaded.
"""

import secrets
import threading
from collections.abc import Callable
from typing import Any, Literal, get_args

from ...errors import ArgumentError
from ..scene_pages import followed_page
from .callbacks import describe_error
from .renderer import Settings
from .viewed_models import ViewedModel

DRAWN_MAX = 1 << 19
"""Maximum number of Gaussians that are sent to a page, which take about 9 MB."""

SH_DEGREE_MAX = 3
"""Maximum SH degree that pages draw."""

FOLDER = "drawn"
"""First part, after the token, of the paths of files that pages load and of reports that they send."""

Graphics = Literal["webgl", "software", "missing"]
"""A page's first report: WebGL 2 on a GPU, WebGL 2 without a GPU, or no WebGL 2."""

WITHOUT_WEBGL = {
    "software": "the server draws: WebGL of this browser runs without a GPU; enable hardware acceleration in the "
    "browser's settings",
    "missing": "the server draws: this browser has no WebGL 2",
}


def drawing_problem(model: ViewedModel) -> str | None:
    """Returns the reason why pages cannot draw a model; None if they can."""
    gaussians = model.gaussians
    if len(gaussians) > DRAWN_MAX:
        return f"the server draws: {len(gaussians):,} Gaussians are more than browsers draw, {DRAWN_MAX:,}"
    if gaussians.surfels or gaussians.sh_degree > SH_DEGREE_MAX:
        return "the server draws: browsers only draw 3D Gaussians of SH degree 3 or less"
    return None


class Drawing:
    """Manages the drawing of models by one page.

    Args:
        gui: Elements of the page, from which its script reads what to load.
        change: Called when drawing switches from the server to the page, or back.
        report: Called with the :data:`Graphics` of the browser.
        note: Shows a message, unless another one is shown; an empty one hides it.
        give_up: Called with a model that the page cannot draw, and the problem.
    """

    def __init__(
        self,
        gui: Any,
        change: Callable[[], object],
        report: Callable[[Graphics], object],
        note: Callable[[str], object],
        give_up: Callable[[ViewedModel, str], object],
    ) -> None:
        self.key = secrets.token_urlsafe(16)
        self._change, self._report, self._note, self._give_up = change, report, note, give_up
        self._lock = threading.Lock()
        self._chosen: ViewedModel | None = None
        self._number = 0
        self._files: dict[str, tuple[str, bytes]] = {}
        self._loaded = False
        self._view = (0.0, 0.0, 0.0), Settings.near
        self._html = gui.add_html("")
        self._show()

    def choose(self, model: ViewedModel | None) -> None:
        """Lets the page load and draw a model, after a thread has prepared it; for None, the server draws again."""
        with self._lock:
            if model is self._chosen:
                return
            self._chosen, self._files, self._loaded = model, {}, False
            self._number += 1
            self._show()
        self._change()
        self._note("" if model is None else "Preparing the model for this browser; meanwhile, the server draws")
        if model is not None:
            threading.Thread(target=self._prepare, args=(model,), daemon=True).start()

    def _prepare(self, model: ViewedModel) -> None:
        """Encodes the files of a model, and lets the page load them if the model is still chosen."""
        try:
            files = page_files(model)
        except (ArgumentError, OSError, RuntimeError, MemoryError) as error:
            self._give_up(model, describe_error(error))
            return
        with self._lock:
            if model is self._chosen:
                self._files = files
                self._show()

    def draws(self, model: ViewedModel, settings: Settings) -> bool:
        """Returns whether the page draws a model with these settings; if so, sends it the near plane and background.

        Pages cannot draw with a near plane at 0, as their far plane would be at 0, too.
        """
        gaussians = model.gaussians
        drawn = Settings(
            colormap=settings.colormap,
            depths=settings.depths,
            inverted=settings.inverted,
            sh_degree=gaussians.sh_degree,
            background=settings.background,
            antialiased=gaussians.antialiased,
            near=settings.near,
        )
        with self._lock:
            is_drawn = self._loaded and model is self._chosen and settings == drawn and settings.near > 0
            if is_drawn and (view := (settings.background, settings.near)) != self._view:
                self._view = view
                self._show()
        return is_drawn

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Returns the type and content of a file for the page, or of the answer to a report; None for other paths."""
        first, _, name = path.removeprefix(f"/{FOLDER}/{self.key}/").partition("/")
        if f"/{FOLDER}/{self.key}/{first}" == path:
            threading.Thread(target=self._receive, args=(first,), daemon=True).start()
            return "text/plain", b""
        with self._lock:
            return self._files.get(name) if first == str(self._number) else None

    def _receive(self, report: str) -> None:
        """Handles a report of the page."""
        state, _, number = report.partition("-")
        if state in get_args(Graphics):
            self._report(state)  # type: ignore[arg-type]
            return
        with self._lock:
            model = self._chosen if number == str(self._number) and self._files else None
            if model is not None and state == "loaded":
                self._loaded = True
        if model is None:
            return
        if state == "loaded":
            self._note("")
            self._change()
        elif state == "failed":
            self._give_up(model, "this browser cannot show the model")

    def _show(self) -> None:
        """Writes into the page what its script should load."""
        background, near = self._view
        number = self._number if self._files and self._chosen else ""
        self._html.content = (
            f'<span data-drawing="{self.key}" data-number="{number}" data-near="{near!r}" '
            f'data-background="{" ".join(map(repr, background))}"></span>'
        )


def page_files(model: ViewedModel) -> dict[str, tuple[str, bytes]]:
    """Returns the type and content of the files from which pages draw a model, by name; the page's name is empty."""
    with model.drawn_lock:
        if model.drawn is None:
            page, name, content = followed_page(model.gaussians.map(lambda tensor: tensor.cpu()))
            model.drawn = {"": ("text/html; charset=utf-8", page), name: ("application/octet-stream", content)}
        return model.drawn
