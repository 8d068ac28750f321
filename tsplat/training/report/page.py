"""The report of a run: one HTML page without external files."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ... import __version__
from ...scene.cameras import Camera
from ...scene.gaussians import Gaussians
from ...scene.images import to_bytes
from ...support.extras import require
from ...support.files import atomic_write, output_folder
from ...viewing.data_urls import depth_image, encode_images, error_image, image_of
from ...viewing.markup import Html, fill, join
from ..configuration import Config
from ..evaluation import Score
from ..history import History
from . import sections

if TYPE_CHECKING:
    from PIL.Image import Image

REPORT = "report.html"
TEMPLATE = Path(__file__).with_name("report.html")

VIEWS = 12
"""Number of views with images, without an option."""

IMAGES_MAX = 4_000_000
"""Maximum size of all images in bytes; the page without them is smaller than a megabyte."""

LARGE, SMALL = 960, 640
"""Longer side in pixels of the images of the first three views, and of others. Error and depth have half of it."""

N_LARGE = 3


@dataclasses.dataclass(frozen=True, eq=False)
class ShownView:
    """A view with images.

    Attributes:
        row: Its entry among the views of ``metrics.json``.
        target, rendered: [H, W, 3] uint8.
        camera: For its depth; None if it is not known.
        remark: Its place among all views, such as "worst"; empty for most.
    """

    row: dict[str, Any]
    target: Tensor
    rendered: Tensor
    camera: Camera | None
    remark: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class RunPage:
    """What the page of a run shows. Whatever is unknown is empty or None.

    Attributes:
        name: Name of the run.
        metrics: The contents of ``metrics.json``.
        rows: Metrics of single views, as its `views`.
        is_test: Whether these are test views; otherwise they are training views.
        shown: The views with images.
        history: Metrics over the steps.
        config: The configuration.
        gaussians: The model, on the device to render depth on.
        model_bytes: Size of ``point_cloud.ply``.
        sessions: As in ``run.json``.
        notes: What is missing, one sentence each.
    """

    name: str
    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
    rows: Sequence[dict[str, Any]] = ()
    is_test: bool = True
    shown: Sequence[ShownView] = ()
    history: History | None = None
    config: Config | None = None
    gaussians: Gaussians | None = None
    model_bytes: int | None = None
    sessions: Sequence[dict[str, Any]] = ()
    notes: Sequence[str] = ()


def choose_views(psnrs: Sequence[float | None], n: int = VIEWS) -> list[tuple[int, str]]:
    """Selects the views to show: the worst, the median and the best, then others in their order.

    Args:
        psnrs: PSNR of each view; None is infinite.
        n: Maximum number of views.

    Returns:
        Index and remark of each view.
    """
    values = [math.inf if psnr is None else -math.inf if math.isnan(psnr) else psnr for psnr in psnrs]
    order = sorted(range(len(values)), key=lambda i: (values[i], i))
    if len(order) < 2:
        return [(i, "") for i in order[:n]]
    places = {order[0]: "worst"}
    if len(order) > 2:
        places[order[(len(order) - 1) // 2]] = "median"
    places[order[-1]] = "best"
    chosen = [*places.items(), *((i, "") for i in range(len(values)) if i not in places)]
    return chosen[:n]


def shown_view(score: Score, row: dict[str, Any], remark: str) -> ShownView:
    """Returns a view to show, from its score and its entry in ``metrics.json``."""
    return ShownView(row, score.view.image, to_bytes(score.image), score.view.camera, remark)


def write_page(path: str | os.PathLike[str], page: RunPage) -> int:
    """Writes the page of a run, atomically.

    Returns:
        Its size in bytes.

    Raises:
        MissingExtraError: Pillow or Matplotlib is not installed.
        FileError: The folder is not writable.
        OSError: The file cannot be written.
    """
    require("PIL", "matplotlib")
    content = render_page(page).encode()
    with output_folder(Path(path).parent), atomic_write(path) as file:
        file.write(content)
    return len(content)


def render_page(page: RunPage) -> Html:
    """Returns the page of a run as HTML. Equal runs give equal pages."""
    template = TEMPLATE.read_text(encoding="utf-8")
    script = template.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    body = join(
        [
            sections.header(page.name, page.config, page.metrics, page.notes),
            sections.cards(page.metrics, page.gaussians, page.model_bytes),
            sections.curves(page.history),
            sections.table(page.rows, page.metrics, [view.row for view in page.shown], is_test=page.is_test),
            sections.images(_encode_views(page), is_test=page.is_test),
            sections.distributions(page.gaussians),
            sections.configuration(page.config),
            sections.machine(page.sessions, page.metrics),
            sections.times(page.sessions),
            sections.commands(page.sessions),
        ]
    )
    values = {"title": f"{page.name} - tsplat report", "version": __version__, "script_hash": f"sha256-{digest}"}
    # The size is stated with as many characters as the placeholder here.
    size = len(fill(template, {**values, "body": body, "size": "0.00 MB"}).encode())
    return fill(template, {**values, "body": body, "size": f"{size / 1e6:.2f} MB"})


def _encode_views(page: RunPage) -> list[sections.ViewImages]:
    """Encodes the images of all shown views, within :data:`IMAGES_MAX`."""
    gaussians = page.gaussians
    if gaussians is not None and not bool((valid := gaussians.valid).all()):
        gaussians = gaussians.map(lambda tensor: tensor[valid])
    images: list[tuple[Image | None, int]] = []
    for i, view in enumerate(page.shown):
        side = LARGE if i < N_LARGE else SMALL
        images += [(image_of(view.target), side), (image_of(view.rendered), side)]
        images.append((error_image(view.target, view.rendered), side // 2))
        if gaussians is not None and len(gaussians) and view.camera is not None:
            backend = "auto" if page.config is None else page.config.backend
            images.append((depth_image(gaussians, view.camera, side // 2, backend=backend), side // 2))
        else:
            images.append((None, 0))
    encoded = iter(encode_images([(image, side) for image, side in images if image is not None], IMAGES_MAX))
    found = [None if image is None else next(encoded) for image, _ in images]
    views = []
    for i, view in enumerate(page.shown):
        target, rendered, error, depth = found[4 * i : 4 * i + 4]
        assert target is not None and rendered is not None and error is not None
        views.append(sections.ViewImages(view.row, view.remark, i < N_LARGE, target, rendered, error, depth))
    return views
