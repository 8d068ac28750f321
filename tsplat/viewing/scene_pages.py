"""Scene pages: a model with a web viewer in one HTML file, which opens from disk and loads no other files.

The page of a streamed model loads the model's files over HTTP.

The viewer is PlayCanvas's SuperSplat Viewer, in ``web_viewer/``; ``tests/tools/web_viewer.py`` fetches it, and modifies
its shader so that its images match those of tsplat.
"""

import base64
import dataclasses
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote, urljoin, urlsplit

from ..errors import ArgumentError, MissingExtraError
from ..scalars import check_choice
from ..scene.cropping import crop_gaussians, raise_if_empty
from ..scene.formats.checkpoints import open_model
from ..scene.formats.ply import compressed_ply_content
from ..scene.formats.sog_writer import sog_content
from ..scene.formats.streaming.streamed_sog import LOD_META, dataset_size
from ..scene.formats.streaming.streamed_sog_writer import write_streamed_sog
from ..scene.gaussians import Gaussians, drop_invalid
from ..scene.option_types import Box, Color
from ..support.extras import require
from ..support.files import atomic_write, output_folder
from .markup import Html, escape, fill
from .page_parts import NO_EXTRAS, PageExtras, PageFrame, describe_annotations, floor_address, preview_image
from .run_cameras import find_background, find_cameras
from .run_files import check_output
from .start_views import StartView, first_view

Embedding = Literal["sog", "compressed-ply", "streamed-sog"]
"""Format in which a page stores the model: inside, or as a folder of levels of detail beside it."""

SUFFIXES = (".html", ".htm")
FILE_NAMES = {"sog": "scene.sog", "compressed-ply": "scene.compressed.ply", "streamed-sog": LOD_META}
"""File name by which the viewer recognizes each format."""

ENCODERS: dict[str, Callable[[Gaussians], tuple[bytes, list[str]]]] = {
    "sog": sog_content,
    "compressed-ply": compressed_ply_content,
}
"""Function that encodes a model in each embedded format, and returns what the format cannot store."""

FOLDER = Path(__file__).parent / "web_viewer"


@dataclasses.dataclass(frozen=True)
class ScenePage:
    """Summary of a page.

    Attributes:
        n_gaussians: Number of Gaussians.
        size: Size of the page in bytes.
        model_size: Size of the model in bytes, without base64; the size of its files if it is streamed.
        lost: Properties that the format of the model cannot store, as phrases; see :func:`tsplat.scene.write_model`.
    """

    n_gaussians: int
    size: int
    model_size: int
    lost: list[str]


def is_page(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path has the suffix of an HTML file."""
    return Path(path).suffix.lower() in SUFFIXES


def export_page(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: Embedding = "sog",
    view: str | None = None,
    up: Sequence[float] | None = None,
    background: Color | None = None,
    title: str | None = None,
    extras: PageExtras = NO_EXTRAS,
    crop: Box | None = None,
    force: bool = False,
    checkpoint: str | None = None,
    warn: Callable[[str], object],
) -> ScenePage:
    """Writes a model or a run as one HTML file that shows it in a web browser.

    Args:
        model: Path that :func:`tsplat.scene.open_model` reads: a model file, a run, a checkpoint.
        out: The file, ``.html``.
        format: See :func:`write_page`.
        view: Index or name of the run's view with which the page starts; None for the first. For a model that does not
            belong to a run, the page starts with a view of the whole model.
        up: [3] world direction that points up; None for that of the run's cameras, or a guess from the model.
        background: Background color, RGB in [0, 1]; None for that of the run's training, or black.
        title: Title of the page; None for the name of `model`.
        extras: Contents of the page besides the model.
        crop: Two corners of a box, world frame; only Gaussians with centers in the box are written. None for all.
        force, checkpoint: As in :func:`tsplat.scene.open_model`.
        warn: Called with a message for each damaged checkpoint that is skipped, and about invalid Gaussians.

    Raises:
        ArgumentError: No Gaussian lies in the box; or as :func:`write_page` and
            :func:`tsplat.viewing.start_views.first_view`.
        FileError: `out` is a file of a run; or as :func:`tsplat.scene.open_model` and :func:`write_page`.
        MissingExtraError, UnsupportedError, OSError: As :func:`tsplat.scene.open_model` and :func:`write_page`.
    """
    check_format(format)
    check_output(out, model)
    cameras = find_cameras(model)
    if view is not None and not cameras:
        raise ArgumentError(f"--view: {model} has no cameras.json of a run")
    gaussians = open_model(model, force=force, checkpoint=checkpoint, warn=warn)
    gaussians = drop_invalid(gaussians, lambda message: warn(f"{model}: {message}"))
    if crop is not None:
        gaussians = raise_if_empty(crop_gaussians(gaussians, crop), crop)
    return write_page(
        out,
        gaussians,
        first_view(gaussians, cameras, view=view, up=up),
        format=format,
        background=background or find_background(model) or (0.0, 0.0, 0.0),
        title=Path(model).resolve().name if title is None else title,
        extras=extras,
    )


def write_page(
    path: str | os.PathLike[str],
    gaussians: Gaussians,
    start: StartView | None = None,
    *,
    format: Embedding = "sog",
    background: Color = (0.0, 0.0, 0.0),
    title: str = "Gaussians",
    extras: PageExtras = NO_EXTRAS,
) -> ScenePage:
    """Writes Gaussians as one HTML file that shows them in a web browser. The write is atomic.

    With Pillow, the page contains an image of the start view, which it shows until the model is loaded.

    Args:
        path: The file, ``.html``.
        gaussians: Gaussians of SH degree 0 to 3 on any device.
        start: View with which the page starts, and the up direction; None for a view of the whole model.
        format: Format of the model: ``"sog"``, which is smaller, or ``"compressed-ply"``, which does not require
            Pillow, inside the page; or ``"streamed-sog"``, in files beside the page, ``lod-meta.json`` and folders,
            which the page loads over HTTP, the coarsest level of detail first.
        background: Background color, RGB in [0, 1].
        title: Title of the page; any text.
        extras: Contents of the page besides the model.

    Raises:
        ArgumentError: `format` is unknown, a Gaussian is invalid or none is visible; `walk` is not positive, or too
            large for the model; `url` is not an HTTP address.
        MissingExtraError: Pillow, which SOG requires, or SciPy, which levels of detail require, is not installed.
        UnsupportedError: The SH degree is above 3.
        FileError: The folder is not writable.
        OSError: The file cannot be written.
    """
    check_format(format)
    start = start or first_view(gaussians)
    name = FILE_NAMES[format]
    path = Path(path)
    frame = PageFrame(start, gaussians, extras.walk)
    preview = _preview(gaussians, start, background, is_needed=extras.url is not None)
    image = path.with_suffix(".jpg")
    head = {
        "title": title,
        "description": extras.description or f"An interactive 3D scene of {len(gaussians):,} Gaussians.",
        "preview": Html(base64.b64encode(preview).decode()),
        "links": None if extras.url is None else _links(extras.url, image.name),
    }
    with output_folder(path.parent):
        if format == "streamed-sog":
            model, lost = b"", write_streamed_sog(path.parent, gaussians)
        else:
            model, lost = ENCODERS[format](gaussians)
        scene = _describe(start, gaussians, background, name, frame)
        fov = 2 * math.degrees(math.atan(start.slopes[1]))
        scene["settings"]["annotations"] = describe_annotations(extras.annotations, start, frame, min(fov, 90.0))
        page = page_content(scene, head, model)
        if extras.url is not None:
            with atomic_write(image) as file:
                file.write(preview)
        with atomic_write(path) as file:
            file.write(page)
    return ScenePage(len(gaussians), len(page), len(model) or dataset_size(path.parent), lost)


def followed_page(gaussians: Gaussians) -> tuple[bytes, str, bytes]:
    """Returns a page for embedding, whose camera follows that of the page around it, and its model.

    Returns the page, and the name and the content of the file that it loads, the model as SOG. Raises as
    :func:`write_page`.
    """
    check_format("sog")
    model, _ = sog_content(gaussians)
    # With y up, the page does not rotate the model, so its frame is the model's.
    start = first_view(gaussians, up=(0.0, 1.0, 0.0))
    frame = PageFrame(start, gaussians)
    scene = _describe(start, gaussians, (0.0, 0.0, 0.0), FILE_NAMES["sog"], frame)
    head = {"title": "tsplat", "description": None, "preview": None, "links": None}
    return page_content({**scene, "follows": True}, head), FILE_NAMES["sog"], model


def page_content(scene: dict[str, Any], head: dict[str, Any], model: bytes = b"") -> bytes:
    """Returns the page of a scene.

    `scene` is the result of :func:`_describe`, and `head` has values for the template's head. `model` is embedded in
    the page; if it is empty, the page loads the model from a file.
    """
    values = {
        **head,
        "license": escape((FOLDER / "LICENSE").read_text("utf-8")),
        "style": Html((FOLDER / "viewer.css").read_text("utf-8")),
        "viewer": Html((FOLDER / "viewer.js").read_text("utf-8")),
        "background": "rgb({}, {}, {})".format(*(round(255 * c) for c in scene["settings"]["background"]["color"])),
        # Titles and texts of annotations may contain </script>.
        "scene": Html(json.dumps(scene, allow_nan=False).replace("<", "\\u003c")),
        "model": Html(base64.b64encode(model).decode()),
    }
    return fill((FOLDER / "page.html").read_text("utf-8"), values).encode()


def check_format(format: str) -> None:
    """Raises ArgumentError for an unknown format of the model in a page, and MissingExtraError without Pillow."""
    check_choice("format", format, get_args(Embedding))
    if format != "compressed-ply":
        try:
            require("PIL")
        except MissingExtraError as error:
            raise MissingExtraError(f"format {format!r}: {error}; or choose the format 'compressed-ply'") from error


def _preview(gaussians: Gaussians, start: StartView, background: Color, is_needed: bool) -> bytes:
    """Returns the preview image of a page. Without Pillow, it is empty, or MissingExtraError is raised if needed."""
    try:
        require("PIL")
    except MissingExtraError:
        if is_needed:
            raise
        return b""
    return preview_image(gaussians, start, background)


def _links(url: str, image: str) -> dict[str, str]:
    """Returns the addresses of a page and of its preview image. Raises ArgumentError for an invalid address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ArgumentError(f"url: expected an address that starts with https:// or http://, found {url!r}")
    return {"url": url, "image": urljoin(url, quote(image))}


def _describe(start: StartView, gaussians: Gaussians, background: Color, name: str, frame: PageFrame) -> dict[str, Any]:
    """Returns the JSON values that the page's script reads: settings of the viewer, and values without a setting."""
    disabled = ("sharpness", "bloom", "grading", "vignette", "fringing")
    return {
        "settings": {
            "version": 2,
            "tonemapping": "none",
            "highPrecisionRendering": True,  # blends in half precision: 8 bits lose layers of low alpha
            "background": {"color": list(background)},
            "postEffectSettings": {effect: {"enabled": False} for effect in disabled},
            "animTracks": [],
            "cameras": [
                {"initial": {"position": frame.place(start.eye), "target": frame.place(start.target), "fov": 60}}
            ],
            "annotations": [],
            "startMode": "default",
        },
        "rotation": frame.rotation,
        "scale": frame.scale,
        "floor": None if frame.floor is None else floor_address(frame.floor),
        "slopes": [float(slope) for slope in start.slopes],
        "core": start.core,
        "antialiased": gaussians.antialiased,
        "filename": name,
    }
