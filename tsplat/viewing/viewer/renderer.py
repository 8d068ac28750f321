"""Renders images for the viewer, within a time budget."""

import dataclasses
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ...config import SH_DEGREE_MAX, Backend, CameraModel, RenderMode
from ...errors import ArgumentError
from ...precision import fp32
from ...rendering import render_views
from ...scalars import check_choice, check_size
from ...scene.cameras import Camera, panorama_intrinsics
from ...scene.cropping import crop_gaussians
from ...scene.culling import CulledModel
from ...scene.gaussians import Gaussians
from ...scene.images import to_bytes
from ...scene.option_types import Box, Color
from ...support.free_memory import available_bytes
from ..appearances import as_centers, as_ellipsoids, as_normals
from ..colormaps import apply_colormap, color_depths_over_checks, depth_limits

Quantity = Literal["rgb", "expected depth", "accumulated depth", "alpha", "normals", "centers", "ellipses"]
MODES: dict[Quantity, RenderMode] = {
    "rgb": "RGB", "expected depth": "ED", "accumulated depth": "D", "alpha": "RGB", "normals": "RGB", "centers": "RGB",
    "ellipses": "RGB",
}  # fmt: skip
DEPTHS = ("expected depth", "accumulated depth")
COLORMAPS = ("turbo", "viridis", "magma", "gray")
CAMERA_MODELS = ("pinhole", "ortho", "fisheye", "equirectangular")

DIVISOR_MAX = 8
"""Maximum factor by which an image is made smaller to save time."""

SLOWER_MAX = 1.25
"""An image that takes at most this many times as long as the smallest one is not made smaller."""

LARGE, LARGE_SECONDS = 1 << 18, 0.15
"""Number of Gaussians above which images may leave out the less important ones, and minimum time budget of such an
image: the quality depends on how many are rendered."""

LEVEL = math.sqrt(2)
"""Ratio between successive numbers of rendered Gaussians. Images with the same number are traced once and replayed."""

SLOW, FAST, SETTLED_IMAGES = 1.2, 0.6, 5
"""The number of Gaussians changes if the time, relative to the budget, is above SLOW or below FAST, after at least
SETTLED_IMAGES images with the same number."""

SIDE_MAX, PIXELS_MAX = 16384, 1 << 24
"""Maximum width or height of a canvas, and maximum number of pixels of an image; larger images are reduced."""

N_SAMPLES, N_NEWEST = 24, 3
"""Number of measured times on which predictions are based, in total and per image size, of which the median is used."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the renderer.

    Attributes:
        show: Quantity to show: color, expected depth (divided by alpha), accumulated depth, alpha, or the normals,
            centers or ellipses of the Gaussians.
        colormap: Colormap of Matplotlib for depth and alpha.
        depths: Nearest and farthest depth of the colormap, world units; None for those of the image.
        inverted: Whether far depths have the last color of the colormap.
        sh_degree: Highest degree of spherical harmonics to use; None for all of the model's degrees.
        background: RGB in [0, 1].
        antialiased: Whether to compensate opacities for the 2D low-pass filter; None for the model's setting.
        model: Camera model, see :class:`tsplat.scene.Camera`.
        near, far, radius_clip, eps2d: As in :func:`tsplat.rasterization`.
        crop: Only Gaussians with centers in this box are rendered; None for all.

    Raises:
        ArgumentError: A value is out of range.
    """

    show: Quantity = "rgb"
    colormap: str = "turbo"
    depths: tuple[float, float] | None = None
    inverted: bool = False
    sh_degree: int | None = None
    background: Color = (0.0, 0.0, 0.0)
    antialiased: bool | None = None
    model: CameraModel = "pinhole"
    near: float = 0.01
    far: float = 1e10
    radius_clip: float = 0.0
    eps2d: float = 0.3
    crop: Box | None = None

    def __post_init__(self) -> None:
        check_choice("show", self.show, tuple(MODES))
        check_choice("colormap", self.colormap, COLORMAPS)
        check_choice("model", self.model, CAMERA_MODELS)
        check_choice("sh_degree", self.sh_degree, (None, *range(SH_DEGREE_MAX + 1)))
        if not 0 <= self.near < self.far:
            raise ArgumentError(f"near, far: expected 0 <= near < far, found {self.near} and {self.far}")
        if self.depths is not None and not 0 < self.depths[0] < self.depths[1]:
            raise ArgumentError(
                f"depths: expected 0 < nearest < farthest, found {self.depths[0]:g} and {self.depths[1]:g}"
            )
        for name in ("radius_clip", "eps2d"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ArgumentError(f"{name}: expected a number of at least 0, found {getattr(self, name)}")


@dataclasses.dataclass(frozen=True, eq=False)
class Pose:
    """A camera without a resolution.

    Attributes:
        viewmat: [4, 4] world to camera.
        fov: Vertical field of view in radians.
        width, height: Size of the canvas in pixels.
    """

    viewmat: Tensor
    fov: float
    width: int
    height: int

    def __post_init__(self) -> None:
        check_size("width", self.width)
        check_size("height", self.height)
        if max(self.width, self.height) > SIDE_MAX:
            raise ArgumentError(f"width, height: expected at most {SIDE_MAX}, found {self.width} and {self.height}")
        if not 0 < self.fov < math.pi:
            raise ArgumentError(f"fov: expected radians between 0 and pi, found {self.fov}")

    def camera(self, width: int, height: int, model: CameraModel = "pinhole") -> Camera:
        """Returns the camera for an image of this size.

        Orthographic cameras have the extent of the pinhole camera at distance 1. Panoramas show 360 degrees
        horizontally, and are empty above and below on canvases that are too high.
        """
        if model == "equirectangular":
            K = panorama_intrinsics(width, height)
            K[1, 1] *= min(1.0, self.width / (2 * self.height))
            return Camera(self.viewmat, K, width, height, model)
        focal = 0.5 * self.height / (0.5 * self.fov if model == "fisheye" else math.tan(self.fov / 2))
        fx, fy = focal * width / self.width, focal * height / self.height
        K = fp32([[fx, 0, width / 2], [0, fy, height / 2], [0, 0, 1]])
        return Camera(self.viewmat, K, width, height, model)


@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
    """A rendered image.

    Attributes:
        image: [h, w, 3] uint8.
        divisor: Factor by which the image is smaller than the canvas.
        is_full: Whether the image would be the same without a time budget.
        seconds: Time of rendering.
        visible: Number of Gaussians in the image.
        n_largest: Number of Gaussians to which the image was limited to save time; None if all were rendered.
        note: Description of the image if it does not only show the model.
        depths: Nearest and farthest depth of the colormap; None if there is no colormap.
    """

    image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
    divisor: int
    is_full: bool
    seconds: float
    visible: int
    note: str = ""
    depths: tuple[float, float] | None = None
    n_largest: int | None = None


class Renderer:
    """Renders a model within a time budget. Thread-safe: one image at a time.

    Args:
        gaussians: The model, on the device to render on.
        backend: As in :func:`tsplat.rasterization`.
    """

    def __init__(self, gaussians: Gaussians, backend: Backend = "auto") -> None:
        self.gaussians = gaussians
        self.backend = backend
        self._lock = threading.Lock()
        self._samples: deque[tuple[int, float]] = deque(maxlen=N_SAMPLES)
        self._n_max: int | None = None
        self._n_settled = 0
        self._cropped: tuple[Box | None, Gaussians] = (None, gaussians)
        self._culled: CulledModel | None = None

    def render(
        self,
        pose: Pose,
        settings: Settings,
        seconds: float | None = None,
        divisor_min: int = 1,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Frame:
        """Renders an image, with reduced quality if it is predicted to exceed the time budget.

        For models of more than 262,144 Gaussians, only the most important ones are rendered, at least this number. If
        this is not enough, the image is made smaller by an integer factor.

        Args:
            seconds: Time budget, which is at least 0.15 for large models; None for all Gaussians at full size, of at
                most 16,777,216 pixels.
            divisor_min: Minimum factor by which the image is smaller than the canvas.
            is_wanted: Returns whether the image is still wanted after earlier ones have been rendered.

        Raises:
            ArgumentError: As :func:`tsplat.rasterization`.
            RuntimeError: The image is not wanted.
        """
        divisor_min = max(divisor_min, math.ceil(math.sqrt(pose.width * pose.height / PIXELS_MAX)))
        with self._lock:
            if not is_wanted():
                raise RuntimeError("the request was canceled")
            divisor, n_max = divisor_min, None
            if seconds is not None:
                is_large = self.is_large()
                if is_large:
                    seconds = max(seconds, LARGE_SECONDS)
                    n_max = self._number(pose, seconds)
                if not is_large or (n_max == LARGE and self._n_settled >= SETTLED_IMAGES):
                    divisor = max(divisor_min, self._divisor(pose, seconds))
            width, height = (max(1, round(size / divisor)) for size in (pose.width, pose.height))
            camera = pose.camera(width, height, settings.model)
            start = time.perf_counter()
            gaussians = self.seen_by(camera, settings, n_max)
            budget = self._memory_budget() if seconds is None and self.is_large() else None
            image, visible, depths = self._rasterize(gaussians, camera, settings, budget)
            taken = time.perf_counter() - start
            if n_max == self._n_max:  # times of images at rest do not predict those with fewer Gaussians
                self._samples.append((width * height, taken))
                self._n_settled += 1
        n_largest = n_max if n_max == len(gaussians) else None
        is_full = divisor == divisor_min and n_largest is None
        return Frame(image, divisor, is_full, taken, visible, depths=depths, n_largest=n_largest)

    def warm_up(self, pose: Pose, settings: Settings) -> None:
        """Renders small images, so that kernels are loaded and the time of the next image can be predicted.

        Raises:
            ArgumentError: As :func:`tsplat.rasterization`.
        """
        self.render(pose, settings, divisor_min=DIVISOR_MAX)
        with self._lock:
            self._samples.clear()
        for divisor in (DIVISOR_MAX, 2):
            self.render(pose, settings, divisor_min=divisor)

    def is_large(self) -> bool:
        """Returns whether Gaussians may be left out to save time."""
        return len(self.gaussians) > LARGE

    def _memory_budget(self) -> int | None:
        """Returns the `memory_budget` of images of all Gaussians of a large model: between a quarter and a half of the
        free memory on a CPU; otherwise None.

        Calls with a budget are neither traced nor replayed. On a CPU, replays of such an image take as long as the
        image itself, its trace takes half as long, and both keep memory.
        """
        free = available_bytes() if self.gaussians.means.device.type == "cpu" and self.backend != "reference" else None
        return 1 << (free.bit_length() - 2) if free else None

    def cropped(self, box: Box | None) -> Gaussians:
        """Returns the Gaussians with centers in a box; None for all."""
        if box is None:
            return self.gaussians
        if self._cropped[0] != box:
            self._cropped = box, crop_gaussians(self.gaussians, box)
        return self._cropped[1]

    def seen_by(self, camera: Camera, settings: Settings, n_max: int | None = None) -> Gaussians:
        """Returns the Gaussians that a camera may see; with `n_max`, at most this number of the most important ones."""
        gaussians = self.cropped(settings.crop)
        if n_max is None and settings.show in ("centers", "ellipses"):  # their sizes differ from those of culling
            return gaussians
        if self._culled is None or self._culled.gaussians is not gaussians:
            self._culled = CulledModel(gaussians)
        return self._culled.seen_by(camera, near=settings.near, eps2d=settings.eps2d, n_max=n_max)

    @torch.no_grad()
    def _rasterize(
        self, gaussians: Gaussians, camera: Camera, settings: Settings, memory_budget: int | None = None
    ) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], int, tuple[float, float] | None]:
        if settings.show == "normals":
            gaussians = as_normals(gaussians, camera.position)
        degree = gaussians.sh_degree if settings.sh_degree is None else min(settings.sh_degree, gaussians.sh_degree)
        antialiased = gaussians.antialiased if settings.antialiased is None else settings.antialiased
        gaussians = dataclasses.replace(gaussians, antialiased=antialiased)
        if settings.show in ("centers", "ellipses"):
            gaussians = (as_centers if settings.show == "centers" else as_ellipsoids)(gaussians)
        images, alphas, meta = render_views(
            gaussians,
            [camera],
            background=settings.background,
            sh_degree=degree,
            render_mode=MODES[settings.show],
            near_plane=settings.near,
            far_plane=settings.far,
            radius_clip=settings.radius_clip,
            eps2d=settings.eps2d,
            backend=self.backend,
            memory_budget=memory_budget,
        )
        visible = int((meta["radii"] > 0).all(-1).sum())
        image, alpha = images[0], alphas[0, ..., 0]
        if settings.show == "alpha":
            return apply_colormap(alpha, settings.colormap).numpy(), visible, None
        depths = settings.depths if settings.show in DEPTHS else None
        if settings.show in DEPTHS:
            depth = image[..., 0]
            limits = depth_limits(depth, alpha)
            if depths is not None:
                limits = (depth.new_tensor(1 / depths[1]), depth.new_tensor(1 / depths[0]))
            elif limits is not None:
                depths = (1 / float(limits[1]), 1 / float(limits[0]))
            image = color_depths_over_checks(depth, alpha, limits, settings.colormap, settings.inverted)
        return to_bytes(image).cpu().numpy(), visible, depths

    def _number(self, pose: Pose, seconds: float) -> int | None:
        """Returns the maximum number of Gaussians of a full-size image of a large model in a budget; None for all."""
        if not self._samples:
            self._change_number(LARGE)
        elif self._n_max is None or self._n_settled >= SETTLED_IMAGES:
            fixed, slope = self._predict()
            taken = fixed + slope * pose.width * pose.height
            if not FAST * seconds <= taken <= SLOW * seconds:
                n = len(self.gaussians)
                fitting = max(LARGE, (self._n_max or n) * seconds / max(taken, 1e-9))
                number = round(LARGE * LEVEL ** math.floor(math.log(fitting / LARGE, LEVEL) + 0.01))
                self._change_number(number if number < n else None)
        return self._n_max

    def _change_number(self, number: int | None) -> None:
        """Changes the maximum number of Gaussians, and drops the measured times."""
        if number != self._n_max:
            self._n_max, self._n_settled = number, 0
            self._samples.clear()

    def _divisor(self, pose: Pose, seconds: float) -> int:
        """Returns the smallest factor whose predicted time is within the budget, or close to that of the largest."""
        if not self._samples:
            return DIVISOR_MAX
        fixed, slope = self._predict()
        times = [fixed + slope * pose.width * pose.height / divisor**2 for divisor in range(1, DIVISOR_MAX + 1)]
        limit = max(seconds, SLOWER_MAX * times[-1]) * (1 + 1e-9)
        return next(divisor for divisor, time in enumerate(times, 1) if time <= limit)

    def _predict(self) -> tuple[float, float]:
        """Fits the times of images by a constant and a time per pixel, from the newest times of each size."""
        newest: dict[int, list[float]] = {}
        for pixels, taken in self._samples:
            newest[pixels] = [*newest.get(pixels, []), taken][-N_NEWEST:]
        sizes = np.array(list(newest), float)
        times = np.array([np.median(taken) for taken in newest.values()])
        if len(sizes) == 1:
            return 0.5 * float(times[0]), 0.5 * float(times[0] / sizes[0])
        slope, fixed = (float(value) for value in np.polyfit(sizes, times, 1))
        if slope < 0:
            return float(times.mean()), 0.0
        return (fixed, slope) if fixed >= 0 else (0.0, float((times / sizes).max()))
