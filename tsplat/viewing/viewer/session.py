"""One client of the viewer: its camera, its controls, and the thread that renders for it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import ArgumentError
from ...scene.cameras import viewmat_from_pose
from ...scene.capture.views import View
from ...scene.formats import write_model
from ...scene.images import downscale
from ...support.files import write_json
from ..scene_pages import is_page, write_page
from ..start_views import StartView
from ..trajectories import Camera, describe_camera, interpolate
from ..videos import check_video_path, write_frames
from .live_page import LivePage
from .live_training import LiveTraining
from .panel import Actions, Panel
from .renderer import Frame, Pose, Settings
from .training_tab import TrainingTab
from .viewed_models import ViewedModel
from .worker import Worker

FPS = 30
JPEG_QUALITY = 75
"""Quality of images while the camera moves; at rest they are PNG."""

PHOTOGRAPH_WIDTH = 480
"""Width in pixels of photographs beside the controls."""

MAX_FRUSTA = 500
FRUSTUM_SCALE = 0.05
"""Size of a camera relative to its distance from the first point looked at."""

PREVIEW_FPS = 15


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
    """

    def __init__(self, client: Any, models: Sequence[ViewedModel], training: LiveTraining | None = None) -> None:
        self._client, self._training = client, training
        self._keyframes: list[Camera] = []
        self._frusta: list[Any] = []
        self._worker: Worker[Request] = Worker(self._render, self._show, self._tell)
        self._page: LivePage | None = None
        self._ready = False
        self._panel = Panel(
            client.gui,
            models,
            Actions(
                change=self._change,
                choose_model=self._choose_model,
                set_fov=self._set_fov,
                show_view=self._show_view,
                compare=self._compare,
                show_frusta=self._show_frusta,
                export=self._export,
                keyframe=self._add_keyframe,
                clear=self._keyframes.clear,
                preview=self._preview,
                video=self._video,
            ),
            None if training is None else lambda: self._add_page(training),
        )
        self._ready = True
        client.camera.on_update(lambda _: self._change())
        self._change()

    def close(self) -> None:
        """Ends rendering for the client."""
        if self._page is not None:
            self._page.close()
        self._worker.close()

    def _add_page(self, training: LiveTraining) -> None:
        tab = TrainingTab(self._client.gui, training, self._tell)
        self._page = LivePage(self._client, training, tab.update, lambda: self._change(at_rest=True))

    # Images

    def _change(self, *, at_rest: bool = False) -> None:
        """Renders again, as the camera or a setting has changed or, with the camera at rest, the model."""
        if not self._ready:
            return
        try:
            settings = self._panel.settings()
        except ArgumentError as error:
            self._tell(str(error))
            return
        camera = self._client.camera
        # Canvases have no size while a page loads.
        width, height = max(int(camera.image_width), 1), max(int(camera.image_height), 1)
        pose = Pose(_viewmat(camera.wxyz, camera.position), min(camera.fov, math.radians(179)), width, height)
        self._worker.submit(Request(self._panel.model, pose, settings, self._panel.divisor), at_rest=at_rest)

    def _render(self, request: Request, seconds: float | None) -> Frame:
        if seconds is None and self._training is not None:
            seconds = self._training.seconds_at_rest
        return request.model.renderer.render(request.pose, request.settings, seconds, request.divisor)

    def _show(self, frame: Frame, at_rest: bool) -> None:
        # Lossless images of a model that changes would take time from its training.
        lossless = at_rest and (self._training is None or self._training.paused)
        self._client.scene.set_background_image(
            frame.image, format="png" if lossless else "jpeg", jpeg_quality=JPEG_QUALITY
        )
        height, width = frame.image.shape[:2]
        total = len(self._panel.model.gaussians)
        self._tell(f"{total:,} Gaussians, {frame.visible:,} drawn · {width} x {height} · {1e3 * frame.seconds:.0f} ms")

    def _tell(self, message: str) -> None:
        self._panel.show_status(message)

    # Camera

    def _choose_model(self) -> None:
        model = self._panel.model
        self._show_frusta(False)
        self._keyframes.clear()
        self._panel.show_model(model)
        with self._client.atomic():
            self._client.camera.up_direction = np.array(model.up)
            self._client.camera.position = np.array(model.eye)
            self._client.camera.look_at = np.array(model.target)
            self._client.camera.fov = math.radians(model.fov)
        self._change()

    def _set_fov(self, degrees: float) -> None:
        self._client.camera.fov = math.radians(degrees)
        self._change()

    def _move_to(self, viewmat: Tensor, fov: float) -> None:
        """Moves the camera to a world-to-camera matrix [4, 4], with a vertical field of view in radians."""
        from viser.transforms import SO3

        rotation = viewmat[:3, :3].double().numpy().T
        position = -rotation @ viewmat[:3, 3].double().numpy()
        with self._client.atomic():
            self._client.camera.position = position
            self._client.camera.wxyz = SO3.from_matrix(rotation).wxyz
            self._client.camera.fov = fov
        self._change()

    def _show_view(self, index: int) -> None:
        camera = self._panel.model.cameras[index]
        self._move_to(camera.viewmat, _vertical_fov(camera))
        self._compare(index, "photograph")

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
                _vertical_fov(camera),
                camera.width / camera.height,
                scale=scale,
                thickness=0.02 * scale,
                color=(230, 120, 20) if camera.is_test else (30, 110, 230),
                wxyz=_wxyz(camera.viewmat),
                position=camera.position.numpy(),
            )
            handle.on_click(lambda _, i=i: self._show_view(i))
            self._frusta.append(handle)

    def _compare(self, index: int, what: str) -> None:
        """Shows the photograph of a view beside the controls, or compares it with its render."""
        model = self._panel.model
        camera = model.cameras[index]
        view = model.views.get(camera.name)
        if view is None:
            return
        photograph = _shrunk(view)
        if what != "photograph":
            photograph = _combine(photograph, self._render_view(model, camera, photograph.shape), what)
        self._panel.show_photograph(photograph, camera.name)

    def _render_view(self, model: ViewedModel, camera: Camera, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        height, width = shape[:2]
        pose = Pose(camera.viewmat, _vertical_fov(camera), width, height)
        settings = dataclasses.replace(self._panel.settings(), show="rgb", camera_model=camera.camera_model)
        return model.renderer.render(pose, settings).image

    # Files

    def _export(self, name: str) -> str:
        gaussians = self._panel.model.renderer.cropped(self._panel.settings().crop)
        gaussians = gaussians.map(lambda tensor: tensor.cpu())
        if is_page(name):
            page = write_page(
                name, gaussians, self._start_view(), background=self._panel.settings().background, title=Path(name).stem
            )
            return f"Wrote {len(gaussians):,} Gaussians to {Path(name).absolute()}, {page.size / 1e6:.1f} MB"
        write_model(name, gaussians)
        return f"Wrote {len(gaussians):,} Gaussians to {Path(name).absolute()}"

    def _start_view(self) -> StartView:
        """The current camera, for an HTML file."""
        camera = self._client.camera
        slope = math.tan(camera.fov / 2)
        slopes = (slope * max(camera.image_width, 1) / max(camera.image_height, 1), slope)
        return StartView(camera.position, camera.look_at, self._panel.model.up, slopes)

    def _add_keyframe(self) -> int:
        camera = self._client.camera
        pose = Pose(_viewmat(camera.wxyz, camera.position), camera.fov, camera.image_width, camera.image_height)
        K = pose.intrinsics(pose.width, pose.height, "pinhole")
        self._keyframes.append(Camera(pose.viewmat, K, pose.width, pose.height))
        return len(self._keyframes)

    def _path(self, seconds: float, fps: int) -> Iterator[Camera]:
        yield from interpolate(self._keyframes, max(2, round(seconds * fps)))

    def _preview(self, seconds: float) -> None:
        for camera in self._path(seconds, PREVIEW_FPS):
            self._move_to(camera.viewmat, _vertical_fov(camera))
            time.sleep(1 / PREVIEW_FPS)

    def _video(self, name: str, seconds: float) -> str:
        path, cameras = Path(name), list(self._path(seconds, FPS))
        if path.suffix == ".json":
            write_json(path, [describe_camera(camera, i) for i, camera in enumerate(cameras)])
            return f"Wrote {len(cameras)} cameras to {path.absolute()}"
        check_video_path(path)
        model, settings = self._panel.model, self._panel.settings()

        def frames() -> Iterator[Tensor]:
            for i, camera in enumerate(cameras):
                self._tell(f"Rendering frame {i + 1} of {len(cameras)}")
                pose = Pose(camera.viewmat, _vertical_fov(camera), camera.width, camera.height)
                yield torch.from_numpy(model.renderer.render(pose, settings).image) / 255

        write_frames(path, frames(), FPS)
        return f"Wrote {len(cameras)} frames to {path.absolute()}"


def _viewmat(wxyz: np.ndarray[Any, Any], position: np.ndarray[Any, Any]) -> Tensor:
    """Returns the world-to-camera matrix [4, 4] of a camera-to-world rotation and a position."""
    from viser.transforms import SO3

    rotation = torch.from_numpy(SO3(np.asarray(wxyz)).as_matrix()).double()
    return viewmat_from_pose(rotation, torch.from_numpy(np.asarray(position)).double()).float()


def _wxyz(viewmat: Tensor) -> np.ndarray[Any, Any]:
    """Returns the camera-to-world rotation of a world-to-camera matrix [4, 4] as a quaternion [4]."""
    from viser.transforms import SO3

    wxyz: np.ndarray[Any, Any] = SO3.from_matrix(viewmat[:3, :3].double().numpy().T).wxyz
    return wxyz


def _vertical_fov(camera: Camera) -> float:
    """Returns the vertical field of view in radians."""
    half = 0.5 * camera.height / float(camera.K[1, 1])
    return min(2 * half if camera.camera_model == "fisheye" else 2 * math.atan(half), math.radians(179))


def _shrunk(view: View) -> np.ndarray[Any, Any]:
    width = min(view.width, PHOTOGRAPH_WIDTH)
    image = view.image if width == view.width else downscale(view.image, width, round(view.height * width / view.width))
    return image.cpu().numpy()


def _combine(photograph: np.ndarray[Any, Any], render: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    """Returns the render, the difference of the two, or the left half of one beside the right half of the other."""
    if what == "render":
        return render
    if what == "difference":
        difference: np.ndarray[Any, Any] = np.abs(photograph.astype(np.int16) - render).astype(np.uint8)
        return difference
    half = photograph.shape[1] // 2
    split: np.ndarray[Any, Any] = np.concatenate([photograph[:, :half], render[:, half:]], axis=1)
    return split
