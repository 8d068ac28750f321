"""``tsplat convert``, ``tsplat export`` and ``tsplat edit``: commands that read models and write one."""

import argparse
import contextlib
import functools
import shlex
import time
from argparse import Namespace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor

from .. import ArgumentError
from ..scene import FileError
from ..scene.cameras import Camera, move_camera
from ..scene.cropping import crop_gaussians, crop_sphere, raise_if_empty
from ..scene.editing.decimation import decimate_gaussians
from ..scene.editing.joining import merge_models, set_sh_degree
from ..scene.editing.pruning import prune_gaussians
from ..scene.formats.checkpoints import open_model, read_georeference
from ..scene.formats.image_sets import META
from ..scene.formats.models import ABSOLUTE, STREAMED, format_of, write_model
from ..scene.formats.streaming.streamed_sog import LOD_META, dataset_size
from ..scene.gaussians import Gaussians
from ..scene.georeference import Georeference, Model, ModelFrame, move_model
from ..scene.model_rows import MemoryRows, Rows, as_rows, gather
from ..scene.rotation import axis_rotations, similarity, transform_gaussians, upright
from ..support.progress import stage_display
from ..support.reading import read_file
from ..viewing import PageExtras, export_page, read_annotations, read_cameras
from ..viewing.devices import pick_device, reserve_threads
from ..viewing.framing import cameras_around
from ..viewing.run_cameras import find_cameras
from ..viewing.run_files import check_output
from ..viewing.scene_pages import is_page
from .argument_types import BOX, VECTOR, amount, box_of, channel, model_path, number, path, steps
from .commands import (
    georeference_of,
    open_model_of,
    open_rows_of,
    options_of,
    print_georeference,
    print_next,
    refuse,
)
from .large_models import LargeEdit, Task, open_large, report_counts, show_passes, warn_user
from .shared_options import ENDINGS, FORMATS, add_backend, add_background, add_frame, add_model

MATRIX_BYTES_MAX = 1 << 16
OUTPUT = f"output file, {ENDINGS}; .html for a page that shows the model in a web browser"
EXTRAS = ("description", "annotations", "walk", "url")
"""Options of pages that are those of :class:`tsplat.viewing.PageExtras`."""

MOVES = ("--translate", "--rotate", "--scale", "--transform", "--up")


def add_convert_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("out", type=path, metavar="OUT", help=OUTPUT)
    _add_output(parser)


def add_export_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--out", type=path, required=True, metavar="OUT", help=OUTPUT)
    _add_output(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    format = (
        "format of the output (that of its name; .spz is SPZ 3; spz4 is SPZ 4); of the model in an .html: sog, "
        "compressed-ply, or streamed-sog for files beside it (sog)"
    )
    add("--format", choices=FORMATS, help=format)
    crop = "write only the Gaussians whose centers lie in the box with these two corners, in world units"
    add("--crop", **BOX, help=crop)
    up = (
        "direction that points up in MODEL, which is rotated so that it becomes 0 -1 0 (files: not rotated; .html: a "
        "run: that of its cameras; else 0 -1 0 or 0 1 0)"
    )
    add("--up", **VECTOR, help=up)
    add_frame(parser)
    page = parser.add_argument_group("options for .html")
    page.add_argument("--title", metavar="TEXT", help="title of the page (name of the model)")
    page.add_argument(
        "--description", metavar="TEXT", help="text for search engines and previews of links (number of Gaussians)"
    )
    page.add_argument(
        "--annotations", type=path, metavar="FILE", help="JSON file with places, titles and texts to show"
    )
    walk = "let visitors walk on a level floor, with their eyes this far above it, in world units"
    page.add_argument("--walk", type=number, metavar="HEIGHT", help=walk)
    url = "address where the page will be; previews of links then show an image, written beside OUT as .jpg"
    page.add_argument("--url", metavar="URL", help=url)
    page.add_argument("--view", metavar="N|NAME", help="view of a run to start with, by index or name (the first)")
    add_background(page)


def convert(arguments: Namespace) -> int:
    """Runs ``tsplat convert`` and ``tsplat export``."""
    if is_page(arguments.out):
        refuse(arguments, ("memory",), "not for an output that ends in .html, which holds the whole model")
        refuse(arguments, ("crs",), "not for an output that ends in .html, which has no place for it")
        if arguments.frame == "files":
            raise ArgumentError(
                "--frame: not files for an output that ends in .html, as its viewer has single precision"
            )
        return _export_page(arguments)
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
        write(arguments, rows, georeference=georeference, frame=arguments.frame)
    return 0


def written_format(arguments: Namespace) -> Task:
    """Returns the task whose cost is that of writing the format of a command's output."""
    file_format = format_of(arguments.out, arguments.format)
    return file_format if file_format in STREAMED else "ply"  # type: ignore[return-value]


def existing_folder(out: Path) -> Path:
    """Returns the closest folder above an output that exists."""
    return next(folder for folder in out.absolute().parents if folder.is_dir())


def write(
    arguments: Namespace,
    rows: Rows,
    start: float | None = None,
    georeference: Georeference | None = None,
    frame: ModelFrame = "local",
) -> None:
    """Writes a model, and prints what was written and lost, with its size and the seconds since `start` if given.

    The last line is the command that shows the model, if its coordinates are small and its name has the ending of its
    format.
    """
    out = arguments.out
    model = rows.gaussians if isinstance(rows, MemoryRows) else rows
    frame = "local" if georeference is None else frame  # where nothing moves, they are one
    lost = write_model(out, model, format=arguments.format, georeference=georeference, frame=frame)
    # Other formats have no invalid Gaussians.
    is_ply = format_of(out, arguments.format) == "ply"
    n_invalid = sum(int((~part.valid).sum()) for part in rows.chunks()) if is_ply else 0
    invalid = f", {n_invalid} of them with invalid values, such as NaN," if n_invalid else ""
    n_written = len(rows) if is_ply else sum(int(part.has_rotation.sum()) for part in rows.chunks())
    losses = f"; losses: {'; '.join(lost)}" if lost else ""
    details = ""
    if start is not None:
        folder = out if out.is_dir() else out.parent if out.name in (META, LOD_META) else None
        files = [out] if folder is None else [folder / META, *folder.glob("*.webp")]
        if folder is not None and (folder / LOD_META).exists():
            size = dataset_size(folder)
        else:
            size = sum(path.stat().st_size for path in files)
        details = f": {size / 1e6:.2f} MB, in {time.perf_counter() - start:.1f} s"
    print(f"wrote {n_written} Gaussians{invalid} to {out}{details}{losses}")
    is_absolute = frame == "files" and format_of(out, arguments.format) in ABSOLUTE
    print_georeference(out, georeference, is_absolute=is_absolute)
    if frame == "local" and (out.is_dir() or arguments.format in (None, format_of(out, None))):
        print_next("view", out)


def _export_page(arguments: Namespace) -> int:
    """Runs ``tsplat convert`` and ``tsplat export`` to an HTML file."""
    options = options_of(arguments, "view", "up", "background", "title", "force", "checkpoint")
    annotations = () if arguments.annotations is None else read_annotations(arguments.annotations)
    extras = PageExtras(arguments.description, annotations, arguments.walk, arguments.url)
    page = export_page(
        arguments.model,
        arguments.out,
        format=arguments.format or "sog",
        crop=box_of(arguments.crop),
        extras=extras,
        warn=warn_user,
        **options,
    )
    print(
        f"wrote {page.n_gaussians} Gaussians to {arguments.out}: {page.size / 1e6:.1f} MB, {page.model_size / 1e6:.1f} "
        f"MB of it for the model, the rest for the viewer; losses: {'; '.join(page.lost)}"
    )
    out = arguments.out
    if arguments.format == "streamed-sog":  # browsers read files beside a page over HTTP only
        server = f"python -m http.server --directory {shlex.quote(str(out.parent))}"
        print(f"next: {server}, then open http://localhost:8000/{quote(out.name)}")
    else:
        print(f"next: open {out} in a web browser")
    return 0


class Operation(argparse.Action):
    """Appends the operation of an option to `operations`, so that they are applied in their order."""

    def __call__(
        self, _parser: argparse.ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> None:
        namespace.operations = [*namespace.operations, (option, values)]


def add_edit_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(operations=[])
    add_model(parser)
    parser.add_argument("out", type=path, metavar="OUT", help=f"output file, {ENDINGS}")
    parser.add_argument("--format", choices=FORMATS, help="format of the output (that of its name)")
    group = parser.add_argument_group(
        "operations", "applied one after another, in the order in which they are given; each may be given several times"
    )
    add = functools.partial(group.add_argument, action=Operation, default=argparse.SUPPRESS)
    sphere: dict[str, Any] = {"type": number, "nargs": 4, "metavar": ("X", "Y", "Z", "R")}
    add("--crop", **BOX, help="keep the Gaussians whose centers lie in the box")
    add("--crop-sphere", **sphere, help="keep those whose centers lie in the sphere")
    add("--translate", **VECTOR, help="move by a vector, in world units")
    add("--rotate", **VECTOR, help="rotate by degrees about the x, then y, then z axis")
    add("--scale", type=number, metavar="F", help="scale by a factor about the origin")
    add("--transform", type=path, metavar="FILE", help="move by a 4×4 matrix: a text file of its numbers, row by row")
    add("--up", **VECTOR, help="rotate so that this direction becomes 0 -1 0")
    add("--min-opacity", type=channel, metavar="O", help="remove Gaussians that are less opaque, 0 to 1")
    add("--max-scale", type=number, metavar="S", help="remove Gaussians whose longest axis is longer, in world units")
    isolation = "remove Gaussians whose mean distance to 3 neighbors is more than R times the median; 5 finds floaters"
    add("--max-isolation", type=number, metavar="R", help=isolation)
    add("--drop-invalid", nargs=0, help="remove Gaussians with values such as NaN")
    add("--sh-degree", type=int, choices=range(5), help="degree of the spherical harmonics; 0 removes view dependence")
    add("--merge", type=model_path, metavar="MODEL", help="add the Gaussians of another model")
    decimate = "merge Gaussians until this many, or this percentage, are left, with the least change of images"
    add("--decimate", type=amount, metavar="N|P%", help=decimate)
    decimation = parser.add_argument_group("options for --decimate")
    finetune = "optimize what is left for this many steps on images of the model before; 0 for none (200)"
    decimation.add_argument("--finetune", type=steps, metavar="STEPS", help=finetune)
    cameras = "cameras whose images are to change least, in the frame of MODEL (a run: its own; else around the model)"
    decimation.add_argument("--cameras", type=path, metavar="CAMERAS.json", help=cameras)
    add_backend(decimation)


def edit(arguments: Namespace) -> int:
    """Runs ``tsplat edit``."""
    start = time.perf_counter()
    operations = arguments.operations
    if not operations:
        raise ArgumentError("expected at least one operation, such as --crop; see tsplat edit --help")
    decimates = any(option == "--decimate" for option, _ in operations)
    if not decimates:
        refuse(arguments, ("finetune", "cameras"), "only with --decimate")
    for model in (arguments.model, *(values for option, values in operations if option == "--merge")):
        check_output(arguments.out, model)
    georeference = read_georeference(arguments.model)
    large = open_large(arguments, "decimate" if decimates else written_format(arguments))
    with contextlib.ExitStack() as files:
        if large is not None:
            edited_rows = LargeEdit(large, existing_folder(arguments.out))
            files.callback(lambda: edited_rows.rows.close())
            refuse(arguments, ("finetune", "cameras"), "not for a model larger than memory, which is not rendered")
            files.enter_context(show_passes(large))
            for option, values in operations:
                _edit_large(edited_rows, option, values, arguments, georeference)
                georeference = _move_georeference(georeference, option, values)
            write(arguments, edited_rows.finish(), start, georeference)
            return 0
        edited = MemoryEdit(arguments)
        for option, values in operations:
            before = len(edited.gaussians)
            edited.apply(option, values, georeference)
            georeference = _move_georeference(georeference, option, values)
            report_counts(option, before, len(edited.gaussians))
        write(arguments, as_rows(edited.gaussians), start, georeference)
    return 0


def _move_georeference(georeference: Georeference | None, option: str, values: Any) -> Georeference | None:
    """Returns the georeference of a model after an operation, so that its place in the files of its scene stays."""
    return georeference if georeference is None or option not in MOVES else georeference.moved(_matrix(option, values))


def _align_frames(other: Model, path: Path, georeference: Georeference | None) -> Model:
    """Moves a model that is merged to the frame of the edited one, if the georeferences of both are known."""
    other_georeference = read_georeference(path)
    if other_georeference is None or georeference is None or torch.equal(other_georeference.world, georeference.world):
        return other
    print(f"note: {path}: moved from its frame to that of the edited model", flush=True)
    return move_model(other, georeference.world @ torch.linalg.inv(other_georeference.world))


def _edit_large(
    edited: LargeEdit, option: str, values: Any, arguments: Namespace, georeference: Georeference | None
) -> None:
    """Applies an operation to a model that is larger than memory."""
    if option == "--max-isolation":
        raise ArgumentError("--max-isolation: not for a model larger than memory; crop or decimate it first")
    if option == "--decimate":
        edited.decimate(values)
    elif option == "--merge":
        large = open_large(arguments, "ply", values)
        model = open_model(values, force=arguments.force, warn=warn_user) if large is None else large
        with as_rows(model) as other:
            edited.merge(_align_frames(other, values, georeference), warn_user)
    else:
        edited.add(option, lambda part: edit_independently(part, option, values))


def edit_independently(gaussians: Gaussians, option: str, values: Any) -> Gaussians:
    """Applies an operation that depends on no other Gaussian; see ``tsplat edit --help``."""
    match option, values:
        case "--crop", _:
            return crop_gaussians(gaussians, (tuple(values[:3]), tuple(values[3:])))
        case "--crop-sphere", (*center, radius):
            return crop_sphere(gaussians, center, radius)
        case "--min-opacity" | "--max-scale" | "--max-isolation", _:
            return prune_gaussians(gaussians, **{option[2:].replace("-", "_"): values})
        case "--drop-invalid", _:
            return prune_gaussians(gaussians, drop_invalid=True)
        case "--sh-degree", _:
            return set_sh_degree(gaussians, values)
    return transform_gaussians(gaussians, _matrix(option, values))


class MemoryEdit:
    """A model in memory while it is edited; :class:`LargeEdit` is for others."""

    def __init__(self, arguments: Namespace) -> None:
        self.arguments = arguments
        self.gaussians = open_model_of(arguments)
        self.transform = similarity()
        """[4, 4] fp64, from the frame of the file to that of the model now."""

    def apply(self, option: str, values: Any, georeference: Georeference | None) -> None:
        if option == "--merge":
            other = open_model(values, force=self.arguments.force, warn=warn_user)
            other = _align_frames(other, values, georeference)
            self.gaussians = merge_models([self.gaussians, other], warn=warn_user)
        elif option == "--decimate":
            self._decimate(values)
        else:
            self.gaussians = edit_independently(self.gaussians, option, values)
            if option in MOVES:
                self.transform = _matrix(option, values) @ self.transform

    def _decimate(self, amount: int | float) -> None:
        """Decimates to a count, or to a share if `amount` is a float."""
        arguments, gaussians = self.arguments, self.gaussians
        cameras = self._cameras() or cameras_around(gaussians)
        device, _ = pick_device(arguments.backend)
        reserve_threads(device, arguments.backend)
        with stage_display() as show:
            self.gaussians = decimate_gaussians(
                gaussians.to(device),
                amount if isinstance(amount, int) else max(1, round(amount * len(gaussians))),
                cameras,
                backend=arguments.backend,
                on_progress=show,
                **({} if arguments.finetune is None else {"finetune": arguments.finetune}),
            ).to("cpu")

    def _cameras(self) -> list[Camera]:
        """Returns the cameras of a file or of the run, moved as the model was; none for other models."""
        arguments = self.arguments
        cameras = read_cameras(arguments.cameras) if arguments.cameras else find_cameras(arguments.model)
        return [move_camera(camera, self.transform) for camera in cameras if not camera.is_test]


def _matrix(option: str, values: Any) -> Tensor:
    """Returns the matrix [4, 4] fp64 of an option that moves the model."""
    match option:
        case "--translate":
            return similarity(translation=values)
        case "--rotate":
            return similarity(axis_rotations(values))
        case "--scale":
            if not values > 0:
                raise ArgumentError(f"--scale: expected a positive number, found {values}")
            return similarity(scale=values)
        case "--up":
            return upright(values)
    numbers = _read_numbers(values)
    return torch.cat(
        [torch.tensor(numbers, dtype=torch.float64, device="cpu").view(-1, 4), similarity()[len(numbers) // 4 :]]
    )


def _read_numbers(path: Any) -> list[float]:
    """Reads the 16 or 12 numbers of a text file, which may be separated by commas and brackets, as in JSON."""
    text = read_file(path, MATRIX_BYTES_MAX).decode("utf-8", "replace")
    try:
        numbers = [float(word) for word in text.translate(dict.fromkeys(map(ord, ",;[]"), " ")).split()]
    except ValueError as error:
        raise FileError(f"{path}: expected the 16 numbers of a 4×4 matrix, row by row ({error})") from error
    if len(numbers) not in (12, 16):
        raise FileError(f"{path}: expected the 16 or 12 numbers of a 4×4 or 3×4 matrix, found {len(numbers)}")
    return numbers
