"""A driver's shared library by ctypes: its functions, and errors in words."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

ADDRESS = ctypes.c_void_p

Launch = Callable[[], int]
"""Launches a kernel with a grid, a stream and arguments that lie in memory. Returns the driver's error, 0 for none.

The memory begins with a *head*, which the driver makes for all launches of a kernel. It begins with the numbers of
programs along the three axes of the grid, 4 bytes each, and has the stream, 8 bytes, at the driver's ``STREAM``."""


class DriverError(RuntimeError):
    """A kernel cannot be compiled for a GPU, loaded or launched. The message says what to do."""


class Library:
    """A shared library that is opened by the first of some paths that exists.

    Functions that may take long release Python's lock; ``quick`` ones keep it, as a launch takes a microsecond, and
    another thread that got the lock keeps it for 5,000.
    """

    def __init__(self, paths: Sequence[str], advice: str) -> None:
        failures = []
        for path in paths:
            try:
                self._slow, self._quick = ctypes.CDLL(path), ctypes.PyDLL(path)
            except OSError as error:
                failures.append(str(error))
            else:
                self.path, self._advice = path, advice
                return
        raise DriverError(f"the driver's library cannot be loaded ({'; '.join(failures)}); {advice}")

    def function(
        self, name: str, types: Sequence[Any] | None, *, quick: bool = False, result: Any = ctypes.c_int
    ) -> Any:
        """Returns a function. Without types, arguments are ctypes' objects, or integers of 32 bits.

        Raises:
            DriverError: The library has no such function, as it is too old.
        """
        try:
            found = getattr(self._quick if quick else self._slow, name)
        except AttributeError:
            raise DriverError(f"{self.path} has no function {name}, so the driver is too old; {self._advice}") from None
        found.argtypes, found.restype = types, result
        return found
