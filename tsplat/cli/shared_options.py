"""Options that several commands share."""

import argparse
from pathlib import Path

from ..scene.option_types import FRAMES
from .argument_types import channel, model_path, positive

MODEL = (
    "run folder, .ply, .splat, .ksplat, .spz, .sog or its folder, lod-meta.json, .rad, .lcc, .lcc2, .glb, .gltf, "
    ".usda, .usdc, .usdz; checkpoint or output folder of gsplat's, nerfstudio's or Inria's trainer; gsplat's PNG folder"
)
ENDINGS = (
    ".ply, .compressed.ply, .splat, .spz, .sog, .glb, .gltf, .usda, .usdc or .usdz; folder/meta.json for SOG as single "
    "files; folder/lod-meta.json for Streamed SOG"
)
FORCE = "accept parameters of checkpoints that look activated already"


def run_folder(scene: Path) -> Path:
    """Returns the folder that messages propose for a run on a scene."""
    return scene.with_name(f"{scene.name}_run") if scene.name else Path("run")


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=model_path, metavar="MODEL", help=MODEL)
    add_checkpoint(parser)
    parser.add_argument("--force", action="store_true", help=FORCE)
    add_memory(parser)


def add_memory(parser: argparse.ArgumentParser) -> None:
    help = "memory to use; a PLY that needs more is read part by part (free memory)"
    parser.add_argument("--memory", type=positive, metavar="GB", help=help)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    help = "step or folder name of the run's checkpoint to read (the newest)"
    parser.add_argument("--checkpoint", metavar="STEP", help=help)


def add_frame(parser: argparse.ArgumentParser) -> None:
    frame = (
        "frame of the written coordinates: local for that of MODEL, with the transform from the frame of the scene's "
        "files, such as UTM, in OUT.world.json; or files for the frame of these files (local)"
    )
    parser.add_argument("--frame", choices=FRAMES, default="local", help=frame)
    crs = "coordinate reference system of the scene's files, such as EPSG:32633, to write to OUT.world.json"
    parser.add_argument("--crs", metavar="TEXT", help=crs)


def add_background(parser: argparse._ActionsContainer) -> None:
    help = "background color, each from 0 to 1 (for a run, that of its training; else 0 0 0)"
    parser.add_argument("--background", type=channel, nargs=3, metavar=("R", "G", "B"), help=help)


def add_backend(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--backend", choices=("auto", "triton", "torch"), default="auto", help="rasterizer backend (auto: the fastest)"
    )
