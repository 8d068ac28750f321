"""Conversions between cameras of viser and of tsplat, which have the same axes."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...scene.cameras import Camera, viewmat_from_pose
from .callbacks import Page
from .renderer import Pose

FOV_MAX = math.radians(179)

PANORAMA_FOV = math.radians(75)
"""Vertical field of view of the viewer at the position of a panorama."""

FOV_RANGE = (5, 150)
"""Range of vertical fields of view that can be chosen, in degrees."""

FRUSTUM_SCALE = 0.05
"""Size of a drawn camera, relative to the distance between a model's first camera and the point it looks at."""

HIDDEN = 1.5
"""Distance from the client's camera, in units of the size of a drawn camera, within which cameras are hidden."""


def wxyz_of(viewmat: Tensor) -> np.ndarray[Any, Any]:
    """Returns the camera-to-world rotation of a world-to-camera matrix [4, 4] as a quaternion [4]."""
    from viser.transforms import SO3

    wxyz: np.ndarray[Any, Any] = SO3.from_matrix(viewmat[:3, :3].double().numpy().T).wxyz
    return wxyz


def vertical_fov(camera: Camera) -> float:
    """Returns the vertical field of view in radians; :data:`PANORAMA_FOV` for a panorama."""
    if camera.is_panorama:
        return PANORAMA_FOV
    half = 0.5 * camera.height / float(camera.K[1, 1])
    return min(2 * half if camera.model == "fisheye" else 2 * math.atan(half), FOV_MAX)


def fitting_fov(camera: Camera, width: int, height: int) -> float:
    """Returns the vertical field of view in radians at which a canvas shows the whole image of a camera."""
    bars = max(height * camera.width / (max(width, 1) * camera.height), 1.0)
    return min(2 * math.atan(bars * math.tan(vertical_fov(camera) / 2)), FOV_MAX)


def pose_of(camera: Camera, width: int | None = None, height: int | None = None) -> Pose:
    """Returns the pose of a camera, by default for a canvas of the image's size."""
    return Pose(camera.viewmat, vertical_fov(camera), width or camera.width, height or camera.height)


def client_pose(camera: Any) -> Pose:
    """Returns the pose of a client's camera. Canvases have no size while a page loads."""
    from viser.transforms import SO3

    rotation, position = SO3(np.asarray(camera.wxyz)).as_matrix(), np.asarray(camera.position)
    viewmat = viewmat_from_pose(torch.from_numpy(rotation).double(), torch.from_numpy(position).double()).float()
    width, height = max(int(camera.image_width), 1), max(int(camera.image_height), 1)
    return Pose(viewmat, min(camera.fov, FOV_MAX), width, height)


class Frusta:
    """Frusta of cameras in the scene of a client. Frusta at the client's camera are hidden, as they cover the image."""

    def __init__(self, page: Page, name: str) -> None:
        self._page, self._name, self.allowed = page, name, True
        self._drawn: list[tuple[Any, Camera]] = []
        self._scale = 0.0
        page.client.camera.on_update(lambda _: page.callbacks.enqueue(self.hide))

    def draw(
        self,
        cameras: Sequence[Camera],
        choose: Callable[[int], None],
        color: Callable[[int], tuple[int, int, int]],
        image: Callable[[int], np.ndarray[Any, Any] | None] = lambda _: None,
    ) -> None:
        """Draws cameras in place of the previous ones. `choose` is called with the index of a camera that is clicked.

        `color` and `image` return the color RGB and the photograph [h, w, 3] uint8, or None, of an index.
        """
        for handle, _ in self._drawn:
            handle.remove()
        self._drawn.clear()
        model = self._page.model()
        self._scale = FRUSTUM_SCALE * math.dist(model.eye, model.target)
        for i, camera in enumerate(cameras):
            handle = self._page.client.scene.add_camera_frustum(
                f"/{self._name}/{i}",
                vertical_fov(camera),
                camera.width / camera.height,
                scale=self._scale,
                thickness=0.02 * self._scale,
                color=color(i),
                image=image(i),
                wxyz=wxyz_of(camera.viewmat),
                position=camera.position.numpy(),
            )
            self._page.callbacks.on_click(handle, partial(choose, i))
            self._drawn.append((handle, camera))
        self.hide()

    def hide(self) -> None:
        """Hides the frusta that cover the image, and shows the others."""
        eye = self._page.client.camera.position
        for handle, camera in self._drawn:
            visible = self.allowed and math.dist(camera.position.tolist(), eye) > HIDDEN * self._scale
            if handle.visible != visible:
                handle.visible = visible
