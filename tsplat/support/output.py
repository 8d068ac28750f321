"""Standard output and standard error that stay usable when writing to them fails."""

import contextlib
import errno
import io
import os
import sys
from typing import Any

CLOSED_ERRORS = (errno.EPIPE, errno.EIO)
"""Error numbers of a write to a pipe or a terminal that the other side has closed."""

FULL = tuple(getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name))
"""Error numbers of a full disk, an exhausted quota, and a file larger than allowed."""


class _Output(io.FileIO):
    """Standard output or standard error. If `continues`, a full disk gives a warning instead of an error."""

    continues = False

    def write(self, data: Any, /) -> int:
        """Writes data. After a write has failed, this and all later data are discarded.

        A closed pipe is ignored, a full disk with `continues` gives a warning, and other errors are raised.
        """
        try:
            return super().write(data)
        except OSError as error:
            # Redirect to /dev/null, so that flushing at exit cannot fail.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            if error.errno in CLOSED_ERRORS or self.fileno() == 2:
                return len(data)
            if not (self.continues and error.errno in FULL):
                raise OSError(error.errno, error.strerror, "standard output") from None
            sys.stderr.write(f"tsplat: standard output: {error.strerror}; what follows is not shown\n")
            return len(data)


def protect_output(*, full_disk: bool = False) -> None:
    """Makes ``sys.stdout`` and ``sys.stderr`` accept any text as long as the process runs.

    Work continues after the reader of a pipe such as ``tsplat train ... | head`` ends or the terminal is closed.
    Characters that the encoding cannot represent are written as escapes. If `full_disk`, work also continues after the
    disk of a log file is full, with a warning; otherwise this is an error, as output may be the result of a command.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The stream was closed, as by `>&-`. This occupies its descriptor, so that no file gets it later.
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), mode, closefd=False))  # noqa: SIM115
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        raw = getattr(getattr(stream, "buffer", None), "raw", None)
        if isinstance(raw, _Output):
            raw.continues |= full_disk
        # Subclasses of TextIOWrapper belong to programs that capture output.
        elif type(stream) is io.TextIOWrapper:
            with contextlib.suppress(OSError):
                stream.flush()
                output = _Output(stream.fileno(), "w", closefd=False)
                output.continues = full_disk
                wrapper = io.TextIOWrapper(
                    io.BufferedWriter(output), stream.encoding, "backslashreplace",
                    line_buffering=stream.line_buffering, write_through=stream.write_through,
                )  # fmt: skip
                setattr(sys, name, wrapper)
        elif isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):
                stream.reconfigure(errors="backslashreplace")


class WarningsOnly(io.TextIOBase):
    """Standard output of a quiet command: writes lines that start with "warning:" to standard error, drops others."""

    def __init__(self) -> None:
        super().__init__()
        self._line = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            if line.startswith("warning:"):
                print(line, file=sys.stderr, flush=True)
        return len(text)
