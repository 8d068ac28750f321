"""``tsplat convert`` and ``tsplat export``, which write a model in another format."""

import contextlib
import json
import shlex
import time
from argparse import Namespace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .. import ArgumentError
from ..scene.cropping import crop_gaussians, raise_if_empty
from ..scene.formats.image_sets import META
from ..scene.formats.models import ABSOLUTE, STREAMED, format_of, write_model
from ..scene.formats.streaming.streamed_sog import LOD_META, dataset_size
from ..scene.georeference import Georeference
from ..scene.model_rows import MemoryRows, Rows, gather
from ..scene.option_types import ModelFrame
from ..scene.rotation import transform_gaussians, upright
from ..viewing import PageExtras, export_page, read_annotations
from ..viewing.run_files import check_output
from ..viewing.scene_pages import Embedding, is_page
from ..viewing.videos import VIDEO_SUFFIXES
from .argument_types import box_of
from .large_models import Task, show_passes, warn_user
from .shared_steps import (
    georeference_of,
    open_rows_of,
    options_of,
    print_georeference,
    print_losses,
    print_next,
    refuse,
    result_only,
)

EXTRAS = ("description", "annotations", "walk", "url")
"""Options of pages with the names of attributes of :class:`tsplat.viewing.PageExtras`."""


def convert(arguments: Namespace) -> int:
    """Runs ``tsplat convert`` and ``tsplat export``."""
    with result_only(arguments, arguments.json):
        written = _export_page(arguments) if is_page(arguments.out) else _convert(arguments)
    if arguments.json:
        print(json.dumps(written))
    return 0


def _convert(arguments: Namespace) -> dict[str, Any]:
    """Writes a file of a model. Returns its description for ``--json``, as :func:`write` does."""
    reason = f"only for an output that ends in .html, found {str(arguments.out)!r}"
    refuse(arguments, ("title", "view", "background", *EXTRAS), reason)
    check_output(arguments.out, arguments.model)
    georeference = georeference_of(arguments)
    if arguments.frame == "files":
        refuse(arguments, ("up",), "not with --frame files, whose axes are those of the files")
    rows, box = open_rows_of(arguments, written_format(arguments)), box_of(arguments.crop)
    with contextlib.ExitStack() as files:
        rows = files.enter_context(rows)
        files.enter_context(show_passes(rows))
        if box is not None:
            inside = (crop_gaussians(part, box) for part in rows.chunks())
            rows = files.enter_context(gather(inside, rows, existing_folder(arguments.out)))
            raise_if_empty(rows, box)
        if arguments.up is not None:
            matrix = upright(arguments.up)
            rows = rows.map(lambda part: transform_gaussians(part, matrix))
            georeference = None if georeference is None else georeference.moved(matrix)
        return write(arguments, rows, georeference=georeference, frame=arguments.frame)


def written_format(arguments: Namespace) -> Task:
    """Returns the task, for the estimate of memory, that writes the format of a command's output."""
    if arguments.format is None and arguments.out.suffix.lower() in (*VIDEO_SUFFIXES, ".png", ".jpg", ".jpeg"):
        raise ArgumentError(f"{arguments.out}: not a format of models; tsplat render writes images and videos")
    file_format = format_of(arguments.out, arguments.format)
    return file_format if file_format in STREAMED else "ply"  # type: ignore[return-value]


def existing_folder(out: Path) -> Path:
    """Returns the nearest existing folder above an output."""
    return next(folder for folder in out.absolute().parents if folder.is_dir())


def write(
    arguments: Namespace,
    rows: Rows,
    start: float | None = None,
    georeference: Georeference | None = None,
    frame: ModelFrame = "local",
) -> dict[str, Any]:
    """Writes a model. Prints and returns what was written, and what the format does not store.

    With `start`, a time of `time.perf_counter`, size and duration are printed, too. The last line is the command that
    shows the model, if it can: in the local frame, and with a name that fits its format.
    """
    out = arguments.out
    model = rows.gaussians if isinstance(rows, MemoryRows) else rows
    frame = "local" if georeference is None else frame  # both frames are equal without a georeference
    lost = write_model(out, model, format=arguments.format, georeference=georeference, frame=frame)
    # Writers of other formats drop invalid Gaussians.
    is_ply = format_of(out, arguments.format) == "ply"
    n_invalid = sum(int((~part.valid).sum()) for part in rows.chunks()) if is_ply else 0
    invalid = f", {n_invalid} of them with invalid values, such as NaN," if n_invalid else ""
    n_written = len(rows) if is_ply else sum(int(part.has_rotation.sum()) for part in rows.chunks())
    size = size_of(out)
    details = "" if start is None else f": {size / 1e6:.2f} MB, in {time.perf_counter() - start:.1f} s"
    print(f"wrote {n_written:,} Gaussians{invalid} to {out}{details}")
    print_losses(lost, out.name)
    is_absolute = frame == "files" and format_of(out, arguments.format) in ABSOLUTE
    print_georeference(out, georeference, is_absolute=is_absolute)
    if frame == "local" and (out.is_dir() or arguments.format in (None, format_of(out, None))):
        print_next("view", out)
    return {
        "out": str(out),
        "format": format_of(out, arguments.format),
        "count": n_written,
        "invalid": n_invalid,
        "size": size,
        "lost": lost,
    }


def size_of(out: Path) -> int:
    """Returns the size in bytes of a model's file, or of the files of its folder."""
    folder = out if out.is_dir() else out.parent if out.name in (META, LOD_META) else None
    if folder is not None and (folder / LOD_META).exists():
        return dataset_size(folder)
    files = [out] if folder is None else [folder / META, *folder.glob("*.webp")]
    return sum(path.stat().st_size for path in files)


def _export_page(arguments: Namespace) -> dict[str, Any]:
    """Writes an HTML file. Returns its description for ``--json``."""
    refuse(arguments, ("memory",), "not for an output that ends in .html, which contains the whole model")
    refuse(arguments, ("crs",), "not for an output that ends in .html, which cannot store it")
    if arguments.frame == "files":
        raise ArgumentError("--frame: not files for an output that ends in .html, as its viewer has single precision")
    file_format: Embedding = arguments.format or "sog"
    options = options_of(arguments, "view", "up", "background", "title", "force", "checkpoint")
    annotations = () if arguments.annotations is None else read_annotations(arguments.annotations)
    extras = PageExtras(arguments.description, annotations, arguments.walk, arguments.url)
    page = export_page(
        arguments.model,
        arguments.out,
        format=file_format,
        crop=box_of(arguments.crop),
        extras=extras,
        warn=warn_user,
        **options,
    )
    print(
        f"wrote {page.n_gaussians:,} Gaussians to {arguments.out}: {page.size / 1e6:.1f} MB, of which the model has "
        f"{page.model_size / 1e6:.1f} MB and the viewer the rest"
    )
    print_losses(page.lost, "the page")
    out = arguments.out
    if arguments.format == "streamed-sog":  # browsers load files beside a page only over HTTP
        server = f"python -m http.server --directory {shlex.quote(str(out.parent))}"
        print(f"next: {server}, then open http://localhost:8000/{quote(out.name)}")
    else:
        print(f"next: open {out} in a web browser")
    return {
        "out": str(out),
        "format": file_format,
        "count": page.n_gaussians,
        "size": page.size,
        "model_size": page.model_size,
        "lost": page.lost,
    }
