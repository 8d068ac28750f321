"""Functions that torch.compile calls but does not trace."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def eager(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Excludes a function, and all that it calls, from ``torch.compile``: a graph break instead of dozens of graphs.

    ``torch.compiler.disable`` imports ``torch._dynamo``, which takes seconds, so it is applied once something else has
    imported that: nothing is compiled before.
    """
    disabled: list[Callable[Parameters, Result]] = []

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
        return disabled[0](*args, **kwargs)

    return run
