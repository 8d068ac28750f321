"""The controls of keyframes and videos, and the path along the keyframes in the scene."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ArgumentError
from ...scene.cameras import Camera
from .callbacks import ON_SERVER, Page, name_in
from .comparison import Image
from .keyframes import SECONDS_MAX, Keyframes, VideoOptions
from .poses import add_frustum, client_pose, pose_of
from .viewed_models import ViewedModel

PREVIEW_FPS = 15
FPS = (30, 10, 15, 24, 25, 50, 60)
"""Frames per second to choose from; the first is the default. Encoders of GIFs round those of a GIF."""

SIZES = {"as on the page": None, "1280×720": (1280, 720), "1920×1080": (1920, 1080), "3840×2160": (3840, 2160),
         "1080×1080": (1080, 1080), "1080×1920": (1080, 1920)}  # fmt: skip

COLOR, CHOSEN_COLOR = (60, 190, 90), (255, 255, 255)
PATH_POINTS, PATH_POINTS_MAX = 16, 2000
"""Points of the drawn path between two keyframes, and of the whole path."""

MAX_FRUSTA = 200
FRUSTUM_SCALE = 0.04
"""Size of a keyframe relative to the distance of the first camera from the point it looks at."""

NONE = "none"


class VideoTab:
    """Keyframes of one client, for each model.

    Args:
        page: What the controls know of their client.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self._of_models: dict[str, Keyframes] = {}
        self._keyframes = Keyframes()
        self._drawn: list[Any] = []
        gui, callbacks = page.client.gui, page.callbacks
        callbacks.on_click(gui.add_button("Add keyframe", hint="The current camera, behind the chosen one"), self._add)
        self._count = gui.add_markdown("No keyframes")
        self._chosen = gui.add_dropdown("Keyframe", (NONE,), visible=False)
        callbacks.on_update(self._chosen, self._go, by_client=True)
        self._edits = gui.add_button_group("", ("Go to", "Set", "Delete"), visible=False)
        self._moves = gui.add_button_group("Move", ("Earlier", "Later"), visible=False)
        edits = {"Go to": self._go, "Set": self._set, "Delete": self._delete}
        moves = {"Earlier": partial(self._move, -1), "Later": partial(self._move, 1)}
        callbacks.on_click(self._edits, lambda: edits[self._edits.value]())
        callbacks.on_click(self._moves, lambda: moves[self._moves.value]())
        self._remove = gui.add_button("Remove all", visible=False)
        callbacks.on_click(self._remove, self._ask)
        self._path = gui.add_checkbox("Show path", True)
        self._loop = gui.add_checkbox("Loop", False, hint="Return to the first keyframe")
        for handle in (self._path, self._loop):
            callbacks.on_update(handle, self._draw, by_client=True)
        self._seconds = gui.add_number("Seconds", 4.0, min=0.1, max=float(SECONDS_MAX))
        callbacks.on_long_click(gui.add_button("Preview"), self._preview)
        self._fps = gui.add_dropdown("Frames per second", [str(fps) for fps in FPS])
        self._size = gui.add_dropdown("Size", list(SIZES))
        video = gui.add_text(
            "Video file",
            "video.gif",
            hint=".mp4, .webm, .gif, a folder for PNGs, or .json for the cameras of all frames",
        )
        callbacks.on_long_click(
            gui.add_button("Save video"), lambda: page.write(name_in(video), partial(self._video, self._options()))
        )
        with gui.add_folder("Keyframes as a file", expand_by_default=False):
            file = gui.add_text("Keyframe file", "keyframes.json", hint=ON_SERVER)
            callbacks.on_long_click(gui.add_button("Save keyframes"), lambda: page.write(name_in(file), self._save))
            callbacks.on_long_click(gui.add_button("Load keyframes"), lambda: self._load(name_in(file)))

    def show_model(self, model: ViewedModel) -> None:
        """Shows the keyframes of a model."""
        self._keyframes = self._of_models.setdefault(model.name, Keyframes())
        self._show(0)

    def _show(self, chosen: int) -> None:
        """Shows the keyframes, and chooses one of them."""
        n = len(self._keyframes.cameras)
        self._count.content = f"{n or 'No'} keyframe{'' if n == 1 else 's'}"
        self._chosen.options = tuple(str(i + 1) for i in range(n)) or (NONE,)
        self._chosen.value = self._chosen.options[min(max(chosen, 0), max(n - 1, 0))]
        for handle in (self._chosen, self._edits, self._moves, self._remove):
            handle.visible = n > 0
        self._draw()

    def _index(self) -> int:
        n = len(self._keyframes.cameras)
        if not n:
            raise ArgumentError("keyframes: expected at least one, found none; add one first")
        return min(int(self._chosen.value), n) - 1

    def _add(self) -> None:
        index = self._index() + 1 if self._keyframes.cameras else 0
        self._keyframes.insert(index, client_pose(self._page.client.camera))
        self._show(index)

    def _go(self) -> None:
        self._page.move_to(self._keyframes.cameras[self._index()])
        self._draw()

    def _set(self) -> None:
        """Replaces the chosen keyframe by the current camera."""
        index = self._index()
        del self._keyframes.cameras[index]
        self._keyframes.insert(index, client_pose(self._page.client.camera))
        self._draw()

    def _delete(self) -> None:
        index = self._index()
        del self._keyframes.cameras[index]
        self._show(index)

    def _move(self, steps: int) -> None:
        cameras, index = self._keyframes.cameras, self._index()
        other = min(max(index + steps, 0), len(cameras) - 1)
        cameras[index], cameras[other] = cameras[other], cameras[index]
        self._show(other)

    def _ask(self) -> None:
        n = len(self._keyframes.cameras)
        self._page.ask(f"Remove {n} keyframe{'' if n == 1 else 's'}", self._clear)

    def _clear(self) -> None:
        self._page.ask(None, lambda: None)
        self._keyframes.cameras.clear()
        self._show(0)

    def _choose(self, index: int) -> None:
        self._chosen.value = str(index + 1)
        self._go()

    def _draw(self) -> None:
        """Draws the keyframes and the path along them into the scene."""
        for handle in self._drawn:
            handle.remove()
        self._drawn.clear()
        cameras, scene = list(self._keyframes.cameras), self._page.client.scene
        if not self._path.value or not cameras:
            return
        model, chosen = self._page.model(), self._index()
        scale = FRUSTUM_SCALE * math.dist(model.eye, model.target)
        for i, camera in enumerate(cameras[:MAX_FRUSTA]):
            color = CHOSEN_COLOR if i == chosen else COLOR
            handle = add_frustum(scene, f"/keyframes/{i}", camera, scale=scale, thickness=0.03 * scale, color=color)
            self._page.callbacks.on_click(handle, partial(self._choose, i))
            self._drawn.append(handle)
        if len(cameras) > 1:
            n = min(PATH_POINTS * len(cameras), PATH_POINTS_MAX)
            options = VideoOptions(1.0, n, self._loop.value)
            points = np.array([camera.position.numpy() for camera in self._keyframes.path(options)])
            ends = np.roll(points, -1, 0) if self._loop.value else points[1:]
            lines = np.stack([points[: len(ends)], ends], 1)  # [n, 2, 3]
            self._drawn.append(
                scene.add_line_segments("/keyframes/path", lines, COLOR, thickness=2, thickness_units="screen")
            )

    def _save(self, path: Path) -> str:
        self._keyframes.save(path)
        return f"Wrote {len(self._keyframes.cameras)} keyframes"

    def _load(self, name: str) -> str:
        path = self._page.folder.readable(name)
        self._keyframes.load(path)
        self._show(0)
        return f"Read {len(self._keyframes.cameras)} keyframes from {path}"

    def _options(self) -> VideoOptions:
        return VideoOptions(self._seconds.value, int(self._fps.value), self._loop.value, SIZES[self._size.value])

    def _preview(self) -> None:
        options = VideoOptions(self._seconds.value, PREVIEW_FPS, self._loop.value)
        cameras = self._keyframes.path(options)
        for handle in self._drawn:
            handle.remove()
        self._drawn.clear()
        for camera in cameras:
            if self._page.closed.is_set():
                return
            self._page.move_to(camera)
            self._page.closed.wait(1 / PREVIEW_FPS)
        self._draw()

    def _video(self, options: VideoOptions, path: Path) -> str:
        model, settings = self._page.model(), self._page.settings()

        def render(i: int, n: int, camera: Camera) -> Image:
            if self._page.closed.is_set():
                raise RuntimeError("the client has gone")
            self._page.tell(f"Rendering frame {i + 1} of {n}")
            return model.renderer.render(pose_of(camera), settings).image

        return f"Wrote {self._keyframes.write(path, options, render)}"
