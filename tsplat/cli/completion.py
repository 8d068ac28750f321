"""Completion of commands, options and file names in shells."""

import argparse
from collections.abc import Sequence
from typing import Any

from ..support.extras import require
from .argument_types import model_path, path

SHELLS = ("bash", "zsh", "fish", "tcsh")


class PrintCompletion(argparse.Action):
    """Prints a script that completes command lines in a shell, and exits.

    `train` is the parser of the options of ``tsplat train``, see :func:`.train_options.parse`.
    """

    def __init__(self, option_strings: Sequence[str], train: argparse.ArgumentParser, **keywords: Any) -> None:
        super().__init__(option_strings, choices=SHELLS, **keywords)
        self._train = train

    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: Any, values: Any, _option: str | None = None
    ) -> None:
        require("shtab")
        import shtab

        from .train_options import list_options

        self._train.add_argument("scene", type=path)
        for option, choices in list_options().items():
            self._train.add_argument(option, choices=choices or None)
        _complete_files(parser, shtab.FILE)
        print(shtab.complete(parser, values))
        parser.exit()


def _complete_files(parser: argparse.ArgumentParser, files: object) -> None:
    """Lets paths be completed by the names of files, in a parser and in those of its subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_files(command, files)
        elif action.type in (path, model_path):
            action.complete = files  # type: ignore[attr-defined]
