"""Options of ``tsplat train``: a preset or configuration file, and an option for every setting."""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ..training.configuration import FROZEN_NAMES, DeviceType, RunConfig, read_config
from ..training.presets import DEFAULT_PRESET, INIT_PRESET, PRESETS, for_surfels, preset, preset_settings
from ..viewing.view_options import ViewOptions
from .argument_types import count, number, path, port
from .parsing import Parser, SwitchAction, add_settings, settings_of
from .shared_options import FORCE, run_folder

CPU_STEPS = 1500
"""Default number of steps without a GPU, where 7,000 steps on full-size photographs may take an hour."""

PROGRAM = "tsplat train"

COMMON = (
    "--out", "--view", "--steps", "--minutes", "--max-size", "--downscale", "--max-gaussians", "--preset", "--init",
    "--camera", "--primitive", "--pose-refinement", "--sky", "--background", "--gpus",
)  # fmt: skip
"""Options that ``--help`` shows, in this order; ``--help-all`` shows all."""

EXAMPLES = f"""examples:
  {PROGRAM} scene --out run
  {PROGRAM} scene --out run --view --minutes 5
  {PROGRAM} --resume run"""

PRESET_HELP = (
    "settings to start from. standard splits Gaussians, up to --max-gaussians, with learning rates for the number of "
    "steps; compact does so, and removes three quarters again; mcmc relocates and adds Gaussians as gsplat does; "
    "adaptive clones, splits and prunes Gaussians by their gradients; fixed does not change the number of Gaussians; "
    "neither does refine, the default with --init, which has low learning rates, as at the end of a run"
)


def default_steps(device: DeviceType) -> int:
    """Returns the default number of steps of a run, which is smaller without a GPU."""
    import torch

    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    return RunConfig.steps if on_gpu else CPU_STEPS


def note_steps(arguments: Sequence[str]) -> str | None:
    """Returns a note about the default number of steps of a run without a GPU; None for other runs."""
    known = _parse_known(arguments)
    options = (known.steps, known.config, known.minutes, known.resume)
    if any(value is not None for value in options) or default_steps(known.device) != CPU_STEPS:
        return None
    return (
        f"note: {CPU_STEPS:,} steps are the default without a GPU; for a better model, use --steps {RunConfig.steps} "
        "or --minutes M"
    )


def parse(arguments: Sequence[str], steps_given: int | None = None) -> argparse.Namespace:
    """Parses the arguments of `tsplat train`; exits after printing help.

    `steps_given` is the number of steps if there is neither `--steps` nor `--config`; None for the default. Raises
    ArgumentError for an unknown option or an invalid value.

    Returns:
        The options, with `resume`, the run to resume or None, `view`, a :class:`ViewOptions` or None, and, for a new
        run, `settings`, its :class:`RunConfig`.
    """
    known = _parse_known(arguments)
    if known.resume is not None:
        return _resume(arguments)
    words = list(_with_hyphens(arguments))
    given = None
    if known.steps is not None:
        given = int(known.steps) if known.steps.isdecimal() and 0 < int(known.steps) < 10**9 else 1  # reported below
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    if known.config is None and "--help-all" in options:
        _print_all_options(known, given or RunConfig.steps)
    if known.config is None and not any("." in option for option in options):
        # Prints help and reports mistakes before PyTorch is imported. Only the options of strategies need it.
        _parse_run(words, known, preset_settings(known.preset, given or RunConfig.steps))
    steps = given or steps_given or default_steps(known.device)
    return _parse_run(words, known, read_config(known.config) if known.config else preset(known.preset, steps))


def _print_all_options(known: argparse.Namespace, steps: int) -> NoReturn:
    """Prints the help of all options and exits. Those of the strategy follow after PyTorch is imported."""
    base = _with_primitive(preset_settings(known.preset, steps), known)
    parser = _run_parser(base, known.preset)
    parser.epilog = None  # follows the options of the strategy
    first = parser.format_help()
    print(first, end="", flush=True)
    base = _with_primitive(preset(known.preset, steps), known)
    print(_run_parser(base, known.preset).format_help().removeprefix(first), end="")
    raise SystemExit(0)


def _with_primitive(base: RunConfig, known: argparse.Namespace) -> RunConfig:
    """Returns settings for 2D Gaussians if the arguments choose them and the settings do not."""
    return for_surfels(base) if known.primitive == "2dgs" and base.primitive != "2dgs" else base


def _parse_run(words: Sequence[str], known: argparse.Namespace, base: RunConfig) -> argparse.Namespace:
    """Parses the words of a new run, whose settings are those of `base` unless options change them."""
    base = _with_primitive(base, known)
    parser = _run_parser(base, known.preset, is_from_file=known.config is not None)
    if base.strategy is None and (option := next((word for word in words if word.startswith("--strategy.")), None)):
        parser.error(f"{option}: the preset {known.preset} has no strategy; use another preset")
    options: argparse.Namespace = parser.parse_intermixed_args(words)
    options.settings = settings = settings_of(parser, options, base)
    if not settings.scene:
        parser.error("SCENE: expected a folder of photographs")
    if not options.out:
        parser.error(
            f"--out: expected a folder to write to, such as --out {shlex.quote(str(run_folder(Path(settings.scene))))}"
        )
    for name in ("start_opacity", "start_scale") if settings.init else ():
        if getattr(settings, name) != getattr(base, name):
            parser.error(f"--{name.replace('_', '-')}: not with --init, whose models determine it")
    if options.minutes is not None and (known.steps or known.config):
        other = "--steps" if known.steps else "--config, whose schedules are for its number of steps"
        parser.error(f"--minutes: chooses the number of steps, and cannot be combined with {other}")
    return _with_view(parser, options)


def list_options() -> dict[str, tuple[str, ...]]:
    """Returns all options of `tsplat train`, with their choices; empty for options without choices."""
    parsers = [_resume_parser(), *(_run_parser(preset(name), name) for name in PRESETS)]
    actions = (action for parser in parsers for action in parser._actions if action.dest not in ("help", "help_all"))
    return {name: tuple(map(str, action.choices or ())) for action in actions for name in action.option_strings}


def _parse_known(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses only the arguments on which the defaults of others depend."""
    first = Parser(prog=PROGRAM, allow_abbrev=False, add_help=False)
    first.add_argument("--preset")
    first.add_argument("--init", action="append")
    first.add_argument("--device", default="auto")
    first.add_argument("--primitive")
    for name in ("--steps", "--minutes"):
        first.add_argument(name)
    for name in ("--config", "--resume"):
        first.add_argument(name, type=path)
    known: argparse.Namespace = first.parse_known_args(arguments)[0]
    if known.preset not in PRESETS:  # the parser of the run reports unknown names
        known.preset = INIT_PRESET if known.init else DEFAULT_PRESET
    return known


def _with_hyphens(words: Sequence[str]) -> Iterator[str]:
    """Yields words with hyphens for underscores in option names, and the None of `--background None` three times."""
    for before, word in zip(["", *words], words, strict=False):
        option, *value = word.split("=", 1) if word.startswith("--") else [word]
        yield "=".join([option.replace("_", "-") if word.startswith("--") else option, *value])
        if (before, word) == ("--background", "None"):
            yield from (word, word)


def _run_parser(base: RunConfig, preset: str, *, is_from_file: bool = False) -> Parser:
    """Returns the parser of a new run, with the defaults of a preset or of a configuration file."""
    required = "(from the configuration file)" if is_from_file else "(required)"
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [-h] [OPTIONS] SCENE",
        description=f"Train on photographs with cameras. Options to resume a run:\n{PROGRAM} --resume RUN --help",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    add = parser.add_argument
    add("-h", "--help", action=_ShortHelp, nargs=0, help="show the most used options and exit")
    add("--help-all", action="help", help="show all options, with the defaults of the preset, and exit")
    add("scene", nargs="?", default=base.scene, metavar="SCENE", help=f"folder of photographs with cameras {required}")
    add("--out", default="", metavar="RUN", help="folder to write the run to (required)")
    add("--preset", choices=PRESETS, default=preset, help=f"{PRESET_HELP} (default: {preset})")
    config = "settings to start from instead of a preset: the config.json of another run (default: none)"
    add("--config", type=path, metavar="config.json", help=config)
    minutes = "time for the steps, instead of --steps; a few steps are measured to choose their number"
    add("--minutes", type=number, metavar="M", help=minutes)
    _add_shared(parser, "stop after this number of steps, with the schedules of the full run")
    folder = {"metavar": "DIR"}
    add_settings(
        parser, base, names=vars(base).keys() - {"scene"},
        defaults={} if is_from_file else {"steps": f"{RunConfig.steps}; {CPU_STEPS} without a GPU"},
        init={"metavar": "MODEL"}, points={"metavar": "FILE"}, freeze={"metavar": "|".join(FROZEN_NAMES)},
        block={"metavar": "PLAN:K"},
        depth_prior=folder, depth_confidence=folder, normal_prior=folder,
    )  # fmt: skip
    parser.set_defaults(resume=None)
    return parser


class _ShortHelp(argparse.Action):
    """Prints help for the options of :data:`COMMON` only, in this order, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_arguments: Any) -> None:
        places = {option: place for place, option in enumerate(("--help", *COMMON, "--help-all"))}

        def place(action: argparse.Action) -> int | None:
            return next((places[option] for option in action.option_strings if option in places), None)

        for action in parser._actions:
            if action.option_strings and place(action) is None:
                action.help = argparse.SUPPRESS
        parser._optionals._group_actions.sort(key=lambda action: place(action) or 0)
        parser.print_help()
        parser.exit()


def _resume_parser() -> Parser:
    parser = Parser(prog=PROGRAM, allow_abbrev=False)
    add = parser.add_argument
    run = "the run's folder or one of its checkpoints"
    add("--resume", type=path, required=True, metavar="RUN", help=run)
    add("--steps", type=count, metavar="N", help="extend the run to N steps in total")
    step = "step or folder name of the checkpoint to continue from (the newest)"
    add("--checkpoint", metavar="STEP", help=step)
    add("--scene", metavar="SCENE", help="where the scene is, if it has moved relative to the run")
    changes = "accept photographs, cameras and points that have changed"
    add("--accept-changes", action="store_true", help=changes)
    add("--force", action="store_true", help=FORCE)
    _add_shared(parser, "stop after N steps in total")
    parser.set_defaults(settings=None)
    return parser


def _add_shared(parser: Parser, stop_after: str) -> None:
    """Adds the options that new and resumed runs share."""
    add = parser.add_argument
    add("--stop-after", type=count, metavar="N", help=stop_after)
    add("--ranks", type=int, default=1, metavar="N", help="number of processes on this machine that train together (1)")
    add("--gpus", default="", metavar="0,1", help="GPUs to use, one rank per GPU, such as 0,1 (as --device)")
    add("--json", action="store_true", help="print the metrics as JSON, and everything else on stderr")
    switch: dict[str, Any] = {"action": SwitchAction, "nargs": 0, "default": False}
    add("--view", "--no-view", **switch, help="show training in a web browser")
    close = "close the page after the last step, even in a terminal, where it stays open by default"
    add("--view-close", "--no-view-close", **switch, help=close)
    add_settings(parser, ViewOptions(), "view_", port={"type": port}, address={"metavar": "IP"})


def _resume(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _resume_parser()
    options, rest = parser.parse_known_args(arguments)
    if rest:
        option = rest[0].partition("=")[0]
        if option not in list_options():
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        parser.error(
            f"{option}: a run is resumed with its original settings, on which its schedules depend; to stop earlier: "
            f"--stop-after N; to train with other settings: {PROGRAM} --config "
            f"{options.resume / 'config.json'} --out NEW_RUN {option} ..."
        )
    return _with_view(parser, options)


def _with_view(parser: Parser, options: argparse.Namespace) -> argparse.Namespace:
    """Returns options with `view`, a :class:`ViewOptions` or None, after checking the viewer's options."""
    view = settings_of(parser, options, ViewOptions(), "view_")
    if options.view_close and (view.stay or not options.view):
        parser.error("--view-close: only with --view, and not with --view-stay")
    if not options.view:
        for name, value in vars(view).items():
            if value != getattr(ViewOptions, name):
                parser.error(f"--view-{name}: only with --view")
        options.view = None
        return options
    in_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    options.view = replace(view, stay=view.stay or (in_terminal and not options.view_close))
    return options
