"""Start views: the camera with which a viewer starts."""

import dataclasses
import math
from collections.abc import Sequence

from torch import Tensor

from ..errors import ArgumentError
from ..scene.cameras import Camera, intrinsics, look_at
from ..scene.gaussians import Gaussians
from .framing import place_cameras
from .run_cameras import FOV, frame_by_cameras, mean_up
from .trajectories import choose_camera

SIZE = (640, 480)
"""Image size in pixels for which a model without cameras is framed."""

CORE = 0.7
"""`StartView.core` of photographs, whose subject is rarely near an edge."""

SLOPE_MAX = 1.2
"""Maximum slope of views whose camera is not a pinhole."""


@dataclasses.dataclass(frozen=True)
class StartView:
    """A camera without roll that orbits around a point.

    Attributes:
        eye: [3] camera position, world frame.
        target: [3] point at the image center, world frame; the camera orbits around it.
        up: [3] world direction that points up, of any length.
        slopes: Half the width and half the height of the image at distance 1.
        core: Fraction of the width and of the height that windows of all shapes show. Less than 1 fills more of a
            narrow window, whose other part shows what is above and below the image.
    """

    eye: Sequence[float]
    target: Sequence[float]
    up: Sequence[float]
    slopes: Sequence[float]
    core: float = 1.0

    def camera(self, width: int, height: int) -> Camera:
        """Returns a camera whose image shows the view, as a page's window does; its field of view is at most 90°.

        The image contains the view, except that it shows at least `core` of it if it would also show more than the view
        in the other dimension.
        """
        fewer, more = sorted((width / self.slopes[0], height / self.slopes[1]))  # pixels per unit of slope
        focal = max(min(fewer / self.core, more), width, height) / 2
        fov = math.degrees(2 * math.atan(height / (2 * focal)))
        return Camera(look_at(self.eye, self.target, self.up), intrinsics(width, height, fov), width, height)


def first_view(
    gaussians: Gaussians, cameras: Sequence[Camera] = (), *, view: str | None = None, up: Sequence[float] | None = None
) -> StartView:
    """Returns the view `view` of a run, by default the first; without cameras, a view that shows the whole model.

    Args:
        cameras: All cameras of the run; empty for a model that does not belong to a run.
        view: Index or name of the view, see :func:`tsplat.viewing.trajectories.choose_camera`.
        up: [3] world direction that points up; if None, the mean of the cameras, or guessed from the model.

    Raises:
        ArgumentError: No Gaussian is visible; there is no such view; or `up` is invalid.
    """
    check_up(up)
    if not cameras:
        if view is not None:
            raise ArgumentError(f"--view: there are no cameras to choose {view!r} from")
        return _frame(gaussians, up)
    camera = cameras[0] if view is None else choose_camera(cameras, view)
    training = [other for other in cameras if not other.is_test] or list(cameras)
    up = mean_up(training) if up is None else up
    up = (-camera.viewmat[1, :3]).tolist() if up is None else up
    forward = camera.viewmat[2, :3].double()
    _, center = frame_by_cameras(gaussians, training, up)
    offset = center - camera.position
    # The target must be in front of the camera, at a distance.
    distance = max(float(offset @ forward), 0.1 * float(offset.norm())) or 1.0
    pivot = (camera.position + distance * forward).tolist()
    return StartView(camera.position.tolist(), pivot, up, _slopes(camera), CORE)


def check_up(up: Sequence[float] | None) -> None:
    """Raises ArgumentError if a direction [3] is zero or not finite; None is valid."""
    if up is not None and not 0 < math.hypot(*up) < math.inf:
        raise ArgumentError(f"up: expected a finite direction that is not zero, found {list(up)}")


def _frame(gaussians: Gaussians, up: Sequence[float] | None) -> StartView:
    """Frames a whole model. `up` [3] is guessed if None. Raises ArgumentError if no Gaussian is visible."""
    (camera,) = place_cameras(gaussians, *SIZE, FOV, up=up)
    forward, upward = camera.viewmat[2, :3].double(), -camera.viewmat[1, :3].double()
    offset = gaussians.means.double().median(0).values - camera.position
    # The target must be in front of the camera, at a distance.
    target = camera.position + (max(float(offset @ forward), 1e-3 * float(offset.norm())) or 1.0) * forward
    slope = math.tan(math.radians(FOV) / 2)
    direction = list(up) if up is not None else _nearest_axis(upward)
    return StartView(camera.position.tolist(), target.tolist(), direction, (slope * SIZE[0] / SIZE[1], slope))


def _nearest_axis(direction: Tensor) -> list[float]:
    """Returns the direction of the coordinate axis that is closest to a direction [3]."""
    axis = int(direction.abs().argmax())
    return [math.copysign(1.0, float(direction[axis])) if i == axis else 0.0 for i in range(3)]


def _slopes(camera: Camera) -> tuple[float, float]:
    """Returns half the width and half the height of an image at distance 1."""
    slopes = camera.width / (2 * float(camera.K[0, 0])), camera.height / (2 * float(camera.K[1, 1]))
    limit = 1.0 if camera.model == "pinhole" else min(1.0, SLOPE_MAX / max(slopes))
    return limit * slopes[0], limit * slopes[1]
