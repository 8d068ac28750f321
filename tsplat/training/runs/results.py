"""The results of a run: metrics, rendered held-out views, plots and the final model."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ...runtime.backend import choose
from ...runtime.memory import used_memory
from ...scalars import to_float
from ...scene.capture.local_frame import LocalFrame
from ...scene.capture.views import Capture, View
from ...scene.formats.ply import write_ply
from ...scene.gaussians import Gaussians
from ...scene.model_rows import MemoryRows, Rows
from ...strategies.sharding import ranges, route
from ...support.files import write_json
from ...support.progress import stage_display
from ..evaluation import Evaluation, OnView, evaluate, fit_poses
from ..report.page import REPORT, RunPage, shown_views, write_run_page
from ..report.plots import evenly_spaced, write_contact_sheet, write_psnr_curve, write_side_by_side
from ..trainer import Trainer
from .context import on_main
from .loop import RunLoop, evaluation_options, score_views

NOT_SHOWN = (
    "Depths, floaters and distributions are not shown, as no rank has all Gaussians; tsplat report {} shows them."
)

REPORT_DELAY = 2.0
"""Seconds after which the progress of evaluating and writing is printed, if the output is not a terminal."""


def write_report(loop: RunLoop, capture: Capture, initial: Evaluation) -> dict[str, Any]:
    """Evaluates the trained Gaussians and writes all results into the run's folder. A collective call.

    `initial` has the scores of the initial Gaussians on the held-out views or, if there are none, on training views.
    Returns the contents of ``metrics.json``. Raises Interrupted if a signal asked to stop.
    """
    trainer, folder = loop.trainer, loop.folder
    gaussians = trainer.gaussians
    with stage_display(REPORT_DELAY) as show:

        def progress_of(stage: str) -> OnView:
            def on_view(done: int, total: int) -> None:
                loop.between_views(done, total)
                show(stage, done, total)

            return on_view

        with loop.session.measure("evaluation"):
            test = Evaluation()
            if capture.test:
                test = score_views(trainer, gaussians, capture.test, progress_of("held-out"))
            train = score_views(trainer, gaussians, capture.train, progress_of("training"))
            fitted = _with_fitted_poses(trainer, gaussians, capture.test, progress_of("poses"))
            exposed = _with_known_gains(trainer, gaussians, capture.test, progress_of("gains"))
        if test:
            with loop.session.measure("saving"):
                write_held_out(folder / "held_out", test, progress_of("images"))
            loop.history.record_test(trainer.step, test.psnr, trainer.n_gaussians)
    metrics = {
        **test.to_json(),
        "psnr_initial": to_float(initial.psnr) if test else None,
        "ssim_initial": initial.ssim if test else None,
        "psnr_train": to_float(train.psnr),
        **({"psnr_fitted_poses": to_float(fitted.psnr), "ssim_fitted_poses": fitted.ssim} if fitted else {}),
        **metrics_with_gains(exposed),
        **({} if trainer.lens_changes is None else {"lens_changes": trainer.lens_changes.tolist()}),
        "num_gaussians": trainer.n_gaussians,
        "steps": trainer.step,
        "seconds": round(loop.seconds, 2),
        "images_per_second": round(trainer.step * trainer.config.views_per_step / max(loop.seconds, 1e-9), 2),
        "left_out": list(capture.left_out),
        "seed": trainer.config.seed,
        "background": list(trainer.config.backdrop),
        "backend": choose(gaussians.means.device, trainer.config.backend)[0],
        "device": str(gaussians.means.device),
        "ranks": trainer.ranks.world_size,
        **_metrics_of_ranks(loop),
    }
    print(f"{'held-out' if test else 'training'} views    PSNR      SSIM")
    final = test or Evaluation(evenly_spaced(train))
    others = [(name, scores) for name, scores in (("poses fitted", fitted), ("known gains", exposed)) if scores]
    for name, scores in (("before", initial), ("after", final), *others):
        print(f"{name:14} {scores.psnr:7.2f} dB  {scores.ssim:.4f}")
    sheet = [scores.complete(trainer.ranks, evenly_spaced(range(len(final)))) for scores in (initial, final)]
    with loop.session.measure("saving"):
        _write_model(folder / "point_cloud.ply", trainer, loop.frame)
        if trainer.ranks.is_main:
            write_contact_sheet(folder / "contact_sheet.png", *sheet)
            write_psnr_curve(folder / "curve.png", loop.history)
            write_json(folder / "metrics.json", metrics)
    _write_page(loop, metrics, final, gaussians, is_test=bool(test))
    trainer.ranks.barrier()
    return metrics


def _with_fitted_poses(trainer: Trainer, gaussians: Gaussians, views: Sequence[View], on_view: OnView) -> Evaluation:
    """Scores held-out views with fitted poses, if poses of training views were learned; otherwise returns no scores."""
    config, ranks = trainer.config, trainer.ranks
    if not (config.pose_refinement and views):
        return Evaluation()
    fitted = fit_poses(gaussians, trainer.with_lenses(views), config, trainer.extent, ranks, sharded=trainer.sharded)
    return evaluate(gaussians, fitted, on_view=on_view, **evaluation_options(config, ranks))


def _with_known_gains(trainer: Trainer, gaussians: Gaussians, views: Sequence[View], on_view: OnView) -> Evaluation:
    """Scores held-out views with gains from their sparse points, if training views have such gains, too."""
    gains = on_main(trainer.ranks, lambda: trainer.known_gains(views))
    if gains is None:
        return Evaluation()
    return score_views(trainer, gaussians, views, on_view, gains.to(gaussians.means))


def metrics_with_gains(scores: Evaluation) -> dict[str, Any]:
    """Returns the entries of ``metrics.json`` for scores with known gains; empty without scores."""
    return {"psnr_known_gains": to_float(scores.psnr), "ssim_known_gains": scores.ssim} if scores else {}


def _write_model(path: Path, trainer: Trainer, frame: LocalFrame) -> None:
    """Writes all Gaussians, in the frame of the model. A collective call.

    If the scene is sharded, rank 0 receives and writes the Gaussians of all ranks in chunks.
    """
    ranks = trainer.ranks
    if not trainer.sharded:
        if ranks.is_main:
            write_ply(path, frame.gaussians_of_model(trainer.gaussians))
        return
    rows = _RowsOfRanks(trainer, frame)
    if ranks.is_main:
        write_ply(path, rows)
    else:
        collections.deque(rows.chunks(), maxlen=0)


class _RowsOfRanks(Rows):
    """The Gaussians of all ranks. Reading a range is a collective call, in which rank 0 receives the rows."""

    def __init__(self, trainer: Trainer, frame: LocalFrame) -> None:
        super().__init__(trainer.n_gaussians, MemoryRows(trainer.gaussians).properties)
        self._ranks, self._own = trainer.ranks, frame.gaussians_of_model(trainer.gaussians).tensors()
        self._sources = ranges(trainer.ranks, len(trainer.gaussians))

    def columns(self, names: Sequence[str], start: int, stop: int) -> dict[str, Tensor]:
        others = [range(0)] * (self._ranks.world_size - 1)
        move = route(self._ranks, self._sources, [range(start, stop), *others])
        return {name: move(self._own[name].detach()).float().cpu() for name in names}


def _write_page(
    loop: RunLoop, metrics: dict[str, Any], scores: Evaluation, gaussians: Gaussians, *, is_test: bool
) -> None:
    """Writes ``run.json`` and the report of the run. A collective call."""
    trainer, folder = loop.trainer, loop.folder
    rows = scores.to_json()["views"]
    shown = shown_views(scores, rows, ranks=trainer.ranks, frame=loop.frame)
    if not trainer.ranks.is_main:
        return
    page = RunPage(
        name=folder.resolve().name,
        metrics=metrics,
        rows=rows,
        is_test=is_test,
        shown=shown,
        history=loop.history,
        config=loop.config,
        gaussians=None if trainer.sharded else loop.frame.gaussians_of_model(gaussians),
        notes=[NOT_SHOWN.format(folder)] if trainer.sharded else [],
        model_bytes=(folder / "point_cloud.ply").stat().st_size,
        sessions=loop.write_session(),
    )
    write_run_page(folder / REPORT, page)


def write_held_out(folder: Path, scores: Evaluation, on_view: OnView | None = None) -> None:
    """Writes a PNG per view with the photograph and the rendered image side by side.

    With several ranks, each writes the views that it rendered, and calls `on_view` for all of them.
    """
    folder.mkdir(exist_ok=True)
    for i, score in enumerate(scores):
        if on_view is not None:
            on_view(i + 1, len(scores))
        if score.image.numel():
            write_side_by_side(folder / held_out_name(i, score.view.name), score)


def held_out_name(index: int, view: str) -> str:
    """Returns the file name of a held-out view."""
    return f"{index:03d}_{Path(view).stem}.png"


def _metrics_of_ranks(loop: RunLoop) -> dict[str, Any]:
    """Returns the number of Gaussians, the peak memory and the rows received per step of each rank.

    Empty for a single process.
    """
    trainer = loop.trainer
    if trainer.ranks.world_size == 1:
        return {}
    steps = max(trainer.step - loop.first_step, 1)
    own_metrics = (len(trainer.gaussians), used_memory(trainer.device), trainer.received_rows / steps)
    n_gaussians, memory, rows = zip(*trainer.ranks.all_gather_object(own_metrics), strict=True)
    return {"ranks_gaussians": n_gaussians, "ranks_bytes": memory, "ranks_rows_received_per_step": rows}
