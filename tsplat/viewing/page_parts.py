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
from ..scene.capture.views import Color
from ..scene.formats.interchange.gltf_writer import buffer_document, write_glb
from ..scene.gaussians import Gaussians
from ..scene.images import to_bytes
from ..scene.rotation import rotation_matrix, rotation_to_y
from ..support.reading import read_json
from .start_views import StartView

PREVIEW = 960
"""Longer side of the preview image in pixels."""

EYES = 1.5
"""Height of the camera above the floor in the viewer's walk mode, in its units, which are meters."""

ROOM = 5.0
"""The viewer walks in models of at least this width and depth, in meters."""

FLOOR = 10_000.0
"""Half the side of the floor, in meters."""

LAYERS = 100
"""Number of layers between the lowest Gaussians and the camera of which one is the floor."""

STEP = 0.5
"""Part of the way from the start of the page to an annotation that the camera goes, if no eye is given."""

ANNOTATIONS_MAX = 1000
"""Maximum number of annotations of a page."""


@dataclasses.dataclass(frozen=True)
class Annotation:
    """A place of a model.

    Attributes:
        position: [3] the place, world frame of the model.
        title: A short title, plain text.
        text: A longer text, plain; may be empty.
        eye: [3] where the camera goes when the annotation is chosen, world frame; if None, from where the page starts
            half of the way to the place.
    """

    position: Sequence[float]
    title: str
    text: str = ""
    eye: Sequence[float] | None = None


@dataclasses.dataclass(frozen=True)
class PageExtras:
    """Describes what a page has besides the model.

    Attributes:
        description: Text for search engines, previews of links and screen readers; None for the number of Gaussians.
        annotations: Numbered places with titles and texts, which the page shows.
        walk: Height of the eyes of visitors who walk, in units of the model; None to leave walking out. They walk on a
            level floor, at the height below the start view's camera where most of the surface is.
        url: Address at which the page will be. Previews of links then show an image, which is written beside the page
            with the suffix ``.jpg``.
    """

    description: str | None = None
    annotations: Sequence[Annotation] = ()
    walk: float | None = None
    url: str | None = None


NO_EXTRAS = PageExtras()


def preview_image(gaussians: Gaussians, start: StartView, background: Color) -> bytes:
    """Returns what a page shows at first as a JPEG, which shows exactly the start view. Needs Pillow."""
    from PIL import Image

    scale = PREVIEW / max(start.slopes)
    width, height = (max(1, round(scale * slope)) for slope in start.slopes)
    with torch.no_grad():
        image = to_bytes(render(gaussians, start.camera(width, height), background=background))
    file = io.BytesIO()
    Image.fromarray(image.cpu().numpy()).save(file, "JPEG", quality=80)
    return file.getvalue()


class PageFrame:
    """The frame of a page, whose y axis points up, and whose unit is that of the model, or a meter for walking.

    Attributes:
        rotation: Quaternion xyzw that rotates the model.
        scale: Units of the page in one of the model.
        floor: Height of the floor in the page; None without walking.
    """

    def __init__(self, start: StartView, gaussians: Gaussians, walk: float | None = None) -> None:
        """`walk` is the height of the eyes of visitors who walk, in units of the model.

        Raises:
            ArgumentError: `walk` is not positive and finite, or so large that the viewer does not walk in the model.
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
        self.scale = EYES / walk
        placed = self.scale * (gaussians.means.detach().double().cpu() @ self._matrix)
        extent = float((placed.amax(0) - placed.amin(0))[[0, 2]].min())
        if extent < ROOM:
            most = walk * extent / ROOM
            message = f"walk: the model is too small for this height: expected at most {most:.3g}, found {walk}"
            raise ArgumentError(message)
        areas = gaussians.scales.detach().double().cpu().topk(2, 1).values.prod(1)
        weights = areas * gaussians.opacities.detach().double().cpu()
        self.floor = _floor_height(placed[:, 1], weights, self.place(start.eye)[1])

    def place(self, point: Sequence[float]) -> list[float]:
        """Returns a point [3] of the model's frame in the frame of the page."""
        placed: list[float] = (self.scale * (fp64([*point]) @ self._matrix)).tolist()
        return placed


def _floor_height(heights: Tensor, weights: Tensor, eye: float) -> float:
    """Returns the height [] below the eye at which most of the surface [N] is; a part of a hundred is looked for."""
    heights, weights = heights[heights < eye], weights[heights < eye]
    if not len(heights):
        return eye - EYES
    low, high = float(np.quantile(heights.numpy(), 0.01)), heights.max().item()
    layer = ((heights - low) / max(high - low, 1e-12) * LAYERS).long().clamp(0, LAYERS - 1)
    inside = layer == weights.new_zeros(LAYERS).index_add(0, layer, weights).argmax()
    return float((heights[inside] * weights[inside]).sum() / weights[inside].sum())


def floor_address(height: float) -> str:
    """Returns a level square at a height as binary glTF, in an address that ends in ``.glb``.

    The viewer distinguishes meshes from voxels by this end of the address, which follows the glTF as unused bytes.
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
    """Reads a JSON file: a list of objects with ``position`` and ``title``, and ``text`` and ``eye`` if wanted.

    Raises:
        FileError: The file cannot be read, or is not such a list; names the entry.
    """
    entries = read_json(path)
    if not isinstance(entries, list) or not 0 < len(entries) <= ANNOTATIONS_MAX:
        raise FileError(f"{path}: expected a list of 1 to {ANNOTATIONS_MAX:,} annotations")
    return [_annotation(entry, f"{path}: annotation {index}") for index, entry in enumerate(entries, start=1)]


def _annotation(entry: Any, name: str) -> Annotation:
    """Returns the annotation of an object read from JSON; raises FileError."""
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
    """Returns whether a value of JSON is a list of three finite numbers."""
    numbers = isinstance(value, list) and len(value) == 3 and all(type(x) in (int, float) for x in value)
    return numbers and all(abs(x) < 1e30 and math.isfinite(x) for x in value)


def describe_annotations(
    annotations: Sequence[Annotation], start: StartView, frame: PageFrame, fov: float
) -> list[dict[str, object]]:
    """Returns annotations as the viewer reads them, with cameras of a vertical field of view in degrees."""
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
