"""The names of ``gsplat.scene`` of gsplat 1.6: Gaussians with additional data that strategies keep in sync."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ... import ArgumentError, ShapeError, UnsupportedError
from ...strategies.gaussian_parameters import SHAPES, Follower

__all__ = ["GaussianInferenceScene", "GaussianScene", "Scene"]


class Scene(Follower, ABC):
    """Base class of scenes: an id, named components, and empty hooks for changes by strategies.

    Args:
        id: A nonempty string.
    """

    def __init__(self, id: str) -> None:
        self.id = id

    @property
    def id(self) -> str:
        """Name of the scene on its stage."""
        return self._id

    @id.setter
    def id(self, value: str) -> None:
        if not isinstance(value, str) or not value:
            raise ArgumentError(f"id: expected a string that is not empty, found {value!r}")
        self._id = value

    @abstractmethod
    def put(self, name: str, component: Any) -> None:
        """Adds a component."""

    @abstractmethod
    def get(self, component: str) -> Any:
        """Returns a component."""

    def on_permute(self, order: Tensor) -> None:
        """Called after the Gaussians were permuted to `order` [N]."""


class GaussianScene(Scene):
    """Parameters of Gaussians in several components, and signals: additional tensors with a row per Gaussian.

    Strategies replace the entries of `splats` in place; the hooks update the component and the signals of each Gaussian
    accordingly. Hooks take indices or masks of Gaussians. Gradients of signals do not flow through changes.

    Attributes:
        splats: Parameters by name, each with N rows: means, scales, quats, opacities, and any others.
        signal: Tensors [N, ...] by name.
        component_names: Names of the components.
        component_index: [N] int64, the component of each Gaussian.
    """

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.splats = torch.nn.ParameterDict()
        self.signal: dict[str, Tensor] = {}
        self.component_names: list[str] = []
        self.component_index = torch.zeros(0, dtype=torch.long)

    @classmethod
    def from_splats(
        cls, splats: torch.nn.ParameterDict, id: str, signal: Mapping[str, Tensor] | None = None
    ) -> "GaussianScene":
        """Creates a scene with one component called `id`. The scene uses `splats` itself, not a copy.

        Raises:
            ArgumentError: See :meth:`validate`.
        """
        if "means" not in splats:
            raise ArgumentError(f"splats: expected means, found {sorted(splats)}")
        scene = cls(id)
        scene.signal = {name: value.to(splats["means"].device) for name, value in (signal or {}).items()}
        scene.put(id, splats)
        return scene

    def put(self, name: str, component: torch.nn.ParameterDict) -> None:
        """Appends a component. From the second on, this creates new parameters, so create optimizers afterwards.

        Signals of the new Gaussians are 0.

        Args:
            name: Name of the component.
            component: Parameters by name; they must include those of the scene, and others are ignored.

        Raises:
            ArgumentError: The name is empty or already used, a parameter is missing, or see :meth:`validate`.
        """
        if not name or name in self.component_names:
            raise ArgumentError(f"name: expected a new one, found {name!r} beside {self.component_names}")
        missing = sorted({"means", *self.splats} - set(component))
        if missing:
            raise ArgumentError(f"component: expected {missing}, found {sorted(component)}")
        index = len(self.component_names)
        ids = torch.full((len(component["means"]),), index, device=component["means"].device)
        if index == 0:
            self.splats, self.component_index = component, ids
        else:
            self.splats = torch.nn.ParameterDict(
                {
                    key: torch.nn.Parameter(torch.cat([value.detach(), component[key].detach()]), value.requires_grad)
                    for key, value in self.splats.items()
                }
            )
            self.component_index = torch.cat([self.component_index, ids])
            for key, value in self.signal.items():
                self.signal[key] = torch.cat([value, value.new_zeros(len(ids), *value.shape[1:])])
        self.component_names = [*self.component_names, name]
        self.validate()

    def validate(self) -> None:
        """Checks the scene; waits for the device.

        Raises:
            ArgumentError: A parameter is missing, numbers of rows differ, or a component is unknown.
        """
        missing = [name for name in SHAPES if name not in self.splats]
        if self.splats and missing:
            raise ArgumentError(f"splats: expected {missing}, found {sorted(self.splats)}")
        n, n_components = self.num_gaussians(), len(self.component_names)
        tensors = {**self.splats, **self.signal, "component_index": self.component_index}
        for name, value in tensors.items():
            if not value.dim() or len(value) != n:
                raise ShapeError(f"{name}: expected {n} rows as means, found {list(value.shape)}")
        if n and not 0 <= int(self.component_index.min()) <= int(self.component_index.max()) < n_components:
            raise ArgumentError(f"component_index: expected indices from 0 to {n_components - 1}")

    def num_gaussians(self) -> int:
        """Returns the number of Gaussians N."""
        return len(self.splats["means"]) if "means" in self.splats else 0

    def get(self, component: str | int) -> dict[str, Any]:
        """Returns a component, by name or index: its name, index, mask [N], splats and signal.

        Raises:
            KeyError: There is no such component.
        """
        names = self.component_names
        index = component if isinstance(component, int) else names.index(component) if component in names else -1
        if not 0 <= index < len(names):
            raise KeyError(f"component: expected an index or one of {names}, found {component!r}")
        mask = self.component_index == index
        return {
            "name": names[index],
            "index": index,
            "mask": mask,
            "splats": {name: value[mask] for name, value in self.splats.items()},
            "signal": {name: value[mask] for name, value in self.signal.items()},
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for :meth:`from_state_dict`. Signals are copies, parameters are not."""
        return {
            "id": self.id,
            "splats": self.splats.state_dict(),
            "splats_requires_grad": {name: value.requires_grad for name, value in self.splats.items()},
            "signal": {name: value.detach().clone() for name, value in self.signal.items()},
            "component_names": list(self.component_names),
            "component_index": self.component_index.clone(),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> "GaussianScene":
        """Creates a scene from a :meth:`state_dict`; only `id` and `splats` are required.

        Raises:
            KeyError: An entry is missing.
            ArgumentError: See :meth:`validate`.
        """
        scene = cls(state["id"])
        trainable = state.get("splats_requires_grad", {})
        for name, value in state["splats"].items():
            scene.splats[name] = torch.nn.Parameter(value.clone(), trainable.get(name, True))
        scene.signal = dict(state.get("signal", {}))
        scene.component_names = list(state.get("component_names", ())) or [scene.id] * bool(scene.splats)
        device = scene.splats["means"].device if "means" in scene.splats else None
        ids = state.get("component_index")
        ids = torch.zeros(scene.num_gaussians(), dtype=torch.long) if ids is None else ids
        scene.component_index = ids.to(device)
        scene.validate()
        return scene

    def _follow(self, change: Callable[[Tensor], Tensor]) -> None:
        signal = {name: change(value) for name, value in self.signal.items()}
        self.component_index = change(self.component_index)
        self.signal.update(signal)

    def on_duplicate(self, sel: Tensor) -> None:
        self._follow(lambda rows: torch.cat([rows, rows[sel]]))

    def on_split(self, sel: Tensor, rest: Tensor) -> None:
        order = torch.cat([_indices(selected) for selected in (rest, sel, sel)])
        self._follow(lambda rows: rows[order])

    def on_remove(self, remove_mask: Tensor) -> None:
        self._follow(lambda rows: rows[~remove_mask])

    def on_relocate(self, dead_indices: Tensor, sampled_indices: Tensor) -> None:
        dead = _indices(dead_indices)
        self._follow(lambda rows: rows.index_copy(0, dead, rows[sampled_indices]))

    def on_sample_add(self, sampled_indices: Tensor) -> None:
        self.on_duplicate(sampled_indices)

    def on_permute(self, order: Tensor) -> None:
        self._follow(lambda rows: rows[order])


def _indices(selected: Tensor) -> Tensor:
    """Converts a selection of Gaussians, indices [k] or a mask [N] bool, to indices."""
    return selected.nonzero().squeeze(1) if selected.dtype == torch.bool else selected


class GaussianInferenceScene:
    """Raises `UnsupportedError` when constructed: use :class:`GaussianScene`, with rasterization."""

    def __init__(self, id: str) -> None:
        raise UnsupportedError("GaussianInferenceScene: not implemented; use GaussianScene, with rasterization")

    @classmethod
    def from_gaussian_scene(
        cls, scene: GaussianScene, id: str | None = None, sh_compression: str = "none"
    ) -> "GaussianInferenceScene":
        """Raises `UnsupportedError`: use :class:`GaussianScene`, with rasterization."""
        raise UnsupportedError("from_gaussian_scene: not implemented; use GaussianScene, with rasterization")
