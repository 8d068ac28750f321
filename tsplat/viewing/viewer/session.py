"""The session of a client of the viewer: its camera, its controls, and its rendering thread."""

import dataclasses
import math
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ArgumentError
from ...scene.cameras import Camera
from ..view_options import DrawnBy
from .callbacks import Callbacks, Page, describe_error
from .cameras_tab import CamerasTab
from .comparison import Comparison
from .crop_tab import CropTab
from .drawing import WITHOUT_WEBGL, Drawing, Graphics, drawing_problem
from .folder import TRANSFER_MAX, Folder, NameTakenError, check_name
from .live_training import LiveTraining
from .panel import Actions, Panel
from .poses import client_pose, fitting_fov, wxyz_of
from .renderer import Frame, Pose, Settings
from .training_tab import LivePage, TrainingTab
from .video_tab import VideoTab
from .viewed_models import ViewedModel
from .worker import Worker

JPEG_QUALITY = 75
"""JPEG quality of images while the camera moves; at rest, images are PNG."""

STILL_DISTANCE_MAX = 1e-4
"""Maximum distance of a camera that has not moved from its start, relative to the distance of the point it looks at."""

OpenModel = Callable[[str, Callable[[str], object]], ViewedModel]
"""Reads a model from a path, and adds it to the viewer's models; calls its second argument with notes."""


@dataclasses.dataclass(frozen=True, eq=False)
class ViewRequest:
    """An image to render: a model from a camera, or a comparison with a photograph."""

    model: ViewedModel
    pose: Pose
    settings: Settings
    divisor: int
    comparison: Comparison | None


class Session:
    """The session of a client of viser. The first of `models` is shown, and others can be selected.

    `training` is None for models that do not change, and `open_model` is None if models cannot be added. The client may
    write and read files in `folder`, by default the current directory. `draw` is where images are drawn at first.
    """

    def __init__(
        self,
        client: Any,
        models: Sequence[ViewedModel],
        training: LiveTraining | None = None,
        open_model: OpenModel | None = None,
        folder: Folder | None = None,
        draw: DrawnBy = "server",
    ) -> None:
        self._client, self._training = client, training
        self._folder = folder or Folder(".")
        self._closed = threading.Event()
        self._callbacks = Callbacks(self.show_message)
        self._live_page: LivePage | None = None
        self._graphics: Graphics = "missing"
        self._is_drawn, self._drawing_lock = False, threading.Lock()
        self._ready = False
        self._framed = models[0].eye, models[0].fov
        self._panel = Panel(
            client.gui,
            models,
            Actions(
                change=self._change,
                choose_model=self._choose_model,
                open_model=open_model and partial(self._open_model, open_model),
                upload=open_model and partial(self._upload, open_model),
                reset_view=self._reset_view,
                turn_upright=self._turn_upright,
                set_up=self._set_up,
                screenshot=self._screenshot,
                set_fov=self._set_fov,
                draw_by=self._draw_by,
            ),
            self._callbacks,
            None if training is None else lambda: self._add_page(training),
        )
        page = Page(
            client=client,
            callbacks=self._callbacks,
            show_message=self.show_message,
            model=lambda: self._panel.model,
            settings=self._settings,
            change=self._change,
            move_to=self._move_to,
            write=self._write,
            ask=self._panel.ask,
            folder=self._folder,
            closed=self._closed,
        )
        with self._panel.add_tab("Cameras"):
            self._cameras = CamerasTab(page)
        with self._panel.add_tab("Crop"):
            self._crop = CropTab(page)
        with self._panel.add_tab("Video"):
            self._video = VideoTab(page)
        self.drawing = Drawing(
            client.gui,
            lambda: self._callbacks.enqueue(self._change),
            self._note_graphics,
            self._note,
            self._stop_drawing,
        )
        self._panel.offer_drawing(False, draw)
        self._show_model()
        # Created last, as its thread would outlive an error above.
        self._worker: Worker[ViewRequest] = Worker(self._render, self._show, self._fail)
        self._ready = True
        client.camera.on_update(lambda _: self._callbacks.enqueue(self._follow))
        self._callbacks.run(self._follow)

    def close(self, seconds: float = 5.0) -> None:
        """Ends the threads of the client, after it has disconnected; waits at most `seconds` for its last image."""
        self._closed.set()
        self._callbacks.close()
        if self._live_page is not None:
            self._live_page.close()
        self._worker.close(seconds)

    def _add_page(self, training: LiveTraining) -> None:
        tab = TrainingTab(self._client.gui, training, self._callbacks)
        self._live_page = LivePage(
            self._client, training, tab.update, lambda: self._callbacks.run(lambda: self._change(at_rest=True))
        )

    # Images

    def _change(self, *, at_rest: bool = False) -> None:
        """Renders again after a change of the camera, a setting or, with the camera `at_rest`, the model."""
        if not self._ready:
            return
        request = self._request()
        self._crop.draw(request.settings.crop)
        is_plain = request.comparison is None and request.divisor == 1
        if is_plain and self.drawing.draws(request.model, request.settings):
            self._show_drawn(request.model)
            return
        self._is_drawn = False
        self._worker.submit(request, at_rest=at_rest)

    def _show_drawn(self, model: ViewedModel) -> None:
        """Removes the server's image, which covers the page's drawing, and errors of earlier images."""
        with self._drawing_lock:
            if self._is_drawn:
                return
            self._is_drawn = True
            self._client.scene.set_background_image(None)
        for cause in (self._show, self._stop_drawing):
            self._callbacks.succeed(cause)
        self._panel.show_depths(None)
        self._panel.show_status(f"{len(model.gaussians):,} Gaussians, drawn by this browser")

    def _note_graphics(self, graphics: Graphics) -> None:
        """Handles the browser's report of its graphics: offers drawing in the browser, if possible."""
        self._graphics = graphics
        self._callbacks.enqueue(self._draw_by)
        if self._panel.drawn_by == "browser" and (problem := self._drawing_problem()) is not None:
            self._note(problem)

    def _drawing_problem(self) -> str | None:
        """Returns the reason why the page cannot draw the model; None if it can."""
        if self._training is not None:
            return "the server draws: browsers do not draw a model that is being trained"
        return WITHOUT_WEBGL.get(self._graphics) or drawing_problem(self._panel.model)

    def _draw_by(self) -> None:
        """Switches drawing to the page or the server, as chosen. If the page cannot draw, hides the choice."""
        is_offered = self._drawing_problem() is None
        self._panel.offer_drawing(is_offered)
        self.drawing.choose(self._panel.model if is_offered and self._panel.drawn_by == "browser" else None)

    def _stop_drawing(self, model: ViewedModel, problem: str) -> None:
        """Switches back to the server for a model that the page cannot draw, unless the choice has changed."""

        def stop() -> None:
            if self._panel.model is model and self._panel.drawn_by == "browser":
                self._panel.offer_drawing(True, "server")
                self._callbacks.fail(f"the server draws: {problem}", self._stop_drawing)

        # Runs after a pending change of the choice.
        self._callbacks.enqueue(stop)

    def _follow(self) -> None:
        """Renders after the camera has moved or the canvas was resized. An unmoved camera is framed for its size."""
        model, camera = self._panel.model, self._client.camera
        eye, fov = self._framed
        is_first = math.dist(camera.position, eye) < STILL_DISTANCE_MAX * math.dist(eye, model.target)
        is_first &= abs(camera.fov - math.radians(fov)) < STILL_DISTANCE_MAX
        if is_first and model.framing_for(camera.image_width, camera.image_height) != self._framed:
            self._reset_view()
        else:
            self._change()

    def _request(self) -> ViewRequest:
        pose = client_pose(self._client.camera)
        comparison = self._cameras.comparison(pose)
        return ViewRequest(self._panel.model, pose, self._settings(), self._panel.divisor, comparison)

    def _settings(self) -> Settings:
        return dataclasses.replace(self._panel.settings(), crop=self._crop.box())

    def _render(self, request: ViewRequest, seconds: float | None) -> Frame:
        if seconds is None and self._training is not None:
            seconds = self._training.seconds_at_rest
        renderer, pose = request.model.renderer, request.pose
        arguments = request.settings, seconds, request.divisor, lambda: not self._closed.is_set()
        if request.comparison is not None:
            return request.comparison.render(renderer, (pose.width, pose.height), *arguments)
        return renderer.render(pose, *arguments)

    def _show(self, frame: Frame, at_rest: bool) -> None:
        # Lossless images take time, which would slow down training.
        lossless = at_rest and (self._training is None or self._training.paused)
        with self._drawing_lock:
            if self._is_drawn:
                return
            self._client.scene.set_background_image(
                frame.image, format="png" if lossless else "jpeg", jpeg_quality=JPEG_QUALITY
            )
        self._callbacks.succeed(self._show)
        height, width = frame.image.shape[:2]
        total = len(self._panel.model.gaussians)
        drawn = f"{total:,} Gaussians, {frame.visible:,} drawn"
        if self._training is not None:  # the training tab shows the total
            drawn = f"{frame.visible:,} Gaussians drawn"
        if frame.n_largest is not None:
            drawn = f"{'' if at_rest else 'moving: '}{frame.n_largest:,} of {total:,} Gaussians"
        time = f", {1e3 * frame.seconds:.0f} ms" if frame.seconds else ""
        if not self._closed.is_set():
            self._panel.show_depths(frame.depths)
            self._panel.show_status(frame.note or drawn, f"{width}×{height}{time}")
            self._panel.show_ready()

    def _fail(self, problem: str) -> None:
        """Shows the error of an image, unless the page draws the model by now."""
        with self._drawing_lock:
            if not self._is_drawn:
                self._callbacks.fail(problem, self._show)

    def show_message(self, message: str) -> None:
        """Shows a message above the controls, until one of them is used; an empty message hides the last one."""
        if not self._closed.is_set():
            self._panel.show_message(message)

    def _note(self, message: str) -> None:
        """Shows a message like :meth:`show_message`, but neither replaces nor hides another one."""
        if not self._closed.is_set():
            self._panel.show_note(message)

    def _screenshot(self) -> str:
        """Renders the current view at full size, and downloads it."""
        from PIL import Image

        image, file = self._render(self._request(), None).image, BytesIO()
        name = f"{Path(self._panel.model.name).stem}.png"
        Image.fromarray(image).save(file, "PNG")
        self._client.send_file_download(name, file.getvalue(), save_immediately=True)
        return f"Downloaded {name}, {image.shape[1]}×{image.shape[0]}"

    # Models and cameras

    def _open_model(self, open_model: OpenModel, name: str) -> str:
        path = self._folder.readable(name)
        self.show_message(f"Reading {path}")
        return self._open(open_model, path)

    def _upload(self, open_model: OpenModel, name: str, content: bytes) -> str:
        """Opens an uploaded file from a temporary folder, so that it does not overwrite another file."""
        check_name(name)
        self.show_message(f"Reading {name}")
        with tempfile.TemporaryDirectory(prefix="tsplat-") as folder:
            Path(folder, name).write_bytes(content)
            try:
                return self._open(open_model, Path(folder, name)).replace(f"{folder}/", "")
            except (ArgumentError, OSError, RuntimeError) as error:
                raise ArgumentError(describe_error(error).replace(f"{folder}/", "")) from error

    def _open(self, open_model: OpenModel, path: Path) -> str:
        notes: list[str] = []
        model = open_model(str(path), notes.append)
        self._panel.add_model(model)
        return "; ".join([f"Opened {model.name}", *notes])

    def _choose_model(self) -> None:
        self._show_model()
        self._reset_view()

    def _show_model(self) -> None:
        """Sets the controls to the values of the model."""
        for part in (self._panel, self._cameras, self._crop, self._video):
            part.show_model(self._panel.model)
        self._draw_by()

    def _reset_view(self) -> None:
        """Moves the camera to the start view of the model, upright."""
        model, camera = self._panel.model, self._client.camera
        with self._client.atomic():
            camera.up_direction = np.array(model.up)
            eye, fov = self._framed = model.framing_for(camera.image_width, camera.image_height)
            camera.position = np.array(eye)
            camera.look_at = np.array(model.target)
            camera.fov = math.radians(fov)
        self._change()

    def _turn_upright(self) -> None:
        """Turns the camera upright without moving it."""
        self._client.camera.up_direction = np.array(self._panel.model.up)
        self._change()

    def _set_up(self) -> str:
        """Sets the up direction of the model, on all pages, to that of the image."""
        up = self._panel.model.up = (-client_pose(self._client.camera).viewmat[1, :3]).tolist()
        self._client.camera.up_direction = np.array(up)
        self._change()
        return f"Changed the up direction; to start with it: tsplat view --up {' '.join(f'{x:.4g}' for x in up)}"

    def _set_fov(self, degrees: float) -> None:
        self._client.camera.fov = math.radians(degrees)
        self._change()

    def _move_to(self, camera: Camera) -> None:
        """Moves to a camera, so that its whole image is visible."""
        handle = self._client.camera
        with self._client.atomic():
            handle.position = camera.position.numpy()
            handle.wxyz = wxyz_of(camera.viewmat)
            handle.fov = fitting_fov(camera, handle.image_width, handle.image_height)
        self._change()

    def _write(self, name: str, write: Callable[[Path], str], replace: bool = False) -> str:
        """Writes a file, or asks whether to replace an existing one."""
        self._panel.ask(None, lambda: None)
        self._panel.offer(None, lambda: None)
        try:
            with self._folder.writing(name, replace=replace) as path:
                message = f"{write(path)} to {path}"
            if path.is_file() and path.stat().st_size <= TRANSFER_MAX:
                self._panel.offer(name, lambda: self._download(path))
            return message
        except NameTakenError as problem:
            self._panel.ask(f"Replace {name}", lambda: self._write(name, write, replace=True))
            return f"**{problem}; to replace it, click Replace {name}**"

    def _download(self, path: Path) -> str:
        """Sends a file that this client has written, unless it has been replaced by a link."""
        if path.is_symlink() or not path.is_file():
            raise ArgumentError(f"{path.name}: the file no longer exists; write it again")
        self._client.send_file_download(path.name, path.read_bytes(), save_immediately=True)
        return f"Downloaded {path.name}"
