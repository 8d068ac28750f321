"""Protects files that no command may overwrite: the model that it reads, and the files of a run."""

import itertools
import os
from pathlib import Path

from ..errors import FileError
from ..scene.formats.checkpoints import LATEST, MANIFEST, is_run
from ..scene.formats.image_sets import META
from ..scene.formats.models import POINT_CLOUD
from ..scene.formats.streaming.streamed_sog import LOD_META
from ..scene.georeference import WORLD
from ..support.files import raise_if_not_replaceable

CAMERAS, CONFIG, METRICS, SESSIONS = "cameras.json", "config.json", "metrics.json", "run.json"
"""Names of files in a run's folder. The folder of a demo has only the last two."""

RUN_RESULTS = frozenset(
    (CAMERAS, METRICS, POINT_CLOUD, "contact_sheet.png", "curve.png", "report.html", "turntable.gif", WORLD)
)
"""Files that a run writes into its folder, after :data:`SESSIONS`."""

RUN_FILES = RUN_RESULTS | {CONFIG, "lock", LATEST, MANIFEST, SESSIONS}
RUN_FOLDERS = frozenset(("checkpoints", "held_out", "inspect", "tensorboard", "wandb"))


def is_of_run(folder: Path) -> bool:
    """Returns whether a folder is the folder of a run or a demo."""
    return is_run(folder) or (folder / SESSIONS).is_file()


def _indices(path: Path) -> tuple[Path, ...]:
    """Returns a path, and the paths in it of files that describe a model in a folder."""
    return path, path / META, path / LOD_META


def _are_same(one: Path, other: Path) -> bool:
    """Returns whether two paths refer to the same file or folder."""
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False


def check_output(out: str | os.PathLike[str], model: str | os.PathLike[str] | None = None) -> None:
    """Raises FileError if writing to a path would replace a file of a run or the model that is read.

    Other files of a model, such as its images, are protected when they are read; see
    :func:`tsplat.support.reading.protect_inputs`.
    """
    raise_if_not_replaceable(out)
    path = Path(os.path.realpath(out))
    source = None if model is None else Path(os.path.realpath(model))
    if source is not None and (
        any(itertools.starmap(_are_same, itertools.product(_indices(path), _indices(source))))
        or (path.name == POINT_CLOUD and source in path.parents and path.exists())
        or (path.suffix == ".png" and (source / META).exists() and path.parent == source and path.exists())
    ):
        raise FileError(f"{out}: would replace the model that is read; choose another name")
    for folder in path.parents:
        is_own = path.relative_to(folder).parts[0] in RUN_FOLDERS or (path.parent == folder and path.name in RUN_FILES)
        if is_own and (is_of_run(folder) or folder == source):
            raise FileError(f"{out}: belongs to the run {folder}; choose another name")
