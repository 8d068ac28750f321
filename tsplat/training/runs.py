"""Training runs: train on photographs, resume a run, and evaluate one."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..arguments import check_size
from ..errors import FileError
from ..scene.capture.captures import read_capture
from ..scene.capture.views import Capture
from ..scene.gaussians import Gaussians
from ..stages.process_group import RankGroup
from ..support.extras import require
from ..support.files import output_folder, write_json
from ..support.progress import stage_display
from ..viewing.devices import pick_device, reserve_threads
from .configuration import RunConfig, to_json
from .evaluation import Network, Score, evaluate, mean_psnr, mean_ssim, report
from .parameters import scene_tensors
from .processes.group import join_group
from .processes.heartbeat import heartbeat
from .processes.launcher import is_launched
from .run_checkpoints import delete_incomplete, read_newest
from .run_loop import RunLoop, score_views
from .run_report import write_held_out, write_report
from .trainer import Trainer

CONFIG, WORLD = "config.json", "world.json"


def train(config: RunConfig, out: str | os.PathLike[str], *, stop_after: int | None = None) -> dict[str, Any]:
    """Trains on photographs with known cameras, starting from their sparse points.

    Writes ``config.json``, ``checkpoints/``, ``held_out/`` with photographs and rendered images side by side,
    ``contact_sheet.png``, ``curve.png``, ``metrics.json`` and ``point_cloud.ply``.

    Args:
        config: Settings of the run; ``config.scene`` is a folder as for :func:`tsplat.scene.read_capture`.
        out: The run's folder; created if it does not exist.
        stop_after: Stop after this number of steps, with the schedules of the full run.

    Returns:
        The contents of ``metrics.json``.

    Raises:
        ArgumentError: The scene is invalid (see :func:`tsplat.scene.read_capture`), or the folder cannot be written to
            or contains another run.
        BackendError: The backend cannot run here.
        DivergedError: The loss, the gradients or the Gaussians are no longer finite; the last state is saved under
            ``inspect/``.
        MissingExtraError: A package of the extra ``train`` is not installed.
    """
    _require_extras()
    device, description = pick_device(config.backend, config.device)
    ranks = join_group(device)
    if any(ranks.all_gather_object((Path(out) / "checkpoints").exists())):
        raise FileError(f"{out}: contains the checkpoints of another run; resume it, or choose another folder")
    with _rank_context(ranks), output_folder(out) as folder, _deterministic(config):
        capture = _read_capture(config, device)
        reserve_threads(device, config.backend)
        config = dataclasses.replace(config, background=capture.background)
        initial = _initial_gaussians(config, capture)
        trainer = Trainer(initial, capture.train, config, ranks)
        run = dataclasses.replace(config, views_per_step=trainer.config.views_per_step)
        print(description)
        metrics = fit_and_report(trainer, initial, capture, folder, run=run, stop_after=stop_after)
        print(
            f"written to {folder}: checkpoints/, held_out/, contact_sheet.png, curve.png, metrics.json, point_cloud.ply"
        )
    return metrics


def resume(run: str | os.PathLike[str], *, stop_after: int | None = None, force: bool = False) -> dict[str, Any]:
    """Resumes a run from its newest valid checkpoint; :class:`Trainer` says when this is bit-exact.

    Args:
        run: The run's folder, or one of its checkpoints.
        stop_after: Stop after this number of steps in total, with the schedules of the full run.
        force: Accept parameters that look activated already.

    Returns:
        The contents of ``metrics.json``.

    Raises:
        CheckpointError: The run has no valid checkpoint.
        AlreadyActivatedError: The parameters look activated already.
        ArgumentError, BackendError, DivergedError, MissingExtraError: See :func:`train`.
    """
    _require_extras()
    path, checkpoint, errors = read_newest(run, force=force)
    config = checkpoint.config
    device, description = pick_device(config.backend, config.device)
    ranks = join_group(device)
    with _rank_context(ranks), output_folder(path.parent.parent) as folder, _deterministic(config):
        _print_skipped(errors)
        # All ranks have read the checkpoint before any writes.
        ranks.barrier()
        if ranks.is_main:
            delete_incomplete(path.parent)
        capture = _read_capture(config, device)
        reserve_threads(device, config.backend)
        initial = _initial_gaussians(config, capture)
        trainer = Trainer(initial, capture.train, config, ranks)
        trainer.restore(checkpoint.tensors | scene_tensors(checkpoint.gaussians), checkpoint.figures["trainer"])
        print(description)
        print(f"resumed from {path.name}: step {trainer.step} of {config.steps}, {len(checkpoint.gaussians)} Gaussians")
        metrics = fit_and_report(
            trainer, initial, capture, folder, run=config, stop_after=stop_after, resumed=checkpoint.figures
        )
        print(f"written to {folder}")
    return metrics


def evaluate_run(
    run: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    scene: str | None = None,
    lpips: Network | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Evaluates the newest valid checkpoint of a run on its held-out views.

    Writes ``metrics.json`` and ``held_out/`` into a folder with the checkpoint's name.

    Args:
        run: The run's folder, or one of its checkpoints.
        out: Parent of the folder to write; ``eval`` in the run's folder if None.
        scene: Folder of the photographs, if they were moved.
        lpips: As in :func:`tsplat.training.evaluate`.
        force: Accept parameters that look activated already.

    Returns:
        The contents of ``metrics.json``.

    Raises:
        CheckpointError: The run has no valid checkpoint.
        AlreadyActivatedError: The parameters look activated already.
        ArgumentError, BackendError, MissingExtraError: See :func:`train`.
    """
    _require_extras()
    path, checkpoint, errors = read_newest(run, force=force)
    config = checkpoint.config if scene is None else dataclasses.replace(checkpoint.config, scene=scene)
    device, description = pick_device(config.backend, config.device)
    ranks = join_group(device)
    target = (path.parent.parent / "eval" if out is None else Path(out)) / path.name
    with _rank_context(ranks), output_folder(target) as folder:
        _print_skipped(errors)
        capture = _read_capture(config, device)
        reserve_threads(device, config.backend)
        print(description)
        gaussians = checkpoint.gaussians.to(device)
        scores = evaluate(
            gaussians, capture.test, background=config.backdrop, lpips=lpips, backend=config.backend, ranks=ranks
        )
        metrics = {
            **report(scores),
            "lpips_network": lpips,
            "num_gaussians": len(gaussians),
            "steps": checkpoint.step,
            "checkpoint": path.name,
        }
        write_held_out(folder / "held_out", scores)
        if ranks.is_main:
            write_json(folder / "metrics.json", metrics)
        _print_scores(scores)
        print(f"step {checkpoint.step}, {len(gaussians)} Gaussians; written to {folder}")
    return metrics


def fit_and_report(
    trainer: Trainer,
    initial: Gaussians,
    capture: Capture,
    folder: Path,
    *,
    run: RunConfig | None = None,
    stop_after: int | None = None,
    resumed: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Trains for the remaining steps and writes the results.

    Args:
        trainer: New, or restored from a checkpoint.
        initial: The Gaussians that the run started from.
        capture: Training and held-out views.
        folder: The run's folder.
        run: Configuration of a run with checkpoints; None for no checkpoints.
        stop_after: Stop after this number of steps in total.
        resumed: Figures of the checkpoint that the trainer was restored from.

    Returns:
        The contents of ``metrics.json``.
    """
    if stop_after is not None:
        check_size("stop_after", stop_after)
    _print_setup(trainer, capture)
    scores = score_views(trainer, initial, capture.test)
    if run is not None and trainer.ranks.is_main:
        write_json(folder / CONFIG, to_json(run))
        if run.normalize:
            write_json(folder / WORLD, capture.world.tolist())
    loop = RunLoop(trainer, capture.test, folder, run)
    if resumed is None:
        loop.history.record_test(0, mean_psnr(scores), len(initial))
    else:
        loop.restore(resumed)
    loop.run(min(trainer.config.steps, stop_after or trainer.config.steps))
    return write_report(loop, capture, scores)


def _print_setup(trainer: Trainer, capture: Capture) -> None:
    config, ranks, view = trainer.config, trainer.ranks, capture.train[0]
    print(
        f"{len(capture.train)} training views of about {view.width}x{view.height}, {len(capture.test)} held-out views; "
        f"{trainer.n_gaussians} Gaussians, {config.steps} steps",
        flush=True,
    )
    if config.views_per_step > 1:
        factor = math.sqrt(config.views_per_step)
        print(f"{config.views_per_step} views per step; learning rates are multiplied by {factor:.3g}")
    if ranks.world_size > 1:
        how = "sharded" if config.parallel == "shard" else "replicated"
        fewest, remainder = divmod(config.views_per_step, ranks.world_size)
        views = f"{fewest} or {fewest + 1}" if remainder else fewest
        print(f"{ranks.world_size} ranks with {how} Gaussians; {views} views per rank and step")


def _print_skipped(errors: list[str]) -> None:
    for error in errors:
        print(f"skipped an invalid checkpoint: {error}")


def _print_scores(scores: list[Score]) -> None:
    print(f"{'view':24} {'PSNR':>9} {'SSIM':>7} {'ms':>8}")
    for score in scores:
        print(f"{score.view.name[:24]:24} {score.psnr:6.2f} dB {score.ssim:7.4f} {1000 * score.seconds:8.1f}")
    print(f"{'mean of ' + str(len(scores)):24} {mean_psnr(scores):6.2f} dB {mean_ssim(scores):7.4f}")


def _read_capture(config: RunConfig, device: torch.device) -> Capture:
    with stage_display() as show:
        capture = read_capture(
            config.scene,
            downscale=config.downscale,
            test_every=config.test_every,
            background=config.background,
            normalize=config.normalize,
            seed=config.seed,
            strict=config.strict,
            on_progress=lambda done, total: show("reading", done, total),
        )
    for note in capture.notes:
        print(f"note: {note}")
    return capture.to(device)


def _initial_gaussians(config: RunConfig, capture: Capture) -> Gaussians:
    return Gaussians.from_points(
        capture.points, capture.colors, config.sh_degree, opacity=config.start_opacity, scale=config.start_scale
    )


def _require_extras() -> None:
    require("PIL", "matplotlib", "pycolmap", "rich", "scipy", "safetensors")


@contextlib.contextmanager
def _rank_context(ranks: RankGroup) -> Iterator[None]:
    """Sends heartbeats to the other ranks, and lets only rank 0 print."""
    with contextlib.ExitStack() as stack:
        if is_launched() and threading.current_thread() is threading.main_thread():
            # pycolmap would print a stack trace of each rank that the launcher terminates.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if not ranks.is_main:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        stack.enter_context(heartbeat(ranks))
        yield


@contextlib.contextmanager
def _deterministic(config: RunConfig) -> Iterator[None]:
    """Uses PyTorch's deterministic algorithms inside the block if the configuration asks for them."""
    before = torch.get_deterministic_debug_mode()
    # torch.use_deterministic_algorithms would import torch._inductor, which takes seconds.
    torch.set_deterministic_debug_mode("error" if config.deterministic else before)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
