"""The results of a run: metrics, rendered held-out views, plots and the final model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ...scene.capture.views import Capture
from ...scene.formats.ply import write_ply
from ...scene.gaussians import Gaussians
from ...stages.backend import choose
from ...stages.memory import used_memory
from ...stages.process_group import RankGroup
from ...support.files import write_json
from ...support.progress import stage_display
from ..evaluation import OnView, Score, finite_or_none, mean_psnr, mean_ssim, report
from ..report.page import REPORT, RunPage, choose_views, shown_view, write_page
from ..report.plots import contact_sheet, curve, evenly_spaced, side_by_side
from .loop import RunLoop, score_views

REPORT_DELAY = 2.0
"""Seconds that scoring or writing must take for its progress to be printed, without a terminal."""


def write_report(loop: RunLoop, capture: Capture, initial: Sequence[Score]) -> dict[str, Any]:
    """Evaluates the trained Gaussians and writes all results into the run's folder. A collective call.

    Args:
        loop: The run, after its last step.
        capture: Training and held-out views.
        initial: Scores of the initial Gaussians on the held-out views or, if there are none, on training views.

    Returns:
        The contents of ``metrics.json``.

    Raises:
        Interrupted: A signal asked to stop.
    """
    trainer, folder = loop.trainer, loop.folder
    gaussians = trainer.gather_gaussians()
    with stage_display(REPORT_DELAY) as show:

        def progress_of(stage: str) -> OnView:
            def on_view(done: int, total: int) -> None:
                loop.between_views(done, total)
                show(stage, done, total)

            return on_view

        shown = [score.view for score in initial]
        with loop.record.measure("evaluation"):
            final = score_views(trainer, gaussians, shown, progress_of("held-out" if capture.test else "shown"))
            train = score_views(trainer, gaussians, capture.train, progress_of("training"))
        if capture.test:
            with loop.record.measure("saving"):
                write_held_out(folder / "held_out", final, progress_of("images"))
    if capture.test:
        loop.history.record_test(trainer.step, mean_psnr(final), len(gaussians))
    metrics = {
        **report(final if capture.test else []),
        "psnr_initial": finite_or_none(mean_psnr(initial)) if capture.test else None,
        "ssim_initial": mean_ssim(initial) if capture.test else None,
        "psnr_train": finite_or_none(mean_psnr(train)),
        "num_gaussians": len(gaussians),
        "steps": trainer.step,
        "seconds": round(loop.seconds, 2),
        "images_per_second": round(trainer.step * trainer.config.views_per_step / max(loop.seconds, 1e-9), 2),
        "seed": trainer.config.seed,
        "backend": choose(gaussians.means.device, trainer.config.backend)[0],
        "device": str(gaussians.means.device),
        "ranks": trainer.ranks.world_size,
        **_metrics_of_ranks(loop),
    }
    print("held-out views    PSNR      SSIM" if capture.test else "training views    PSNR      SSIM")
    for name, scores in (("before", initial), ("after", final)):
        print(f"{name:14} {mean_psnr(scores):7.2f} dB  {mean_ssim(scores):.4f}")
    sheet = [_gather_images(evenly_spaced(scores), trainer.ranks) for scores in (initial, final)]
    if trainer.ranks.is_main:
        with loop.record.measure("saving"):
            write_ply(folder / "point_cloud.ply", gaussians)
            contact_sheet(folder / "contact_sheet.png", *sheet)
            curve(folder / "curve.png", loop.history)
            write_json(folder / "metrics.json", metrics)
    _write_page(loop, metrics, final, gaussians, is_test=bool(capture.test))
    trainer.ranks.barrier()
    return metrics


def _write_page(
    loop: RunLoop, metrics: dict[str, Any], scores: Sequence[Score], gaussians: Gaussians, *, is_test: bool
) -> None:
    """Writes ``run.json`` and the page of the run. A collective call."""
    trainer, folder = loop.trainer, loop.folder
    chosen = choose_views([score.psnr for score in scores])
    complete = _gather_images([scores[i] for i, _ in chosen], trainer.ranks)
    if not trainer.ranks.is_main:
        return
    rows = metrics["views"] if is_test else report(scores)["views"]
    page = RunPage(
        name=folder.resolve().name,
        metrics=metrics,
        rows=rows,
        is_test=is_test,
        shown=[shown_view(score, rows[i], remark) for score, (i, remark) in zip(complete, chosen, strict=True)],
        history=loop.history,
        config=loop.config,
        gaussians=gaussians,
        model_bytes=(folder / "point_cloud.ply").stat().st_size,
        sessions=loop.record.write(folder, trainer.device, trainer.ranks.world_size),
    )
    write_page(folder / REPORT, page)


def write_held_out(folder: Path, scores: Sequence[Score], on_view: OnView | None = None) -> None:
    """Writes a PNG per view with the photograph and the rendered image side by side.

    With several ranks, each writes the views that it rendered, and calls `on_view` for all of them.
    """
    folder.mkdir(exist_ok=True)
    for i, score in enumerate(scores):
        if on_view is not None:
            on_view(i + 1, len(scores))
        if score.image.numel():
            side_by_side(folder / held_out_name(i, score.view.name), score)


def held_out_name(index: int, view: str) -> str:
    """The file name of a held-out view."""
    return f"{index:03d}_{Path(view).stem}.png"


def _metrics_of_ranks(loop: RunLoop) -> dict[str, Any]:
    """Number of Gaussians, peak memory and received rows per step of each rank; empty for a single process."""
    trainer = loop.trainer
    if trainer.ranks.world_size == 1:
        return {}
    steps = max(trainer.step - loop.first_step, 1)
    own = (len(trainer.gaussians), used_memory(trainer.device), trainer.received_rows / steps)
    n_gaussians, memory, rows = zip(*trainer.ranks.all_gather_object(own), strict=True)
    return {"ranks_gaussians": n_gaussians, "ranks_bytes": memory, "ranks_rows_received_per_step": rows}


def _gather_images(scores: Sequence[Score], ranks: RankGroup) -> list[Score]:
    """Completes scores with the images that other ranks rendered."""
    images_of_ranks = ranks.all_gather_object([score.image.cpu() for score in scores])
    images = [next(filter(Tensor.numel, of_view)) for of_view in zip(*images_of_ranks, strict=True)]
    return [
        dataclasses.replace(score, image=image.to(score.view.image.device))
        for score, image in zip(scores, images, strict=True)
    ]
