"""The parser of ``tsplat``. It imports the options of all commands, but no PyTorch, so that help and usage errors are
fast."""

import argparse
from collections.abc import Callable
from typing import Any

from tsplat_command import COMMANDS, build_overview

from .. import __version__
from . import model_options, run_options
from .completion import PrintCompletion
from .parsing import Parser


def build_parser() -> Parser:
    """Returns the parser of ``tsplat``. Parsed arguments have the module and the function of the command as `run`."""
    parser: Parser
    parser, subparsers = build_overview(Parser, __version__, PrintCompletion)

    def command(
        name: str,
        module: str,
        function: str,
        add_options: Callable[[Parser], object],
        *examples: str,
        **settings: Any,
    ) -> Parser:
        help = COMMANDS[name]
        added: Parser = subparsers.add_parser(
            name,
            help=help,
            description=f"{help[0].upper()}{help[1:]}.",
            epilog="examples:\n" + "\n".join(f"  tsplat {name}{f' {words}' if words else ''}" for words in examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **{"allow_abbrev": False, **settings},
        )
        added.set_defaults(run=(module, function))
        add_options(added)
        return added

    command("demo", "commands", "demo", run_options.add_demo_options, "", "--out demo --steps 300")
    command(
        "prepare", "commands", "prepare", run_options.add_prepare_options,
        "photos --out scene", "walk.mp4 --out scene --frames 150",
    )  # fmt: skip
    command(
        "train", "train_command", "train", lambda parser: parser.set_defaults(takes_options=True),
        "scene --out run", "--resume run", add_help=False, allow_abbrev=True,
    )  # fmt: skip
    command("view", "commands", "view", run_options.add_view_options, "run", "before.ply after.ply")
    command(
        "render", "render_command", "render", model_options.add_render_options,
        "run --out view.png --view 8", "model.ply --out orbit.mp4 --trajectory orbit",
    )  # fmt: skip
    command("eval", "commands", "evaluate", run_options.add_eval_options, "run", "run --lpips alex", "run --json")
    command("report", "commands", "report", run_options.add_report_options, "run", "run --out page.html")
    command(
        "export", "model_commands", "convert", model_options.add_export_options,
        "run --out scene.ply", "run --out scene.html",
    )  # fmt: skip
    command(
        "convert", "model_commands", "convert", model_options.add_convert_options,
        "model.ply model.spz", "model.ply model.sog",
    )  # fmt: skip
    command(
        "edit", "edit_command", "edit", model_options.add_edit_options,
        "model.ply small.ply --decimate 25%", "model.ply clean.ply --min-opacity 0.02 --drop-invalid",
    )  # fmt: skip
    command(
        "mesh", "mesh_command", "mesh", model_options.add_mesh_options,
        "run --out mesh.glb", "model.ply --out mesh.ply --voxel 0.02",
    )  # fmt: skip
    command(
        "blocks", "block_commands", "plan", run_options.add_blocks_options,
        "plan scene --out plan --blocks 4", "train plan", "merge plan --out town.ply",
    )  # fmt: skip
    command(
        "share", "hub_commands", "share", model_options.add_share_options,
        "run user/kettle --license cc-by-4.0", "model.ply user/kettle --file scene.spz --private",
    )  # fmt: skip
    command("pull", "hub_commands", "pull", model_options.add_pull_options, "user/kettle", "user/kettle --out a.ply")
    command("info", "commands", "info", run_options.add_info_options, "model.ply", "run --json")
    command("doctor", "doctor", "doctor", run_options.add_doctor_options, "", "--json")
    parser.commands = dict(subparsers.choices)
    return parser
