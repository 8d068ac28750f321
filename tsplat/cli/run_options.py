"""Options of the commands on scenes, runs and the installation. :mod:`.commands` and others run them."""

import argparse
from pathlib import Path
from typing import Any, get_args

from ..scene.option_types import FITTED_MODELS, FORMATS, MATCHINGS
from ..viewing.view_options import DrawnBy, ViewOptions
from .argument_types import COUNT, SIZE, VECTOR, count, model_path, number, path, port, seed, small_seed
from .parsing import Parser, add_settings
from .shared_options import ENDINGS, FORCE, MODEL, add_backend, add_checkpoint, add_memory, add_model


def add_demo_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=path, default=Path("demo"), metavar="DIR", help="output folder (demo)")
    add("--steps", **COUNT, help="optimizer steps (depends on the device)")
    add("--seed", type=seed, default=0, metavar="S", help="random seed (0)")
    add_backend(parser)


def add_prepare_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("photos", type=path, metavar="PHOTOS", help="folder of overlapping photographs, or a video")
    add("--out", type=path, required=True, metavar="SCENE", help="scene folder to create")
    add("--max-size", **SIZE, default=1600, help="longest image side for feature detection (1600)")
    single = "whether all photographs of a folder share one camera and focal length (yes)"
    add("--single-camera", action=argparse.BooleanOptionalAction, default=True, help=single)
    lens = (
        "lens model to fit; EQUIRECTANGULAR for 360° panoramas (EQUIRECTANGULAR if the metadata says so, else "
        "SIMPLE_RADIAL)"
    )
    add("--camera-model", choices=FITTED_MODELS, help=lens)
    matching = (
        "photographs to match with each other: all, neighbors in the order of names, or the most similar ones "
        "(auto: all for up to 200 photographs or 30 frames; else the most similar photographs, or neighboring frames)"
    )
    add("--matching", choices=MATCHINGS, default="auto", help=matching)
    add("--frames", **COUNT, help="frames to take from a video (4 per second, 50 to 300)")
    masks = "folder of masks, a.png or a.jpg.png for a.jpg, or one image for all photographs; white is valid"
    add("--masks", type=path, metavar="MASKS", help=masks)
    below = "mask the part of panoramas more than this angle below the horizon, where the operator is"
    add("--mask-below", type=number, metavar="DEG", help=below)
    add("--seed", type=small_seed, default=0, metavar="S", help="random seed (0)")


def add_view_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    models = f"{MODEL}; or a scene folder, whose sparse points are shown; the viewer can switch between several"
    add("models", type=model_path, nargs="+", metavar="MODEL", help=models)
    add_checkpoint(parser)
    add("--scene", metavar="SCENE", help="scene folder of a run, if it has moved since training")
    add("--up", **VECTOR, help="direction that points up in all models (a run: that of its cameras; else guessed)")
    add("--force", action="store_true", help=FORCE)
    add_memory(parser)
    add_settings(
        parser,
        ViewOptions(),
        names=("address", "port", "host_name", "open"),
        address={"metavar": "IP"},
        port={"type": port},
    )
    draw = (
        "where images are first drawn: server, or browser if it has WebGL 2 on a GPU; the page has a control for it "
        "(server)"
    )
    add("--draw", choices=get_args(DrawnBy), default="server", help=draw)
    add_backend(parser)


def add_eval_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_folder", type=path, metavar="RUN", help="folder of a run, or one of its checkpoints")
    add("--out", type=path, metavar="DIR", help="output folder (RUN/eval)")
    add("--scene", metavar="SCENE", help="scene folder, if it has moved since training")
    add("--lpips", choices=("alex", "vgg", "squeeze"), help="also compute LPIPS with this network")
    add("--ranks", **COUNT, default=1, help="number of processes (1)")
    add_checkpoint(parser)
    add("--force", action="store_true", help=FORCE)
    add("--json", action="store_true", help="print the metrics as JSON, and everything else on stderr")


def add_report_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_folder", type=path, metavar="RUN", help="folder of a run, or one of its checkpoints")
    add("--out", type=path, metavar="FILE.html", help="output file (RUN/report.html)")
    add("--views", **COUNT, default=12, help="maximum number of views to show (12)")
    add("--scene", metavar="SCENE", help="scene folder, if it has moved since training")


def add_info_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_doctor_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_blocks_options(parser: Parser) -> None:
    subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="{plan,train,merge}")
    parser.commands = subparsers.choices

    def subcommand(name: str, help: str, **settings: Any) -> Any:
        added = subparsers.add_parser(name, help=help, description=help, allow_abbrev=False, **settings)
        added.set_defaults(run=("block_commands", name))
        return added.add_argument

    add = subcommand("plan", "divide a scene on the ground plane, and assign views to the blocks")
    add("scene", type=path, metavar="SCENE", help="scene folder, as for tsplat train")
    add("--out", type=path, required=True, metavar="PLAN", help="folder to create: plan.json, and the image plan.png")
    layout = subparsers.choices["plan"].add_mutually_exclusive_group(required=True)
    layout.add_argument("--blocks", **COUNT, help="number of blocks, with about equal numbers of points")
    grid: dict[str, Any] = {"type": count, "nargs": 2, "metavar": ("COLUMNS", "ROWS")}
    layout.add_argument("--grid", **grid, help="numbers of columns and of rows in each")
    margin = "margin on each side of a block during training, as a fraction of its size (0.2)"
    add("--margin", type=number, default=0.2, metavar="F", help=margin)
    share = "a view is assigned to each block that has at least this share of it, and to the block with the most (0.03)"
    add("--min-share", type=number, default=0.03, metavar="F", help=share)

    help = "train all blocks, or the given ones, one after another; finished blocks are skipped, stopped ones resumed"
    usage = "tsplat blocks train [-h] [--scene SCENE] PLAN [K ...] [OPTIONS of tsplat train]"
    add = subcommand("train", help, usage=usage)
    add("plan", type=path, metavar="PLAN", help="folder of the plan; indices of blocks and options may follow")
    add("--scene", metavar="SCENE", help="scene folder, if it has moved since the blocks were planned")
    subparsers.choices["train"].set_defaults(takes_options=True)

    add = subcommand("merge", "merge the Gaussians that each block has inside of its borders into one model")
    add("plan", type=path, metavar="PLAN", help="folder of the plan, with all blocks trained")
    add("--out", type=path, required=True, metavar="MODEL", help=f"output file, {ENDINGS}")
    add("--format", choices=FORMATS, help="format of the output (that of its name)")
