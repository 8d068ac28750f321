"""The command `tsplat`: a module outside of the package, as importing that takes seconds, which a signal can end.

It holds what ``tsplat help`` prints, so that the list of commands needs no imports; :mod:`tsplat.cli.parser` adds their
options.
"""

import argparse
import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from importlib import metadata
from types import FrameType
from typing import Any, NoReturn

COMMANDS = {
    "demo": "train on a small scene that needs no data",
    "prepare": "make a scene from photographs or a video (COLMAP)",
    "train": "train on photographs with cameras, or resume a run",
    "view": "show models, runs and scenes in a web browser",
    "render": "render an image or a video of a model or a run",
    "eval": "compute metrics and images of a run",
    "report": "write an HTML page about a run",
    "export": "write the model of a run to a file",
    "convert": "convert a model to another format",
    "edit": "crop, move, prune, merge or decimate models",
    "mesh": "extract a triangle mesh from a model",
    "blocks": "train a large scene in blocks, and merge them",
    "share": "upload a model to the Hugging Face Hub",
    "pull": "download a model from the Hugging Face Hub",
    "info": "print a summary of a model, a run or a capture",
    "doctor": "check the installation and the devices",
}
"""The commands in order of use, and what each does."""

SHELLS = ("bash", "zsh", "fish", "tcsh")
"""Shells for which ``--print-completion`` prints a script."""

HELP_WIDTH_MIN = 40
"""Columns of help in a narrower terminal."""


def main() -> int:
    """Runs :func:`tsplat.cli.main`."""
    if sys.argv[1:] == ["--version"]:
        with contextlib.suppress(metadata.PackageNotFoundError):  # a clone that is not installed
            print("tsplat", metadata.version("tsplat"))
            return 0
    if sys.argv[1:] in ([], ["help"], ["--help"], ["-h"]):
        widen_help()
        parser, subparsers = build_overview(argparse.ArgumentParser, "")
        for name, help in COMMANDS.items():
            subparsers.add_parser(name, help=help)
        parser.print_help()
        return 0
    with importing():
        from tsplat.cli import main as run
    return run()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Lets SIGINT and SIGTERM end the process, with one line and the status 128 plus their number.

    Modules that are being imported may catch or wrap exceptions. Does nothing outside the main thread.
    """
    handled: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        handled = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]
    previous = {signum: signal.signal(signum, _exit) for signum in handled}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def build_overview(
    parser_class: type[argparse.ArgumentParser], version: str, completion: type[argparse.Action] | str = "store"
) -> tuple[Any, Any]:
    """Returns the parser of ``tsplat`` with the options of all commands, and what adds the commands to it.

    Args:
        parser_class: Class of the parser.
        version: What ``--version`` prints after the name.
        completion: Action of ``--print-completion``.
    """
    parser = parser_class(
        prog="tsplat",
        description="3D Gaussian Splatting in Triton. `tsplat help COMMAND` shows the options of a command.",
        epilog="photographs to a page:\n  tsplat prepare PHOTOS --out SCENE\n  tsplat train SCENE --out RUN\n"
        "  tsplat export RUN --out scene.html",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tsplat {version}")
    output = parser.add_mutually_exclusive_group()
    quiet = "print results, warnings and errors only; also after COMMAND"
    output.add_argument("--quiet", action="store_true", help=quiet)
    verbose = "also print tracebacks of errors and messages of the logger tsplat; also after COMMAND"
    output.add_argument("--verbose", action="store_true", help=verbose)
    subparsers = parser.add_subparsers(dest="command", required=True, title="commands, in order of use")
    subparsers.metavar = "COMMAND"
    help = "print a script that completes commands and options in this shell, and exit"
    shells = f"{{{','.join(SHELLS)}}}"
    parser.add_argument("--print-completion", action=completion, choices=SHELLS, metavar=shells, help=help)
    return parser, subparsers


def widen_help() -> None:
    """Makes help at least :data:`HELP_WIDTH_MIN` columns wide, as argparse cannot wrap words in fewer."""
    if shutil.get_terminal_size().columns < HELP_WIDTH_MIN:
        os.environ["COLUMNS"] = str(HELP_WIDTH_MIN)


def _exit(signum: int, _frame: FrameType | None) -> NoReturn:
    message = "interrupted" if signum == signal.SIGINT else f"stopped by {signal.Signals(signum).name}"
    os.write(sys.stderr.fileno(), f"tsplat: {message}\n".encode())
    os._exit(128 + signum)
