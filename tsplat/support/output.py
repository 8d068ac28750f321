"""Standard output and standard error that stay usable when nothing can be written to them any more."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Any

GONE = (errno.EPIPE, errno.EIO)
"""Error numbers of a write to a pipe or a terminal that the other side has closed."""

FULL = tuple(getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name))
"""Error numbers of a full disk, an exhausted quota, and a file larger than allowed."""


class _Output(io.FileIO):
    """Standard output or standard error.

    Attributes:
        discards: Error numbers after which all text is discarded.
    """

    discards = GONE

    def write(self, data: Any, /) -> int:
        """Writes data, and discards it and all that follows once writing fails with one of the errors."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in self.discards:
                raise
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return super().write(data)


def protect_output(*, full_disk: bool = False) -> None:
    """Makes ``sys.stdout`` and ``sys.stderr`` accept any text for as long as the process runs.

    Work continues, and is saved, after the reader of a pipe such as ``tsplat train ... | head`` ends or the terminal is
    closed. Characters that the encoding does not have, such as in names of files, are written as escapes.

    Args:
        full_disk: Continue as well after the disk of a log file is full. Otherwise that is an error, because the output
            of a command such as ``tsplat info --json`` is its result.
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
        raw = getattr(getattr(getattr(sys, name), "buffer", None), "raw", None)
        if full_disk and isinstance(raw, _Output):
            raw.discards = (*GONE, *FULL)
