"""The photographs of a run, read when they are needed."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ...errors import ArgumentError
from ...scene.capture.local_frame import LocalFrame
from ...scene.capture.views import View
from .run_checkpoints import read_newest_settings
from .scene_record import locate_scene, read_scene, recorded_frame

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
        capture = read_scene(config, frame=recorded_frame(figures, path))
        return views_of_model(capture.train, capture.test, capture.frame)

    return read


def views_of_model(train: Sequence[View], test: Sequence[View], frame: LocalFrame) -> dict[str, View]:
    """Returns views in a local frame, by name, with their cameras in the frame of the model."""
    return {view.name: view.replaced(camera=frame.camera_of_model(view.camera)) for view in (*train, *test)}
