"""The controls of keyframes and videos, and the path along the keyframes in the scene."""

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ArgumentError
from ...scene.cameras import Camera
from ..videos import default_video
from .callbacks import ON_SERVER, SECONDARY, Page, name_in
from .comparison import Image
from .keyframes import SECONDS, SECONDS_MAX, Keyframes, VideoOptions
from .poses import FOV_RANGE, Frusta, client_pose, pose_of, vertical_fov
from .viewed_models import ViewedModel

PREVIEW_FPS = 15
FPS = (30, 10, 15, 24, 25, 50, 60)
"""Choices of frames per second; the first is the default. The frame rate of a GIF is rounded."""

SIZES = {"as on the page": None, "1280×720": (1280, 720), "1920×1080": (1920, 1080), "3840×2160": (3840, 2160),
         "1080×1080": (1080, 1080), "1080×1920": (1080, 1920)}  # fmt: skip

COLOR, CHOSEN_COLOR = (60, 190, 90), (255, 255, 255)
PATH_POINTS, PATH_POINTS_MAX = 16, 2000
"""Number of points of the drawn path between two keyframes, and maximum number for the whole path."""

MAX_FRUSTA = 200

NONE = "none"


class VideoTab:
    """The tab of videos of one client; it has keyframes for each model."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._of_models: dict[str, Keyframes] = {}
        self._keyframes = Keyframes()
        self._frusta = Frusta(page, "keyframes")
        self._line: Any = None
        gui, callbacks = page.client.gui, page.callbacks
        callbacks.on_click(
            gui.add_button("Add keyframe", hint="Adds the current camera after the chosen keyframe"), self._add
        )
        self._count = gui.add_markdown("No keyframes")
        self._chosen = gui.add_dropdown("Keyframe", (NONE,), visible=False)
        callbacks.on_update(self._chosen, self._go, by_client=True)
        self._edits = gui.add_button_group("", ("Go to", "Set", "Delete"), visible=False)
        self._moves = gui.add_button_group("Move", ("Earlier", "Later"), visible=False)
        edits = {"Go to": self._go, "Set": self._set, "Delete": self._delete}
        moves = {"Earlier": partial(self._move, -1), "Later": partial(self._move, 1)}
        callbacks.on_click(self._edits, lambda: edits[self._edits.value]())
        callbacks.on_click(self._moves, lambda: moves[self._moves.value]())
        self._step = gui.add_number("Seconds to it", SECONDS, min=0.1, max=float(SECONDS_MAX), step=0.1, visible=False,
                                    hint="From the previous keyframe; to the first, from the last")  # fmt: skip
        callbacks.on_update(self._step, self._set_step, by_client=True)
        self._fov = gui.add_slider("Its field of view (°)", *FOV_RANGE, 1, 50, visible=False, hint="Vertical")
        callbacks.on_update(self._fov, self._set_fov, by_client=True)
        self._remove = gui.add_button("Remove all", color=SECONDARY, visible=False)
        callbacks.on_click(self._remove, self._ask)
        self._path = gui.add_checkbox("Show path", True)
        callbacks.on_update(self._path, self._draw, by_client=True)
        self._loop = gui.add_checkbox("Loop", False, hint="Return to the first keyframe")
        callbacks.on_update(self._loop, lambda: self._show(self._index()), by_client=True)
        self._seconds = gui.add_number("Total seconds", SECONDS, min=0.1, max=float(SECONDS_MAX), visible=False)
        callbacks.on_update(self._seconds, self._scale, by_client=True)
        callbacks.on_long_click(gui.add_button("Preview", color=SECONDARY), self._preview)
        self._fps = gui.add_dropdown("Frames per second", [str(fps) for fps in FPS])
        self._size = gui.add_dropdown("Size (px)", list(SIZES))
        video = gui.add_text(
            "Video file",
            default_video(),
            hint=".mp4, .webm, .gif, a folder for PNGs, or .json for the cameras of all frames",
        )
        callbacks.on_long_click(
            gui.add_button("Save video"), lambda: page.write(name_in(video), partial(self._video, self._options()))
        )
        with gui.add_folder("Keyframes as a file", expand_by_default=False):
            file = gui.add_text("Keyframe file", "keyframes.json", hint=ON_SERVER)
            callbacks.on_long_click(
                gui.add_button("Save keyframes", color=SECONDARY), lambda: page.write(name_in(file), self._save)
            )
            callbacks.on_long_click(
                gui.add_button("Load keyframes", color=SECONDARY), lambda: self._load(name_in(file))
            )

    def show_model(self, model: ViewedModel) -> None:
        """Shows the keyframes of a model."""
        self._keyframes = self._of_models.setdefault(model.name, Keyframes())
        self._show(0)

    def _show(self, chosen: int) -> None:
        """Shows the keyframes, and chooses one of them."""
        n = len(self._keyframes.keys)
        self._count.content = f"{n or 'No'} keyframe{'' if n == 1 else 's'}"
        self._chosen.options = tuple(str(i + 1) for i in range(n)) or (NONE,)
        self._chosen.value = self._chosen.options[min(max(chosen, 0), max(n - 1, 0))]
        for handle in (self._chosen, self._edits, self._moves, self._fov, self._remove):
            handle.visible = n > 0
        self._show_values()
        self._draw()

    def _show_values(self) -> None:
        """Shows the time and the field of view of the chosen keyframe, and the duration of the path."""
        keys, length = self._keyframes.keys, self._keyframes.length(self._loop.value)
        self._seconds.visible = length > 0
        self._step.visible = length > 0 and (self._loop.value or self._index() > 0)
        if keys:
            key = keys[self._index()]
            degrees = round(math.degrees(vertical_fov(key.camera)))
            self._step.value, self._fov.value = round(key.seconds, 3), min(max(degrees, FOV_RANGE[0]), FOV_RANGE[1])
        if length:
            self._seconds.value = round(length, 3)

    def _index(self) -> int:
        n = len(self._keyframes.keys)
        if not n:
            raise ArgumentError("keyframes: expected at least one, found none; add one first")
        return min(int(self._chosen.value), n) - 1

    def _add(self) -> None:
        index = self._index() + 1 if self._keyframes.keys else 0
        self._keyframes.insert(index, client_pose(self._page.client.camera))
        self._show(index)

    def _go(self) -> None:
        self._page.move_to(self._keyframes.keys[self._index()].camera)
        self._show_values()
        self._draw()

    def _set(self) -> None:
        """Replaces the chosen keyframe by the current camera."""
        pose = client_pose(self._page.client.camera)
        self._keyframes.keys[self._index()].camera = pose.camera(pose.width, pose.height)
        self._show_values()
        self._draw()

    def _set_step(self) -> None:
        self._keyframes.keys[self._index()].seconds = self._step.value
        self._show_values()
        self._draw()

    def _set_fov(self) -> None:
        """Changes the field of view of the chosen keyframe, and moves to it."""
        key = self._keyframes.keys[self._index()]
        pose = dataclasses.replace(pose_of(key.camera), fov=math.radians(self._fov.value))
        key.camera = pose.camera(pose.width, pose.height)
        self._go()

    def _scale(self) -> None:
        self._keyframes.scale(self._seconds.value, self._loop.value)
        self._show_values()

    def _delete(self) -> None:
        index = self._index()
        del self._keyframes.keys[index]
        self._show(index)

    def _move(self, steps: int) -> None:
        keys, index = self._keyframes.keys, self._index()
        other = min(max(index + steps, 0), len(keys) - 1)
        keys[index], keys[other] = keys[other], keys[index]
        self._show(other)

    def _ask(self) -> None:
        n = len(self._keyframes.keys)
        self._page.ask(f"Remove {n} keyframe{'' if n == 1 else 's'}", self._clear)

    def _clear(self) -> None:
        self._page.ask(None, lambda: None)
        self._keyframes.keys.clear()
        self._show(0)

    def _choose(self, index: int) -> None:
        self._chosen.value = str(index + 1)
        self._go()

    def _draw(self, *, hidden: bool = False) -> None:
        """Draws the keyframes and the path along them in the scene."""
        cameras = self._keyframes.cameras if self._path.value and not hidden else []
        chosen = self._index() if cameras else 0
        self._frusta.draw(cameras[:MAX_FRUSTA], self._choose, lambda i: CHOSEN_COLOR if i == chosen else COLOR)
        if self._line is not None:
            self._line.remove()
            self._line = None
        if len(cameras) > 1:
            frames = min(PATH_POINTS * len(cameras), PATH_POINTS_MAX)
            path = self._keyframes.path(VideoOptions(closed=self._loop.value), frames)
            points = np.array([camera.position.numpy() for camera in path])
            ends = np.roll(points, -1, 0) if self._loop.value else points[1:]
            lines = np.stack([points[: len(ends)], ends], 1)  # [n, 2, 3]
            self._line = self._page.client.scene.add_line_segments(
                "/path", lines, COLOR, thickness=2, thickness_units="screen"
            )

    def _save(self, path: Path) -> str:
        self._keyframes.save(path)
        return f"Wrote {len(self._keyframes.keys)} keyframes"

    def _load(self, name: str) -> str:
        path = self._page.folder.readable(name)
        self._keyframes.load(path)
        self._show(0)
        return f"Read {len(self._keyframes.keys)} keyframes from {path}"

    def _options(self) -> VideoOptions:
        return VideoOptions(int(self._fps.value), self._loop.value, SIZES[self._size.value])

    def _preview(self) -> None:
        cameras = self._keyframes.path(VideoOptions(PREVIEW_FPS, self._loop.value))
        self._draw(hidden=True)
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
                raise RuntimeError("the client has disconnected")
            self._page.show_message(f"Rendering frame {i + 1} of {n}")
            return model.renderer.render(pose_of(camera), settings).image

        return f"Wrote {self._keyframes.write(path, options, render)}"
