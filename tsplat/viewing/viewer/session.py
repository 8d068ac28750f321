"""One client of the viewer: its camera, its controls, and the thread that renders for it."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ArgumentError
from ...scene.cameras import Camera
from ...scene.cropping import Box, raise_if_empty
from ...scene.formats import write_model
from ..scene_pages import is_page, write_page
from ..start_views import StartView
from .callbacks import Callbacks
from .comparison import Image, combine, shrink
from .folder import Folder, NameTakenError
from .keyframes import Keyframes
from .live_page import LivePage
from .live_training import LiveTraining
from .panel import Actions, Panel
from .poses import client_pose, pose_of, vertical_fov, wxyz_of
from .renderer import Frame, Pose, Settings
from .training_tab import TrainingTab
from .viewed_models import ViewedModel
from .worker import Worker

JPEG_QUALITY = 75
"""Quality of images while the camera moves; at rest they are PNG."""

MAX_FRUSTA = 500
FRUSTUM_SCALE = 0.05
"""Size of a camera relative to its distance from the first point looked at."""

PREVIEW_FPS = 15

BOX_COLOR = (255, 200, 40)
EDGES = np.array([
    (ends, np.where(np.arange(3) == axis, 1, ends))
    for axis in range(3) for ends in itertools.product((0, 1), repeat=3) if ends[axis] == 0
])  # fmt: skip
"""[12, 2, 3] edges of a box: which corner has the coordinate of each of their ends."""

OpenModel = Callable[[str, Callable[[str], object]], ViewedModel]
"""Reads a model from a path, and adds it to those of the viewer; calls its second argument with notes."""


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """What to render: a model from a camera."""

    model: ViewedModel
    pose: Pose
    settings: Settings
    divisor: int


class Session:
    """One client.

    Args:
        client: Client handle of viser.
        models: Models to choose from; the first is shown.
        training: The training of the model; None for models that do not change.
        open_model: Adds a model; None where this is not possible.
        folder: What the client may write and read; None for the current directory.
    """

    def __init__(
        self,
        client: Any,
        models: Sequence[ViewedModel],
        training: LiveTraining | None = None,
        open_model: OpenModel | None = None,
        folder: Folder | None = None,
    ) -> None:
        self._client, self._training = client, training
        self._folder = folder or Folder(".")
        self._keyframes = Keyframes()
        self._frusta: list[Any] = []
        self._box: tuple[Box | None, Any] = (None, None)
        self._closed = threading.Event()
        self._callbacks = Callbacks(self.tell)
        self._page: LivePage | None = None
        self._ready = False
        self._panel = Panel(
            client.gui,
            models,
            Actions(
                change=self._change,
                choose_model=self._choose_model,
                open_model=None if open_model is None else lambda name: self._open_model(open_model, name),
                reset_view=self._reset_view,
                set_fov=self._set_fov,
                show_view=self._show_view,
                compare=self._compare,
                show_frusta=self._show_frusta,
                export=lambda name: self._write(name, self._export),
                add_keyframe=self._add_keyframe,
                clear_keyframes=self._clear_keyframes,
                save_keyframes=lambda name: self._write(name, self._save_keyframes),
                load_keyframes=self._load_keyframes,
                preview=self._preview,
                video=lambda name, seconds: self._write(name, partial(self._video, seconds)),
            ),
            self._callbacks,
            None if training is None else lambda: self._add_page(training),
        )
        # Last, as its thread would outlive controls that cannot be made.
        self._worker: Worker[Request] = Worker(self._render, self._show, self.tell)
        self._ready = True
        self._callbacks.on_update(client.camera, self._change)
        model, camera = self._panel.model, client.camera
        is_cut_off = model.eye_for(camera.image_width, camera.image_height) != model.eye
        self._callbacks.run(self._reset_view if is_cut_off else self._change)

    def close(self, seconds: float = 5.0) -> None:
        """Ends what runs for the client, which has gone; waits for its image for some time."""
        self._closed.set()
        self._callbacks.close()
        if self._page is not None:
            self._page.close()
        self._worker.close(seconds)

    def _add_page(self, training: LiveTraining) -> None:
        tab = TrainingTab(self._client.gui, training, self._callbacks)
        self._page = LivePage(
            self._client, training, tab.update, lambda: self._callbacks.run(lambda: self._change(at_rest=True))
        )

    # Images

    def _change(self, *, at_rest: bool = False) -> None:
        """Renders again, as the camera or a setting has changed or, with the camera at rest, the model."""
        if not self._ready:
            return
        settings, pose = self._panel.settings(), client_pose(self._client.camera)
        self._draw_box(settings.crop)
        self._worker.submit(Request(self._panel.model, pose, settings, self._panel.divisor), at_rest=at_rest)

    def _draw_box(self, box: Box | None) -> None:
        """Draws the edges of the crop box into the scene; none where it is None."""
        drawn, handle = self._box
        if box == drawn:
            return
        if handle is not None:
            handle.remove()
        self._box = box, None
        if box is not None:
            corners = np.array(box)[EDGES, range(3)]  # [12, 2, 3]
            self._box = (
                box,
                self._client.scene.add_line_segments(
                    "/crop", corners, BOX_COLOR, thickness=2, thickness_units="screen"
                ),
            )

    def _render(self, request: Request, seconds: float | None) -> Frame:
        if seconds is None and self._training is not None:
            seconds = self._training.seconds_at_rest
        return request.model.renderer.render(
            request.pose, request.settings, seconds, request.divisor, lambda: not self._closed.is_set()
        )

    def _show(self, frame: Frame, at_rest: bool) -> None:
        # Lossless images of a model that changes would take time from its training.
        lossless = at_rest and (self._training is None or self._training.paused)
        self._client.scene.set_background_image(
            frame.image, format="png" if lossless else "jpeg", jpeg_quality=JPEG_QUALITY
        )
        height, width = frame.image.shape[:2]
        total = len(self._panel.model.gaussians)
        self.tell(f"{total:,} Gaussians, {frame.visible:,} drawn · {width}×{height} · {1e3 * frame.seconds:.0f} ms")

    def tell(self, message: str) -> None:
        """Shows a message above the controls."""
        if not self._closed.is_set():
            self._panel.show_status(message)

    # Models and cameras

    def _open_model(self, open_model: OpenModel, name: str) -> str:
        path = self._folder.readable(name)
        notes: list[str] = []
        self.tell(f"Reading {path}")
        model = open_model(str(path), notes.append)
        self._panel.add_model(model)
        return "; ".join([f"Opened {model.name}", *notes])

    def _choose_model(self) -> None:
        model = self._panel.model
        self._show_frusta(False)
        self._clear_keyframes()
        self._panel.show_model(model)
        self._reset_view()

    def _reset_view(self) -> None:
        """Shows the model from its first camera, upright."""
        model, camera = self._panel.model, self._client.camera
        with self._client.atomic():
            camera.up_direction = np.array(model.up)
            camera.position = np.array(model.eye_for(camera.image_width, camera.image_height))
            camera.look_at = np.array(model.target)
            camera.fov = math.radians(model.fov)
        self._change()

    def _set_fov(self, degrees: float) -> None:
        self._client.camera.fov = math.radians(degrees)
        self._change()

    def _move_to(self, camera: Camera) -> None:
        with self._client.atomic():
            self._client.camera.position = camera.position.numpy()
            self._client.camera.wxyz = wxyz_of(camera.viewmat)
            self._client.camera.fov = vertical_fov(camera)
        self._change()

    def _show_view(self) -> None:
        camera = self._chosen_camera()
        self._move_to(camera)
        self._compare()

    def _chosen_camera(self) -> Camera:
        cameras = self._panel.model.cameras
        if not cameras:
            raise ArgumentError("View: this model has no cameras")
        return cameras[min(self._panel.view, len(cameras) - 1)]  # a slider with one value is not possible

    def _choose_view(self, index: int) -> None:
        self._panel.view = index
        self._show_view()

    def _show_frusta(self, shown: bool) -> None:
        for handle in self._frusta:
            handle.remove()
        self._frusta.clear()
        if not shown:
            return
        model = self._panel.model
        scale = FRUSTUM_SCALE * math.dist(model.eye, model.target)
        for i, camera in enumerate(model.cameras[:MAX_FRUSTA]):
            handle = self._client.scene.add_camera_frustum(
                f"/cameras/{i}",
                vertical_fov(camera),
                camera.width / camera.height,
                scale=scale,
                thickness=0.02 * scale,
                color=(230, 120, 20) if camera.is_test else (30, 110, 230),
                wxyz=wxyz_of(camera.viewmat),
                position=camera.position.numpy(),
            )
            self._callbacks.on_click(handle, partial(self._choose_view, i))
            self._frusta.append(handle)

    def _compare(self) -> None:
        """Shows the photograph of the chosen view beside the controls, or compares it with its render."""
        model, what = self._panel.model, self._panel.comparison
        camera = self._chosen_camera()
        view = model.find_view(camera.name, self.tell)
        if view is None:
            return
        photograph = shrink(view)
        if what != "photograph":
            photograph = combine(photograph, self._render_view(model, camera, photograph.shape), what)
        self._panel.show_photograph(photograph, camera.name)

    def _render_view(self, model: ViewedModel, camera: Camera, shape: tuple[int, ...]) -> Image:
        height, width = shape[:2]
        settings = dataclasses.replace(self._panel.settings(), show="rgb", model=camera.model)
        return model.renderer.render(pose_of(camera, width, height), settings).image

    # Files

    def _write(self, name: str, write: Callable[[Path], str], replace: bool = False) -> str:
        """Writes a file, or asks whether to replace the one that exists."""
        self._panel.ask(None)
        try:
            with self._folder.writing(name, replace=replace) as path:
                return f"{write(path)} to {path}"
        except NameTakenError as problem:
            self._panel.ask(name, lambda: self._write(name, write, replace=True))
            return f"**{problem}; to replace it, click Replace {name}**"

    def _export(self, path: Path) -> str:
        settings = self._panel.settings()
        gaussians = self._panel.model.renderer.cropped(settings.crop).map(lambda tensor: tensor.cpu())
        if settings.crop is not None:
            raise_if_empty(gaussians, settings.crop)
        if not is_page(path):
            write_model(path, gaussians)
            return f"Wrote {len(gaussians):,} Gaussians"
        page = write_page(path, gaussians, self._start_view(), background=settings.background, title=path.stem)
        return f"Wrote {len(gaussians):,} Gaussians, {page.size / 1e6:.1f} MB,"

    def _start_view(self) -> StartView:
        """The current camera, for an HTML file."""
        camera = self._client.camera
        slope = math.tan(camera.fov / 2)
        slopes = (slope * max(camera.image_width, 1) / max(camera.image_height, 1), slope)
        return StartView(camera.position, camera.look_at, self._panel.model.up, slopes)

    def _add_keyframe(self) -> None:
        self._keyframes.add(client_pose(self._client.camera))
        self._panel.show_keyframes(len(self._keyframes.cameras))

    def _clear_keyframes(self) -> None:
        self._keyframes.cameras.clear()
        self._panel.show_keyframes(0)

    def _save_keyframes(self, path: Path) -> str:
        self._keyframes.save(path)
        return f"Wrote {len(self._keyframes.cameras)} keyframes"

    def _load_keyframes(self, name: str) -> str:
        path = self._folder.readable(name)
        self._keyframes.load(path)
        self._panel.show_keyframes(len(self._keyframes.cameras))
        return f"Read {len(self._keyframes.cameras)} keyframes from {path}"

    def _preview(self, seconds: float) -> None:
        for camera in self._keyframes.path(seconds, PREVIEW_FPS):
            if self._closed.is_set():
                return
            self._move_to(camera)
            self._closed.wait(1 / PREVIEW_FPS)

    def _video(self, seconds: float, path: Path) -> str:
        model, settings = self._panel.model, self._panel.settings()

        def render(i: int, n: int, camera: Camera) -> Image:
            if self._closed.is_set():
                raise RuntimeError("the client has gone")
            self.tell(f"Rendering frame {i + 1} of {n}")
            return model.renderer.render(pose_of(camera), settings).image

        return f"Wrote {self._keyframes.write(path, seconds, render)}"
