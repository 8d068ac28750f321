"""Functions of gsplat that are not implemented: they have gsplat's signature and raise when called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ... import UnsupportedError


def unsupported(
    name: str, required: str, optional: Mapping[str, object] | None = None, *, instead: str
) -> Callable[..., NoReturn]:
    """Returns a function with a signature of gsplat's that raises `UnsupportedError`.

    Args:
        name: Name of the function, with which the message begins.
        required: Names of the parameters without default, separated by spaces.
        optional: Names of the other parameters, each with its default; a name that starts with ``**`` is variadic.
        instead: What to use instead; the end of the message.
    """
    message = f"{name}: not implemented; {instead}"

    def function(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(message)

    named, variadic = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_KEYWORD
    parameters = [inspect.Parameter(parameter, named) for parameter in required.split()]
    for parameter, default in (optional or {}).items():
        if parameter.startswith("**"):
            parameters.append(inspect.Parameter(parameter[2:], variadic))
        else:
            parameters.append(inspect.Parameter(parameter, named, default=default))
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Raises `UnsupportedError`: not implemented; {instead}."
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function
