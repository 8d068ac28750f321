"""Training runs: training on photographs, resuming, and evaluation."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from ...errors import ArgumentError
from ...scalars import check_size
from ...scene.capture.views import Capture
from ...scene.gaussians import Gaussians
from ...scene.georeference import WORLD
from ...strategies.sharding import count
from ...support.files import delete_temporaries, output_folder, write_json
from ...support.interruption import Interrupted, StopRequest, stop_on_signals
from ...support.process_identity import is_main_rank
from ...viewing.devices import reserve_threads
from ...viewing.run_files import CAMERAS, CONFIG, METRICS, RUN_FILES, check_output
from ...viewing.trajectories import describe_cameras
from ...viewing.view_options import ViewOptions
from ..configuration import RunConfig, read_config, to_json
from ..evaluation import Evaluation, Network, evaluate
from ..observers import Observer
from ..processes.environment import is_restarted
from ..processes.group import join_ranks
from ..report.plots import evenly_spaced
from ..trainer import Trainer
from .context import deterministic, lock_run, on_main, rank_context, require_extras
from .initial_gaussians import (
    check_models,
    describe_model,
    initial_gaussians,
    keep_frozen,
    locate_models,
    read_initial_model,
    relative_models,
)
from .live_view import check_view, shown
from .logs import ProgressDisplay, TensorBoardLog, TrackioLog, WandbLog
from .loop import RunLoop, evaluation_options, print_setup, score_views
from .priors import note_fits
from .results import metrics_with_gains, write_held_out, write_report
from .run_checkpoints import delete_incomplete, has_checkpoints, read_newest_settings
from .run_settings import Configure, check_minutes, check_timing, continues, extend
from .scenes import (
    check_block_folder,
    describe_block,
    describe_capture,
    locate_scene,
    read_run_capture,
    scene_to_save,
    with_absolute_scene,
)
from .sessions import RunSession
from .starts import NewRun, SavedRun, Start, check_scene_change


def train(
    config: RunConfig | Configure,
    out: str | os.PathLike[str],
    *,
    minutes: float | None = None,
    stop_after: int | None = None,
    view: ViewOptions | None = None,
) -> dict[str, Any]:
    """Trains on photographs with known cameras, starting from their sparse points or from models (``config.init``).

    Writes ``config.json``, ``cameras.json``, ``checkpoints/``, ``held_out/`` with photographs and rendered images side
    by side, ``contact_sheet.png``, ``curve.png``, ``metrics.json``, ``point_cloud.ply``, ``run.json`` and
    ``report.html``.

    If torchrun has restarted the ranks of this run, it is resumed from its newest checkpoint.

    Args:
        config: Settings of the run, or with `minutes` a function that returns them for a number of steps;
            ``config.scene`` is a folder as for :func:`tsplat.scene.read_capture`.
        out: The run's folder; created if it does not exist.
        minutes: Time for the steps. A few steps are measured first, and the number of steps that fit, with the
            schedules for this number, is trained.
        stop_after: Stop after this number of steps, with the schedules of the full run.
        view: Options of the viewer that shows the training in web browsers; None for no viewer.

    Returns:
        The contents of ``metrics.json``.

    Raises:
        ArgumentError: The scene is invalid (see :func:`tsplat.scene.read_capture`), or the folder cannot be written to,
            contains another run or is in use.
        Interrupted: Ctrl-C, SIGTERM, SIGHUP or SIGUSR1 ended training. The last step is saved. This is a subclass of
            `KeyboardInterrupt`, so ``except Exception`` does not catch it.
        BackendError: The backend cannot run here.
        DivergedError: The loss, the gradients or the Gaussians are no longer finite; the last state is saved under
            ``inspect/``.
        MissingExtraError: A package of the extra ``train`` or, for `view`, ``viewer`` is not installed.
        UnsupportedError: A viewer, if there are several ranks.
    """

    def configure(steps: int) -> RunConfig:
        return config if isinstance(config, RunConfig) else config(steps)

    settings = configure(RunConfig.steps)
    _check_counts(stop_after=stop_after)
    check_block_folder(settings, Path(out))
    check_models(settings)
    require_extras(settings, view=view is not None)
    if continues(configure, settings, Path(out)):
        return resume(out, stop_after=stop_after, view=view)
    check_timing(config, minutes)
    if minutes is None:
        start = NewRun()
    else:
        check_minutes(minutes, settings)
        start = NewRun(configure, minutes)
    return _run(with_absolute_scene(settings), Path(out), start, stop_after, view)


def resume(
    run: str | os.PathLike[str],
    *,
    steps: int | None = None,
    stop_after: int | None = None,
    force: bool = False,
    checkpoint: str | None = None,
    scene: str | None = None,
    accept_changes: bool = False,
    view: ViewOptions | None = None,
) -> dict[str, Any]:
    """Resumes a run from its newest valid checkpoint; :class:`Trainer` says when this is bit-exact.

    A run that was killed before its first checkpoint is started again from its ``config.json``, with a message.

    Args:
        run: The run's folder, or one of its checkpoints.
        steps: Extend the run, finished or not, to this larger total number of steps. Its schedules become those of the
            longer run; see `docs/training.md`. Ranks that torchrun has restarted continue the extended run.
        stop_after: Stop after this number of steps in total, with the schedules of the full run.
        force: Accept parameters that look activated already.
        checkpoint: Step or folder name of the checkpoint to read; None for the newest.
        scene: Path of the scene, if it is found neither at its absolute path nor at its path relative to the run.
        accept_changes: Accept photographs, cameras and points that have changed since the run was started.
        view: As in :func:`train`.

    Returns:
        The contents of ``metrics.json``.

    Raises:
        CheckpointError: The run has no valid checkpoint, or `checkpoint` does not exist.
        AlreadyActivatedError: The parameters look activated already.
        ArgumentError, BackendError, DivergedError, Interrupted, MissingExtraError, UnsupportedError: See :func:`train`.
    """
    require_extras(view=view is not None)
    _check_counts(steps=steps, stop_after=stop_after)
    if checkpoint is None and (Path(run) / CONFIG).is_file() and not has_checkpoints(Path(run)):
        config = locate_scene(read_config(Path(run) / CONFIG), {}, Path(run), scene)
        config = locate_models(config, {}, Path(run))
        config = config if steps is None else extend(config, steps)
        if is_main_rank():
            print(f"{run}: stopped before its first checkpoint; starting again with its {CONFIG}", flush=True)
        return train(config, run, stop_after=stop_after, view=view)
    _, config, _ = read_newest_settings(run, checkpoint)
    require_extras(config)
    device, _, ranks = join_ranks(config)
    if steps == config.steps and ranks.any([is_restarted()], device)[0]:
        steps = None  # the checkpoint is already of the extended run
    saved = SavedRun.open(run, ranks, config, force=force, checkpoint=checkpoint, scene=scene)
    config = locate_models(saved.config, saved.scene, saved.folder)
    config = config if steps is None else extend(config, steps)
    return _run(config, saved.folder, saved, stop_after, view, accept_changes=accept_changes)


def _run(
    config: RunConfig,
    out: Path,
    start: Start,
    stop_after: int | None,
    view: ViewOptions | None,
    *,
    accept_changes: bool = False,
) -> dict[str, Any]:
    """Trains a new or resumed run to its end, and writes its results."""
    device, description, ranks = join_ranks(config)
    check_view(view, ranks.world_size)
    with (
        rank_context(ranks),
        stop_on_signals() as stop,
        output_folder(out) as folder,
        lock_run(folder, ranks, new=isinstance(start, NewRun)),
        deterministic(config),
    ):
        start.report_skipped()
        # No rank writes before all ranks have read the checkpoint.
        ranks.barrier()
        if ranks.is_main:
            delete_incomplete(folder / "checkpoints")
            for directory in (folder, folder / "checkpoints"):
                delete_temporaries(directory, RUN_FILES)
        session = RunSession()
        with session.measure("reading"), start.while_reading(config, folder, ranks):
            capture = read_run_capture(config, device, stop, start.frame)
            model = read_initial_model(config, capture)
        scene_description = on_main(
            ranks, lambda: describe_capture(capture) | describe_block(config) | describe_model(model)
        )
        check_scene_change(start.scene_change(scene_description, config), accept=accept_changes)
        reserve_threads(device, config.backend)
        config = start.settings(config, capture, ranks, model)
        initial = initial_gaussians(config, capture, ranks, model)
        capture = keep_frozen(capture, config, model, ranks)
        config = dataclasses.replace(config, sh_degree=initial.sh_degree)
        trainer = Trainer(initial, capture.train, config, ranks, is_shard=True)
        print(description)
        config = start.begin(trainer, config)
        scene = scene_to_save(config, scene_description, folder) | {"init_paths": relative_models(config, folder)}
        with shown(trainer, capture, view, folder, stop, session):
            metrics = fit_and_report(
                trainer,
                initial,
                capture,
                folder,
                run=config,
                stop_after=stop_after,
                resumed=start.figures,
                is_extended=start.is_extended(config),
                stop=stop,
                scene=scene,
                session=session,
            )
            print(
                f"written to {folder}: checkpoints/, held_out/, contact_sheet.png, curve.png, metrics.json, "
                "point_cloud.ply, report.html"
            )
    return metrics


def evaluate_run(
    run: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    scene: str | None = None,
    lpips: Network | None = None,
    force: bool = False,
    checkpoint: str | None = None,
) -> dict[str, Any]:
    """Evaluates the newest valid checkpoint of a run on its held-out views.

    Writes ``metrics.json`` and ``held_out/`` into a folder with the checkpoint's name.

    Args:
        run: The run's folder, or one of its checkpoints.
        out: Parent of the folder to write; ``eval`` in the run's folder if None.
        scene: Path of the scene, if it is found neither at its absolute path nor at its path relative to the run.
        lpips: As in :func:`tsplat.training.evaluate`.
        force: Accept parameters that look activated already.
        checkpoint: Step or folder name of the checkpoint to read; None for the newest.

    Returns:
        The contents of ``metrics.json``.

    Raises:
        CheckpointError: The run has no valid checkpoint, or `checkpoint` does not exist.
        AlreadyActivatedError: The parameters look activated already.
        ArgumentError, BackendError, MissingExtraError: See :func:`train`.
    """
    require_extras(lpips=lpips)
    _, config, _ = read_newest_settings(run, checkpoint)
    device, description, ranks = join_ranks(config)
    saved = SavedRun.open(run, ranks, config, force=force, checkpoint=checkpoint, scene=scene)
    config, newest = saved.config, saved.checkpoint
    target = (saved.folder / "eval" if out is None else Path(out)) / saved.path.name
    check_output(target / METRICS, saved.folder)
    with rank_context(ranks), output_folder(target) as folder:
        saved.report_skipped()
        capture = read_run_capture(config, device, None, saved.frame)
        if not capture.test:
            raise ArgumentError(
                f"{run}: there are no held-out views to evaluate; the run was trained with test_every=0, or all of "
                "them show other blocks"
            )
        scene_description = on_main(ranks, lambda: describe_capture(capture) | describe_block(config))
        check_scene_change(saved.scene_change(scene_description, config), accept=True)
        reserve_threads(device, config.backend)
        print(description)
        gaussians = newest.local_gaussians().to(device)
        settings = evaluation_options(config, ranks)
        views = newest.with_lenses(capture.test, capture.train)
        scores = evaluate(gaussians, views, lpips=lpips, warm_up=True, **settings)
        gains = on_main(ranks, lambda: newest.known_gains(views, capture.train))
        exposed = Evaluation() if gains is None else evaluate(gaussians, views, gains=gains.to(device), **settings)
        n_gaussians = count(ranks if settings["sharded"] else None, len(gaussians))[1]
        metrics = {
            **scores.to_json(),
            **metrics_with_gains(exposed),
            "lpips_network": lpips,
            "num_gaussians": n_gaussians,
            "steps": newest.step,
            "checkpoint": saved.path.name,
            "left_out": list(capture.left_out),
        }
        write_held_out(folder / "held_out", scores)
        if ranks.is_main:
            write_json(folder / METRICS, metrics)
        _print_scores(scores, exposed)
        print(f"step {newest.step}, {n_gaussians:,} Gaussians; written to {folder}")
    return metrics


def fit_and_report(
    trainer: Trainer,
    initial: Gaussians,
    capture: Capture,
    folder: Path,
    *,
    stop: StopRequest,
    session: RunSession,
    run: RunConfig | None = None,
    stop_after: int | None = None,
    resumed: dict[str, Any] | None = None,
    is_extended: bool = False,
    scene: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Trains for the remaining steps, writes the results, and returns the contents of ``metrics.json``.

    `initial` are the initial Gaussians of the run, or this rank's shard of them. `stop_after` is a total number of
    steps. If the run `is_extended`, a checkpoint with its new number of steps is saved first. The other arguments are
    those of :class:`.loop.RunLoop`.
    """
    print_setup(trainer, capture)
    observers: list[Observer] = [ProgressDisplay()]
    if run is not None and trainer.ranks.is_main:
        if run.tensorboard:
            observers.append(TensorBoardLog(folder / "tensorboard"))
        if run.wandb:
            observers.append(WandbLog(folder, run))
        if run.trackio:
            observers.append(TrackioLog(folder, run))
    loop = RunLoop(
        trainer,
        capture.test,
        folder,
        run,
        stop=stop,
        scene=scene or {},
        session=session,
        observers=observers,
        resumed=resumed,
        frame=capture.frame,
    )
    if resumed is not None:
        loop.session.keep_earlier(folder)
    if is_extended:
        loop.save("checkpoints")  # a run that is killed now stays extended
    views = capture.test or evenly_spaced(capture.train)
    with loop.session.measure("evaluation"):
        scores = score_views(trainer, initial, views, loop.between_views)
    if run is not None and trainer.ranks.is_main:
        loop.write_session()
        write_json(folder / CONFIG, to_json(run))
        write_json(folder / CAMERAS, describe_cameras(capture.train, capture.test, capture.frame))
        if capture.frame.is_moved:
            write_json(folder / WORLD, capture.frame.world.tolist())
    if resumed is None and capture.test:
        loop.history.record_test(0, scores.psnr, trainer.n_gaussians)
    try:
        with loop.session.measure("training"):
            loop.run(min(trainer.config.steps, stop_after or trainer.config.steps))
    except Interrupted:
        if trainer.ranks.is_main:
            loop.write_session()
        raise
    for note in note_fits(trainer.prior_scales) if trainer.ranks.is_main else []:
        print(f"note: {note}")
    try:
        return write_report(loop, capture, scores)
    except OSError as error:
        if run is None or not error.strerror:
            raise
        raise OSError(error.errno, f"{error.strerror}; {loop.describe_saved_step()}", error.filename) from error


def _check_counts(**counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None:
            check_size(name, value)


def _print_scores(scores: Evaluation, exposed: Evaluation) -> None:
    """Prints a row per view, a row of means and, if there are known gains, a row of means with these."""
    print(f"{'view':24} {'PSNR':>9} {'SSIM':>7} {'ms':>8}")
    for score in scores:
        print(f"{score.view.name[:24]:24} {score.psnr:6.2f} dB {score.ssim:7.4f} {1000 * score.seconds:8.1f}")
    print(f"{'mean of ' + str(len(scores)):24} {scores.psnr:6.2f} dB {scores.ssim:7.4f}")
    if exposed:
        print(f"{'mean with known gains':24} {exposed.psnr:6.2f} dB {exposed.ssim:7.4f}")
