"""Whole runs: read a scene, fit it, judge it on views held out, keep what there is, and go on from it later."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..arguments import check_size
from ..errors import FileError
from ..scene.capture.captures import read_capture
from ..scene.capture.views import Capture, View
from ..scene.formats.ply import write_ply
from ..scene.gaussians import Gaussians
from ..stages.backend import choose
from ..stages.memory import used_memory
from ..support.extras import require
from ..support.files import output_folder, write_json
from ..support.progress import stage_display
from ..viewing.devices import pick_device
from .checkpoints import Checkpoint, clean, read_newest, write_checkpoint
from .config import RunConfig, to_json
from .display import progress_display, stop_on_interrupt
from .evaluation import Score, evaluate, mean_psnr, mean_ssim, report, shown
from .history import History, Watch
from .plots import contact_sheet, curve, sheet_views, side_by_side
from .processes.group import Team, join
from .processes.heartbeat import heartbeat
from .processes.launcher import is_launched
from .progress import DivergedError, Progress
from .randomness import random_state, set_random_state
from .trainer import Trainer, scene_state

TEST_TIMES, SAVE_TIMES = 12, 4
"""How often held-out views are rendered while training, and how often it is saved, unless told."""

CONFIG, WORLD = "config.json", "world.json"


def train(config: RunConfig, out: str | os.PathLike[str], *, stop_after: int | None = None) -> dict[str, Any]:
    """Fits photographs with cameras, from their sparse points.

    Writes ``config.json``, ``checkpoints/``, ``held_out/`` with each view's photograph beside what was rendered,
    ``contact_sheet.png``, ``curve.png``, ``metrics.json`` and ``point_cloud.ply``.

    Args:
        config: The run; ``config.scene`` is a folder as :func:`tsplat.scene.read_capture` takes it.
        out: The folder to write to; made if it is not there.
        stop_after: Steps after which to end early, with schedules as if not.

    Returns:
        What is in ``metrics.json``.

    Raises:
        ArgumentError: As :func:`tsplat.scene.read_capture`, or a folder that cannot be written to or has a run in it.
        BackendError: The backend cannot run here.
        DivergedError: The loss or a Gaussian is no longer a number; the last state is saved under ``inspect/``.
        MissingExtraError: A package of the extra ``train`` is not installed.
    """
    _require_extras()
    device, words = pick_device(config.backend, config.device)
    team = join(device)
    there = (Path(out) / "checkpoints").exists()
    if any(team.collect(there)):
        raise FileError(f"{out}: has the checkpoints of another run; resume it, or choose another folder")
    with _together(team), output_folder(out) as folder, _deterministic(config):
        capture = _read(config, device)
        config = dataclasses.replace(config, background=capture.background)
        start = _start(config, capture)
        trainer = Trainer(start, capture.train, config, team)
        run = dataclasses.replace(config, views_per_step=trainer.config.views_per_step)
        print(words)
        metrics = fit_and_report(trainer, start, capture, folder, run=run, stop_after=stop_after)
        print(
            f"written to {folder}: checkpoints/, held_out/, contact_sheet.png, curve.png, metrics.json, point_cloud.ply"
        )
    return metrics


def resume(run: str | os.PathLike[str], *, stop_after: int | None = None, force: bool = False) -> dict[str, Any]:
    """Goes on from the newest whole checkpoint of a run, as if it had never stopped.

    Args:
        run: The folder that :func:`train` wrote to, or one of its checkpoints.
        stop_after: As of :func:`train`.
        force: Whether to take parameters that look as if they had been through their activation already.

    Returns, Raises:
        As :func:`train`; and CheckpointError where no checkpoint is whole.
    """
    _require_extras()
    path, checkpoint, troubles = read_newest(run, force=force)
    config = checkpoint.config
    device, words = pick_device(config.backend, config.device)
    team = join(device)
    with _together(team), output_folder(path.parent.parent) as folder, _deterministic(config):
        for trouble in troubles:
            print(f"passed over: {trouble}")
        # Once all have read, and before any writes.
        team.wait()
        if team.leads:
            clean(path.parent)
        capture = _read(config, device)
        start = _start(config, capture)
        trainer = Trainer(start, capture.train, config, team)
        tensors = checkpoint.tensors | scene_state(checkpoint.gaussians)
        trainer.restore(tensors, checkpoint.figures["trainer"])
        print(words)
        print(f"resumed {path.name}: {trainer.step} of {config.steps} steps, {len(checkpoint.gaussians)} Gaussians")
        metrics = fit_and_report(
            trainer, start, capture, folder, run=config, stop_after=stop_after, before=checkpoint.figures
        )
        print(f"written to {folder}")
    return metrics


def evaluate_run(
    run: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    scene: str | None = None,
    lpips: str | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Judges the newest whole checkpoint of a run on its views held out.

    Writes ``metrics.json`` and ``held_out/`` into a folder for the step.

    Args:
        run: The folder that :func:`train` wrote to, or one of its checkpoints.
        out: The folder that the step's goes into; ``eval`` in the run's where None.
        scene: Where the photographs are, if not where they were.
        lpips: As of :func:`tsplat.training.evaluate`.
        force: As of :func:`resume`.

    Returns:
        What is in ``metrics.json``.

    Raises:
        As :func:`resume`.
    """
    _require_extras()
    path, checkpoint, troubles = read_newest(run, force=force)
    config = checkpoint.config if scene is None else dataclasses.replace(checkpoint.config, scene=scene)
    device, words = pick_device(config.backend, config.device)
    team = join(device)
    where = (path.parent.parent / "eval" if out is None else Path(out)) / path.name
    with _together(team), output_folder(where) as folder:
        for trouble in troubles:
            print(f"passed over: {trouble}")
        capture = _read(config, device)
        print(words)
        gaussians = checkpoint.gaussians.to(device)
        scores = evaluate(
            gaussians,
            capture.test,
            background=config.backdrop,
            lpips=lpips,
            backend=config.backend,
            team=team,
        )
        metrics = {
            **report(scores),
            "lpips_network": lpips,
            "num_gaussians": len(gaussians),
            "steps": checkpoint.step,
            "checkpoint": path.name,
        }
        write_held_out(folder / "held_out", scores)
        if team.leads:
            write_json(folder / "metrics.json", metrics)
        print(f"{'view':24} {'PSNR':>9} {'SSIM':>7} {'ms':>8}")
        for score in scores:
            print(f"{score.view.name[:24]:24} {score.psnr:6.2f} dB {score.ssim:7.4f} {1000 * score.seconds:8.1f}")
        print(f"{'mean of ' + str(len(scores)):24} {mean_psnr(scores):6.2f} dB {mean_ssim(scores):7.4f}")
        print(f"step {checkpoint.step}, {len(gaussians)} Gaussians; written to {folder}")
    return metrics


def fit_and_report(
    trainer: Trainer,
    start: Gaussians,
    capture: Capture,
    folder: Path,
    *,
    run: RunConfig | None = None,
    stop_after: int | None = None,
    before: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Trains to the end, showing progress, and writes pictures, figures and the scene.

    Args:
        start: What training began with.
        run: Of a run that keeps checkpoints; None for one that keeps none.
        stop_after: Steps after which to end early.
        before: Figures of the checkpoint that it goes on from.

    Returns:
        What is in ``metrics.json``.
    """
    if stop_after is not None:
        check_size("stop_after", stop_after)
    config, team = trainer.config, trainer.team
    view = capture.train[0]
    print(
        f"{len(capture.train)} views of about {view.width}x{view.height} to fit, {len(capture.test)} held out; "
        f"{trainer.n_gaussians} Gaussians, {config.steps} steps",
        flush=True,
    )
    if config.views_per_step > 1:
        print(f"{config.views_per_step} views a step: rates times {math.sqrt(config.views_per_step):.3g}")
    if team.size > 1:
        held = "a part of the scene each" if config.parallel == "shard" else "the whole scene each"
        fewest, spare = divmod(config.views_per_step, team.size)
        each = f"{fewest} or {fewest + 1}" if spare else fewest
        print(f"{team.size} ranks, {held}, {each} of a step's views each")

    def judge(gaussians: Gaussians, views: Sequence[View]) -> list[Score]:
        return evaluate(
            gaussians,
            views,
            background=config.backdrop,
            backend=config.backend,
            team=team,
        )

    first = judge(start, capture.test)
    if run is not None and team.leads:
        write_json(folder / CONFIG, to_json(run))
        if run.normalize:
            write_json(folder / WORLD, capture.world.tolist())
    history, watch, spent = History(), Watch(config.steps), 0.0
    if before is None:
        history.record_test(0, mean_psnr(first), len(start))
    else:
        history, spent = History(**before["history"]), before["seconds"]
        watch.restore(before["watch"])
        set_random_state(before["random"])
    began, began_at = time.perf_counter(), trainer.step

    def save(name: str = "checkpoints") -> Path:
        assert run is not None
        seconds = spent + time.perf_counter() - began
        checkpoint = _checkpoint(trainer, run, history, watch, seconds)
        return write_checkpoint(folder / name, checkpoint, run.keep, team, sharded=trainer.sharded)

    def inspect(words: str) -> None:
        kept = "" if run is None else f"; the step is kept in {save('inspect')}"
        print(f"warning: {words}{kept}", flush=True)

    last = min(config.steps, stop_after or config.steps)
    eval_every = (run.eval_every if run else 0) or max(1, config.steps // TEST_TIMES)
    save_every = (run.save_every if run else 0) or max(1, config.steps // SAVE_TIMES)
    saved = trainer.step if before is not None else -1
    with (
        stop_on_interrupt() as stopped,
        progress_display(config.steps, trainer.step) as show,
        _tensorboard(folder, run if team.leads else None) as log,
    ):
        while trainer.step < last and not team.any([stopped()], trainer.device)[0]:
            try:
                progress = trainer.advance()
            except DivergedError as error:
                inspect(str(error))
                raise
            show(progress)
            history.record(progress)
            log(progress)
            falling = watch.look(progress)
            for words in filter(None, (progress.trouble, falling)):
                inspect(words)
            if progress.step % eval_every == 0 and progress.step < config.steps:
                scores = judge(trainer.whole(), capture.test)
                history.record_test(progress.step, mean_psnr(scores), progress.n_gaussians)
            if run is not None and progress.step % save_every == 0:
                save()
                saved = progress.step
    if run is not None and saved != trainer.step:
        save()
    seconds = spent + time.perf_counter() - began
    if trainer.step < config.steps:
        print(f"ended after {trainer.step} of {config.steps} steps")
    result = trainer.whole()
    after = judge(result, capture.test)
    history.record_test(trainer.step, mean_psnr(after), len(result))
    metrics = {
        **report(after),
        "psnr_initial": shown(mean_psnr(first)),
        "ssim_initial": mean_ssim(first),
        "psnr_train": shown(mean_psnr(judge(result, capture.train))),
        "num_gaussians": len(result),
        "steps": trainer.step,
        "seconds": round(seconds, 2),
        "images_per_second": round(trainer.step * config.views_per_step / max(seconds, 1e-9), 2),
        "seed": config.seed,
        "backend": choose(result.means.device, config.backend)[0],
        "device": str(result.means.device),
        "ranks": team.size,
        **_of_ranks(trainer, began_at),
    }
    print("held out     PSNR      SSIM")
    for name, scores in (("before", first), ("after", after)):
        print(f"{name:9} {mean_psnr(scores):5.2f} dB  {mean_ssim(scores):.4f}")
    write_held_out(folder / "held_out", after)
    sheet = [_with_pictures(sheet_views(scores), team) for scores in (first, after)]
    if team.leads:
        write_ply(folder / "point_cloud.ply", result)
        contact_sheet(folder / "contact_sheet.png", *sheet)
        curve(folder / "curve.png", history)
        write_json(folder / "metrics.json", metrics)
    team.wait()
    return metrics


def _of_ranks(trainer: Trainer, began_at: int) -> dict[str, Any]:
    """Figures of a team: what each rank holds, has taken of memory, and was sent in a step."""
    team = trainer.team
    if team.size == 1:
        return {}
    steps = max(trainer.step - began_at, 1)
    found = (len(trainer.gaussians), used_memory(trainer.device), trainer.received_rows / steps)
    gaussians, memory, rows = zip(*team.collect(found), strict=True)
    return {"ranks_gaussians": gaussians, "ranks_bytes": memory, "ranks_rows_received_per_step": rows}


def _with_pictures(scores: Sequence[Score], team: Team) -> list[Score]:
    """Scores with the pictures that other ranks rendered."""
    of_ranks = team.collect([score.image.cpu() for score in scores])
    images = [next(filter(Tensor.numel, of_view)) for of_view in zip(*of_ranks, strict=True)]
    return [
        dataclasses.replace(score, image=image.to(score.view.image.device))
        for score, image in zip(scores, images, strict=True)
    ]


def write_held_out(folder: Path, scores: list[Score]) -> None:
    """Each view's photograph beside what was rendered, a PNG each; of a team, every rank writes those it rendered."""
    folder.mkdir(exist_ok=True)
    for i, score in enumerate(scores):
        if score.image.numel():
            side_by_side(folder / f"{i:03d}_{Path(score.view.name).stem}.png", score)


def _checkpoint(trainer: Trainer, run: RunConfig, history: History, watch: Watch, seconds: float) -> Checkpoint:
    """Of what this rank has."""
    tensors, figures = trainer.state()
    gaussians = trainer.gaussians
    scene = scene_state(gaussians)
    return Checkpoint(
        step=trainer.step,
        gaussians=gaussians,
        tensors={name: tensor for name, tensor in tensors.items() if name not in scene},
        figures={
            "trainer": figures,
            "history": dataclasses.asdict(history),
            "watch": watch.state(),
            "random": random_state(),
            "seconds": seconds,
        },
        config=run,
        row_names=trainer.row_names,
    )


def _read(config: RunConfig, device: torch.device) -> Capture:
    with stage_display() as show:
        capture = read_capture(
            config.scene,
            downscale=config.downscale,
            test_every=config.test_every,
            background=config.background,
            normalize=config.normalize,
            seed=config.seed,
            on_progress=lambda done, total: show("reading", done, total),
        )
    return capture.to(device)


def _start(config: RunConfig, capture: Capture) -> Gaussians:
    return Gaussians.from_points(
        capture.points, capture.colors, config.sh_degree, opacity=config.start_opacity, scale=config.start_scale
    )


def _require_extras() -> None:
    require("PIL", "matplotlib", "pycolmap", "rich", "scipy", "safetensors")


@contextlib.contextmanager
def _together(team: Team) -> Iterator[None]:
    """What ranks of a team need around a run: one of them speaks, and all notice where another is dead."""
    with contextlib.ExitStack() as stack:
        if is_launched() and threading.current_thread() is threading.main_thread():
            # pycolmap would print where each rank was when the launcher ends it.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if not team.leads:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        stack.enter_context(heartbeat(team))
        yield


@contextlib.contextmanager
def _deterministic(config: RunConfig) -> Iterator[None]:
    """PyTorch's deterministic algorithms where the run asks for them; as it was afterwards."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(config.deterministic or before)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextlib.contextmanager
def _tensorboard(folder: Path, run: RunConfig | None) -> Iterator[Callable[[Progress], None]]:
    """A callback that writes figures for TensorBoard where the run asks for them."""
    if run is None or not run.tensorboard:
        yield lambda progress: None
        return
    require("tensorboard")
    from torch.utils.tensorboard.writer import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard")) as writer:

        def log(progress: Progress) -> None:
            if progress.step % History.EVERY == 0:
                figures: dict[str, Any] = {
                    "loss": progress.loss,
                    "psnr": progress.psnr,
                    "gaussians": progress.n_gaussians,
                }
                for name, value in figures.items():
                    writer.add_scalar(f"train/{name}", value, progress.step)

        yield log
