"""``tsplat blocks``: commands that plan the blocks of a scene, train them, and merge their models."""

import time
from argparse import Namespace

from .. import ArgumentError
from ..scene import plan_blocks, read_capture, read_plan, write_plan
from ..scene.capture.block_plans import PLAN
from ..scene.capture.block_plot import draw_plan
from ..scene.formats.checkpoints import read_georeference
from ..scene.model_rows import as_rows
from ..support.extras import require
from ..support.files import output_folder
from ..support.progress import stage_display
from .large_models import warn_user
from .model_commands import write
from .shared_steps import launch, print_steps_note


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
        print(f"{k:5} {block.n_points:10,} {len(block.views):6}")
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
    config = options.settings if options.minutes is None else lambda n: parse_options(n).settings
    train_blocks(
        arguments.plan,
        config,
        blocks or None,
        minutes=options.minutes,
        stop_after=options.stop_after,
        scene=arguments.scene,
    )
    print_steps_note(rest)
    return 0


def merge(arguments: Namespace) -> int:
    """Runs ``tsplat blocks merge``."""
    from ..training import merge_blocks
    from ..training.runs.blocks import block_run

    start = time.perf_counter()
    merged = as_rows(merge_blocks(arguments.plan, warn=warn_user))
    write(arguments, merged, start, read_georeference(block_run(arguments.plan, 0)))
    return 0
