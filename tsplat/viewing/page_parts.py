"""Parts of scene pages besides the model: the preview image, annotations, and the floor that visitors walk on."""

import dataclasses
import io
import math
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote_from_bytes

import numpy as np
import torch
from torch import Tensor

from ..arguments import check_number
from ..errors import ArgumentError, FileError
from ..precision import fp64
from ..rendering import render
from ..scene.formats.interchange.gltf_writer import buffer_document, write_glb
from ..scene.gaussians import Gaussians
from ..scene.images import to_bytes
from ..scene.option_types import Color
from ..scene.rotation import rotation_matrix, rotation_to_y
from ..support.reading import read_json
from .start_views import StartView

PREVIEW = 960
"""Longer side of the preview image in pixels."""

EYE_HEIGHT = 1.5
"""Height of the camera above the floor in the viewer's walk mode, in the viewer's units, which are meters."""

EXTENT_MIN = 5.0
"""Minimum width and depth of models in which the viewer can walk, in meters."""

FLOOR = 10_000.0
"""Half the side of the floor, in meters."""

LAYERS = 100
"""Number of layers between the lowest Gaussians and the camera that are candidates for the floor."""

STEP = 0.5
"""Fraction of the way from the start view to an annotation that the camera moves, if no eye is given."""

ANNOTATIONS_MAX = 1000
"""Maximum number of annotations of a page."""


@dataclasses.dataclass(frozen=True)
class Annotation:
    """A point of a model with a title and a text.

    Attributes:
        position: [3] the annotated point, world frame of the model.
        title: A short title, plain text.
        text: A longer text, plain; may be empty.
        eye: [3] camera position when the annotation is selected, world frame; None for the midpoint between the start
            view's camera and the annotated point.
    """

    position: Sequence[float]
    title: str
    text: str = ""
    eye: Sequence[float] | None = None


@dataclasses.dataclass(frozen=True)
class PageExtras:
    """Contents of a page besides the model.

    Attributes:
        description: Text for search engines, previews of links and screen readers; None for the number of Gaussians.
        annotations: Annotations, which the page shows with numbers.
        walk: Eye height of visitors who walk, in units of the model; None to disable walking. Visitors walk on a level
            floor, at the height below the start view's camera that has most of the surface.
        url: Address at which the page will be. Previews of links then show an image, which is written beside the page
            with the suffix ``.jpg``.
    """

    description: str | None = None
    annotations: Sequence[Annotation] = ()
    walk: float | None = None
    url: str | None = None


NO_EXTRAS = PageExtras()


def preview_image(gaussians: Gaussians, start: StartView, background: Color) -> bytes:
    """Renders the start view as a JPEG, which a page shows until the model is loaded. Requires Pillow."""
    from PIL import Image

    scale = PREVIEW / max(start.slopes)
    width, height = (max(1, round(scale * slope)) for slope in start.slopes)
    with torch.no_grad():
        image = to_bytes(render(gaussians, start.camera(width, height), background=background))
    file = io.BytesIO()
    Image.fromarray(image.cpu().numpy()).save(file, "JPEG", quality=80)
    return file.getvalue()


class PageFrame:
    """The coordinate frame of a page. Its y axis points up; its unit is that of the model or, for walking, a meter.

    Attributes:
        rotation: Quaternion xyzw that rotates the model.
        scale: Factor from units of the model to units of the page.
        floor: Height of the floor in the page; None without walking.
    """

    def __init__(self, start: StartView, gaussians: Gaussians, walk: float | None = None) -> None:
        """`walk` is the eye height of visitors who walk, in units of the model.

        Raises:
            ArgumentError: `walk` is not positive and finite, or is too large for the viewer to walk in the model.
        """
        w, *xyz = quat = rotation_to_y(start.up)
        self.rotation = [*xyz, w]
        self._matrix = rotation_matrix(quat).T
        self.scale = 1.0
        self.floor: float | None = None
        if walk is None:
            return
        check_number("walk", walk, finite=True)
        if walk <= 0:
            raise ArgumentError(f"walk: expected a positive height, found {walk}")
        self.scale = EYE_HEIGHT / walk
        placed = self.scale * (gaussians.means.detach().double().cpu() @ self._matrix)
        extent = float((placed.amax(0) - placed.amin(0))[[0, 2]].min())
        if extent < EXTENT_MIN:
            most = walk * extent / EXTENT_MIN
            message = f"walk: the model is too small for this height: expected at most {most:.3g}, found {walk}"
            raise ArgumentError(message)
        areas = gaussians.scales.detach().double().cpu().topk(2, 1).values.prod(1)
        weights = areas * gaussians.opacities.detach().double().cpu()
        self.floor = _floor_height(placed[:, 1], weights, self.place(start.eye)[1])

    def place(self, point: Sequence[float]) -> list[float]:
        """Transforms a point [3] from the frame of the model to the frame of the page."""
        placed: list[float] = (self.scale * (fp64([*point]) @ self._matrix)).tolist()
        return placed


def _floor_height(heights: Tensor, weights: Tensor, eye: float) -> float:
    """Returns the mean height of the layer below the eye with the most surface, out of :data:`LAYERS`."""
    heights, weights = heights[heights < eye], weights[heights < eye]
    if not len(heights):
        return eye - EYE_HEIGHT
    low, high = float(np.quantile(heights.numpy(), 0.01)), heights.max().item()
    layer = ((heights - low) / max(high - low, 1e-12) * LAYERS).long().clamp(0, LAYERS - 1)
    inside = layer == weights.new_zeros(LAYERS).index_add(0, layer, weights).argmax()
    return float((heights[inside] * weights[inside]).sum() / weights[inside].sum())


def floor_address(height: float) -> str:
    """Returns a data URL of a level square at a height, as binary glTF, that ends in ``.glb``.

    The viewer distinguishes meshes from voxels by this suffix, which appends unused bytes to the glTF.
    """
    corners = np.array([[x, height, z] for x in (-FLOOR, FLOOR) for z in (-FLOOR, FLOOR)], np.float32)
    arrays = {"POSITION": corners, "indices": np.array([[0], [1], [2], [2], [1], [3]], np.uint32)}
    document = {
        "asset": {"version": "2.0"},
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": 1}]}],
        **buffer_document(arrays),
    }
    file = io.BytesIO()
    write_glb(file, document, arrays.values())
    return f"data:model/gltf-binary,{quote_from_bytes(file.getvalue(), safe='')}.glb"


def read_annotations(path: str | os.PathLike[str]) -> list[Annotation]:
    """Reads a JSON file: a list of objects with ``position`` and ``title``, and optionally ``text`` and ``eye``.

    Raises:
        FileError: The file cannot be read, or is not such a list; the message names the entry.
    """
    entries = read_json(path)
    if not isinstance(entries, list) or not 0 < len(entries) <= ANNOTATIONS_MAX:
        raise FileError(f"{path}: expected a list of 1 to {ANNOTATIONS_MAX:,} annotations")
    return [_annotation(entry, f"{path}: annotation {index}") for index, entry in enumerate(entries, start=1)]


def _annotation(entry: Any, name: str) -> Annotation:
    """Returns the annotation from a JSON object; raises FileError if it is invalid."""
    known = {field.name for field in dataclasses.fields(Annotation)}
    if not isinstance(entry, dict) or entry.keys() - known:
        unknown = sorted(entry.keys() - known) if isinstance(entry, dict) else entry
        raise FileError(f"{name}: expected an object with {', '.join(sorted(known))}, found {str(unknown)[:80]}")
    for key in ("title", "text"):
        if not isinstance(entry.get(key, ""), str):
            raise FileError(f"{name}: expected a text for {key}, found {str(entry[key])[:80]}")
    if not entry.get("title"):
        raise FileError(f"{name}: has no title")
    for key in ("position", "eye"):
        value = entry.get(key)
        if (value is not None or key == "position") and not _is_point(value):
            raise FileError(f"{name}: expected three finite numbers for {key}, found {str(value)[:80]}")
    if entry["position"] == entry.get("eye"):
        raise FileError(f"{name}: position and eye are the same")
    return Annotation(entry["position"], entry["title"], entry.get("text", ""), entry.get("eye"))


def _is_point(value: Any) -> bool:
    """Returns whether a JSON value is a list of three finite numbers."""
    numbers = isinstance(value, list) and len(value) == 3 and all(type(x) in (int, float) for x in value)
    return numbers and all(abs(x) < 1e30 and math.isfinite(x) for x in value)


def describe_annotations(
    annotations: Sequence[Annotation], start: StartView, frame: PageFrame, fov: float
) -> list[dict[str, object]]:
    """Returns annotations in the viewer's JSON format; their cameras have the vertical field of view `fov`, degrees."""
    described: list[dict[str, object]] = []
    for annotation in annotations:
        place = fp64([*annotation.position])
        eye = fp64([*start.eye])
        eye = eye + STEP * (place - eye) if annotation.eye is None else fp64([*annotation.eye])
        camera = {"position": frame.place(eye.tolist()), "target": frame.place(annotation.position), "fov": fov}
        described.append(
            {
                "position": frame.place(annotation.position),
                "title": annotation.title,
                "text": annotation.text,
                "extras": {},
                "camera": {"initial": camera},
            }
        )
    return described
