"""Images for the viewer: a model, a camera and settings in, an image within a time budget out."""

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

from ...arguments import check_choice, check_size
from ...config import SH_DEGREE_MAX, Backend, CameraModel, RenderMode
from ...errors import ArgumentError
from ...rendering import render_views
from ...scene.cameras import Camera, panorama_intrinsics
from ...scene.capture.views import Color
from ...scene.cropping import Box, crop_gaussians
from ...scene.culling import CulledModel
from ...scene.gaussians import Gaussians
from ...scene.images import to_bytes
from ..appearances import as_centers, as_ellipsoids, as_normals
from ..colormaps import apply_colormap, color_depths_over_checks, depth_limits

Show = Literal["rgb", "expected depth", "accumulated depth", "alpha", "normals", "centers", "ellipses"]
MODES: dict[Show, RenderMode] = {
    "rgb": "RGB", "expected depth": "ED", "accumulated depth": "D", "alpha": "RGB", "normals": "RGB", "centers": "RGB",
    "ellipses": "RGB",
}  # fmt: skip
DEPTHS = ("expected depth", "accumulated depth")
COLORMAPS = ("turbo", "viridis", "magma", "gray")
CAMERA_MODELS = ("pinhole", "ortho", "fisheye", "equirectangular")

DIVISOR_MAX = 8
"""Largest factor by which an image is made smaller to save time."""

SLOWER_MAX = 1.25
"""Images are not made smaller to save less than this factor of their time."""

LARGE, LARGE_SECONDS = 1 << 18, 0.15
"""Number of Gaussians up to which all are rendered, and the least time budget of an image of more: they show those that
matter most in it, and better the more there are."""

LEVEL = math.sqrt(2)
"""Factor between numbers of Gaussians. Images of one number are traced and replayed."""

SLOW, FAST, SETTLED = 1.2, 0.6, 5
"""Times relative to the budget above and below which the number changes, and how many images of a number come first."""

SIDE_MAX, PIXELS_MAX = 16384, 1 << 24
"""Largest width or height of a canvas, and number of pixels of an image; larger ones are made smaller."""

N_SAMPLES, N_NEWEST = 24, 3
"""Number of measured times that predictions are based on, and of those of one size; a single slow image does not
change the prediction."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the renderer.

    Attributes:
        show: Color, depth divided by alpha, depth, alpha, or the normals, centers or ellipses of the Gaussians.
        colormap: Colormap of Matplotlib for depth and alpha.
        depths: Nearest and farthest depth of the colormap, world units; those of the image if None.
        inverted: Whether the end of the colormap is far.
        sh_degree: Highest degree of spherical harmonics to use; all of the model's if None.
        background: RGB in [0, 1].
        antialiased: Whether to compensate the opacity for the 2D low-pass filter; as the model says if None.
        model: Camera model, as of :class:`tsplat.scene.Camera`.
        near, far, radius_clip, eps2d: As in :func:`tsplat.rasterization`.
        crop: Only Gaussians whose centers lie in this box are rendered; all if None.

    Raises:
        ArgumentError: A value is out of range.
    """

    show: Show = "rgb"
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
        """Returns the camera of an image of another size. Orthographic cameras see what they see at distance 1.

        Panoramas show 360 degrees in the width, and nothing above and below them on canvases that are too high.
        """
        if model == "equirectangular":
            K = panorama_intrinsics(width, height)
            K[1, 1] *= min(1.0, self.width / (2 * self.height))
            return Camera(self.viewmat, K, width, height, model)
        focal = 0.5 * self.height / (0.5 * self.fov if model == "fisheye" else math.tan(self.fov / 2))
        fx, fy = focal * width / self.width, focal * height / self.height
        K = torch.tensor([[fx, 0, width / 2], [0, fy, height / 2], [0, 0, 1]], dtype=torch.float32, device="cpu")
        return Camera(self.viewmat, K, width, height, model)


@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
    """A rendered image.

    Attributes:
        image: [h, w, 3] uint8.
        divisor: Factor by which it is smaller than the canvas.
        is_full: Whether it would be the same without a time budget.
        seconds: Time it took.
        visible: Number of Gaussians in the image.
        n_largest: Number of Gaussians that were chosen for the image to save time; None if all were rendered.
        note: Description of what it shows besides the model.
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
        gaussians: On the device to render on.
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
        """Renders an image in less time where all of it is predicted to take too long.

        Of more than 262,144 Gaussians, those that show most are rendered, at least so many. If that is not enough, the
        image is made smaller by a whole factor.

        Args:
            seconds: Time budget, of large models at least 0.15; None for all Gaussians at full size, of at most
                16,777,216 pixels.
            divisor_min: Least factor by which to make the image smaller.
            is_wanted: Whether the image is still wanted when those before it are done.

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
                if not is_large or (n_max == LARGE and self._n_settled >= SETTLED):
                    divisor = max(divisor_min, self._divisor(pose, seconds))
            width, height = (max(1, round(size / divisor)) for size in (pose.width, pose.height))
            camera = pose.camera(width, height, settings.model)
            start = time.perf_counter()
            gaussians = self.seen(camera, settings, n_max)
            image, visible, depths = self._rasterize(gaussians, camera, settings)
            taken = time.perf_counter() - start
            if n_max == self._n_max:  # images at rest do not predict those of fewer Gaussians
                self._samples.append((width * height, taken))
                self._n_settled += 1
        n_largest = n_max if n_max == len(gaussians) else None
        is_full = divisor == divisor_min and n_largest is None
        return Frame(image, divisor, is_full, taken, visible, depths=depths, n_largest=n_largest)

    def warm_up(self, pose: Pose, settings: Settings) -> None:
        """Renders small images, so that the next one finds kernels loaded and times to predict its own from.

        Raises:
            ArgumentError: As :func:`tsplat.rasterization`.
        """
        self.render(pose, settings, divisor_min=DIVISOR_MAX)
        with self._lock:
            self._samples.clear()
        for divisor in (DIVISOR_MAX, 2):
            self.render(pose, settings, divisor_min=divisor)

    def is_large(self) -> bool:
        """Returns whether fewer Gaussians may be rendered to save time."""
        return len(self.gaussians) > LARGE

    def cropped(self, box: Box | None) -> Gaussians:
        """Returns the Gaussians whose centers lie in a box; all if it is None."""
        if box is None:
            return self.gaussians
        if self._cropped[0] != box:
            self._cropped = box, crop_gaussians(self.gaussians, box)
        return self._cropped[1]

    def seen(self, camera: Camera, settings: Settings, n_max: int | None = None) -> Gaussians:
        """Returns the Gaussians of the model that a camera may see; at most `n_max`, those that show most in it."""
        gaussians = self.cropped(settings.crop)
        if n_max is None and settings.show in ("centers", "ellipses"):  # which have other sizes
            return gaussians
        if self._culled is None or self._culled.gaussians is not gaussians:
            self._culled = CulledModel(gaussians)
        return self._culled.seen_by(camera, near=settings.near, eps2d=settings.eps2d, n_max=n_max)

    @torch.no_grad()
    def _rasterize(
        self, gaussians: Gaussians, camera: Camera, settings: Settings
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
        """Returns how many Gaussians of a large model to render at most, None for all, at full size within a budget."""
        if not self._samples:
            self._change_number(LARGE)
        elif self._n_max is None or self._n_settled >= SETTLED:
            fixed, slope = self._predict()
            taken = fixed + slope * pose.width * pose.height
            if not FAST * seconds <= taken <= SLOW * seconds:
                n = len(self.gaussians)
                fitting = max(LARGE, (self._n_max or n) * seconds / max(taken, 1e-9))
                number = round(LARGE * LEVEL ** math.floor(math.log(fitting / LARGE, LEVEL) + 0.01))
                self._change_number(number if number < n else None)
        return self._n_max

    def _change_number(self, number: int | None) -> None:
        """Renders another number of Gaussians from now on, whose images take other times."""
        if number != self._n_max:
            self._n_max, self._n_settled = number, 0
            self._samples.clear()

    def _divisor(self, pose: Pose, seconds: float) -> int:
        """Returns the smallest factor whose predicted time is within a budget, or little more than that of the largest
        one."""
        if not self._samples:
            return DIVISOR_MAX
        fixed, slope = self._predict()
        times = [fixed + slope * pose.width * pose.height / divisor**2 for divisor in range(1, DIVISOR_MAX + 1)]
        limit = max(seconds, SLOWER_MAX * times[-1]) * (1 + 1e-9)
        return next(divisor for divisor, time in enumerate(times, 1) if time <= limit)

    def _predict(self) -> tuple[float, float]:
        """Returns the time of an image of no pixels and the time of a pixel, from the newest times of each size."""
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
