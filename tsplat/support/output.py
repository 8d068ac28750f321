"""Standard output and standard error that stay usable when nobody reads them any more."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Any

GONE = (errno.EPIPE, errno.EIO)
"""Errors of a write to a pipe or a terminal that the other side has closed."""


class _Output(io.FileIO):
    def write(self, data: Any, /) -> int:
        """Writes data, and discards it and all that follows once the reader is gone."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in GONE:
                raise
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return super().write(data)


def protect_output() -> None:
    """Makes ``sys.stdout`` and ``sys.stderr`` accept any text for as long as the process runs.

    Work continues, and is saved, after the reader of a pipe such as ``tsplat train ... | head`` ends or the terminal is
    closed. Characters that the encoding does not have, such as in names of files, are written as escapes.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # Subclasses belong to programs that capture output.
        if type(stream) is io.TextIOWrapper and not isinstance(getattr(stream.buffer, "raw", None), _Output):
            with contextlib.suppress(OSError):
                stream.flush()
                output = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
                wrapper = io.TextIOWrapper(
                    output, stream.encoding, "backslashreplace",
                    line_buffering=stream.line_buffering, write_through=stream.write_through,
                )  # fmt: skip
                setattr(sys, name, wrapper)
        elif isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):
                stream.reconfigure(errors="backslashreplace")
