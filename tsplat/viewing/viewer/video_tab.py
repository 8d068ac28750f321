"""The controls of keyframes and videos."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ...scene.cameras import Camera
from .callbacks import ON_SERVER, Page, name_in
from .comparison import Image
from .keyframes import SECONDS_MAX, Keyframes
from .poses import client_pose, pose_of
from .viewed_models import ViewedModel

PREVIEW_FPS = 15


class VideoTab:
    """Keyframes of one client.

    Args:
        page: The client.
    """

    def __init__(self, page: Page) -> None:
        self._page, self._keyframes = page, Keyframes()
        gui, callbacks = page.client.gui, page.callbacks
        callbacks.on_click(gui.add_button("Add keyframe"), self._add)
        self._count = gui.add_markdown("No keyframes")
        callbacks.on_click(gui.add_button("Remove all"), self._clear)
        file = gui.add_text("Keyframe file", "keyframes.json", hint=ON_SERVER)
        callbacks.on_long_click(gui.add_button("Save keyframes"), lambda: page.write(name_in(file), self._save))
        callbacks.on_long_click(gui.add_button("Load keyframes"), lambda: self._load(name_in(file)))
        self._seconds = gui.add_number("Seconds", 4.0, min=0.1, max=float(SECONDS_MAX))
        callbacks.on_long_click(gui.add_button("Preview"), self._preview)
        video = gui.add_text(
            "Video file",
            "video.gif",
            hint=".mp4, .webm, .gif, a folder for PNGs, or .json for the cameras of all frames",
        )
        callbacks.on_long_click(
            gui.add_button("Save video"),
            lambda: page.write(name_in(video), partial(self._video, self._seconds.value)),
        )

    def show_model(self, model: ViewedModel) -> None:
        """Shows the keyframes of a model."""
        self._clear()

    def _show(self) -> None:
        n = len(self._keyframes.cameras)
        self._count.content = f"{n or 'No'} keyframe{'' if n == 1 else 's'}"

    def _add(self) -> None:
        self._keyframes.add(client_pose(self._page.client.camera))
        self._show()

    def _clear(self) -> None:
        self._keyframes.cameras.clear()
        self._show()

    def _save(self, path: Path) -> str:
        self._keyframes.save(path)
        return f"Wrote {len(self._keyframes.cameras)} keyframes"

    def _load(self, name: str) -> str:
        path = self._page.folder.readable(name)
        self._keyframes.load(path)
        self._show()
        return f"Read {len(self._keyframes.cameras)} keyframes from {path}"

    def _preview(self) -> None:
        for camera in self._keyframes.path(self._seconds.value, PREVIEW_FPS):
            if self._page.closed.is_set():
                return
            self._page.move_to(camera)
            self._page.closed.wait(1 / PREVIEW_FPS)

    def _video(self, seconds: float, path: Path) -> str:
        model, settings = self._page.model(), self._page.settings()

        def render(i: int, n: int, camera: Camera) -> Image:
            if self._page.closed.is_set():
                raise RuntimeError("the client has gone")
            self._page.tell(f"Rendering frame {i + 1} of {n}")
            return model.renderer.render(pose_of(camera), settings).image

        return f"Wrote {self._keyframes.write(path, seconds, render)}"
