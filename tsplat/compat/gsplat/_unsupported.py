"""Functions and classes of gsplat that are not implemented: they have gsplat's signature and raise when called."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ... import UnsupportedError


def unsupported(
    name: str, required: str, optional: Mapping[str, object] | None = None, *, instead: str
) -> Callable[..., NoReturn]:
    """Returns a function with a signature of gsplat's that raises `UnsupportedError` and says what to use instead.

    Its parameters are those `required`, separated by spaces, and those that are `optional`, with their defaults.
    """
    message = f"{name}: not implemented; {instead}"

    def function(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(message)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Raises `UnsupportedError`: not implemented; {instead}."
    function.__signature__ = _signature(required, optional or {})  # type: ignore[attr-defined]
    return function


def unsupported_class(
    name: str,
    required: str,
    optional: Mapping[str, object] | None = None,
    *,
    instead: str,
    base: type | None = None,
    keyword_only: bool = False,
) -> type[Any]:
    """Returns a class whose constructor has a signature of gsplat's and raises as :func:`unsupported`."""
    message = f"{name}: not implemented; {instead}"

    def initialize(self: object, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(message)

    return type(
        name,
        (base or object,),
        {
            "__doc__": f"Raises `UnsupportedError` when constructed: not implemented; {instead}.",
            "__init__": initialize,
            "__signature__": _signature(required, optional or {}, keyword_only=keyword_only),
        },
    )


def _signature(required: str, optional: Mapping[str, object], *, keyword_only: bool = False) -> inspect.Signature:
    named = inspect.Parameter.KEYWORD_ONLY if keyword_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(parameter, named) for parameter in required.split()]
    parameters += [inspect.Parameter(parameter, named, default=default) for parameter, default in optional.items()]
    return inspect.Signature(parameters)
