"""Georeferences: transforms between a model and the frame of its scene's files, such as UTM.

Single precision rounds a coordinate of 5,000,000 to a multiple of 0.5. Therefore, models are stored relative to an
origin, and a georeference contains the transform from the frame of the files. A run stores it as ``world.json``; other
models in a file beside them, because their formats cannot store it. The name of this file is that of the model followed
by ``.world.json``.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import ArgumentError, FileError, ShapeError
from ..precision import fp64
from ..scalars import check_choice
from ..support.files import write_json
from ..support.reading import read_json
from .gaussians import Gaussians
from .model_rows import Rows
from .option_types import FRAMES, ModelFrame
from .rotation import decompose_similarity, similarity, transform_gaussians

WORLD = "world.json"
"""Name of the file in a run's folder; files beside other models end in a dot and this name."""

Model = TypeVar("Model", Gaussians, Rows, Gaussians | Rows)


@dataclasses.dataclass(frozen=True, eq=False)
class Georeference:
    """Relates the coordinates of a model to the frame of its scene's files.

    Attributes:
        world: [4, 4] similarity transform from the frame of the files to the frame of the model; fp64 on the CPU.
        crs: Coordinate reference system of the files, such as a PROJ string or ``"EPSG:32633"``. It is copied from file
            to file without interpretation.

    Raises:
        ArgumentError: `world` has another shape, is not finite, or is not a similarity transform.
    """

    world: Tensor = dataclasses.field(default_factory=similarity)
    crs: str | None = None

    def __post_init__(self) -> None:
        if self.world.shape != (4, 4):
            raise ShapeError(f"world: expected [4, 4], found {list(self.world.shape)}")
        decompose_similarity(self.world, "world")
        object.__setattr__(self, "world", self.world.detach().to("cpu", torch.float64))

    @property
    def scale(self) -> float:
        """The unit of the model in units of the files."""
        return 1 / decompose_similarity(self.world)[0]

    @property
    def origin(self) -> tuple[float, float, float]:
        """The origin of the model in the frame of the files."""
        x, y, z = (-torch.linalg.solve(self.world[:3, :3], self.world[:3, 3]) + 0.0).tolist()
        return x, y, z

    def moved(self, matrix: Tensor) -> "Georeference":
        """Returns the georeference of the model after a similarity transform [4, 4] fp64."""
        return dataclasses.replace(self, world=matrix @ self.world)

    def shifted(self) -> "Georeference":
        """Returns the georeference of the model that :meth:`shift` returns.

        That model has the axes and the unit of the files, relative to :attr:`origin`.
        """
        return dataclasses.replace(self, world=similarity(translation=[-value for value in self.origin]))

    def shift(self, model: Model) -> Model:
        """Moves Gaussians or rows to the frame of :meth:`shifted`; returns them unchanged if they already are in it."""
        matrix = similarity()
        matrix[:3, :3] = torch.linalg.inv(self.world[:3, :3])
        return move_model(model, matrix)


def move_model(model: Model, matrix: Tensor) -> Model:
    """Moves Gaussians or rows by a similarity transform [4, 4] fp64; returns them unchanged for the identity."""
    if torch.equal(matrix, similarity()):
        return model
    if isinstance(model, Rows):
        return model.map(lambda part: transform_gaussians(part, matrix))
    return transform_gaussians(model, matrix)


def check_frame(frame: ModelFrame, georeference: Georeference | None) -> None:
    """Raises ArgumentError for an unknown frame, and for the frame of the files without a georeference."""
    check_choice("frame", frame, FRAMES)
    if frame == "files" and georeference is None:
        raise ArgumentError(
            "georeference: expected that of the model for frame 'files', found None; runs of georeferenced scenes have "
            f"{WORLD}, and models exported from them a file whose name ends in .{WORLD}; or pass frame='local'"
        )


def relative_to(origin: Sequence[float]) -> str:
    """Describes the origin [3] of coordinates in the frame of the files, for notes."""
    return f"coordinates are relative to ({', '.join(f'{value:.15g}' for value in origin)})"


def georeference_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of the georeference file beside a model; the model may be a file or a folder."""
    return Path(f"{Path(path)}.{WORLD}")


@contextlib.contextmanager
def written_georeference(
    path: str | os.PathLike[str], georeference: Georeference | None, *, absolute: bool = False
) -> Iterator[None]:
    """Context manager that writes a georeference beside the model that its block writes.

    The georeference of an existing model is first renamed to ``.old``, so that a killed process does not leave it
    beside the new model. If the block raises, the old name is restored.

    Args:
        path: The model.
        georeference: Georeference of the model, relative to the coordinates that :func:`tsplat.scene.read_model`
            returns. If None, the georeference of an existing model is removed.
        absolute: Whether the model's file stores coordinates in the frame of the files, in double precision.
    """
    file, values = georeference_path(path), None
    if georeference is not None:
        values = {
            "world": georeference.world.tolist(),
            "origin": list(georeference.origin),
            "scale": georeference.scale,
            "absolute": absolute,
            **({} if georeference.crs is None else {"crs": georeference.crs}),
        }
    aside = file.with_name(f"{file.name}.old")
    is_another = os.path.isfile(file) and not _contains(file, values)  # False if the name is too long for a file
    if is_another:
        os.replace(file, aside)
    try:
        yield
    except BaseException:
        if is_another:
            os.replace(aside, file)
        raise
    if values is not None:
        write_json(file, values)
    with contextlib.suppress(OSError):  # the file may not exist, or its name may be too long
        aside.unlink()  # possibly left by a killed process


def _contains(file: Path, values: dict[str, Any] | None) -> bool:
    """Returns whether a JSON file contains these values."""
    try:
        return bool(read_json(file) == values)
    except (OSError, ValueError):
        return False


def parse_georeference(path: str | os.PathLike[str]) -> Georeference:
    """Reads a file written by :func:`written_georeference`, or the ``world.json`` of a run, which contains only the
    matrix.

    Raises:
        FileError: The file is neither.
        OSError: The file cannot be read.
    """
    values: Any = read_json(path)
    try:
        crs = values.get("crs") if isinstance(values, dict) else None
        world = fp64(values["world"] if isinstance(values, dict) else values)
        if world.shape != (4, 4) or world[3].tolist() != [0, 0, 0, 1] or not (crs is None or isinstance(crs, str)):
            raise ValueError("expected a matrix of four rows, the last of them 0 0 0 1, and a string as crs")
        return Georeference(world, crs)
    except (ArgumentError, KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise FileError(f"{path}: not the georeference of a model ({str(error)[:200]})") from error
