"""Checks of the parameters of Gaussians and their optimizers, before a strategy changes them."""

import math
from collections.abc import Iterable, MutableMapping
from typing import Any, Protocol

import torch
from torch import Tensor

from ..arguments import BOOLS, check_tensor, plain
from ..errors import ArgumentError, DeviceError, ShapeError

Parameters = MutableMapping[str, Any]
Optimizers = MutableMapping[str, torch.optim.Optimizer]
State = dict[str, Any]


class Follower(Protocol):
    """Interface of data with a row per Gaussian, like `Scene` of gsplat 1.6: operations call a hook after each change.

    Indices are [k] int64, on the device of the Gaussians, and refer to the Gaussians before the change.
    """

    def on_duplicate(self, sel: Tensor) -> None:
        """Copies of the Gaussians `sel` were appended."""

    def on_split(self, sel: Tensor, rest: Tensor) -> None:
        """The Gaussians are now `rest`, followed by the first and then the second halves of `sel`."""

    def on_remove(self, remove_mask: Tensor) -> None:
        """The Gaussians in a mask [N] bool were removed."""

    def on_relocate(self, dead_indices: Tensor, sampled_indices: Tensor) -> None:
        """The Gaussians `dead_indices` are now copies of `sampled_indices`, in this order."""

    def on_sample_add(self, sampled_indices: Tensor) -> None:
        """Copies of the Gaussians `sampled_indices` were appended."""


SHAPES: dict[str, list[tuple[int, ...]]] = {"means": [(3,)], "scales": [(3,)], "quats": [(4,)], "opacities": [(), (1,)]}
"""Required parameters, and the accepted shapes of their rows."""


def check_shapes(params: Parameters, names: Iterable[str] = tuple(SHAPES), n: int | None = None) -> int:
    """Checks the shapes of parameters, and returns the number of Gaussians.

    Raises `ArgumentError` if a parameter in `names` is missing, or unless all have n rows, or as many rows as the first
    one if n is None, and are on one device.
    """
    for name in names:
        if name not in params:
            raise ArgumentError(f"params: expected {name} among {sorted(params)}")
    for name, parameter in params.items():
        if not isinstance(parameter, Tensor):
            raise ArgumentError(f"params: {name}: expected a tensor, found {type(parameter).__name__}")
        plain(f"params: {name}", parameter)
        if not parameter.dim():
            raise ShapeError(f"params: {name} is a scalar; expected a row per Gaussian")
        n = len(parameter) if n is None else n
        if len(parameter) != n:
            raise ShapeError(f"params: {name} has {len(parameter)} rows; expected {n}, one per Gaussian")
        if name in names:
            check_floats(f"params: {name}", parameter, *((n, *shape) for shape in SHAPES[name]))
    if n is None:
        raise ArgumentError("params: expected at least one parameter")
    devices = {name: parameter.device for name, parameter in params.items()}
    if len(set(devices.values())) > 1:
        raise DeviceError(f"params: expected all on one device, found {devices}")
    return n


def check_floats(name: str, tensor: Tensor, *shapes: tuple[int, ...]) -> None:
    """Raises unless a tensor is strided and has a floating-point dtype and one of several shapes."""
    if tuple(tensor.shape) not in shapes:
        expected = " or ".join(str(list(shape)) for shape in shapes)
        raise ShapeError(f"{name}: expected {expected}, found {list(tensor.shape)}")
    check_tensor(name, tensor, [...], "")


def check_optimizers(params: Parameters, optimizers: Optimizers, names: Iterable[str]) -> None:
    """Raises `ArgumentError` unless each trainable parameter has an optimizer with one group, which has only this
    parameter, and with a state of this parameter, which has as many rows."""
    for name in names:
        parameter = params[name]
        if name not in optimizers:
            if parameter.requires_grad:
                raise ArgumentError(f"optimizers: expected one for {name}, found {sorted(optimizers)}")
            continue
        groups, states = optimizers[name].param_groups, optimizers[name].state
        if len(groups) != 1 or len(groups[0]["params"]) != 1 or groups[0]["params"][0] is not parameter:
            raise ArgumentError(
                f"optimizers: the one for {name} must have exactly this parameter, in one group; if the parameter was "
                "replaced after the optimizer was made, as by loading a model of another size, call "
                "`step_pre_backward` to fix this"
            )
        if states and parameter not in states:
            raise ArgumentError(
                f"optimizers: the state of the one for {name} belongs to another tensor; replace parameters and "
                "optimizer states together, by operations of tsplat.strategies"
            )
        for key, value in states.get(parameter, {}).items():
            if has_rows(key, value):
                plain(f"optimizers: {key} of {name}", value)
                if len(value) != len(parameter):
                    raise ShapeError(f"optimizers: {key} of {name} has {len(value)} rows, {name} has {len(parameter)}")
                if value.device != parameter.device:
                    raise DeviceError(f"optimizers: {key} of {name} is on {value.device}, {name} on {parameter.device}")


def check_parameters(params: Parameters, optimizers: Optimizers) -> int:
    """Checks all parameters and their optimizers, and returns the number of Gaussians."""
    n = check_shapes(params)
    check_optimizers(params, optimizers, params)
    return n


def has_rows(key: str, value: object) -> bool:
    """Returns whether an entry of an optimizer's state has a row per Gaussian: not a step count or a scalar."""
    return key != "step" and isinstance(value, Tensor) and value.dim() > 0


def check_mask(mask: Tensor) -> int:
    """Checks a mask [N] bool, and returns N."""
    return len(check_tensor("mask", mask, [None], "[N]", dtypes=BOOLS))


def check_finite(name: str, value: float) -> None:
    """Raises if a number is NaN or infinite."""
    if not math.isfinite(value):
        raise ArgumentError(f"{name}: expected a finite number, found {value}")


def check_opacity(name: str, value: float) -> None:
    """Raises `ArgumentError` unless an opacity is above 0 and below 1."""
    if not 0 < value < 1:
        raise ArgumentError(f"{name}: expected an opacity above 0 and below 1, found {value}")


def check_min_opacity(value: float) -> None:
    """Raises `ArgumentError` unless a minimum opacity is at least 0 and below 1."""
    if not 0 <= value < 1:
        raise ArgumentError(f"min_opacity: expected at least 0 and less than 1, found {value}")


def opacities_of(params: Parameters) -> Tensor:
    """Returns the opacities after sigmoid, without gradient. [N]"""
    opacities: Tensor = params["opacities"].detach().flatten().sigmoid()
    return opacities
