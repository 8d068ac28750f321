"""The parser of all commands, and options for the fields of a dataclass."""

import argparse
import dataclasses
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from types import NoneType
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from ..errors import ArgumentError
from ..support.suggestions import suggest, suggest_option

T = TypeVar("T")

NOUNS: dict[type, str] = {int: "an integer", float: "a number", str: "a text"}


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ArgumentError instead of exiting; `commands` has the parsers of subcommands."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.commands: dict[str, Parser] = {}
        self._words: list[str] = []

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if choice is None:
            hint = suggest_option(self._words, self._option_string_actions)
            if not hint and "required: " in message and self.epilog is not None:
                hint = f"; for example: {self.epilog.splitlines()[1].strip()}"
        elif message.startswith("argument COMMAND:"):
            if os.path.exists(choice[1]):
                raise ArgumentError(
                    f"unknown command {choice[1]!r}; to view this file: tsplat view {shlex.quote(choice[1])}"
                )
            message, hint = f"unknown command {choice[1]!r}", suggest([choice[1]], list(self.commands))
        else:
            hint = suggest([choice[1]], re.findall(r"[\w-]+", choice[2]))
        raise ArgumentError(f"{message}{hint}; see {self.prog} --help")


class SwitchAction(argparse.Action):
    """Sets a value to True by the first name of an option, and to False by the second."""

    def __call__(self, _parser: Any, namespace: Any, _values: Any, option: str | None = None) -> None:
        setattr(namespace, self.dest, option == self.option_strings[0])


def add_settings(
    parser: argparse._ActionsContainer,
    settings: Any,
    prefix: str = "",
    names: Container[str] | None = None,
    defaults: Mapping[str, str] | None = None,
    **changes: dict[str, Any],
) -> None:
    """Adds an option for each field of a dataclass. Its type is the field's annotation, and its help the docstring's.

    Fields that are dataclasses become groups of options, such as ``--strategy.cap-max``. Fields of types that an option
    cannot represent are skipped.

    Args:
        parser: Parser or group to add the options to.
        settings: An instance of the dataclass; its values are the defaults.
        prefix: Start of the names of the options.
        names: Fields to add options for; None for all.
        defaults: Words for defaults in the help, by the names of fields.
        changes: Other keyword arguments of `add_argument`, by the names of fields.
    """
    types, descriptions = get_type_hints(type(settings)), _attributes(type(settings))
    for field in dataclasses.fields(settings):
        name, value = prefix + field.name, getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            add_settings(parser.add_argument_group(f"{field.name} options"), value, f"{name}.")
            continue
        keywords = _argument_options(types[field.name])
        if keywords is None or (names is not None and field.name not in names):
            continue
        option = f"--{name.replace('_', '-')}"
        strings = [option]
        if types[field.name] is bool:
            group, dot, last = option.removeprefix("--").rpartition(".")
            strings.append(f"--{group}{dot}no-{last}")
        default = (defaults or {}).get(field.name, _write_default(value))
        repeatable = "repeatable; " if keywords.get("action") == "append" else ""
        description = f"{descriptions.get(field.name, '')} ({repeatable}default: {default})"
        keywords["help"] = description.strip().replace("%", "%%")
        value = list(value) if isinstance(value, tuple) else value
        parser.add_argument(*strings, dest=name, default=value, **keywords | changes.get(field.name, {}))


def _write_default(value: Any) -> str:
    """Returns the word for a default in the help."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value in ("", None, ()) else str(value)


def settings_of(parser: argparse.ArgumentParser, arguments: argparse.Namespace, settings: T, prefix: str = "") -> T:
    """Returns a copy of `settings` with the values of the options that :func:`add_settings` has added for it."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        name, value = prefix + field.name, getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            values[field.name] = settings_of(parser, arguments, value, f"{name}.")
        elif hasattr(arguments, name):
            option = getattr(arguments, name)
            if isinstance(option, list):
                option = None if option and set(option) == {None} else tuple(option)
            values[field.name] = option
    try:
        return dataclasses.replace(settings, **values)  # type: ignore[type-var]
    except ArgumentError as error:
        name, separator, rest = f"{prefix}{error}".partition(":")
        parser.error(f"--{name.replace('_', '-')}{separator}{rest}")


def _argument_options(type_: Any) -> dict[str, Any] | None:
    """Returns keyword arguments of `add_argument` for a type, which may be optional; None if there can be no option."""
    is_optional = NoneType in get_args(type_)
    if is_optional:
        (type_,) = (other for other in get_args(type_) if other is not NoneType)
    origin, inner = get_origin(type_), get_args(type_)
    if type_ is bool:
        return {"action": SwitchAction, "nargs": 0}
    if origin is Literal:
        return {"choices": inner}
    if origin is tuple and inner[-1] is Ellipsis:
        keywords = _argument_options(inner[0])
        return None if keywords is None else {"action": "append", **keywords}
    if origin is tuple:
        return {"nargs": len(inner), "type": _parser_of(inner[0], is_optional), "metavar": inner[0].__name__.upper()}
    return {"type": _parser_of(type_, is_optional), "metavar": type_.__name__.upper()} if type_ in NOUNS else None


def _parser_of(type_: Callable[[str], Any], is_optional: bool) -> Callable[[str], Any]:
    """Returns a function that parses a value of a type, or also the word "None" if the type is optional."""

    def parse(text: str) -> Any:
        try:
            return None if is_optional and text == "None" else type_(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"expected {NOUNS[type_]}, found {text!r}") from error  # type: ignore[index]

    return parse


def _attributes(cls: type) -> dict[str, str]:
    """Returns the descriptions of attributes, by name, from the docstrings of a class and its base classes."""
    descriptions: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        for entry in re.split(r"^ {4}(?=\w)", re.split(r"\n(?=\S)", section)[0], flags=re.MULTILINE)[1:]:
            names, _, text = entry.partition(":")
            descriptions |= dict.fromkeys(names.split(", "), " ".join(text.split()).replace("`", ""))
    return descriptions
