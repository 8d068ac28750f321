"""Parameters that are left out of `make quick`."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_after(n: int, values: Iterable[Any]) -> list[Any]:
    """Marks all parameters except the first n as slow, because they repeat the same checks. Tuples are several
    parameters."""
    return [
        value if i < n else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for i, value in enumerate(values)
    ]
