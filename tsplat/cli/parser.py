"""The arguments of the subcommands; :mod:`tsplat.training.runs.options` has those of ``tsplat train``."""

import argparse
import functools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from .. import ArgumentError, __version__
from ..support.suggestions import suggest, suggest_option
from . import commands, model_commands
from .argument_types import amount, channel, count, model_path, number, path, port, seed, size, small_seed, steps
from .completion import PrintCompletion
from .doctor import doctor

BACKENDS = ("auto", "triton", "torch")
MODEL = (
    "run folder, .ply, .splat, .spz, .sog or its folder; checkpoint or output folder of gsplat's, nerfstudio's or "
    "Inria's trainer; gsplat's PNG folder"
)
FORMATS = ("ply", "compressed-ply", "splat", "spz", "spz4", "sog")
OUTPUT = (
    "output file, .ply, .compressed.ply, .splat, .spz or .sog; folder/meta.json for SOG as single files; .html for a "
    "page that shows the model in a web browser"
)
VECTOR = ("X", "Y", "Z")
BOX = ("X0", "Y0", "Z0", "X1", "Y1", "Z1")
CAMERA_MODELS = ("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV")


class Parser(argparse.ArgumentParser):
    """A parser, with those of its subcommands, that raises ArgumentError where argparse would exit."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.commands: dict[str, Parser] = {}
        self._words: list[str] = []

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if choice is not None:
            hint = suggest([choice[1]], re.findall(r"[\w-]+", choice[2]))
        else:
            hint = suggest_option(self._words, self._option_string_actions)
        raise ArgumentError(f"{message}{hint}; see {self.prog} --help")


def build_parser() -> Parser:
    """Returns the parser of ``tsplat``; `run` of the parsed arguments is the function of the subcommand."""
    parser = Parser(prog="tsplat", description="3D Gaussian Splatting in Triton.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"tsplat {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True)
    _add_demo(subparsers.add_parser("demo", help="train on a small scene that needs no data", allow_abbrev=False))
    made = subparsers.add_parser(
        "prepare", help="make a scene from photographs or a video (COLMAP)", allow_abbrev=False
    )
    _add_prepare(made)
    _add_render(subparsers.add_parser("render", help="render an image or a video of a model", allow_abbrev=False))
    _add_view(subparsers.add_parser("view", help="show models in a web browser", allow_abbrev=False))
    train = subparsers.add_parser("train", help="train on photographs with cameras, or resume a run", add_help=False)
    train.set_defaults(run=commands.train)
    _add_eval(subparsers.add_parser("eval", help="metrics and images of a run", allow_abbrev=False))
    _add_report(subparsers.add_parser("report", help="write an HTML page about a run", allow_abbrev=False))
    _add_convert(subparsers.add_parser("convert", help="convert a model to another format", allow_abbrev=False))
    _add_edit(subparsers.add_parser("edit", help="crop, move, prune, merge or decimate models", allow_abbrev=False))
    _add_export(subparsers.add_parser("export", help="write the model of a run to a file", allow_abbrev=False))
    _add_info(subparsers.add_parser("info", help="print a summary of a model", allow_abbrev=False))
    check = subparsers.add_parser("doctor", help="check the installation and the devices", allow_abbrev=False)
    check.set_defaults(run=doctor)
    parser.add_argument(
        "--print-completion",
        action=PrintCompletion,
        train=train,
        metavar="{bash,zsh,tcsh}",
        help="print a script that completes commands and options in this shell, and exit",
    )
    subparsers.metavar = "{" + ",".join(subparsers.choices) + "}"
    parser.commands = dict(subparsers.choices)
    return parser


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=commands.demo)
    parser.add_argument("--out", type=path, default=Path("demo"), metavar="DIR", help="output folder (demo)")
    parser.add_argument("--steps", type=count, metavar="N", help="optimizer steps (depends on the device)")
    parser.add_argument("--seed", type=seed, default=0, metavar="S", help="random seed (0)")
    _add_backend(parser)


def _add_prepare(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=commands.prepare)
    parser.add_argument("photos", type=path, metavar="PHOTOS", help="folder of overlapping photographs, or a video")
    parser.add_argument("--out", type=path, required=True, metavar="SCENE", help="scene folder to create")
    parser.add_argument(
        "--max-size", type=size, default=1600, metavar="N", help="longest image side for feature detection (1600)"
    )
    parser.add_argument(
        "--single-camera",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether all photographs of a folder share one camera and focal length (yes)",
    )
    parser.add_argument(
        "--camera-model", choices=CAMERA_MODELS, default="SIMPLE_RADIAL", help="lens model to fit (SIMPLE_RADIAL)"
    )
    parser.add_argument(
        "--matching",
        choices=("auto", "exhaustive", "sequential", "vocabulary-tree"),
        default="auto",
        help="what to match each photograph with: all, those near in the order of names, or the most similar "
        "(auto: all of up to 200 photographs or 30 frames, then the most similar, or frames in sequence)",
    )
    parser.add_argument(
        "--frames", type=count, metavar="N", help="frames to take from a video (4 per second, 50 to 300)"
    )
    parser.add_argument(
        "--masks",
        type=path,
        metavar="MASKS",
        help="folder of masks, a.png or a.jpg.png for a.jpg, or one image for all photographs; white is valid",
    )
    parser.add_argument("--seed", type=small_seed, default=0, metavar="S", help="random seed (0)")


def _add_render(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=commands.render)
    _add_model(parser)
    parser.add_argument(
        "--out",
        type=path,
        required=True,
        metavar="IMAGE.png",
        help="output file: .png, or a video .mp4, .webm or .gif; with --trajectory also a folder for PNGs",
    )
    parser.add_argument(
        "--show", choices=("rgb", "depth", "normals", "alpha"), default="rgb", help="what to render (rgb)"
    )
    parser.add_argument(
        "--maps",
        action="store_true",
        help="also write the values shown as NumPy files beside the images",
    )
    parser.add_argument(
        "--trajectory",
        metavar="path|orbit|spiral|CAMERAS.json",
        help="render a video: a path along the cameras of a run, an orbit, a spiral, or the cameras of a file (of a "
        "video: path for a run, else orbit)",
    )
    parser.add_argument(
        "--frames", type=count, default=120, metavar="N", help="frames of a path, orbit or spiral (120)"
    )
    parser.add_argument("--fps", type=count, default=30, metavar="N", help="frames per second (30)")
    parser.add_argument(
        "--view", metavar="N|NAME", help="render a training or test view of a run at its own size, by index or name"
    )
    parser.add_argument("--width", type=size, metavar="N", help="image width in pixels (800)")
    parser.add_argument("--height", type=size, metavar="N", help="image height in pixels (600)")
    parser.add_argument(
        "--fov",
        type=number,
        metavar="DEG",
        help="vertical field of view in degrees (the run's, or 50)",
    )
    parser.add_argument(
        "--eye",
        type=number,
        nargs=3,
        metavar=VECTOR,
        help="camera position (a run: like its cameras; else to show the whole model)",
    )
    parser.add_argument(
        "--look-at",
        type=number,
        nargs=3,
        metavar=VECTOR,
        help="point at the image center (a run: what its cameras look at)",
    )
    _add_up(parser, "up direction (a run: that of its cameras; else 0 -1 0 or 0 1 0)")
    _add_background(parser)
    _add_backend(parser)


def _add_view(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=commands.view)
    parser.add_argument(
        "models",
        type=model_path,
        nargs="+",
        metavar="MODEL",
        help=f"{MODEL}; or a scene folder, whose sparse points are shown; several to choose from",
    )
    _add_checkpoint(parser)
    parser.add_argument("--scene", metavar="SCENE", help="scene folder of a run, if it has moved since training")
    parser.add_argument("--force", action="store_true", help="accept checkpoint values that look already activated")
    parser.add_argument("--address", default="127.0.0.1", metavar="IP", help="address to listen at (127.0.0.1)")
    parser.add_argument("--port", type=port, default=8080, metavar="N", help="port, or the next free one (8080)")
    parser.add_argument("--open", action="store_true", help="open the page in a web browser")
    _add_backend(parser)


def _add_eval(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=commands.evaluate)
    parser.add_argument("run_folder", type=path, metavar="RUN", help="folder of a run, or one of its checkpoints")
    parser.add_argument("--out", type=path, metavar="DIR", help="output folder (RUN/eval)")
    parser.add_argument("--scene", metavar="SCENE", help="scene folder, if it has moved since training")
    parser.add_argument("--lpips", choices=("alex", "vgg", "squeeze"), help="also compute LPIPS with this network")
    parser.add_argument("--ranks", type=count, default=1, metavar="N", help="number of processes (1)")
    _add_checkpoint(parser)
    parser.add_argument("--force", action="store_true", help="accept parameters that look already activated")


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=commands.report)
    parser.add_argument("run_folder", type=path, metavar="RUN", help="folder of a run, or one of its checkpoints")
    parser.add_argument("--out", type=path, metavar="FILE.html", help="output file (RUN/report.html)")
    parser.add_argument("--views", type=count, default=12, metavar="N", help="maximum number of views to show (12)")
    parser.add_argument("--scene", metavar="SCENE", help="scene folder, if it has moved since training")


def _add_convert(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=model_commands.convert)
    _add_model(parser)
    parser.add_argument("out", type=path, metavar="OUT", help=OUTPUT)
    _add_output(parser)


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=model_commands.convert)
    _add_model(parser)
    parser.add_argument("--out", type=path, required=True, metavar="OUT", help=OUTPUT)
    _add_output(parser)


def _add_edit(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=model_commands.edit, operations=[])
    _add_model(parser)
    parser.add_argument(
        "out",
        type=path,
        metavar="OUT",
        help="output file, .ply, .compressed.ply, .splat, .spz or .sog; folder/meta.json for SOG as single files",
    )
    parser.add_argument("--format", choices=FORMATS, help="format of the output (that of its name)")
    group = parser.add_argument_group(
        "operations", "applied one after another, in the order in which they are given; each may be given several times"
    )
    add = functools.partial(group.add_argument, action=model_commands.Operation, default=argparse.SUPPRESS)
    add("--crop", type=number, nargs=6, metavar=BOX, help="keep the Gaussians whose centers lie in the box")
    add(
        "--crop-sphere", type=number, nargs=4, metavar=(*VECTOR, "R"), help="keep those whose centers lie in the sphere"
    )
    add("--translate", type=number, nargs=3, metavar=VECTOR, help="move by a vector, in world units")
    add("--rotate", type=number, nargs=3, metavar=VECTOR, help="rotate by degrees about the x, then y, then z axis")
    add("--scale", type=number, metavar="F", help="scale by a factor about the origin")
    add("--transform", type=path, metavar="FILE", help="move by a 4×4 matrix: a text file of its numbers, row by row")
    add("--up", type=number, nargs=3, metavar=VECTOR, help="rotate so that this direction becomes 0 -1 0")
    add("--min-opacity", type=channel, metavar="O", help="remove Gaussians that are less opaque, 0 to 1")
    add("--max-scale", type=number, metavar="S", help="remove Gaussians whose longest axis is longer, in world units")
    add(
        "--max-isolation",
        type=number,
        metavar="R",
        help="remove Gaussians whose mean distance to 3 neighbors is more than R times the median; 5 finds floaters",
    )
    add("--drop-invalid", nargs=0, help="remove Gaussians with values such as NaN")
    add("--sh-degree", type=int, choices=range(5), help="degree of the spherical harmonics; 0 removes view dependence")
    add("--merge", type=model_path, metavar="MODEL", help="add the Gaussians of another model")
    add(
        "--decimate",
        type=amount,
        metavar="N|P%",
        help="merge Gaussians until this many, or this percentage, are left, with the least change of images",
    )
    decimation = parser.add_argument_group("options for --decimate")
    decimation.add_argument(
        "--finetune",
        type=steps,
        metavar="STEPS",
        help="optimize what is left for this many steps on images of the model before; 0 for none (200)",
    )
    decimation.add_argument(
        "--cameras",
        type=path,
        metavar="CAMERAS.json",
        help="cameras whose images are to change least, in the frame of MODEL (a run: its own; else around the model)",
    )
    _add_backend(decimation)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="format of the output (that of its name; .spz is SPZ 3; spz4 is SPZ 4); of the model in an .html: sog or "
        "compressed-ply (sog)",
    )
    parser.add_argument(
        "--crop",
        type=number,
        nargs=6,
        metavar=BOX,
        help="write only the Gaussians whose centers lie in the box with these two corners, in world units",
    )
    _add_up(
        parser,
        "direction that points up in MODEL, which is rotated so that it becomes 0 -1 0 (files: not rotated; .html: "
        "a run: that of its cameras; else 0 -1 0 or 0 1 0)",
    )
    page = parser.add_argument_group("options for .html")
    page.add_argument("--title", metavar="TEXT", help="title of the page (name of the model)")
    page.add_argument("--view", metavar="N|NAME", help="view of a run to start with, by index or name (the first)")
    _add_background(page)


def _add_up(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--up", type=number, nargs=3, metavar=VECTOR, help=text)


def _add_background(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--background",
        type=channel,
        nargs=3,
        metavar=("R", "G", "B"),
        help="background color, each from 0 to 1 (a run: that of its training; else 0 0 0)",
    )


def _add_info(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=commands.info)
    _add_model(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        type=model_path,
        metavar="MODEL",
        help=MODEL,
    )
    _add_checkpoint(parser)
    parser.add_argument("--force", action="store_true", help="accept checkpoint values that look already activated")


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint", metavar="STEP", help="step or folder name of the run's checkpoint to read (the newest)"
    )


def _add_backend(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--backend", choices=BACKENDS, default="auto", help="rasterizer backend (auto: the fastest)")
