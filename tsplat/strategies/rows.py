"""Replaces the rows of parameters, of the states of their optimizers, and of a strategy's statistics."""

import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ..support.interruption import DeferredSignals
from .gaussian_parameters import Optimizers, Parameters, State, check_optimizers, has_rows


@torch.no_grad()
def _update_param_with_optimizer(
    param_fn: Callable[[str, Tensor], Tensor],
    optimizer_fn: Callable[[str, Tensor], Tensor],
    params: Parameters,
    optimizers: Optimizers,
    names: Iterable[str] | None = None,
) -> None:
    """Replaces parameters, all or those named, and the states of their optimizers.

    Args:
        param_fn: Maps the name and the old value of a parameter to its new value. Tensors that are not parameters
            become parameters, which require a gradient if the old one does.
        optimizer_fn: Does the same for the tensors of an optimizer, except "step" and scalars.
    """
    names = tuple(params) if names is None else tuple(names)
    check_optimizers(params, optimizers, names)
    # All new tensors are made before any is replaced, so that an error changes nothing.
    successors = {}
    for name in names:
        old = params[name]
        new = param_fn(name, old)
        if not isinstance(new, torch.nn.Parameter):
            new = torch.nn.Parameter(new.contiguous(), requires_grad=old.requires_grad)
        entries = optimizers[name].state.get(old, {}) if name in optimizers else {}
        successors[name] = (
            new,
            {key: optimizer_fn(key, value) if has_rows(key, value) else value for key, value in entries.items()},
        )
    with DeferredSignals():
        for name, (new, entries) in successors.items():
            if name in optimizers:
                optimizers[name].state.pop(params[name], None)
                if entries:
                    optimizers[name].state[new] = entries
                optimizers[name].param_groups[0]["params"] = [new]
            params[name] = new


def replace_rows(
    params: Parameters,
    optimizers: Optimizers,
    state: State,
    n: int,
    param_fn: Callable[[str, Tensor], Tensor],
    moment_fn: Callable[[Tensor], Tensor],
    state_fn: Callable[[Tensor], Tensor],
) -> None:
    """Replaces parameters, moments and statistics of n Gaussians: all of them, or none if a function raises."""
    # The table of binomial coefficients may happen to have n rows.
    rows = {
        key: state_fn(value)
        for key, value in state.items()
        if key != "binoms" and isinstance(value, Tensor) and value.dim() and len(value) == n
    }
    with DeferredSignals():
        _update_param_with_optimizer(param_fn, lambda _, moment: moment_fn(moment), params, optimizers)
        state.update(rows)


def append_zeros(n: int) -> Callable[[Tensor], Tensor]:
    """Returns a function that appends n rows of zeros, and does not copy if there are none."""
    return lambda rows: torch.cat([rows, rows.new_zeros(n, *rows.shape[1:])]) if n else rows


@torch.no_grad()
def enlarge(params: Parameters, optimizers: Optimizers, n: int) -> Callable[[Tensor], Tensor]:
    """Moves parameters and their moments to storages with room for n more rows, one tensor after the other.

    Returns the function that appends n rows of zeros to one of these tensors without a copy, and to others with one.
    Replacing rows after this needs no second copy of all tensors. An error leaves all values and shapes as they were.
    """
    enlarged: set[int] = set()
    append = append_zeros(n)

    def with_room(rows: Tensor) -> Tensor:
        longer = append(rows)
        enlarged.add(longer.untyped_storage()._cdata)
        return longer[: len(rows)]

    for name in params if n else ():
        entries = optimizers[name].state.get(params[name], {}) if name in optimizers else {}
        for key in [key for key, value in entries.items() if has_rows(key, value)]:
            entries[key] = with_room(entries[key])
        _update_param_with_optimizer(
            lambda _, p: with_room(p.detach()), lambda _, moment: moment, params, optimizers, [name]
        )

    def append_in_place(rows: Tensor) -> Tensor:
        if rows.untyped_storage()._cdata not in enlarged:
            return append(rows)
        return rows.as_strided((len(rows) + n, *rows.shape[1:]), rows.stride())

    return append_in_place


def follow_replaced(params: Parameters, optimizers: Optimizers) -> None:
    """Makes optimizers update the current parameters if theirs were replaced, and warns.

    Programs that load a model of another size, as nerfstudio does, replace parameters after they made optimizers.
    Moments are kept if they have the shape of the new parameter.
    """
    current = {id(parameter) for parameter in params.values()}
    replaced = []
    for name, parameter in params.items():
        groups = optimizers[name].param_groups if name in optimizers else []
        if len(groups) != 1 or len(groups[0]["params"]) != 1 or id(groups[0]["params"][0]) in current:
            continue
        states = optimizers[name].state
        entries = states.pop(groups[0]["params"][0], {})
        if all(value.shape == parameter.shape for key, value in entries.items() if has_rows(key, value)):
            states.update({parameter: entries} if entries else {})
        groups[0]["params"] = [parameter]
        replaced.append(f"{name} ({'its moments kept' if states else 'without moments'})")
    if replaced:
        warnings.warn(
            f"optimizers: those of {', '.join(replaced)} had other parameters, as after loading a model of another "
            "size; they train the current ones from now on",
            stacklevel=3,
        )
