"""The command line, ``tsplat``: one subcommand per task."""

import contextlib
import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from tsplat_command import importing, widen_help

from ..errors import ArgumentError, BackendError, MemoryBudgetError, PeerError, UnsupportedError
from ..support.files import describe_os_error
from ..support.interruption import Interrupted, exit_on_signals
from ..support.output import WarningsOnly, protect_output
from ..support.reading import protect_inputs
from .argument_types import raise_if_missing
from .parser import build_parser

__all__ = ["main"]

EXIT_ERROR, EXIT_INTERRUPTED = 2, 130

MESSAGE_MAX = 1000
"""Maximum length of a message in characters; longer messages are shortened in the middle."""

WRITE_ELSEWHERE = ("convert", "export", "edit", "render", "mesh", "report", "blocks merge")
"""Commands that never overwrite a file that they read. Other commands update files of a run."""

ANYWHERE = ("--quiet", "--verbose")
"""Options of all commands, which may be given before or after the command."""


def main(argv: list[str] | None = None) -> int:
    """Runs a command line.

    Args:
        argv: Arguments without the program name; None for those of the process. Without arguments, help is printed.

    Returns:
        Exit status: 0 on success; 2 after an error, reported as one line ``tsplat: error: ...`` on stderr; 128 plus
        the number of a signal, such as 130 after Ctrl-C; 1 if `tsplat doctor` finds no device that works.
    """
    protect_output()
    # PyTorch reads this for its first tensor. Without huge pages, page faults take a third of a step with 500,000
    # Gaussians on a CPU.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    widen_help()
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        parser = build_parser()
        words = [word for word in given if word not in ANYWHERE]
        if not words or words[0] == "help":
            words = [*words[1:], "--help"]
        words = [*(option for option in ANYWHERE if option in given), *words]
        arguments, rest = parser.parse_known_args(words)
        arguments.command_line = words
        if arguments.command == "view":
            # argparse takes only the first of several groups of positional arguments.
            arguments.models += [Path(word) for word in rest if not word.startswith("-")]
            rest = [word for word in rest if word.startswith("-")]
        arguments.rest = rest
        # These commands print their result on stdout; others print a log.
        is_result = arguments.command in ("info", "doctor", "view") or getattr(arguments, "json", "--json" in rest)
        protect_output(full_disk=not is_result)
        subcommand = getattr(arguments, "subcommand", "")
        if rest and not getattr(arguments, "takes_options", False):
            command = parser.commands[arguments.command]
            command.commands.get(subcommand, command).error(f"unrecognized arguments: {' '.join(rest)}")
        for model in getattr(arguments, "models", [getattr(arguments, "model", Path())]):
            raise_if_missing(model)  # before PyTorch is imported
        command_name = f"{arguments.command} {subcommand}".strip()
        no_context = contextlib.nullcontext()
        protected = protect_inputs() if command_name in WRITE_ELSEWHERE else no_context
        quiet = contextlib.redirect_stdout(WarningsOnly()) if arguments.quiet and not is_result else no_context
        verbose = _verbose_log() if arguments.verbose else no_context
        module, function = arguments.run
        with importing():
            run = getattr(importlib.import_module(f".{module}", __name__), function)
        with exit_on_signals(), protected, quiet, verbose:  # training handles signals itself
            status: int = run(arguments)
        sys.stdout.flush()
        return status
    except SystemExit as error:
        if isinstance(error.code, int) and error.code > 128:  # raised by `exit_on_signals`
            print(f"tsplat: stopped by {signal.Signals(error.code - 128).name}", file=sys.stderr)
        raise
    except Interrupted as error:
        if error.message:
            print(f"tsplat: {_one_line(error.message)}", file=sys.stderr)
        return 128 + error.signum
    except KeyboardInterrupt:
        print("tsplat: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        return _report(describe_os_error(error), given)
    except (ArgumentError, UnsupportedError, BackendError, PeerError, MemoryBudgetError, ArithmeticError) as error:
        return _report(str(error), given)
    except (MemoryError, RuntimeError) as error:
        # PyTorch, which may not be imported, raises OutOfMemoryError on a GPU, and a RuntimeError that only its message
        # distinguishes on a CPU.
        is_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        if not is_memory and "allocate memory" not in str(error):
            raise
        return _report("out of memory; use smaller images", given)


@contextlib.contextmanager
def _verbose_log() -> Iterator[None]:
    """Context manager that prints messages of the logger ``tsplat`` on stderr, such as why calls are not replayed."""
    logger, handler = logging.getLogger("tsplat"), logging.StreamHandler()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _report(message: str, words: Sequence[str]) -> int:
    """Prints an error message as one line on stderr, and returns the exit status.

    The line names the rank if a launcher started this process. With ``--verbose`` among the words of the command line,
    the traceback of the current exception is printed before.
    """
    if "--verbose" in words:
        traceback.print_exc()
    rank = f" rank {os.environ['RANK']}:" if {"RANK", "WORLD_SIZE"} <= os.environ.keys() else ""
    # A single write, so that the lines of several ranks do not mix.
    sys.stderr.write(f"tsplat: error:{rank} {_one_line(message)}\n")
    return EXIT_ERROR


def _one_line(message: str) -> str:
    """Returns a message as one line of at most :data:`MESSAGE_MAX` characters, with control characters escaped."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(message.split()))
    half = MESSAGE_MAX // 2 - 3
    return text if len(text) <= MESSAGE_MAX else f"{text[:half]} [...] {text[-half:]}"
