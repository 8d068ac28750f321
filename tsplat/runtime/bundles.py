"""Flattens bundles to lists of tensors, as autograd functions take them, and restores bundles from these.

A bundle is a NamedTuple or tuple of tensors, None, bundles and other values. The functions loop over all fields, so a
new field requires no change. A tree is nested tuples, lists and dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    """Returns a bundle with tensors replaced by None; see :func:`restore`."""
    return split(bundle)[0]


def split(bundle: Any) -> tuple[Any, list[Tensor | None]]:
    """Returns the results of :func:`structure` and :func:`flatten`."""
    flat: list[Tensor | None] = []
    return _split(bundle, flat), flat


def _split(bundle: Any, flat: list[Tensor | None]) -> Any:
    """Returns the structure of a bundle, and appends its tensors. Not a closure, which would keep them alive."""
    values = []
    for value in bundle:
        if value is None or isinstance(value, Tensor):
            flat.append(value)
            value = None
        elif isinstance(value, tuple):
            value = _split(value, flat)
        values.append(value)
    return tuple.__new__(type(bundle), values)


def restore(like: Any, flat: Iterable[Any]) -> Any:
    """Returns a :func:`structure` with None replaced by the values of a flat bundle, in their order."""
    rest = iter(flat)
    values = [
        next(rest) if value is None else restore(value, rest) if isinstance(value, tuple) else value for value in like
    ]
    return tuple.__new__(type(like), values)


def map_tree(tree: Any, leaf_type: type[Any], function: Callable[[Any], Any]) -> Any:
    """Applies a function to each value of a type in a tree. Returns the new tree."""
    if isinstance(tree, leaf_type):
        return function(tree)
    if isinstance(tree, dict):
        return {name: map_tree(value, leaf_type, function) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        cls: Any = type(tree)
        values = [map_tree(value, leaf_type, function) for value in tree]
        return tuple.__new__(cls, values) if hasattr(cls, "_fields") else cls(values)
    return tree


def leaves(tree: Any, leaf_type: type[Any]) -> list[Any]:
    """Returns the values of a type in a tree."""
    if isinstance(tree, leaf_type):
        return [tree]
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [leaf for value in values for leaf in leaves(value, leaf_type)]
