"""The arguments of the subcommands; :mod:`.train_options` has those of ``tsplat train``."""

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from .. import __version__
from ..scene.capture.colmap import PINHOLE_MODELS
from ..scene.capture.structure_from_motion import MATCHINGS
from ..scene.formats.models import WRITERS
from ..scene.meshes.depth_frames import DepthKind
from ..scene.meshes.extraction import TRUNCATION
from ..scene.meshes.mesh_files import WRITERS as MESHES
from ..viewing.view_options import ViewOptions
from . import block_commands, commands, model_commands
from .argument_types import (
    amount,
    channel,
    count,
    model_path,
    number,
    path,
    port,
    positive,
    seed,
    size,
    small_seed,
    steps,
)
from .completion import PrintCompletion
from .doctor import doctor
from .mesh_command import mesh
from .parsing import Parser, add_settings

BACKENDS = ("auto", "triton", "torch")
MODEL = (
    "run folder, .ply, .splat, .spz, .sog or its folder, lod-meta.json, .glb, .gltf, .usda, .usdc, .usdz; checkpoint "
    "or output folder of gsplat's, nerfstudio's or Inria's trainer; gsplat's PNG folder"
)
FORMATS, CAMERA_MODELS = tuple(WRITERS), tuple(PINHOLE_MODELS)
ENDINGS = (
    ".ply, .compressed.ply, .splat, .spz, .sog, .glb, .gltf, .usda, .usdc or .usdz; folder/meta.json for SOG as single "
    "files; folder/lod-meta.json for Streamed SOG"
)
OUTPUT = f"output file, {ENDINGS}; .html for a page that shows the model in a web browser"
FORCE = "accept checkpoint values that look already activated"
COUNT: dict[str, Any] = {"type": count, "metavar": "N"}
SIZE: dict[str, Any] = {"type": size, "metavar": "N"}
VECTOR: dict[str, Any] = {"type": number, "nargs": 3, "metavar": ("X", "Y", "Z")}
BOX: dict[str, Any] = {"type": number, "nargs": 6, "metavar": ("X0", "Y0", "Z0", "X1", "Y1", "Z1")}


def build_parser() -> Parser:
    """Returns the parser of ``tsplat``; `run` of the parsed arguments is the function of the subcommand."""
    parser = Parser(prog="tsplat", description="3D Gaussian Splatting in Triton.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"tsplat {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], help: str, **settings: Any) -> Parser:
        added: Parser = subparsers.add_parser(name, help=help, **{"allow_abbrev": False, **settings})
        added.set_defaults(run=run)
        return added

    _add_demo(command("demo", commands.demo, "train on a small scene that needs no data"))
    _add_prepare(command("prepare", commands.prepare, "make a scene from photographs or a video (COLMAP)"))
    _add_render(command("render", commands.render, "render an image or a video of a model"))
    _add_mesh(command("mesh", mesh, "extract a triangle mesh from a model"))
    _add_view(command("view", commands.view, "show models in a web browser"))
    train = command(
        "train", commands.train, "train on photographs with cameras, or resume a run", add_help=False, allow_abbrev=True
    )
    train.set_defaults(takes_options=True)
    _add_blocks(command("blocks", commands.train, "train a large scene in blocks, and merge them"))
    _add_eval(command("eval", commands.evaluate, "metrics and images of a run"))
    _add_report(command("report", commands.report, "write an HTML page about a run"))
    convert = command("convert", model_commands.convert, "convert a model to another format")
    _add_model(convert)
    convert.add_argument("out", type=path, metavar="OUT", help=OUTPUT)
    _add_output(convert)
    _add_edit(command("edit", model_commands.edit, "crop, move, prune, merge or decimate models"))
    export = command("export", model_commands.convert, "write the model of a run to a file")
    _add_model(export)
    export.add_argument("--out", type=path, required=True, metavar="OUT", help=OUTPUT)
    _add_output(export)
    info = command("info", commands.info, "print a summary of a model")
    _add_model(info)
    info.add_argument("--json", action="store_true", help="print JSON")
    command("doctor", doctor, "check the installation and the devices")
    help = "print a script that completes commands and options in this shell, and exit"
    parser.add_argument("--print-completion", action=PrintCompletion, train=train, metavar="{bash,zsh,tcsh}", help=help)
    subparsers.metavar = "{" + ",".join(subparsers.choices) + "}"
    parser.commands = dict(subparsers.choices)
    return parser


def _add_demo(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=path, default=Path("demo"), metavar="DIR", help="output folder (demo)")
    add("--steps", **COUNT, help="optimizer steps (depends on the device)")
    add("--seed", type=seed, default=0, metavar="S", help="random seed (0)")
    _add_backend(parser)


def _add_prepare(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("photos", type=path, metavar="PHOTOS", help="folder of overlapping photographs, or a video")
    add("--out", type=path, required=True, metavar="SCENE", help="scene folder to create")
    add("--max-size", **SIZE, default=1600, help="longest image side for feature detection (1600)")
    single = "whether all photographs of a folder share one camera and focal length (yes)"
    add("--single-camera", action=argparse.BooleanOptionalAction, default=True, help=single)
    add("--camera-model", choices=CAMERA_MODELS, default="SIMPLE_RADIAL", help="lens model to fit (SIMPLE_RADIAL)")
    matching = (
        "what to match each photograph with: all, those near in the order of names, or the most similar "
        "(auto: all of up to 200 photographs or 30 frames, then the most similar, or frames in sequence)"
    )
    add("--matching", choices=MATCHINGS, default="auto", help=matching)
    add("--frames", **COUNT, help="frames to take from a video (4 per second, 50 to 300)")
    masks = "folder of masks, a.png or a.jpg.png for a.jpg, or one image for all photographs; white is valid"
    add("--masks", type=path, metavar="MASKS", help=masks)
    add("--seed", type=small_seed, default=0, metavar="S", help="random seed (0)")


def _add_render(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    add = parser.add_argument
    out = "output file: .png, or a video .mp4, .webm or .gif; with --trajectory also a folder for PNGs"
    add("--out", type=path, required=True, metavar="IMAGE.png", help=out)
    add("--show", choices=("rgb", "depth", "normals", "alpha"), default="rgb", help="what to render (rgb)")
    add("--maps", action="store_true", help="also write the values shown as NumPy files beside the images")
    trajectory = (
        "render a video: a path along the cameras of a run, an orbit, a spiral, or the cameras of a file (of a video: "
        "path for a run, else orbit)"
    )
    add("--trajectory", metavar="path|orbit|spiral|CAMERAS.json", help=trajectory)
    add("--frames", **COUNT, default=120, help="frames of a path, orbit or spiral (120)")
    add("--fps", **COUNT, default=30, help="frames per second (30)")
    view = "render a training or test view of a run at its own size, by index or name"
    add("--view", metavar="N|NAME", help=view)
    add("--width", **SIZE, help="image width in pixels (800; that of the first photograph of a run)")
    add("--height", **SIZE, help="image height in pixels (600; that of the first photograph of a run)")
    add("--fov", type=number, metavar="DEG", help="vertical field of view in degrees (the run's, or 50)")
    add("--eye", **VECTOR, help="camera position (a run: like its cameras; else to show the whole model)")
    add("--look-at", **VECTOR, help="point at the image center (a run: what its cameras look at)")
    add("--up", **VECTOR, help="up direction (a run: that of its cameras; else 0 -1 0 or 0 1 0)")
    _add_background(parser)
    _add_backend(parser)


def _add_mesh(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", type=model_path, metavar="MODEL", help=MODEL)
    _add_checkpoint(parser)
    add("--force", action="store_true", help=FORCE)
    add("--out", type=path, required=True, metavar="MESH", help=f"output file: {', '.join(MESHES)}")
    data = (
        "take cameras from a scene folder or a CAMERAS.json in the frame of MODEL (a run: its own; else around MODEL)"
    )
    add("--data", type=path, metavar="SCENE", help=data)
    add("--views", **COUNT, default=100, help="maximum number of cameras, evenly chosen (100)")
    add("--size", **SIZE, default=640, help="longest side of the depth images in pixels (640)")
    depth = "depth at which a ray meets the surface: the mean, or where half of the light is left (median)"
    add("--depth", choices=get_args(DepthKind), default="median", help=depth)
    add("--voxel", type=positive, metavar="SIZE", help="edge of a voxel in world units")
    add("--resolution", **COUNT, help="number of voxels along the longest side, in place of --voxel (256)")
    add("--bounds", **BOX, help="extract only inside the box with these two corners (what the cameras show)")
    truncation = "distance from the surface within which depths are averaged, in voxels (4)"
    add("--truncation", type=positive, default=TRUNCATION, metavar="N", help=truncation)
    components = "keep only so many connected components, the largest (those with 1%% of the area of the largest)"
    add("--components", **COUNT, help=components)
    add("--faces", **COUNT, help="decimate to so many triangles (all)")
    _add_backend(parser)


def _add_view(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    models = f"{MODEL}; or a scene folder, whose sparse points are shown; several to choose from"
    add("models", type=model_path, nargs="+", metavar="MODEL", help=models)
    _add_checkpoint(parser)
    add("--scene", metavar="SCENE", help="scene folder of a run, if it has moved since training")
    add("--force", action="store_true", help=FORCE)
    _add_memory(parser)
    add_settings(
        parser, ViewOptions(), names=("address", "port", "open"), address={"metavar": "IP"}, port={"type": port}
    )
    _add_backend(parser)


def _add_blocks(parser: Parser) -> None:
    steps = parser.add_subparsers(dest="part", required=True, metavar="{plan,train,merge}")
    parser.commands = steps.choices

    def part(name: str, run: Callable[[argparse.Namespace], int], help: str, **settings: Any) -> Any:
        added = steps.add_parser(name, help=help, description=help, allow_abbrev=False, **settings)
        added.set_defaults(run=run)
        return added.add_argument

    add = part("plan", block_commands.plan, "divide a scene on the ground plane, and assign views to the blocks")
    add("scene", type=path, metavar="SCENE", help="scene folder, as for tsplat train")
    add("--out", type=path, required=True, metavar="PLAN", help="folder to create: plan.json, and the image plan.png")
    number_of = steps.choices["plan"].add_mutually_exclusive_group(required=True)
    number_of.add_argument("--blocks", **COUNT, help="number of blocks, with about equal numbers of points")
    grid: dict[str, Any] = {"type": count, "nargs": 2, "metavar": ("COLUMNS", "ROWS")}
    number_of.add_argument("--grid", **grid, help="numbers of columns and of rows in each")
    margin = "by how much of its size a block is expanded on each side for training (0.2)"
    add("--margin", type=number, default=0.2, metavar="F", help=margin)
    share = "share of what a view shows from which it is assigned to a block, besides the one it shows most of (0.03)"
    add("--min-share", type=number, default=0.03, metavar="F", help=share)

    help = "train all blocks one after another, or those given; finished ones are skipped, stopped ones are resumed"
    usage = "tsplat blocks train [-h] [--scene SCENE] PLAN [K ...] [OPTIONS of tsplat train]"
    add = part("train", block_commands.train, help, usage=usage)
    add("plan", type=path, metavar="PLAN", help="folder of the plan; indices of blocks and options may follow")
    add("--scene", metavar="SCENE", help="scene folder, if it has moved since it was planned")
    steps.choices["train"].set_defaults(takes_options=True)

    add = part("merge", block_commands.merge, "write one model of what each block keeps inside of its borders")
    add("plan", type=path, metavar="PLAN", help="folder of the plan, with all blocks trained")
    add("--out", type=path, required=True, metavar="MODEL", help=f"output file, {ENDINGS}")
    add("--format", choices=FORMATS, help="format of the output (that of its name)")


def _add_eval(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_folder", type=path, metavar="RUN", help="folder of a run, or one of its checkpoints")
    add("--out", type=path, metavar="DIR", help="output folder (RUN/eval)")
    add("--scene", metavar="SCENE", help="scene folder, if it has moved since training")
    add("--lpips", choices=("alex", "vgg", "squeeze"), help="also compute LPIPS with this network")
    add("--ranks", **COUNT, default=1, help="number of processes (1)")
    _add_checkpoint(parser)
    add("--force", action="store_true", help="accept parameters that look already activated")


def _add_report(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_folder", type=path, metavar="RUN", help="folder of a run, or one of its checkpoints")
    add("--out", type=path, metavar="FILE.html", help="output file (RUN/report.html)")
    add("--views", **COUNT, default=12, help="maximum number of views to show (12)")
    add("--scene", metavar="SCENE", help="scene folder, if it has moved since training")


def _add_edit(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(operations=[])
    _add_model(parser)
    parser.add_argument("out", type=path, metavar="OUT", help=f"output file, {ENDINGS}")
    parser.add_argument("--format", choices=FORMATS, help="format of the output (that of its name)")
    group = parser.add_argument_group(
        "operations", "applied one after another, in the order in which they are given; each may be given several times"
    )
    add = functools.partial(group.add_argument, action=model_commands.Operation, default=argparse.SUPPRESS)
    sphere: dict[str, Any] = {"type": number, "nargs": 4, "metavar": ("X", "Y", "Z", "R")}
    add("--crop", **BOX, help="keep the Gaussians whose centers lie in the box")
    add("--crop-sphere", **sphere, help="keep those whose centers lie in the sphere")
    add("--translate", **VECTOR, help="move by a vector, in world units")
    add("--rotate", **VECTOR, help="rotate by degrees about the x, then y, then z axis")
    add("--scale", type=number, metavar="F", help="scale by a factor about the origin")
    add("--transform", type=path, metavar="FILE", help="move by a 4×4 matrix: a text file of its numbers, row by row")
    add("--up", **VECTOR, help="rotate so that this direction becomes 0 -1 0")
    add("--min-opacity", type=channel, metavar="O", help="remove Gaussians that are less opaque, 0 to 1")
    add("--max-scale", type=number, metavar="S", help="remove Gaussians whose longest axis is longer, in world units")
    isolation = "remove Gaussians whose mean distance to 3 neighbors is more than R times the median; 5 finds floaters"
    add("--max-isolation", type=number, metavar="R", help=isolation)
    add("--drop-invalid", nargs=0, help="remove Gaussians with values such as NaN")
    add("--sh-degree", type=int, choices=range(5), help="degree of the spherical harmonics; 0 removes view dependence")
    add("--merge", type=model_path, metavar="MODEL", help="add the Gaussians of another model")
    decimate = "merge Gaussians until this many, or this percentage, are left, with the least change of images"
    add("--decimate", type=amount, metavar="N|P%", help=decimate)
    decimation = parser.add_argument_group("options for --decimate")
    finetune = "optimize what is left for this many steps on images of the model before; 0 for none (200)"
    decimation.add_argument("--finetune", type=steps, metavar="STEPS", help=finetune)
    cameras = "cameras whose images are to change least, in the frame of MODEL (a run: its own; else around the model)"
    decimation.add_argument("--cameras", type=path, metavar="CAMERAS.json", help=cameras)
    _add_backend(decimation)


def _add_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    format = (
        "format of the output (that of its name; .spz is SPZ 3; spz4 is SPZ 4); of the model in an .html: sog, "
        "compressed-ply, or streamed-sog for files beside it (sog)"
    )
    add("--format", choices=FORMATS, help=format)
    crop = "write only the Gaussians whose centers lie in the box with these two corners, in world units"
    add("--crop", **BOX, help=crop)
    up = (
        "direction that points up in MODEL, which is rotated so that it becomes 0 -1 0 (files: not rotated; .html: a "
        "run: that of its cameras; else 0 -1 0 or 0 1 0)"
    )
    add("--up", **VECTOR, help=up)
    page = parser.add_argument_group("options for .html")
    page.add_argument("--title", metavar="TEXT", help="title of the page (name of the model)")
    page.add_argument("--view", metavar="N|NAME", help="view of a run to start with, by index or name (the first)")
    _add_background(page)


def _add_background(parser: argparse._ActionsContainer) -> None:
    help = "background color, each from 0 to 1 (a run: that of its training; else 0 0 0)"
    parser.add_argument("--background", type=channel, nargs=3, metavar=("R", "G", "B"), help=help)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=model_path, metavar="MODEL", help=MODEL)
    _add_checkpoint(parser)
    parser.add_argument("--force", action="store_true", help=FORCE)
    _add_memory(parser)


def _add_memory(parser: argparse.ArgumentParser) -> None:
    help = "memory to use; a PLY that needs more is read part by part (what is free)"
    parser.add_argument("--memory", type=positive, metavar="GB", help=help)


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    help = "step or folder name of the run's checkpoint to read (the newest)"
    parser.add_argument("--checkpoint", metavar="STEP", help=help)


def _add_backend(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--backend", choices=BACKENDS, default="auto", help="rasterizer backend (auto: the fastest)")
