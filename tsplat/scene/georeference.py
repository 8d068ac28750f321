"""Georeferences: the place of a model's coordinates in the frame of the files of its scene, such as UTM.

Single precision holds a coordinate of 5,000,000 to 0.5. So models are relative to an origin, and a georeference has the
transform from the frame of the files. A run has it as ``world.json``; other models as a file beside them, whose name is
theirs and ``.world.json``, as the formats have no place for it.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from ..arguments import check_choice
from ..errors import ArgumentError, FileError, ShapeError
from ..precision import fp64
from ..support.files import write_json
from ..support.reading import read_json
from .gaussians import Gaussians
from .model_rows import Rows
from .rotation import decompose_similarity, similarity, transform_gaussians

WORLD = "world.json"
"""Name of the file in a run's folder, and after a dot, the last part of the names of those beside other models."""

ModelFrame = Literal["local", "files"]
FRAMES: tuple[ModelFrame, ...] = get_args(ModelFrame)
"""The frame of the model, and that of the files of its scene."""

Model = TypeVar("Model", Gaussians, Rows, Gaussians | Rows)


@dataclasses.dataclass(frozen=True, eq=False)
class Georeference:
    """Places the coordinates of a model in the frame of the files of its scene.

    Attributes:
        world: [4, 4], the similarity transform from the frame of the files to that of the model; fp64 on the CPU.
        crs: The coordinate reference system of the files, such as a PROJ string or ``"EPSG:32633"``. It is carried from
            file to file, and not interpreted.

    Raises:
        ArgumentError: `world` has another shape, is not finite, or shears or stretches.
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
        """The unit of the model in that of the files."""
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

        It is in the axes and the unit of the files, relative to :attr:`origin`.
        """
        return dataclasses.replace(self, world=similarity(translation=[-value for value in self.origin]))

    def shift(self, model: Model) -> Model:
        """Moves Gaussians or rows to the frame of :meth:`shifted`, or returns them as they are if it is theirs."""
        matrix = similarity()
        matrix[:3, :3] = torch.linalg.inv(self.world[:3, :3])
        return move_model(model, matrix)


def move_model(model: Model, matrix: Tensor) -> Model:
    """Moves Gaussians or rows by a similarity transform [4, 4] fp64; returns them as they are for the identity."""
    if torch.equal(matrix, similarity()):
        return model
    if isinstance(model, Rows):
        return model.map(lambda part: transform_gaussians(part, matrix))
    return transform_gaussians(model, matrix)


def check_frame(frame: ModelFrame, georeference: Georeference | None) -> None:
    """Raises ArgumentError for an unknown frame, or for the frame of the files without a georeference."""
    check_choice("frame", frame, FRAMES)
    if frame == "files" and georeference is None:
        raise ArgumentError(
            "georeference: expected that of the model for frame 'files', found None; runs of georeferenced scenes have "
            f"{WORLD}, and models exported from them a file whose name ends in .{WORLD}; or pass frame='local'"
        )


def relative_to(origin: Sequence[float]) -> str:
    """Returns the text of a note that coordinates are relative to an origin [3] in the frame of the files."""
    return f"coordinates are relative to ({', '.join(f'{value:.15g}' for value in origin)})"


def georeference_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of the file with the georeference of a model, which may be a folder; it is beside the model."""
    return Path(f"{Path(path)}.{WORLD}")


@contextlib.contextmanager
def written_georeference(
    path: str | os.PathLike[str], georeference: Georeference | None, *, absolute: bool = False
) -> Iterator[None]:
    """Writes the georeference of the model that the block writes beside it; for None, removes that of an older model.

    That of an older model is first renamed to one that ends in ``.old``, so that a process that is killed does not
    leave it beside a new model. If the block raises, it is put back.

    Args:
        path: The model.
        georeference: That of the model as :func:`tsplat.scene.read_model` returns it.
        absolute: Whether the model's file has coordinates in the frame of the files, in double precision.
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
    is_another = os.path.isfile(file) and not _holds(file, values)  # also where a name is too long to have one
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
    with contextlib.suppress(OSError):  # none, or a name that is too long to have one
        aside.unlink()  # also one that a killed process left


def _holds(file: Path, values: dict[str, Any] | None) -> bool:
    """Returns whether a file has these JSON values."""
    try:
        return bool(read_json(file) == values)
    except (OSError, ValueError):
        return False


def parse_georeference(path: str | os.PathLike[str]) -> Georeference:
    """Reads a file that :func:`written_georeference` wrote, or ``world.json`` of a run, which is the matrix alone.

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
