"""JPEG data URLs of bounded size for images in a page, and images of error and depth."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...config import Backend
from ...scene.cameras import Camera, resize_camera
from ...scene.gaussians import Gaussians
from ...scene.images import to_bytes
from ...viewing.colormaps import apply_colormap
from ...viewing.markup import Html
from ...viewing.videos import render_frames

if TYPE_CHECKING:
    from PIL.Image import Image

QUALITY, SHRINK_MAX, SIDE_MIN = 87, 0.9, 16
"""JPEG quality; maximum factor of each reduction, until images fit into their budget; minimum side in pixels."""

ERROR_GAIN = 4
"""Factor of the absolute error in error images."""

EncodedImage = dict[str, Any]
"""The `url` of an image, and its `width` and `height` in pixels."""


def encode_images(images: Sequence[tuple[Image, int]], budget: int) -> list[EncodedImage]:
    """Encodes RGB images, downscaled so that the longer side of each is at most the given one.

    If all URLs together are longer than `budget` bytes, all images are reduced further, down to :data:`SIDE_MIN`.
    """
    factor = 1.0
    while True:
        encoded = [_encode(image, max(SIDE_MIN, int(factor * side))) for image, side in images]
        smallest = all(factor * side <= SIDE_MIN for _, side in images)
        size = sum(len(image["url"]) for image in encoded)
        if smallest or size <= budget:
            return encoded
        # The size is about proportional to the number of pixels.
        factor *= min(SHRINK_MAX, math.sqrt(budget / size))


def to_pillow(pixels: Tensor) -> Image:
    """Returns [H, W, 3] uint8 as an image of Pillow."""
    from PIL import Image as Images

    return Images.fromarray(pixels.cpu().numpy())


def error_image(target: Tensor, rendered: Tensor) -> Image:
    """Returns the absolute error of images [H, W, 3] uint8, averaged over RGB, times ERROR_GAIN, with a color map."""
    difference = target.cpu().short().sub_(rendered.cpu()).abs_().sum(-1)
    levels = (ERROR_GAIN * difference / 3).round().clamp(0, 255).long()
    return to_pillow(apply_colormap(torch.arange(256, dtype=torch.float32, device="cpu")[None] / 255)[0][levels])


def depth_image(gaussians: Gaussians, camera: Camera, side: int, backend: Backend) -> Image:
    """Renders the depth of a view, where bright is near, with at most `side` pixels along the longer side."""
    small = resize_camera(camera, side)
    return to_pillow(to_bytes(next(render_frames(gaussians, [small], show="depth", backend=backend))))


def _encode(image: Image, side: int) -> EncodedImage:
    """Encodes an image, downscaled so that its longer side has at most `side` pixels."""
    from PIL import Image as Images

    image = image.copy()
    image.thumbnail((side, side), Images.Resampling.LANCZOS, reducing_gap=None)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY, subsampling=0)
    url = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
    return {"url": Html(url), "width": image.width, "height": image.height}
