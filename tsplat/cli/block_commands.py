"""``tsplat blocks``: commands that plan the blocks of a scene, train them, and merge their models."""

import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from .. import ArgumentError
from ..scene import plan_blocks, read_capture, read_plan, write_plan
from ..scene.capture.block_plans import PLAN
from ..scene.capture.block_plot import draw_plan
from ..scene.formats.checkpoints import read_georeference
from ..scene.model_rows import as_rows
from ..support.extras import require
from ..support.files import output_folder
from ..support.progress import stage_display
from .argument_types import COUNT, count, number, path
from .large_models import warn_user
from .model_commands import write
from .parsing import Parser
from .shared_options import ENDINGS, FORMATS
from .shared_steps import launch, print_steps_note


def add_blocks_options(parser: Parser) -> None:
    subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="{plan,train,merge}")
    parser.commands = subparsers.choices

    def subcommand(name: str, run: Callable[[Namespace], int], help: str, **settings: Any) -> Any:
        added = subparsers.add_parser(name, help=help, description=help, allow_abbrev=False, **settings)
        added.set_defaults(run=run)
        return added.add_argument

    add = subcommand("plan", plan, "divide a scene on the ground plane, and assign views to the blocks")
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
    add = subcommand("train", train, help, usage=usage)
    add("plan", type=path, metavar="PLAN", help="folder of the plan; indices of blocks and options may follow")
    add("--scene", metavar="SCENE", help="scene folder, if it has moved since the blocks were planned")
    subparsers.choices["train"].set_defaults(takes_options=True)

    add = subcommand("merge", merge, "merge the Gaussians that each block has inside of its borders into one model")
    add("plan", type=path, metavar="PLAN", help="folder of the plan, with all blocks trained")
    add("--out", type=path, required=True, metavar="MODEL", help=f"output file, {ENDINGS}")
    add("--format", choices=FORMATS, help="format of the output (that of its name)")


def plan(arguments: Namespace) -> int:
    """Runs ``tsplat blocks plan``."""
    require("PIL", "matplotlib", "rich")
    with output_folder(arguments.out) as folder:
        trained = sorted(path.name for path in folder.glob("block_*"))
        if trained:
            raise ArgumentError(f"{folder}: {trained[0]} belongs to the plan that is there; choose another folder")
        with stage_display() as show:
            # The plan ignores distortion, and uses all views.
            capture = read_capture(
                arguments.scene, on_progress=lambda done, total: show("reading", done, total), cameras="native"
            )
        blocks = arguments.blocks if arguments.grid is None else tuple(arguments.grid)
        options = dict(margin=arguments.margin, min_share=arguments.min_share, scene=arguments.scene.absolute())
        block_plan = plan_blocks(capture, blocks, **options)
        draw_plan(folder / "plan.png", block_plan, capture)
        write_plan(folder, block_plan)
    print(f"{'block':>5} {'points':>10} {'views':>6}")
    for k, block in enumerate(block_plan.blocks):
        print(f"{k:5} {block.n_points:10} {len(block.views):6}")
    print(f"wrote {folder}: {PLAN}; plan.png shows the blocks, views and points from above")
    return 0


def train(arguments: Namespace) -> int:
    """Runs ``tsplat blocks train``: indices of blocks, then options of ``tsplat train``."""
    from ..training import train_blocks
    from ..training.runs.context import require_extras
    from .train_options import parse

    rest = list(arguments.rest)
    blocks = []
    while rest and rest[0].isdecimal():
        blocks.append(int(rest.pop(0)))
    block_plan = read_plan(arguments.plan)
    for k in blocks:
        block_plan.check_block(k)

    def parse_options(steps: int | None = None) -> Namespace:
        if {"--resume", "--out", "--block", "--view", "--json"} & {word.partition("=")[0] for word in rest}:
            raise ArgumentError(
                "--resume, --out, --block, --view, --json: not with tsplat blocks train; to train a single block: "
                f"tsplat train SCENE --block {arguments.plan}:K --out {arguments.plan}/block_K"
            )
        return parse([arguments.scene or block_plan.scene, "--out", str(arguments.plan), *rest], steps)

    options = parse_options()
    require_extras(options.settings)
    status = launch(arguments.command_line, options.ranks, options.gpus)
    if status is not None:
        return status
    print_steps_note(rest)
    config = options.settings if options.minutes is None else lambda n: parse_options(n).settings
    train_blocks(
        arguments.plan,
        config,
        blocks or None,
        minutes=options.minutes,
        stop_after=options.stop_after,
        scene=arguments.scene,
    )
    return 0


def merge(arguments: Namespace) -> int:
    """Runs ``tsplat blocks merge``."""
    from ..training import merge_blocks
    from ..training.runs.blocks import block_run

    start = time.perf_counter()
    merged = as_rows(merge_blocks(arguments.plan, warn=warn_user))
    write(arguments, merged, start, read_georeference(block_run(arguments.plan, 0)))
    return 0
