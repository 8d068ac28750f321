"""Trains the blocks of a plan one after another, and merges their models; see docs/blocks.md."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ...errors import ArgumentError, FileError
from ...scene.capture.block_plans import BlockPlan, crop_to_block, digest, read_plan
from ...scene.formats.checkpoints import open_model
from ...scene.formats.foreign import Warn
from ...scene.gaussians import Gaussians
from ...scene.joining import merge_models
from ...support.reading import read_json
from ...viewing.run_files import CONFIG, METRICS
from ..configuration import RunConfig, read_config
from ..processes.group import join_ranks
from .context import on_main
from .run_checkpoints import has_checkpoints, read_newest_settings
from .run_settings import Configure, changed_settings, check_timing
from .scenes import describe_block
from .train import resume, train


class BlockError(FileError):
    """Some blocks of a plan are not trained to the end; ``blocks`` are their indices."""

    def __init__(self, message: str, blocks: Sequence[int]) -> None:
        super().__init__(message)
        self.blocks = tuple(blocks)


def block_run(plan: str | os.PathLike[str], block: int) -> Path:
    """Returns the folder of the run of a block, in the folder of its plan."""
    return Path(plan) / f"block_{block}"


def train_blocks(
    plan: str | os.PathLike[str],
    config: RunConfig | Configure,
    blocks: Sequence[int] | None = None,
    *,
    minutes: float | None = None,
    stop_after: int | None = None,
    scene: str | None = None,
) -> None:
    """Trains blocks one after another, each as a separate run in the folder of the plan.

    Finished blocks are skipped, and runs that were stopped or killed are resumed from their newest checkpoint.

    Args:
        plan: Folder of a plan that ``tsplat blocks plan`` has written.
        config: Settings of each run or, with `minutes`, a function that returns them for a number of steps. The scene
            and the block are filled in.
        blocks: Indices of the blocks; None for all.
        minutes, stop_after: As in :func:`train`, for each block.
        scene: Path of the scene, if it has moved since it was planned.

    Raises:
        ArgumentError: A block does not exist, or its run was started with other settings.
        FileError: There is no plan, or a run in its folder belongs to another plan or another block.
        Interrupted, BackendError, DivergedError, MissingExtraError: See :func:`train`.
    """
    check_timing(config, minutes)
    block_plan = read_plan(plan)
    chosen = [block_plan.check_block(k) for k in (range(len(block_plan.blocks)) if blocks is None else blocks)]
    _check_runs(plan, block_plan, chosen)
    for k in chosen:
        run, block = block_run(plan, k), f"{os.path.abspath(plan)}:{k}"

        def configure(steps: int, block: str = block) -> RunConfig:
            settings = config if isinstance(config, RunConfig) else config(steps)
            return dataclasses.replace(settings, scene=scene or block_plan.scene, block=block)

        _, _, ranks = join_ranks(configure(RunConfig.steps))
        started, finished = on_main(ranks, lambda run=run: (_is_started(run), _is_finished(run)))  # type: ignore[misc]
        if started:
            changed = set(changed_settings(configure, read_config(run / CONFIG))) - {"scene", "block"}
            if changed:
                raise ArgumentError(
                    f"{run}: was started with other settings ({', '.join(sorted(changed))}); use those of its "
                    f"{CONFIG}, or move it away"
                )
        if ranks.is_main:
            print(
                f"block {k} of {len(block_plan.blocks)}: {'finished before, skipped' if finished else run}", flush=True
            )
        if finished:
            continue
        if started:
            resume(run, stop_after=stop_after, scene=scene)
        else:
            train(configure if minutes is not None else configure(0), run, minutes=minutes, stop_after=stop_after)


def merge_blocks(plan: str | os.PathLike[str], *, warn: Warn = warnings.warn) -> Gaussians:
    """Merges the trained blocks of a plan into one model, in the frame of the plan.

    Each block contributes the Gaussians whose centers lie in its box, without the margin. Besides the result, only one
    block is in memory at a time.

    Args:
        plan: Folder of the plan.
        warn: Called with a note about each damaged checkpoint that was skipped.

    Raises:
        BlockError: Some blocks are not trained to the end; the message names them.
        FileError: There is no plan, or a run in its folder belongs to another plan or another block.
        CheckpointError: A run has no valid checkpoint.
    """
    block_plan = read_plan(plan)
    _check_runs(plan, block_plan, range(len(block_plan.blocks)))
    missing = [k for k in range(len(block_plan.blocks)) if not _is_finished(block_run(plan, k))]
    if missing:
        names = [f"{k} ({'not finished' if _is_started(block_run(plan, k)) else 'not started'})" for k in missing]
        raise BlockError(
            f"{plan}: {len(missing)} of {len(block_plan.blocks)} blocks are not trained: {', '.join(names)}; to train "
            f"them: tsplat blocks train {plan} {' '.join(map(str, missing))}",
            missing,
        )
    kept = []
    for k in range(len(block_plan.blocks)):
        # The cropped model is a copy, so that the full one can be freed.
        kept.append(crop_to_block(open_model(block_run(plan, k), warn=warn), block_plan, k))
    return merge_models(kept, warn=warn)


def _check_runs(plan: str | os.PathLike[str], block_plan: BlockPlan, blocks: Iterable[int]) -> None:
    """Raises FileError if a run in the folder of a block belongs to another block or another plan."""
    for k in blocks:
        run = block_run(plan, k)
        if not _is_started(run):
            continue
        block = _block_of(run)
        if block is None:
            problem = "does not belong to a block"
        elif block["index"] != k:
            problem = f"belongs to block {block['index']}, not to block {k}"
        elif block["plan"] not in (None, digest(block_plan)):
            problem = "belongs to another plan"
        else:
            continue
        raise FileError(f"{run}: the run in this folder {problem}; move it away, and train block {k} here")


def _block_of(run: Path) -> dict[str, Any] | None:
    """Returns the `index` of the block that a run trains, and the digest of its `plan`, None if it is unknown.

    Returns None for a run that does not train a block.
    """
    recorded: dict[str, Any] = {}
    if has_checkpoints(run):
        _, config, figures = read_newest_settings(run)
        recorded = figures.get("scene", {})
    else:
        config = read_config(run / CONFIG)
    if config.plan_and_block is None:
        return None
    try:
        described = describe_block(config)
    except ArgumentError:  # the plan has moved
        described = {"block": {"index": config.plan_and_block[1], "plan": None}}
    block: dict[str, Any] = (described | recorded)["block"]
    return block


def _is_started(run: Path) -> bool:
    return (run / CONFIG).is_file() or has_checkpoints(run)


def _is_finished(run: Path) -> bool:
    """Returns whether a run has written the results of its last step."""
    if not ((run / CONFIG).is_file() and (run / METRICS).is_file()):
        return False
    steps: int = read_config(run / CONFIG).steps
    return bool(read_json(run / METRICS).get("steps") == steps)
