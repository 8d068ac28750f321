"""The name of ``gsplat.stage`` of gsplat 1.6: scenes with their render functions."""

from collections.abc import Callable
from typing import Any

from ... import ArgumentError
from .scene import GaussianScene

__all__ = ["Stage"]


class Stage:
    """A collection of scenes by id, each with a render function."""

    def __init__(self) -> None:
        self._scenes: dict[str, tuple[GaussianScene, Callable[..., Any]]] = {}

    def add_scene(self, scene: GaussianScene, render_fn: Callable[..., Any]) -> None:
        """Adds a scene and its render function. Raises ArgumentError if a scene with the same id exists."""
        if scene.id in self._scenes:
            raise ArgumentError(f"scene: {scene.id!r} is already registered; expected an id beside {self.scene_ids()}")
        self._scenes[scene.id] = (scene, render_fn)

    def scene_ids(self) -> list[str]:
        """Returns the ids of the scenes, in the order they were added."""
        return list(self._scenes)

    def get_scene(self, scene_id: str) -> GaussianScene:
        """Returns a scene. Raises KeyError if there is none with this id."""
        return self._entry(scene_id)[0]

    def render(self, scene_id: str, **kwargs: Any) -> Any:
        """Calls the render function of a scene with ``splats=scene.splats`` and the other arguments, and returns its
        result.

        Raises:
            KeyError: There is no scene with this id.
        """
        scene, render_fn = self._entry(scene_id)
        return render_fn(splats=scene.splats, **kwargs)

    def _entry(self, scene_id: str) -> tuple[GaussianScene, Callable[..., Any]]:
        if scene_id not in self._scenes:
            raise KeyError(f"scene_id: {scene_id!r} is not registered; expected one of {self.scene_ids()}")
        return self._scenes[scene_id]
