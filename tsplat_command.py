"""The command `tsplat`: a module outside of the package, as importing that takes seconds, which a signal can end."""

import contextlib
import os
import signal
import sys
from importlib import metadata
from types import FrameType
from typing import NoReturn


def main() -> int:
    """Runs :func:`tsplat.cli.main`; SIGINT and SIGTERM end its imports with one line and 128 plus their number."""
    if sys.argv[1:] == ["--version"]:
        with contextlib.suppress(metadata.PackageNotFoundError):  # a clone that is not installed
            print("tsplat", metadata.version("tsplat"))
            return 0
    handled = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]
    previous = {signum: signal.signal(signum, _exit) for signum in handled}
    from tsplat.cli import main as run

    for signum, handler in previous.items():
        signal.signal(signum, handler)
    return run()


def _exit(signum: int, _frame: FrameType | None) -> NoReturn:
    # Not an exception, which modules that are being imported may catch or wrap.
    message = "interrupted" if signum == signal.SIGINT else f"stopped by {signal.Signals(signum).name}"
    os.write(sys.stderr.fileno(), f"tsplat: {message}\n".encode())
    os._exit(128 + signum)
