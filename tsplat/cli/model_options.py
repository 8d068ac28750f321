"""Options of the commands on models. :mod:`.model_commands` and others run them."""

import argparse
import functools
import re
from argparse import Namespace
from typing import Any, get_args

from ..scene.option_types import FORMATS, FRAMES, MESH_ENDINGS, TRUNCATION, DepthKind
from .argument_types import BOX, COUNT, SIZE, VECTOR, amount, channel, model_path, number, path, positive, steps
from .shared_options import (
    ENDINGS,
    FORCE,
    MODEL,
    add_backend,
    add_background,
    add_checkpoint,
    add_frame,
    add_model,
)

OUTPUT = f"output file, {ENDINGS}; .html for a page that shows the model in a web browser"

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")

HUB_FILES = ("scene.ply", "scene.compressed.ply", "scene.splat", "scene.spz", "scene.sog", "scene.glb")
"""Files that ``share`` uploads, and that ``pull`` looks for first."""


def add_render_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add = parser.add_argument
    out = "output file: .png or .jpg, or a video .mp4, .webm or .gif; with --trajectory also a folder for PNGs"
    add("--out", type=path, required=True, metavar="IMAGE.png", help=out)
    add("--show", choices=("rgb", "depth", "normals", "alpha"), default="rgb", help="what to render (rgb)")
    add("--maps", action="store_true", help="also write the shown values as NumPy files beside the images")
    trajectory = (
        "render a video: a path along the cameras of a run, an orbit, a spiral, or the cameras of a file (if OUT is a "
        "video: path for a run, else orbit)"
    )
    add("--trajectory", metavar="path|orbit|spiral|CAMERAS.json", help=trajectory)
    add("--frames", **COUNT, default=120, help="frames of a path, orbit or spiral (120)")
    add("--fps", **COUNT, default=30, help="frames per second (30)")
    view = "render a training or test view of a run at its own size, by index or name"
    add("--view", metavar="N|NAME", help=view)
    camera = "render level 360° panoramas from the cameras' positions, by default with 2048×1024 pixels"
    add("--camera", choices=("equirectangular",), help=camera)
    add("--width", **SIZE, help="image width in pixels (800; for a run, that of its first photograph)")
    add("--height", **SIZE, help="image height in pixels (600; for a run, that of its first photograph)")
    add("--fov", type=number, metavar="DEG", help="vertical field of view in degrees (the run's, or 50)")
    add("--eye", **VECTOR, help="camera position (for a run, like its cameras; else chosen to show the whole model)")
    add("--look-at", **VECTOR, help="point at the image center (for a run, the point that its cameras look at)")
    add("--up", **VECTOR, help="up direction (for a run, that of its cameras; else 0 -1 0 or 0 1 0)")
    frame = "frame of CAMERAS.json, --eye, --look-at and --up: local for that of MODEL, files for the scene's (local)"
    add("--frame", choices=FRAMES, default="local", help=frame)
    add_background(parser)
    add_backend(parser)


def add_convert_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("out", type=path, metavar="OUT", help=OUTPUT)
    _add_output(parser)


def add_export_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--out", type=path, required=True, metavar="OUT", help=OUTPUT)
    _add_output(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    format = (
        "format of the output (by its name; .spz is SPZ 3, spz4 is SPZ 4); for .html, format of the model in the page: "
        "sog, compressed-ply, or streamed-sog for files beside it (sog)"
    )
    add("--format", choices=FORMATS, help=format)
    crop = "write only the Gaussians whose centers lie in the box with these two corners, in world units"
    add("--crop", **BOX, help=crop)
    up = (
        "direction that points up in MODEL, which is rotated so that this becomes 0 -1 0 (files: not rotated; .html: "
        "the up direction of a run's cameras, else 0 -1 0 or 0 1 0)"
    )
    add("--up", **VECTOR, help=up)
    add_frame(parser)
    add("--json", action="store_true", help="print what was written as JSON, and everything else on stderr")
    page = parser.add_argument_group("options for .html")
    page.add_argument("--title", metavar="TEXT", help="title of the page (name of the model)")
    page.add_argument(
        "--description", metavar="TEXT", help="text for search engines and previews of links (number of Gaussians)"
    )
    page.add_argument(
        "--annotations", type=path, metavar="FILE", help="JSON file with positions, titles and texts to show"
    )
    walk = "let visitors walk on a level floor, with their eyes this far above it, in world units"
    page.add_argument("--walk", type=number, metavar="HEIGHT", help=walk)
    url = "address where the page will be; previews of links then show an image, written beside OUT as .jpg"
    page.add_argument("--url", metavar="URL", help=url)
    page.add_argument("--view", metavar="N|NAME", help="view of a run to start with, by index or name (the first)")
    add_background(page)


class Operation(argparse.Action):
    """Appends an option and its values to `operations`, which preserves the order on the command line."""

    def __call__(
        self, _parser: argparse.ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> None:
        namespace.operations = [*namespace.operations, (option, values)]


def add_edit_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(operations=[])
    add_model(parser)
    parser.add_argument("out", type=path, metavar="OUT", help=f"output file, {ENDINGS}")
    parser.add_argument("--format", choices=FORMATS, help="format of the output (that of its name)")
    group = parser.add_argument_group(
        "operations", "applied one after another, in the order in which they are given; each may be given several times"
    )
    add = functools.partial(group.add_argument, action=Operation, default=argparse.SUPPRESS)
    sphere: dict[str, Any] = {"type": number, "nargs": 4, "metavar": ("X", "Y", "Z", "R")}
    add("--crop", **BOX, help="keep the Gaussians whose centers lie in the box")
    add("--crop-sphere", **sphere, help="keep the Gaussians whose centers lie in the sphere")
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
    decimate = "merge Gaussians until this number or percentage is left, with the least change of images"
    add("--decimate", type=amount, metavar="N|P%", help=decimate)
    decimation = parser.add_argument_group("options for --decimate")
    finetune = "number of steps that optimize the decimated model on images of the original; 0 for none (200)"
    decimation.add_argument("--finetune", type=steps, metavar="STEPS", help=finetune)
    cameras = "cameras whose images should change least, in the frame of MODEL (a run: its own; else around the model)"
    decimation.add_argument("--cameras", type=path, metavar="CAMERAS.json", help=cameras)
    add_backend(decimation)


def add_mesh_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", type=model_path, metavar="MODEL", help=MODEL)
    add_checkpoint(parser)
    add("--force", action="store_true", help=FORCE)
    add("--out", type=path, required=True, metavar="MESH", help=f"output file: {', '.join(MESH_ENDINGS)}")
    data = (
        "take cameras from a scene folder or a CAMERAS.json in the frame of MODEL (a run: its own; else around MODEL)"
    )
    add("--data", type=path, metavar="SCENE", help=data)
    add("--views", **COUNT, default=100, help="maximum number of cameras, evenly chosen (100)")
    add("--size", **SIZE, default=640, help="longest side of the depth images in pixels (640)")
    depth = "depth at which a ray meets the surface: the mean, or where transmittance falls to one half (median)"
    add("--depth", choices=get_args(DepthKind), default="median", help=depth)
    add("--voxel", type=positive, metavar="SIZE", help="edge of a voxel in world units")
    add("--resolution", **COUNT, help="number of voxels along the longest side, in place of --voxel (256)")
    add("--bounds", **BOX, help="extract only inside the box with these two corners (what the cameras show)")
    truncation = "distance from the surface within which depths are averaged, in voxels (4)"
    add("--truncation", type=positive, default=TRUNCATION, metavar="N", help=truncation)
    components = "number of connected components to keep, by area (those with at least 1%% of the area of the largest)"
    add("--components", **COUNT, help=components)
    add("--faces", **COUNT, help="decimate to this number of triangles (all)")
    memory = "maximum memory of the grid; the error for a larger grid states the voxel that fits (free memory)"
    add("--memory", type=positive, metavar="GB", help=memory)
    add_frame(parser)
    add_backend(parser)


def repository(text: str) -> str:
    """Parses the name of a repository, with its owner."""
    if REPOSITORY.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"expected OWNER/NAME, found {text!r}")
    return text


def add_share_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", type=model_path, metavar="MODEL", help=MODEL)
    add("repository", type=repository, metavar="OWNER/NAME", help="repository of models; created if it does not exist")
    license = "license of the model for its card, as the Hub names it, such as cc-by-4.0 (asked for in a terminal)"
    add("--license", metavar="ID", help=license)
    add(
        "--file",
        choices=HUB_FILES,
        default=HUB_FILES[0],
        help=f"name of the model's file, and its format ({HUB_FILES[0]})",
    )
    add("--private", action="store_true", help="create a repository that only its owner sees")
    add_checkpoint(parser)
    add("--force", action="store_true", help=FORCE)
    add_backend(parser)


def add_pull_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("repository", type=repository, metavar="OWNER/NAME", help="repository of a model")
    add("--out", type=path, metavar="FILE", help=f"file to write, {ENDINGS} (NAME.ply in the current folder)")
    add("--file", metavar="NAME", help="file of the repository (scene.ply, or the only model)")
    add("--revision", metavar="REV", help="branch, tag or commit (main)")
