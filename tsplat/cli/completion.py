"""Completion of commands, options and file names in shells."""

import argparse
from typing import Any

from ..support.extras import require
from .argument_types import model_path, path


class PrintCompletion(argparse.Action):
    """Prints a script that completes command lines in a shell, and exits."""

    def __call__(self, parser: Any, _namespace: Any, values: Any, _option: str | None = None) -> None:
        require("shtab")
        import shtab

        from .train_options import list_options

        train = parser.commands["train"]  # its options are added when it is parsed, see :func:`.train_options.parse`
        train.add_argument("scene", type=path)
        for option, choices in list_options().items():
            train.add_argument(option, choices=choices or None)
        _complete_files(parser, shtab.FILE)
        print(shtab.complete(parser, values))
        parser.exit()


def _complete_files(parser: argparse.ArgumentParser, files: object) -> None:
    """Enables completion of file names for arguments that are paths, in a parser and its subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_files(command, files)
        elif action.type in (path, model_path):
            action.complete = files  # type: ignore[attr-defined]
