"""Command-line options of `tsplat train`: a preset or configuration file, and an option for every setting."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

import torch

from ...arguments import check_size
from ...errors import ArgumentError
from ...support.extras import require
from ...support.suggestions import suggest_option
from ...viewing.viewer.server import ADDRESS, PORT
from ..configuration import FROZEN_NAMES, STRATEGIES, DeviceType, Part, RunConfig, read_config
from ..presets import DEFAULT_PRESET, INIT_PRESET, PRESETS, Preset, for_surfels, preset
from .context import MODULES
from .live_view import ViewOptions

CPU_STEPS = 1500
"""Default number of steps without a GPU, where 7,000 of photographs in their size may take an hour."""

PROGRAM = "tsplat train"
HELP = f"see {PROGRAM} --help"


@dataclasses.dataclass(frozen=True)
class Options(RunConfig):
    """Train on photographs with cameras. To resume a run, see: tsplat train --resume RUN --help

    Attributes:
        out: Folder to write the run to.
        preset: Settings to start from. standard splits Gaussians, up to --max-gaussians, with learning rates for the
            number of steps; mcmc relocates and adds Gaussians as gsplat does; adaptive clones, splits and prunes
            Gaussians by their gradients; fixed keeps their number; refine, the default with --init, keeps it too, and
            has the low learning rates of the end of a run.
        config: Settings to start from, as the config.json of another run; replaces the preset.
        minutes: Instead of --steps: time for the steps, of which as many are taken as fit by the time that a few take.
        stop_after: Stop after this number of steps, with the schedules of the full run.
        ranks: Number of processes on this machine that train together.
        gpus: GPUs to use, one rank each, such as 0,1.
        view: Show the training in a web browser.
        view_address: Address to listen at; 0.0.0.0 lets other computers in.
        view_port: Port of the page, or the next free one.
        view_open: Open the page in a web browser.
        view_paused: Wait for the page before the first step.
        view_stay: After the last step, keep the page open until Ctrl-C, as it is where a terminal started the command.
        view_close: Close the page after the last step, also in a terminal.
    """

    out: str = ""
    preset: Preset = DEFAULT_PRESET
    config: str = ""
    minutes: float | None = None
    stop_after: int | None = None
    ranks: int = 1
    gpus: str = ""
    view: bool = False
    view_address: str = ADDRESS
    view_port: int = PORT
    view_open: bool = False
    view_paused: bool = False
    view_stay: bool = False
    view_close: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop_after is not None:
            check_size("stop_after", self.stop_after)


@dataclasses.dataclass(frozen=True)
class Resume:
    """Options of `tsplat train --resume`, whose help describes them; see also :func:`.train.resume`."""

    run: Path
    steps: int | None = None
    stop_after: int | None = None
    force: bool = False
    checkpoint: str | None = None
    scene: str | None = None
    accept_changes: bool = False
    ranks: int = 1
    gpus: str = ""
    view: bool = False
    view_address: str = ADDRESS
    view_port: int = PORT
    view_open: bool = False
    view_paused: bool = False
    view_stay: bool = False
    view_close: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ArgumentError(f"{message}; {HELP}")


def default_steps(device: DeviceType) -> int:
    """The number of steps of a run for which none is given: fewer without a GPU."""
    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    return RunConfig.steps if on_gpu else CPU_STEPS


def note_steps(arguments: Sequence[str]) -> str | None:
    """Returns a note about the default number of steps of a run without a GPU; None for other runs."""
    known, _ = _first_pass(arguments)
    given = (known.steps, known.config, known.minutes, known.resume)
    if any(value is not None for value in given) or default_steps(known.device) != CPU_STEPS:
        return None
    return (
        f"note: without a GPU, training takes {CPU_STEPS:,} steps; to train longer, use --steps {RunConfig.steps} or "
        "--minutes M"
    )


def _first_pass(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The arguments that decide on the defaults of others, and the rest."""
    first = _Parser(prog=PROGRAM, allow_abbrev=False, add_help=False)
    first.add_argument("--preset", choices=(*PRESETS, "default"))
    first.add_argument("--init", action="append")
    first.add_argument("--device", default="auto")
    first.add_argument("--primitive")
    for name in ("--steps", "--minutes"):
        first.add_argument(name)
    for name in ("--config", "--resume"):
        first.add_argument(name, type=Path)
    known, rest = first.parse_known_args(arguments)
    known.preset = known.preset or (INIT_PRESET if known.init else DEFAULT_PRESET)
    return known, rest


def parse(arguments: Sequence[str], steps_given: int | None = None) -> Options | Resume:
    """Parses the arguments of `tsplat train`; exits after printing help.

    `steps_given` is the number of steps of a run without `--steps` and `--config`, None for the default. Raises
    ArgumentError for an unknown option or an invalid value, and MissingExtraError if tyro is not installed.
    """
    known, rest = _first_pass(arguments)
    if known.resume is not None:
        return _resume(arguments)
    try:
        import tyro
    except ImportError:
        require("tyro", *MODULES)
        raise

    if known.preset == "default":
        raise ArgumentError(
            f"--preset: default was renamed to adaptive; without --preset it is {DEFAULT_PRESET}; {HELP}"
        )
    given = str(steps_given or default_steps(known.device)) if known.steps is None else known.steps
    is_count = given.isdecimal() and len(given) < 10  # tyro rejects others below
    steps = max(1, int(given)) if is_count else 1
    base = read_config(known.config) if known.config else preset(known.preset, steps)
    if known.primitive == "2dgs" and base.primitive != "2dgs":
        base = for_surfels(base)
    values = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
    values |= dict(preset=known.preset, config=str(known.config or ""))
    if values["strategy"] is None:
        option = next((word for word in rest if word.startswith("--strategy.")), None)
        if option:
            raise ArgumentError(f"{option}: the preset {known.preset} has no strategy; use another; {HELP}")
    required = "(from the configuration file)" if known.config else "(required)"

    def described(metavar: str, hint: str) -> Any:
        return Annotated[str, tyro.conf.arg(metavar=metavar, help_behavior_hint=hint)]

    def repeated(kind: Any, metavar: str) -> Any:
        hint = "(repeatable; default: none)"
        argument = tyro.conf.arg(metavar=metavar, help_behavior_hint=hint)
        return Annotated[tuple[kind, ...], tyro.conf.UseAppendAction, argument]

    fields = [
        ("scene", Annotated[described("SCENE", required), tyro.conf.Positional], base.scene),
        ("out", described("RUN", "(required)"), ""),
        ("init", repeated(str, "MODEL"), base.init),
        ("freeze", repeated(Part, "|".join(FROZEN_NAMES)), base.freeze),
        ("config", described("config.json", "(default: none)"), ""),
        ("gpus", described("0,1", "(default: as --device)"), ""),
        ("block", described("PLAN:K", "(default: none)"), ""),
        ("depth_prior", described("DIR", "(default: none)"), ""),
        ("depth_confidence", described("DIR", "(default: none)"), ""),
        ("normal_prior", described("DIR", "(default: none)"), ""),
    ]
    command = dataclasses.make_dataclass("Options", fields, bases=(Options,), frozen=True)
    command.__doc__ = Options.__doc__
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            options: Options = tyro.cli(
                command,
                default=command(**values),
                args=list(arguments),
                prog=PROGRAM,
                config=(tyro.conf.AvoidSubcommands, tyro.conf.SuppressFixed),
            )
    except SystemExit as error:
        if not error.code:
            raise
        message = _plain_text(errors.getvalue())
        # Invalid values that the configuration itself rejects are named as options.
        if message.startswith("Error parsing Options: "):
            name, separator, after = message.removeprefix("Error parsing Options: ").partition(":")
            message = f"--{name.replace('_', '-')}{separator}{after}"
        raise ArgumentError(f"{message}{suggest_option(arguments, list_options())}; {HELP}") from error
    if not options.scene:
        raise ArgumentError(f"SCENE: expected a folder of photographs; {HELP}")
    if not options.out:
        raise ArgumentError(f"--out: expected a folder to write to; {HELP}")
    for name in ("start_opacity", "start_scale") if options.init else ():
        if getattr(options, name) != getattr(base, name):
            raise ArgumentError(f"--{name.replace('_', '-')}: not with --init, whose models have their own; {HELP}")
    if options.minutes is not None and (known.steps or known.config):
        other = "--steps" if known.steps else "--config, whose schedules are those of its number of steps"
        raise ArgumentError(f"--minutes: chooses the number of steps, and cannot be combined with {other}; {HELP}")
    return options


def list_options() -> dict[str, tuple[str, ...]]:
    """Returns all options of `tsplat train`, and the values to choose from of those that have a choice."""
    found: dict[str, tuple[str, ...]] = {"--resume": (), "--accept-changes": (), "--checkpoint": (), "--force": ()}
    for prefix, settings in (("", Options), *(("strategy.", strategy) for strategy in STRATEGIES.values())):
        for name, kind in get_type_hints(settings).items():
            option = prefix + name.replace("_", "-")
            # A positional argument, a group of options, and what can be set in Python only.
            if option in ("scene", "strategy", "strategy.generator"):
                continue
            if get_origin(kind) is tuple:
                kind = get_args(kind)[0]
            found[f"--{option}"] = tuple(map(str, get_args(kind))) if get_origin(kind) is Literal else ()
            if kind is bool:
                found[f"--{prefix}no-{option.removeprefix(prefix)}"] = ()
    return found


def run_config(options: Options | Resume) -> RunConfig:
    """The configuration of a run with these options, which are not those of a run that is resumed."""
    assert isinstance(options, Options)
    return RunConfig(**{field.name: getattr(options, field.name) for field in dataclasses.fields(RunConfig)})


def view_options(options: Options | Resume) -> ViewOptions | None:
    """Returns the options of the live view; None without one.

    Raises ArgumentError for an invalid port, or an option of the view without ``--view``.
    """
    view = ViewOptions(
        options.view_address, options.view_port, options.view_open, options.view_paused, options.view_stay
    )
    if options.view_close and (options.view_stay or not options.view):
        raise ArgumentError(f"--view-close: only with --view, and not with --view-stay; {HELP}")
    if not options.view:
        for field in dataclasses.fields(ViewOptions):
            if getattr(view, field.name) != field.default:
                raise ArgumentError(f"--view-{field.name}: only with --view; {HELP}")
        return None
    if not 1 <= view.port <= 65535:
        raise ArgumentError(f"--view-port: expected an integer from 1 to 65535, found {view.port}")
    in_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    return dataclasses.replace(view, stay=view.stay or (in_terminal and not options.view_close))


def _resume(arguments: Sequence[str]) -> Resume:
    parser = _Parser(prog=PROGRAM, allow_abbrev=False)
    add = parser.add_argument
    run = "the run's folder or one of its checkpoints"
    add("--resume", type=Path, required=True, metavar="RUN", help=run)
    add("--steps", type=int, metavar="N", help="extend the run to N steps in total")
    add("--stop-after", type=int, metavar="N", help="stop after N steps in total")
    step = "step or folder name of the checkpoint to continue from (the newest)"
    add("--checkpoint", metavar="STEP", help=step)
    add("--scene", metavar="SCENE", help="where the scene is, if it has moved relative to the run")
    flags = {
        "accept-changes": "accept photographs, cameras and points that have changed",
        "force": "accept parameters that look activated already",
        "view": "show the training in a web browser",
        "view-open": "open the page in a web browser",
        "view-paused": "wait for the page before the first step",
        "view-stay": "after the last step, keep the page open until Ctrl-C",
        "view-close": "close the page after the last step, in a terminal too",
    }
    for name, help in flags.items():
        add(f"--{name}", action="store_true", help=help)
    add("--view-address", default=ADDRESS, metavar="IP", help=f"address to listen at ({ADDRESS})")
    add("--view-port", type=int, default=PORT, metavar="N", help=f"port, or the next free one ({PORT})")
    add("--ranks", type=int, default=1, metavar="N", help="number of processes that train together (1)")
    add("--gpus", default="", metavar="0,1", help="GPUs to use, one rank each")
    found, rest = parser.parse_known_args(arguments)
    if rest:
        option = rest[0].partition("=")[0]
        known = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Options)} | {"--scene"}
        if option not in known and not option.startswith("--strategy."):
            hint = suggest_option(rest, parser._option_string_actions)
            parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        raise ArgumentError(
            f"{option}: a run is resumed with the settings that it was started with, on which its schedules depend; "
            f"to stop earlier: --stop-after N; to train with other settings: {PROGRAM} --config "
            f"{found.resume / 'config.json'} --out NEW_RUN {option} ..."
        )
    for name in ("steps", "stop_after"):
        if getattr(found, name) is not None:
            try:
                check_size(f"--{name.replace('_', '-')}", getattr(found, name))
            except ArgumentError as error:
                parser.error(str(error))
    values = vars(found)
    return Resume(run=values.pop("resume"), **values)


def _plain_text(text: str) -> str:
    """The message in tyro's error box, without the title and the usage."""
    lines = [line.strip(" │╭╮╰╯|+") for line in text.splitlines()[1:]]
    is_rule = [set(line) <= set("─-") for line in lines]
    first = is_rule.index(False)
    return " ".join(lines[first : is_rule.index(True, first)])
