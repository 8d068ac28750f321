"""Replaces rows of parameters, of optimizer states, and of a strategy's statistics."""

import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ..runtime.spare_rows import n_rows_max, spare_rows
from ..support.free_memory import trim_heap
from ..support.interruption import DeferredSignals
from .gaussian_parameters import Optimizers, Parameters, State, check_optimizers, has_rows

BLOCK = 2**16
"""Number of rows that :func:`keep_rows` moves at a time within a tensor."""


@torch.no_grad()
def _update_param_with_optimizer(
    param_fn: Callable[[str, Tensor], Tensor],
    optimizer_fn: Callable[[str, Tensor], Tensor],
    params: Parameters,
    optimizers: Optimizers,
    names: Iterable[str] | None = None,
) -> None:
    """Replaces the parameters `names`, or all, and the states of their optimizers.

    Args:
        param_fn: Maps the name and the old value of a parameter to its new value. A plain tensor becomes a parameter,
            which requires a gradient if the old one does.
        optimizer_fn: Maps the tensors of an optimizer's state likewise, except "step" and scalars.
    """
    names = tuple(params) if names is None else tuple(names)
    check_optimizers(params, optimizers, names)
    # All new tensors are computed before any is replaced, so that an error changes nothing.
    successors = {}
    for name in names:
        old = params[name]
        new = param_fn(name, old)
        if not isinstance(new, torch.nn.Parameter):
            new = torch.nn.Parameter(new.contiguous(), requires_grad=old.requires_grad)
        state = optimizers[name].state.get(old, {}) if name in optimizers else {}
        entries = {key: optimizer_fn(key, value) if has_rows(key, value) else value for key, value in state.items()}
        successors[name] = new, entries
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
    """Replaces the parameters, moments and statistics of n Gaussians; if a function raises, nothing is changed."""
    # The table of binomial coefficients may happen to have n rows.
    rows = {
        key: state_fn(value)
        for key, value in state.items()
        if key != "binoms" and isinstance(value, Tensor) and value.dim() and len(value) == n
    }
    with DeferredSignals():
        _update_param_with_optimizer(param_fn, lambda _, moment: moment_fn(moment), params, optimizers)
        state.update(rows)


@torch.no_grad()
def replace_one_by_one(params: Parameters, optimizers: Optimizers, function: Callable[[Tensor], Tensor]) -> None:
    """Replaces parameters and their moments by what a function returns for each, one tensor after the other.

    Needs the memory of one successor at a time. If the function raises, earlier tensors have been replaced.
    """
    for name in tuple(params):
        _update_param_with_optimizer(
            lambda _, p: function(p.detach()), lambda _, moment: moment, params, optimizers, [name]
        )
        entries = optimizers[name].state.get(params[name], {}) if name in optimizers else {}
        for key in [key for key, value in entries.items() if has_rows(key, value)]:
            entries[key] = function(entries[key])


def append_zeros(n: int) -> Callable[[Tensor], Tensor]:
    """Returns a function that appends n rows of zeros; for n = 0, it returns its argument."""
    return lambda rows: torch.cat([rows, rows.new_zeros(n, *rows.shape[1:])]) if n else rows


@torch.no_grad()
def enlarge(params: Parameters, optimizers: Optimizers, n: int) -> Callable[[Tensor], Tensor]:
    """Moves parameters and their moments to storages that hold n more rows, one tensor at a time.

    Tensors that have as many spare rows are not moved. Returns a function that appends n rows of zeros, without a copy.
    Replacing rows afterwards does not require a second copy of all tensors in memory. If an error occurs, values and
    shapes are unchanged.
    """
    enlarged: set[int] = set()
    append = append_zeros(n)

    def moved(rows: Tensor) -> Tensor:
        if n_rows_max(rows) >= len(rows) + n:
            spare_rows(rows, n).zero_()
            enlarged.add(rows.untyped_storage()._cdata)
            return rows
        longer = append(rows)
        enlarged.add(longer.untyped_storage()._cdata)
        return longer[: len(rows)]

    if n:
        trim_heap()
        replace_one_by_one(params, optimizers, moved)

    def append_in_place(rows: Tensor) -> Tensor:
        if rows.untyped_storage()._cdata not in enlarged:
            return append(rows)
        return rows.as_strided((len(rows) + n, *rows.shape[1:]), rows.stride())

    return append_in_place


@torch.no_grad()
def _compaction(params: Parameters, optimizers: Optimizers, kept: Tensor) -> Callable[[Tensor], Tensor]:
    """Returns a function that moves the rows `kept`, [M] int64, ascending, to the front of a parameter or a moment.

    The function returns a view of these rows, and allocates no memory.
    """
    is_moved = kept != torch.arange(len(kept), device=kept.device)
    first = len(kept) - int(is_moved.sum())  # rows before the first that is not kept stay
    blocks = torch.split(kept[first:], BLOCK)
    buffers = {
        _kind_of(rows): rows.new_empty(min(BLOCK, len(kept) - first), *rows.shape[1:])
        for name in params
        for rows in _with_moments(params, optimizers, name)
    }

    def compacted(rows: Tensor) -> Tensor:
        begin = first
        for block in blocks:
            buffer = torch.index_select(rows, 0, block, out=buffers[_kind_of(rows)][: len(block)])
            rows[begin : begin + len(block)] = buffer
            begin += len(block)
        return rows[: len(kept)]

    return compacted


@torch.no_grad()
def keep_rows(params: Parameters, optimizers: Optimizers, state: State, kept: Tensor) -> None:
    """Keeps the rows `kept`, [M] int64, ascending, of parameters, moments and statistics; replaces one after the other.

    If there is no memory for a successor, its rows are moved within the tensor. What this needs is allocated first, so
    that an error changes nothing.
    """
    n = len(next(iter(params.values())))
    compacted = _compaction(params, optimizers, kept)

    def selected(rows: Tensor) -> Tensor:
        try:
            return rows.index_select(0, kept)
        except (RuntimeError, MemoryError):
            return compacted(rows)

    statistics = dict(state)
    replace_rows({}, {}, statistics, n, lambda _, p: p, lambda moment: moment, lambda rows: rows.index_select(0, kept))
    with DeferredSignals():
        replace_one_by_one(params, optimizers, selected)
        state.update(statistics)


def _with_moments(params: Parameters, optimizers: Optimizers, name: str) -> list[Tensor]:
    """Returns a parameter and its moments."""
    entries = optimizers[name].state.get(params[name], {}) if name in optimizers else {}
    return [params[name], *[value for key, value in entries.items() if has_rows(key, value)]]


def _kind_of(rows: Tensor) -> tuple[torch.Size, torch.dtype]:
    return rows.shape[1:], rows.dtype


def follow_replaced(params: Parameters, optimizers: Optimizers) -> None:
    """Replaces the parameters of optimizers by the current ones if they differ, with a warning.

    Programs that load a model of another size, such as nerfstudio, replace parameters after they have made optimizers.
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
            f"optimizers: those of {', '.join(replaced)} had parameters that were replaced, as by loading a model of "
            "another size; they update the current parameters from now on",
            stacklevel=3,
        )
