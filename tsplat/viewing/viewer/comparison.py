"""Photographs compared with renders of the same camera, as images in the frame of the photograph."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import torch

from ...config import CameraModel
from ...precision import fp32
from ...scene.cameras import Camera
from ...scene.capture.views import View
from ...scene.images import downscale
from ..colormaps import apply_colormap
from .poses import pose_of
from .renderer import Frame, Pose, Renderer, Settings

Mode = Literal["off", "photograph", "render", "difference", "split"]
MODES: tuple[Mode, ...] = get_args(Mode)

DIFFERENCE_COLORMAP = "magma"
BARS = 24
"""Gray value of the bars around a photograph."""

Image = np.ndarray[Any, Any]
"""[h, w, 3] uint8."""


@dataclasses.dataclass(frozen=True, eq=False)
class ViewPose(Pose):
    """The pose of a photograph, whose images have the intrinsics and the lens of its camera `source`."""

    source: Camera | None = None

    def camera(self, width: int, height: int, model: CameraModel = "pinhole") -> Camera:
        """Returns the camera of the photograph for an image of another size."""
        assert self.source is not None
        scale = fp32([width / self.source.width, height / self.source.height, 1.0])
        return dataclasses.replace(self.source, K=scale[:, None] * self.source.K, width=width, height=height)


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """A comparison of a photograph with the render of its camera.

    Attributes:
        view: The view with the photograph.
        mode: Content of the image: the photograph, the render, their difference, or a part of each.
        split: Fraction of the width, on the left, that shows the photograph.
        gain: Inverse of the difference at the end of the colormap.
    """

    view: View
    mode: Mode
    split: float = 0.5
    gain: float = 4.0

    def render(
        self,
        renderer: Renderer,
        canvas: tuple[int, int],
        settings: Settings,
        seconds: float | None,
        divisor: int,
        is_wanted: Callable[[], bool],
    ) -> Frame:
        """Renders the comparison, with bars that fill the canvas, and a note; otherwise as :meth:`Renderer.render`."""
        view, fitting = self.view, fit(self.view.camera, *canvas)
        width, height = (min(size, limit) for size, limit in zip(fitting, (view.width, view.height), strict=True))
        if self.mode == "photograph":
            width, height = max(1, width // divisor), max(1, height // divisor)
            frame = Frame(_resize(view, width, height), divisor, True, 0.0, 0, f"Photograph {view.name}")
        else:
            pose = pose_of(view.camera, width, height)
            pose = ViewPose(pose.viewmat, pose.fov, width, height, view.camera)
            settings = dataclasses.replace(settings, show="rgb", model=view.camera.model)
            frame = renderer.render(pose, settings, seconds, divisor, is_wanted)
            frame = self._combine(frame)
        return dataclasses.replace(frame, image=letterbox(frame.image, *canvas))

    def _combine(self, frame: Frame) -> Frame:
        render = frame.image
        height, width = render.shape[:2]
        photograph = _resize(self.view, width, height)
        difference = np.abs(photograph.astype(np.float32) - render) / 255
        if self.view.mask is not None:
            mask = self.view.mask.cpu().float()[None, None]
            difference[torch.nn.functional.interpolate(mask, (height, width))[0, 0].numpy() < 0.5] = 0
        psnr = -10 * math.log10(max(float((difference**2).mean()), 1e-10))
        note = {
            "render": f"Render of {self.view.name}",
            "difference": f"Difference from {self.view.name}",
            "split": f"Photograph {self.view.name} on the left, render on the right",
        }[self.mode]
        if self.mode == "difference":
            values = torch.from_numpy(difference.mean(-1)) * self.gain
            image = apply_colormap(values, DIFFERENCE_COLORMAP).numpy()
        elif self.mode == "split":
            column = round(self.split * width)
            image = np.concatenate([photograph[:, :column], render[:, column:]], axis=1)
            thickness = max(1, width // 400)
            image[:, max(column - thickness, 0) : column + thickness] = 255
        else:
            image = render
        return dataclasses.replace(frame, image=image, note=f"{note}, PSNR {psnr:.2f} dB")


def fit(camera: Camera, width: int, height: int) -> tuple[int, int]:
    """Returns the largest size with the aspect ratio of a camera that fits into a canvas."""
    scale = min(width / camera.width, height / camera.height)
    return max(1, round(scale * camera.width)), max(1, round(scale * camera.height))


def letterbox(image: Image, width: int, height: int) -> Image:
    """Adds bars to two sides of an image, so that it has the aspect ratio of a canvas."""
    h, w = image.shape[:2]
    scale = max(w / width, h / height)
    full = np.full((max(h, round(scale * height)), max(w, round(scale * width)), 3), BARS, np.uint8)
    top, left = (full.shape[0] - h) // 2, (full.shape[1] - w) // 2
    full[top : top + h, left : left + w] = image
    return full


@functools.lru_cache(maxsize=2)
def _resize(view: View, width: int, height: int) -> Image:
    """Returns the resized photograph of a view, which callers must not modify."""
    return downscale(view.image.cpu(), width, height).numpy()
