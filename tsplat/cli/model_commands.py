"""``tsplat convert``, ``tsplat export`` and ``tsplat edit``: commands that read models and write one."""

import argparse
import contextlib
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import ArgumentError
from ..scene import FileError
from ..scene.cameras import Camera, move_camera
from ..scene.cropping import Box, crop_gaussians, crop_sphere, raise_if_empty
from ..scene.editing.decimation import decimate_gaussians
from ..scene.editing.joining import merge_models, set_sh_degree
from ..scene.editing.pruning import prune_gaussians
from ..scene.formats.checkpoints import open_model
from ..scene.formats.image_sets import META
from ..scene.formats.models import STREAMED, format_of, write_model
from ..scene.formats.streaming.streamed_sog import LOD_META, dataset_size
from ..scene.gaussians import Gaussians
from ..scene.model_rows import MemoryRows, Rows, as_rows, gather
from ..scene.rotation import axis_rotations, similarity, transform_gaussians, upright
from ..support.progress import stage_display
from ..support.reading import read_file
from ..viewing import export_page, read_cameras
from ..viewing.devices import pick_device, reserve_threads
from ..viewing.framing import cameras_around
from ..viewing.outputs import check_output
from ..viewing.run_cameras import find_cameras
from ..viewing.scene_pages import is_page
from .commands import open_model_of, open_rows_of, options_of, refuse
from .large_models import LargeEdit, Task, open_large, raise_if_none_left, show_passes, warn_user

MATRIX_BYTES_MAX = 1 << 16
MOVES = ("--translate", "--rotate", "--scale", "--transform", "--up")


def convert(arguments: Namespace) -> int:
    """``tsplat convert`` and ``tsplat export``."""
    if is_page(arguments.out):
        refuse(arguments, ("memory",), "not for an output that ends in .html, which holds the whole model")
        return _export_page(arguments)
    why = f"only for an output that ends in .html, found {str(arguments.out)!r}"
    refuse(arguments, ("title", "view", "background"), why)
    check_output(arguments.out, arguments.model)
    rows, box = open_rows_of(arguments, written_format(arguments)), _box(arguments)
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
        write(arguments, rows)
    return 0


def written_format(arguments: Namespace) -> Task:
    """The format that a command writes, for what it needs."""
    found = format_of(arguments.out, arguments.format)
    return found if found in STREAMED else "ply"  # type: ignore[return-value]


def existing_folder(out: Path) -> Path:
    """The closest folder above an output that exists."""
    return next(folder for folder in out.absolute().parents if folder.is_dir())


def write(arguments: Namespace, rows: Rows, start: float | None = None) -> None:
    """Writes a model, and prints what was written and lost, with its size and the seconds since `start` if given."""
    out = arguments.out
    model = rows.gaussians if isinstance(rows, MemoryRows) else rows
    lost = write_model(out, model, format=arguments.format)
    # Other formats have no invalid Gaussians.
    is_ply = format_of(out, arguments.format) == "ply"
    n_invalid = sum(int((~part.valid).sum()) for part in rows.chunks()) if is_ply else 0
    invalid = f", {n_invalid} of them with invalid values, such as NaN," if n_invalid else ""
    n_written = len(rows) if is_ply else sum(int(part.turned.sum()) for part in rows.chunks())
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


def _export_page(arguments: Namespace) -> int:
    """``tsplat convert`` and ``tsplat export`` to an HTML file."""
    options = options_of(arguments, "view", "up", "background", "title", "force", "checkpoint")
    page = export_page(
        arguments.model,
        arguments.out,
        format=arguments.format or "sog",
        crop=_box(arguments),
        warn=warn_user,
        **options,
    )
    print(
        f"wrote {page.n_gaussians} Gaussians to {arguments.out}: {page.size / 1e6:.1f} MB, {page.model_size / 1e6:.1f} "
        f"MB of it for the model, the rest for the viewer; losses: {'; '.join(page.lost)}"
    )
    return 0


def _box(arguments: Namespace) -> Box | None:
    """The two corners of ``--crop``."""
    crop = arguments.crop
    return None if crop is None else (tuple(crop[:3]), tuple(crop[3:]))


class Operation(argparse.Action):
    """Appends the operation of an option to `operations`, so that they are applied in their order."""

    def __call__(
        self, _parser: argparse.ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> None:
        namespace.operations = [*namespace.operations, (option, values)]


def edit(arguments: Namespace) -> int:
    """``tsplat edit``."""
    start = time.perf_counter()
    operations = arguments.operations
    if not operations:
        raise ArgumentError("expected at least one operation, such as --crop; see tsplat edit --help")
    decimates = any(option == "--decimate" for option, _ in operations)
    if not decimates:
        refuse(arguments, ("finetune", "cameras"), "only with --decimate")
    for path in (arguments.model, *(values for option, values in operations if option == "--merge")):
        check_output(arguments.out, path)
    large = open_large(arguments, "decimate" if decimates else written_format(arguments))
    with contextlib.ExitStack() as files:
        if large is not None:
            edited_rows = LargeEdit(large, existing_folder(arguments.out))
            files.callback(lambda: edited_rows.rows.close())
            refuse(arguments, ("finetune", "cameras"), "not for a model larger than memory, which is not rendered")
            files.enter_context(show_passes(large))
            for option, values in operations:
                _edit_large(edited_rows, option, values, arguments)
            write(arguments, edited_rows.finish(), start)
            return 0
        edited = _Edited(arguments)
        for option, values in operations:
            before = len(edited.gaussians)
            edited.apply(option, values)
            raise_if_none_left(option, before, len(edited.gaussians))
        write(arguments, as_rows(edited.gaussians), start)
    return 0


def _edit_large(edited: LargeEdit, option: str, values: Any, arguments: Namespace) -> None:
    """Applies an operation to a model that is larger than memory."""
    if option == "--max-isolation":
        raise ArgumentError("--max-isolation: not for a model larger than memory; crop or decimate it first")
    if option == "--decimate":
        edited.decimate(values)
    elif option == "--merge":
        large = open_large(arguments, "ply", values)
        model = open_model(values, force=arguments.force, warn=warn_user) if large is None else large
        with as_rows(model) as other:
            edited.merge(other, warn_user)
    else:
        edited.add(option, lambda part: edit_each(part, option, values))


def edit_each(gaussians: Gaussians, option: str, values: Any) -> Gaussians:
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


class _Edited:
    """A model while it is edited."""

    def __init__(self, arguments: Namespace) -> None:
        self.arguments = arguments
        self.gaussians = open_model_of(arguments)
        self.moved = similarity()
        """[4, 4] fp64, from the frame of the file to that of the model now."""

    def apply(self, option: str, values: Any) -> None:
        if option == "--merge":
            other = open_model(values, force=self.arguments.force, warn=warn_user)
            self.gaussians = merge_models([self.gaussians, other], warn=warn_user)
        elif option == "--decimate":
            self._decimate(values)
        else:
            self.gaussians = edit_each(self.gaussians, option, values)
            if option in MOVES:
                self.moved = _matrix(option, values) @ self.moved

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
        """The cameras of a file or of the run, moved as the model was; none for other models."""
        arguments = self.arguments
        cameras = read_cameras(arguments.cameras) if arguments.cameras else find_cameras(arguments.model)
        return [move_camera(camera, self.moved) for camera in cameras if not camera.is_test]


def _matrix(option: str, values: Any) -> Tensor:
    """The matrix [4, 4] fp64 of an option that moves the model."""
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
