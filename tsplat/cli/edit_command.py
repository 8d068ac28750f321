"""``tsplat edit``: applies operations to a model, in memory or part by part."""

import contextlib
import functools
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import ArgumentError
from ..scene import FileError
from ..scene.cameras import Camera, move_camera
from ..scene.cropping import crop_gaussians, crop_sphere
from ..scene.editing.decimation import decimate_gaussians
from ..scene.editing.pruning import prune_gaussians
from ..scene.formats.checkpoints import open_model, read_georeference
from ..scene.gaussians import Gaussians
from ..scene.georeference import Georeference, Model, move_model
from ..scene.joining import merge_models, set_sh_degree
from ..scene.model_rows import Rows, as_rows
from ..scene.rotation import axis_rotations, similarity, transform_gaussians, upright
from ..support.progress import stage_display
from ..support.reading import read_file
from ..viewing import read_cameras
from ..viewing.devices import pick_device, reserve_threads
from ..viewing.framing import cameras_around
from ..viewing.run_cameras import find_cameras, find_run
from ..viewing.run_files import check_output
from .large_models import LargeEdit, open_large, report_counts, show_passes, warn_user
from .model_commands import existing_folder, write, written_format
from .shared_steps import open_model_of, refuse

MATRIX_BYTES_MAX = 1 << 16

MOVES = ("--translate", "--rotate", "--scale", "--transform", "--up")
"""Operations that transform the model by a matrix."""


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
        edited: MemoryEdit | LargeEdit
        if large is None:
            edited = MemoryEdit(arguments)
        else:
            edited = files.enter_context(LargeEdit(large, existing_folder(arguments.out)))
            refuse(arguments, ("finetune", "cameras"), "not for a model larger than memory, which is not rendered")
            files.enter_context(show_passes(large))
        for option, values in operations:
            if option == "--decimate":
                edited.decimate(values)
            elif option == "--merge":
                with _open_other(arguments, values, in_memory=large is None) as other:
                    edited.merge(_align_frames(other, values, georeference))
            elif option in MOVES:
                matrix = _matrix(option, values)
                edited.move(option, matrix)
                georeference = None if georeference is None else georeference.moved(matrix)
            else:
                edited.add(option, functools.partial(edit_independently, option=option, values=values))
        if not any(option in MOVES for option, _ in operations):
            _note_lost_cameras(arguments.model, arguments.out)
        write(arguments, edited.finish(), start, georeference)
    return 0


def _note_lost_cameras(model: Path, out: Path) -> None:
    """Prints a note if the output is outside of its run's folder, where commands do not find the run's cameras."""
    run = find_run(model)
    if run is not None and find_run(out) is None:
        print(
            f"note: pages and images of {out} start from a guessed view; a model inside {run}, such as "
            f"{run / 'edited.ply'}, starts from the run's cameras",
            flush=True,
        )


def _open_other(arguments: Namespace, path: Path, *, in_memory: bool) -> Rows:
    """Opens a model that is to be merged into the edited one."""
    large = None if in_memory else open_large(arguments, "ply", path)
    return as_rows(open_model(path, force=arguments.force, warn=warn_user)) if large is None else large


def _align_frames(other: Model, path: Path, georeference: Georeference | None) -> Model:
    """Moves a model to the frame of the edited one, into which it is merged, if both georeferences are known."""
    other_georeference = read_georeference(path)
    if other_georeference is None or georeference is None or torch.equal(other_georeference.world, georeference.world):
        return other
    print(f"note: {path}: moved from its frame to that of the edited model", flush=True)
    return move_model(other, georeference.world @ torch.linalg.inv(other_georeference.world))


def edit_independently(gaussians: Gaussians, option: str, values: Any) -> Gaussians:
    """Applies an operation that treats each Gaussian independently; see ``tsplat edit --help``."""
    match option, values:
        case "--crop", _:
            return crop_gaussians(gaussians, (tuple(values[:3]), tuple(values[3:])))
        case "--crop-sphere", (*center, radius):
            return crop_sphere(gaussians, center, radius)
        case "--drop-invalid", _:
            return prune_gaussians(gaussians, drop_invalid=True)
        case "--sh-degree", _:
            return set_sh_degree(gaussians, values)
    return prune_gaussians(gaussians, **{option[2:].replace("-", "_"): values})


class MemoryEdit:
    """A model that is edited in memory. :class:`LargeEdit` has the same methods for models larger than memory."""

    def __init__(self, arguments: Namespace) -> None:
        self.arguments = arguments
        self.gaussians = open_model_of(arguments)
        self.transform = similarity()
        """[4, 4] fp64, from the frame of the file to the current frame of the model."""

    def add(self, option: str, function: Callable[[Gaussians], Gaussians]) -> None:
        self._replace(option, function(self.gaussians))

    def move(self, option: str, matrix: Tensor) -> None:
        self.add(option, lambda gaussians: transform_gaussians(gaussians, matrix))
        self.transform = matrix @ self.transform

    def merge(self, other: Rows) -> None:
        self._replace("--merge", merge_models([self.gaussians, other.read(0, len(other))], warn=warn_user))

    def decimate(self, amount: int | float) -> None:
        """Decimates to a count, or to a fraction if `amount` is a float."""
        arguments, gaussians = self.arguments, self.gaussians
        cameras = self._cameras() or cameras_around(gaussians)
        device, _ = pick_device(arguments.backend)
        reserve_threads(device, arguments.backend)
        with stage_display() as show:
            decimated = decimate_gaussians(
                gaussians.to(device),
                amount if isinstance(amount, int) else max(1, round(amount * len(gaussians))),
                cameras,
                backend=arguments.backend,
                on_progress=show,
                **({} if arguments.finetune is None else {"finetune": arguments.finetune}),
            ).to("cpu")
        self._replace("--decimate", decimated)

    def finish(self) -> Rows:
        """Returns the rows of the model."""
        return as_rows(self.gaussians)

    def _replace(self, option: str, gaussians: Gaussians) -> None:
        before, self.gaussians = len(self.gaussians), gaussians
        report_counts(option, before, len(gaussians))

    def _cameras(self) -> list[Camera]:
        """Returns the training cameras of a file or of the run, transformed like the model; empty if there are none."""
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
