"""The shared library of a driver, by ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

ADDRESS = ctypes.c_void_p

Launch = Callable[[], int]
"""Launches a kernel. The grid, the stream and the arguments are read from memory. Returns the driver's error, or 0.

The memory begins with a *head*, which the driver class creates once per kernel. The head begins with the grid, three
numbers of 4 bytes each. The stream, 8 bytes, is at offset ``STREAM`` of the driver class."""


class DriverError(RuntimeError):
    """A kernel cannot be compiled for a GPU, loaded or launched. The message advises what to do."""


class Library:
    """A shared library, opened from the first path that exists.

    Functions release the GIL, except ``quick`` ones: a launch takes one microsecond, while another thread that gets the
    GIL may hold it for 5,000.
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
        """Returns a function of the library. If ``types`` is None, arguments are ctypes objects or 32-bit integers.

        Raises:
            DriverError: The library is too old to have the function.
        """
        try:
            function = getattr(self._quick if quick else self._slow, name)
        except AttributeError:
            raise DriverError(f"{self.path} has no function {name}, so the driver is too old; {self._advice}") from None
        function.argtypes, function.restype = types, result
        return function
