"""Bundles of tensors as the flat tensors that autograd takes, and back.

A bundle is a NamedTuple, or a plain tuple, of tensors, None, bundles and other values. Nothing depends on the order of
its fields, so that a field can be added in one place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor


def flatten(bundle: tuple[Any, ...]) -> list[Tensor | None]:
    """Returns the tensors of a bundle, field by field, and None for each field that is None."""
    flat: list[Tensor | None] = []
    for value in bundle:
        if value is None or isinstance(value, Tensor):
            flat.append(value)
        elif isinstance(value, tuple):
            flat += flatten(value)
    return flat


def structure(bundle: Any) -> Any:
    """Returns a bundle with None in place of its tensors; see :func:`restore`."""
    values = [
        None if value is None or isinstance(value, Tensor) else structure(value) if isinstance(value, tuple) else value
        for value in bundle
    ]
    return tuple.__new__(type(bundle), values)


def restore(like: Any, flat: Iterable[Any]) -> Any:
    """Returns the bundle of a :func:`structure`, with the values of a flat bundle in place of None."""
    rest = iter(flat)
    values = [
        next(rest) if value is None else restore(value, rest) if isinstance(value, tuple) else value for value in like
    ]
    return tuple.__new__(type(like), values)
