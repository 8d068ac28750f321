"""The parser of ``tsplat``. The options of a command stand beside its function."""

import argparse
from collections.abc import Callable
from typing import Any

from .. import __version__
from . import block_commands, commands, edit_command, hub_commands, mesh_command, model_commands, render_command
from .completion import SHELLS, PrintCompletion
from .doctor import add_doctor_options, doctor
from .parsing import Parser


def build_parser() -> Parser:
    """Returns the parser of ``tsplat``; `run` of the parsed arguments is the function of the subcommand."""
    parser = Parser(
        prog="tsplat",
        description="3D Gaussian Splatting in Triton. `tsplat help COMMAND` shows the options of a command.",
        epilog="photographs to a page:\n  tsplat prepare PHOTOS --out SCENE\n  tsplat train SCENE --out RUN\n"
        "  tsplat export RUN --out scene.html",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tsplat {__version__}")
    output = parser.add_mutually_exclusive_group()
    quiet = "print results, warnings and errors only; also after COMMAND"
    output.add_argument("--quiet", action="store_true", help=quiet)
    verbose = "also print tracebacks of errors and messages of the logger tsplat; also after COMMAND"
    output.add_argument("--verbose", action="store_true", help=verbose)
    subparsers = parser.add_subparsers(dest="command", required=True, title="commands, in order of use")

    def command(
        name: str,
        run: Callable[[argparse.Namespace], int],
        add_options: Callable[[Parser], object],
        help: str,
        *examples: str,
        **settings: Any,
    ) -> Parser:
        added: Parser = subparsers.add_parser(
            name,
            help=help,
            description=f"{help[0].upper()}{help[1:]}.",
            epilog="examples:\n" + "\n".join(f"  tsplat {name}{f' {words}' if words else ''}" for words in examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **{"allow_abbrev": False, **settings},
        )
        added.set_defaults(run=run)
        add_options(added)
        return added

    command(
        "demo", commands.demo, commands.add_demo_options, "train on a small scene that needs no data",
        "", "--out demo --steps 300",
    )  # fmt: skip
    command(
        "prepare", commands.prepare, commands.add_prepare_options, "make a scene from photographs or a video (COLMAP)",
        "photos --out scene", "walk.mp4 --out scene --frames 150",
    )  # fmt: skip
    train = command(
        "train", commands.train, lambda parser: parser.set_defaults(takes_options=True),
        "train on photographs with cameras, or resume a run",
        "scene --out run", "--resume run", add_help=False, allow_abbrev=True,
    )  # fmt: skip
    command(
        "view", commands.view, commands.add_view_options, "show models, runs and scenes in a web browser",
        "run", "before.ply after.ply",
    )  # fmt: skip
    command(
        "render", render_command.render, render_command.add_render_options,
        "render an image or a video of a model or a run",
        "run --out view.png --view 8", "model.ply --out orbit.mp4 --trajectory orbit",
    )  # fmt: skip
    command(
        "eval", commands.evaluate, commands.add_eval_options, "compute metrics and images of a run",
        "run", "run --lpips alex", "run --json",
    )  # fmt: skip
    command(
        "report", commands.report, commands.add_report_options, "write an HTML page about a run",
        "run", "run --out page.html",
    )  # fmt: skip
    command(
        "export", model_commands.convert, model_commands.add_export_options, "write the model of a run to a file",
        "run --out scene.ply", "run --out scene.html",
    )  # fmt: skip
    command(
        "convert", model_commands.convert, model_commands.add_convert_options, "convert a model to another format",
        "model.ply model.spz", "model.ply model.sog",
    )  # fmt: skip
    command(
        "edit", edit_command.edit, edit_command.add_edit_options, "crop, move, prune, merge or decimate models",
        "model.ply small.ply --decimate 25%", "model.ply clean.ply --min-opacity 0.02 --drop-invalid",
    )  # fmt: skip
    command(
        "mesh", mesh_command.mesh, mesh_command.add_mesh_options, "extract a triangle mesh from a model",
        "run --out mesh.glb", "model.ply --out mesh.ply --voxel 0.02",
    )  # fmt: skip
    command(
        "blocks", block_commands.plan, block_commands.add_blocks_options,
        "train a large scene in blocks, and merge them",
        "plan scene --out plan --blocks 4", "train plan", "merge plan --out town.ply",
    )  # fmt: skip
    command(
        "share", hub_commands.share, hub_commands.add_share_options, "upload a model to the Hugging Face Hub",
        "run user/kettle --license cc-by-4.0", "model.ply user/kettle --file scene.spz --private",
    )  # fmt: skip
    command(
        "pull", hub_commands.pull, hub_commands.add_pull_options, "download a model from the Hugging Face Hub",
        "user/kettle", "user/kettle --out a.ply",
    )  # fmt: skip
    command(
        "info", commands.info, commands.add_info_options, "print a summary of a model or a run",
        "model.ply", "run --json",
    )  # fmt: skip
    command("doctor", doctor, add_doctor_options, "check the installation and the devices", "", "--json")
    help = "print a script that completes commands and options in this shell, and exit"
    shells = f"{{{','.join(SHELLS)}}}"
    parser.add_argument("--print-completion", action=PrintCompletion, train=train, metavar=shells, help=help)
    subparsers.metavar = "COMMAND"
    parser.commands = dict(subparsers.choices)
    return parser
