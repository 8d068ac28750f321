"""The photographs of a run, read when they are needed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import ArgumentError
from ...scene.capture.views import View
from ...scene.formats.checkpoints import MANIFEST, checkpoint_errors, read_manifest, read_newest_valid
from ..configuration import RunConfig, from_json
from .scene_record import locate_scene, read_scene

ReadViews = Callable[[], dict[str, View]]


def find_photographs(run: Path, scene: str | None, warn: Callable[[str], object]) -> ReadViews | None:
    """Returns what reads the training and held-out views of a run, by name; None if its scene is not on disk.

    `scene` is where it is, if it is found neither at its absolute path nor at its path relative to the run. `warn` is
    called if it is not found. Raises FileError if there is nothing at `scene`.
    """
    try:
        path, (config, figures), _ = read_newest_valid(run, _read)
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


def _read(path: Path) -> tuple[RunConfig, dict[str, Any]]:
    """Configuration and figures of a checkpoint."""
    with checkpoint_errors(path):
        manifest = read_manifest(path)
        return from_json(manifest["config"], str(path / MANIFEST)), dict(manifest["figures"])
