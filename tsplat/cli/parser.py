"""The parser of ``tsplat``. The options of a command stand beside its function."""

import argparse
from collections.abc import Callable
from typing import Any

from .. import __version__
from . import block_commands, commands, mesh_command, model_commands, render_command
from .completion import PrintCompletion
from .doctor import doctor
from .parsing import Parser


def build_parser() -> Parser:
    """Returns the parser of ``tsplat``; `run` of the parsed arguments is the function of the subcommand."""
    parser = Parser(prog="tsplat", description="3D Gaussian Splatting in Triton.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"tsplat {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], help: str, **settings: Any) -> Parser:
        added: Parser = subparsers.add_parser(name, help=help, **{"allow_abbrev": False, **settings})
        added.set_defaults(run=run)
        return added

    commands.add_demo_options(command("demo", commands.demo, "train on a small scene that needs no data"))
    commands.add_prepare_options(
        command("prepare", commands.prepare, "make a scene from photographs or a video (COLMAP)")
    )
    render_command.add_render_options(command("render", render_command.render, "render an image or a video of a model"))
    mesh_command.add_mesh_options(command("mesh", mesh_command.mesh, "extract a triangle mesh from a model"))
    commands.add_view_options(command("view", commands.view, "show models in a web browser"))
    train = command(
        "train", commands.train, "train on photographs with cameras, or resume a run", add_help=False, allow_abbrev=True
    )
    train.set_defaults(takes_options=True)
    block_commands.add_blocks_options(
        command("blocks", commands.train, "train a large scene in blocks, and merge them")
    )
    commands.add_eval_options(command("eval", commands.evaluate, "metrics and images of a run"))
    commands.add_report_options(command("report", commands.report, "write an HTML page about a run"))
    convert = command("convert", model_commands.convert, "convert a model to another format")
    model_commands.add_convert_options(convert)
    model_commands.add_edit_options(command("edit", model_commands.edit, "crop, move, prune, merge or decimate models"))
    export = command("export", model_commands.convert, "write the model of a run to a file")
    model_commands.add_export_options(export)
    commands.add_info_options(command("info", commands.info, "print a summary of a model"))
    command("doctor", doctor, "check the installation and the devices")
    help = "print a script that completes commands and options in this shell, and exit"
    parser.add_argument("--print-completion", action=PrintCompletion, train=train, metavar="{bash,zsh,tcsh}", help=help)
    subparsers.metavar = "{" + ",".join(subparsers.choices) + "}"
    parser.commands = dict(subparsers.choices)
    return parser
