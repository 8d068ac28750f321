"""The photographs of a run, read when they are needed."""

from collections.abc import Callable
from pathlib import Path

from ...errors import ArgumentError
from ...scene.capture.views import View
from .run_checkpoints import read_newest_settings
from .scene_record import locate_scene, read_scene

ReadViews = Callable[[], dict[str, View]]


def find_photographs(run: Path, scene: str | None, warn: Callable[[str], object]) -> ReadViews | None:
    """Returns what reads the training and held-out views of a run, by name; None if its scene is not on disk.

    `scene` is where it is, if it is found neither at its absolute path nor at its path relative to the run. `warn` is
    called if it is not found. Raises FileError if there is nothing at `scene`.
    """
    try:
        path, config, figures = read_newest_settings(run)
        config = locate_scene(config, figures.get("scene", {}), path.parent.parent, scene)
    except ArgumentError as error:
        if scene is not None:
            raise
        warn(f"{run}: shown without its photographs: {error}")
        return None
    if not config.scene:
        return None

    def read() -> dict[str, View]:
        capture = read_scene(config)
        return {view.name: view for view in (*capture.train, *capture.test)}

    return read
