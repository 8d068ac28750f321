"""Models in the viewer: a model with its cameras, photographs and framing."""

import contextlib
import dataclasses
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from ...config import Backend
from ...errors import ArgumentError
from ...scene.cameras import Camera, intrinsics, look_at
from ...scene.capture.captures import is_capture, read_capture
from ...scene.capture.views import View
from ...scene.extents import near_plane
from ...scene.formats.checkpoints import is_run, open_model
from ...scene.gaussians import Gaussians, drop_invalid
from ...scene.option_types import Color, Corner
from ..run_cameras import FOV, find_background, find_cameras
from ..start_views import CORE, SIZE, StartView, check_up, first_view
from ..trajectories import cameras_of_views
from .renderer import Pose, Renderer, Settings

POINT_OPACITY, POINT_SCALE = 0.9, 0.5
"""Opacity, and scale relative to the default, of Gaussians that show the sparse points of a capture."""


@dataclasses.dataclass(eq=False)
class ViewedModel:
    """A model that the viewer shows.

    Attributes:
        name: Unique name, for the list of models.
        renderer: Renderer of the model.
        cameras: Cameras of the photographs; empty if they are not known.
        views: Photographs by name; empty until `read_views` is called, and for a model file.
        background: Initial background color.
        eye, target, up: Position of the start view's camera, point it looks at, and up direction; [3] each.
        fov: Vertical field of view of the start view, in degrees.
        aspect: Ratio of width to height of the start view.
        near: Initial depth of the near plane, world units.
        read_views: Reads the photographs; None if there are none, or if `views` has them.
        path: File that the model was read from; None for a model in memory.
        drawn: Type and content of the files with which pages draw the model; None until a page does.
        drawn_lock: Held while `drawn` is computed.
    """

    name: str
    renderer: Renderer
    cameras: list[Camera]
    views: dict[str, View]
    background: Color
    eye: list[float]
    target: list[float]
    up: list[float]
    fov: float
    aspect: float = SIZE[0] / SIZE[1]
    near: float = Settings.near
    read_views: Callable[[], Mapping[str, View]] | None = None
    path: Path | None = None
    drawn: dict[str, tuple[str, bytes]] | None = None
    drawn_lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, init=False)
    _reading: threading.Lock = dataclasses.field(default_factory=threading.Lock, init=False)

    @property
    def gaussians(self) -> Gaussians:
        return self.renderer.gaussians

    def framing_for(self, width: int, height: int) -> tuple[list[float], float]:
        """Returns the camera position and the vertical field of view in degrees of the start view for an image size.

        If the image is narrower than the start view, the position is farther away, so that the model is not cut off.
        For a model with cameras, the position stays that of a photograph, and the field of view is wider, so that the
        image shows the fraction :data:`CORE` of the photograph's width.
        """
        narrower = self.aspect * max(height, 1) / max(width, 1)
        if narrower <= 1:
            return self.eye, self.fov
        if self.cameras:
            slope = max(CORE * narrower, 1.0) * math.tan(math.radians(self.fov) / 2)
            return self.eye, math.degrees(2 * math.atan(slope))
        return [b + narrower * (a - b) for a, b in zip(self.eye, self.target, strict=True)], self.fov

    def find_view(self, name: str, show_message: Callable[[str], object]) -> View | None:
        """Returns the photograph with a name, or None. The first call may read all photographs, which takes long.

        Args:
            show_message: Called with a message before the photographs are read.

        Raises:
            ArgumentError, OSError: The photographs cannot be read.
        """
        with self._reading:
            if self.read_views is not None:
                show_message("Reading the photographs")
                self.views.update(self.read_views())
                self.read_views = None
        return self.views.get(name)

    def bounds(self) -> tuple[Corner, Corner, int]:
        """Returns the bounding box of all centers, rounded outward, and the number of decimals for steps in it.

        Steps are at most a hundredth of the model's extent, which ignores the outermost Gaussians.
        """
        means = self.gaussians.means.cpu().double().numpy()
        if len(means) == 0:
            return (0.0, 0.0, 0.0), (0.0, 0.0, 0.0), 2
        low, high = np.quantile(means, (0.02, 0.98), axis=0)
        extent = float((high - low).max())
        digits = 2 - math.floor(math.log10(extent)) if extent > 0 else 2
        # Limits the digits to the precision of fp32.
        digits = min(digits, 5 - math.floor(math.log10(max(float(abs(means).max()), 1e-30))))
        x0, y0, z0 = (round(math.floor(value * 10**digits) / 10**digits, 12) + 0.0 for value in means.min(0))
        x1, y1, z1 = (round(math.ceil(value * 10**digits) / 10**digits, 12) + 0.0 for value in means.max(0))
        return (x0, y0, z0), (x1, y1, z1), digits

    def warm_up(self) -> None:
        """Prepares the renderer for the first image. Errors are ignored, as the first image reports them."""
        with contextlib.suppress(ArgumentError, RuntimeError, MemoryError):
            pose = Pose(look_at(self.eye, self.target, self.up), math.radians(self.fov), *SIZE)
            self.renderer.warm_up(pose, Settings(background=self.background, near=self.near))


def open_viewed(
    path: str | os.PathLike[str],
    device: torch.device,
    *,
    gaussians: Gaussians | None = None,
    backend: Backend = "auto",
    force: bool = False,
    checkpoint: str | None = None,
    read_views: Callable[[], Mapping[str, View]] | None = None,
    up: Sequence[float] | None = None,
    warn: Callable[[str], object],
) -> ViewedModel:
    """Reads a model, run, checkpoint or capture for the viewer.

    Of a capture, the sparse points are shown, unless it is also the folder of a run.

    Args:
        path: Path of the model, run, checkpoint or capture.
        device: Device to render on.
        gaussians: The Gaussians of the model, if they were already read.
        backend: As in :func:`tsplat.rasterization`.
        force, checkpoint: As in :func:`tsplat.scene.open_model`.
        read_views: Reads the photographs of a run by name, when they are needed.
        up: [3] direction that points up, see :func:`frame_model`.
        warn: Called with a message for each damaged checkpoint that is skipped, and about invalid Gaussians.

    Raises:
        ArgumentError, FileError, UnsupportedError, MissingExtraError, OSError: As :func:`tsplat.scene.open_model` and
            :func:`tsplat.scene.read_capture`.
    """
    views: dict[str, View] = {}
    remark = ""
    if is_capture(path) and not is_run(path):
        capture = read_capture(path)
        gaussians = Gaussians.from_points(capture.points, capture.colors, 0, opacity=POINT_OPACITY, scale=POINT_SCALE)
        cameras = cameras_of_views(capture.train, capture.test)
        views = {view.name: view for view in (*capture.train, *capture.test)}
        background, remark = capture.background, " (scene)"
    else:
        if gaussians is None:
            gaussians = open_model(path, force=force, checkpoint=checkpoint, warn=warn)
        cameras = find_cameras(path)
        background = find_background(path) or (0.0, 0.0, 0.0)
    gaussians = drop_invalid(gaussians, lambda message: warn(f"{path}: {message}"))
    renderer = Renderer(gaussians.map(lambda tensor: tensor.detach().to(device)), backend)
    model = frame_model(Path(path).resolve().name + remark, renderer, cameras, views, background, up)
    model.path = Path(path)
    if not views:
        model.read_views = read_views
    return model


def frame_model(
    name: str,
    renderer: Renderer,
    cameras: Sequence[Camera] = (),
    views: Mapping[str, View] | None = None,
    background: Color = (0.0, 0.0, 0.0),
    up: Sequence[float] | None = None,
) -> ViewedModel:
    """Returns a model with its start view: the camera of the first photograph or, without cameras, of the whole model.

    Args:
        name, renderer, cameras, views, background: As in :class:`ViewedModel`; `cameras` on the CPU.
        up: [3] world direction that points up; None for that of the cameras, or a guess from the model.
    """
    check_up(up)
    gaussians = renderer.gaussians.map(lambda tensor: tensor.detach().cpu())
    try:
        start = first_view(gaussians, cameras, up=up)
    except ArgumentError:  # nothing is visible
        slope = math.tan(math.radians(FOV) / 2)
        start = StartView((0.0, 0.0, -3.0), (0.0, 0.0, 0.0), up or (0.0, -1.0, 0.0), (slope * SIZE[0] / SIZE[1], slope))
    eye, target, up = (list(values) for values in (start.eye, start.target, start.up))
    horizontal, vertical = start.slopes
    fov, aspect = math.degrees(2 * math.atan(vertical)), horizontal / vertical
    seen = cameras or [Camera(look_at(eye, target, up), intrinsics(*SIZE, fov), *SIZE)]
    near = min((camera.near for camera in cameras if camera.near is not None), default=None)
    near = near or near_plane(seen, gaussians.means) or Settings.near
    place = (eye, target, up, fov, aspect, near)
    return ViewedModel(name, renderer, list(cameras), dict(views or {}), background, *place)
