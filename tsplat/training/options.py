"""The options of `tsplat train`: a preset or a configuration file, and every field of it by name."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

from ..errors import ArgumentError
from ..support.extras import require
from .config import PRESETS, Preset, RunConfig, preset, read_config

PROGRAM = "tsplat train"
HELP = f"see {PROGRAM} --help"


@dataclasses.dataclass(frozen=True)
class Options(RunConfig):
    """Fits photographs with cameras. To go on with a run: tsplat train --resume RUN [--stop-after N] [--force].

    Attributes:
        out: Folder to write to.
        preset: How Gaussians come and go, and what else goes with it.
        config: The config.json of another run, in place of a preset.
        stop_after: Steps after which to end early, with schedules as if not.
        ranks: How many processes train together on this machine.
        gpus: Which GPUs, such as 0,1, a rank each.
    """

    out: str = ""
    preset: Preset = "fixed"
    config: str = ""
    stop_after: int | None = None
    ranks: int = 1
    gpus: str = ""


@dataclasses.dataclass(frozen=True)
class Resume:
    """Go on with a run.

    Attributes:
        run: Its folder, or one of its checkpoints.
        stop_after: Steps after which to end early.
        force: Whether to take parameters that look activated.
        ranks, gpus: As of :class:`Options`.
    """

    run: Path
    stop_after: int | None
    force: bool
    ranks: int = 1
    gpus: str = ""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ArgumentError(f"{message}; {HELP}")


def parse(arguments: Sequence[str]) -> Options | Resume:
    """What a command line after `tsplat train` asks for; prints help and raises SystemExit(0) where it asks for that.

    Raises:
        ArgumentError: An option that does not exist, or a value that is none.
        MissingExtraError: tyro is not installed.
    """
    first = _Parser(prog=PROGRAM, allow_abbrev=False, add_help=False)
    first.add_argument("--preset", choices=PRESETS, default="fixed")
    first.add_argument("--config", type=Path)
    first.add_argument("--steps", default=str(RunConfig.steps))
    first.add_argument("--resume", type=Path)
    known, rest = first.parse_known_args(arguments)
    if known.resume is not None:
        return _resume(arguments)
    require("tyro")
    import tyro

    steps = int(known.steps) if known.steps.isdecimal() and int(known.steps) else 1  # what is wrong is said below
    base = read_config(known.config) if known.config else preset(known.preset, steps)
    values = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
    values |= dict(preset=known.preset, config=str(known.config or ""))
    if values["strategy"] is None:
        refused = next((word for word in rest if word.startswith("--strategy.")), None)
        if refused:
            raise ArgumentError(f"{refused}: the preset {known.preset} has no strategy; use default or mcmc; {HELP}")
    # The scene is an argument without a name, which is said in tyro's own words.
    scene = ("scene", Annotated[str, tyro.conf.Positional], base.scene)
    command = dataclasses.make_dataclass("Options", [scene], bases=(Options,), frozen=True)
    command.__doc__ = Options.__doc__
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options: Options = tyro.cli(
                command,
                default=command(**values),
                args=list(arguments),
                prog=PROGRAM,
                config=(tyro.conf.AvoidSubcommands,),
            )
    except SystemExit as error:
        if not error.code:
            raise
        words = _plain(said.getvalue())
        # A field that is wrong as such is named as it was written.
        if words.startswith("Error parsing Options: "):
            words = "--" + words.removeprefix("Error parsing Options: ").replace("_", "-", 1)
        raise ArgumentError(f"{words}; {HELP}") from error
    if not options.scene:
        raise ArgumentError(f"SCENE: say which folder of photographs to fit; {HELP}")
    if not options.out:
        raise ArgumentError(f"--out: say which folder to write to; {HELP}")
    return options


def run_config(options: Options) -> RunConfig:
    """The configuration that options ask for."""
    return RunConfig(**{field.name: getattr(options, field.name) for field in dataclasses.fields(RunConfig)})


def _resume(arguments: Sequence[str]) -> Resume:
    parser = _Parser(prog=PROGRAM, allow_abbrev=False)
    parser.add_argument(
        "--resume", type=Path, required=True, metavar="RUN", help="its folder or one of its checkpoints"
    )
    parser.add_argument("--stop-after", type=int, metavar="N", help="steps after which to end early")
    parser.add_argument("--force", action="store_true", help="take parameters that look activated")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="processes that train together (1)")
    parser.add_argument("--gpus", default="", metavar="0,1", help="which GPUs, a rank each")
    found = parser.parse_args(arguments)
    return Resume(found.resume, found.stop_after, found.force, found.ranks, found.gpus)


def _plain(text: str) -> str:
    """The words of an error without its title and the box around them, up to where it repeats the usage."""
    lines = [line.strip(" │╭╮╰╯|+") for line in text.splitlines()[1:]]
    is_rule = [set(line) <= set("─-") for line in lines]
    first = is_rule.index(False)
    return " ".join(lines[first : is_rule.index(True, first)])
