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
from ...runtime.process_group import RankGroup
from ...scene.cameras import Camera
from ...scene.capture.local_frame import LocalFrame
from ...scene.gaussians import Gaussians, drop_invalid
from ...scene.images import to_bytes
from ...support.extras import require
from ...support.files import atomic_write, output_folder
from ...viewing.markup import Html, fill
from ..configuration import Config, RunConfig
from ..evaluation import Evaluation
from ..history import History
from . import sections
from .data_urls import ERROR_GAIN, depth_image, encode_images, error_image, to_pillow
from .quality import floater_shares, score_regions, worst_patches

if TYPE_CHECKING:
    from PIL.Image import Image

REPORT = "report.html"
TEMPLATE = Path(__file__).with_name("report.html")

VIEWS = 12
"""Default number of views with images."""

IMAGES_MAX = 4_000_000
"""Maximum size of all images of views in bytes; the page without images is smaller than a megabyte."""

PATCHES, PATCH_SIDE, PATCHES_MAX = 8, 160, 400_000
"""Number of the worst patches, their side in pixels, and the maximum size of their images, not part of IMAGES_MAX."""

LARGE, SMALL = 960, 640
"""Longer side of images in pixels, of the first N_LARGE views and of others. Error and depth have half of it."""

N_LARGE = 3


@dataclasses.dataclass(frozen=True, eq=False)
class ShownView:
    """A view with images [H, W, 3] uint8.

    Attributes:
        row: Entry of the view in ``metrics.json``.
        camera: Camera from which depth is rendered; None if it is not known.
        remark: "worst", "median" or "best" among all views; otherwise empty.
    """

    row: dict[str, Any]
    target: Tensor
    rendered: Tensor
    camera: Camera | None
    remark: str = ""


@dataclasses.dataclass(eq=False)
class RunPage:
    """Contents of the report of a run. Whatever is unknown is empty or None.

    Attributes:
        metrics, rows: The contents of ``metrics.json``, and its `views`, the metrics of each view.
        is_test: Whether the views are test views; otherwise they are training views.
        history: Metrics over the steps.
        gaussians: The model, on the device on which depth is rendered.
        model_bytes: Size of ``point_cloud.ply``.
        sessions: As in ``run.json``.
        notes: Missing parts, one sentence each.
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
    notes: list[str] = dataclasses.field(default_factory=list)


def choose_views(psnrs: Sequence[float | None], n: int = VIEWS) -> list[tuple[int, str]]:
    """Selects at most n views: the worst, the median and the best, then others. Returns their indices and remarks.

    A PSNR of None is infinite.
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


def shown_views(
    evaluation: Evaluation,
    rows: Sequence[dict[str, Any]],
    n: int = VIEWS,
    *,
    frame: LocalFrame,
    ranks: RankGroup | None = None,
) -> list[ShownView]:
    """Returns at most n views of an evaluation to show, with their rows of ``metrics.json``. A collective call.

    Cameras of the evaluation are in the local `frame`; returned cameras are in the frame of the model.
    """
    chosen = choose_views([score.psnr for score in evaluation], n)
    scores = evaluation.complete(ranks or RankGroup(), [i for i, _ in chosen])
    return [
        ShownView(rows[i], score.view.image, to_bytes(score.image), frame.camera_of_model(score.view.camera), remark)
        for score, (i, remark) in zip(scores, chosen, strict=True)
    ]


def write_run_page(path: str | os.PathLike[str], page: RunPage) -> int:
    """Writes the report of a run atomically.

    Returns:
        Size of the page in bytes.

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
    """Returns the report of a run as HTML. Equal runs give equal pages."""
    template = TEMPLATE.read_text(encoding="utf-8")
    script = template.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    gaussians = None if page.gaussians is None else drop_invalid(page.gaussians, lambda _: None)
    kind, views = "test" if page.is_test else "training", _views(page, gaussians)
    # Only a RunConfig names a folder of photographs; target images of the demo are rendered.
    original = "photograph" if isinstance(page.config, RunConfig) else "target"
    values = {
        "title": f"{page.name} - tsplat report",
        "version": __version__,
        "script_hash": f"sha256-{digest}",
        "size": "0.00",
        "kind": kind,
        "Kind": kind.capitalize(),
        "original": original,
        "Original": original.capitalize(),
        **sections.header(page.name, page.config, page.metrics, page.notes),
        "cards": sections.cards(page.metrics, page.gaussians, page.model_bytes),
        "curves": sections.curves(page.history),
        "table": sections.table(page.rows, page.metrics, [view.row for view in page.shown], is_test=page.is_test),
        "images": {"views": views, "n_shown": len(views), "error_gain": ERROR_GAIN} if views else None,
        "quality": _quality(page, gaussians),
        "distributions": sections.distributions(page.gaussians),
        "configuration": sections.configuration(page.config),
        "machine": sections.machine(page.sessions, page.metrics),
        "times": sections.times(page.sessions),
        "commands": sections.commands(page.sessions),
    }
    # The page states its own size, in as many characters as the placeholder "0.00".
    size = len(fill(template, values).encode())
    return fill(template, {**values, "size": f"{size / 1e6:.2f}"})


def _quality(page: RunPage, gaussians: Gaussians | None) -> dict[str, Any] | None:
    """Returns template values for the shown views: metrics of regions, floaters and the worst patches."""
    if not page.shown:
        return None
    images = [(view.target, view.rendered) for view in page.shown]
    patches = worst_patches(images, PATCHES)
    crops = [(to_pillow(patch.crop(image)), PATCH_SIDE) for patch in patches for image in images[patch.view]]
    cameras = [view.camera for view in page.shown if view.camera is not None]
    in_front: list[float] = []
    if gaussians is not None and len(gaussians) and len(cameras) == len(images):
        in_front = floater_shares(gaussians, cameras, "auto" if page.config is None else page.config.backend)
    scores = [score_regions(*of_view) for of_view in images]
    rows = [view.row for view in page.shown]
    return sections.quality(rows, page.metrics, scores, in_front, patches, encode_images(crops, PATCHES_MAX))


def _views(page: RunPage, gaussians: Gaussians | None) -> list[dict[str, Any]]:
    """Returns template values for the images of all shown views, encoded within :data:`IMAGES_MAX` bytes."""
    backend = "auto" if page.config is None else page.config.backend
    images: list[dict[str, tuple[Image, int]]] = []
    for i, view in enumerate(page.shown):
        side = LARGE if i < N_LARGE else SMALL
        images.append(
            {
                "target": (to_pillow(view.target), side),
                "rendered": (to_pillow(view.rendered), side),
                f"error \N{MULTIPLICATION SIGN} {ERROR_GAIN}": (error_image(view.target, view.rendered), side // 2),
            }
        )
        if gaussians is not None and len(gaussians) and view.camera is not None:
            images[-1]["depth"] = depth_image(gaussians, view.camera, side // 2, backend), side // 2
    encoded = iter(encode_images([image for of_view in images for image in of_view.values()], IMAGES_MAX))
    views = []
    for i, (view, labels) in enumerate(zip(page.shown, images)):
        target, rendered, *others = ({"label": label, **next(encoded)} for label in labels)
        captioned = {"target": target, "rendered": rendered, "others": others}
        views.append(sections.view(view.row, view.remark, i + 1, is_large=i < N_LARGE, images=captioned))
    return views
