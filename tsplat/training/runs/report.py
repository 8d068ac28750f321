"""The report of an existing run: reads the files of the run, and renders images that are missing."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import ArgumentError, BackendError, FileError, UnsupportedError
from ...scalars import check_size, to_float
from ...scene.cameras import Camera
from ...scene.capture.views import View
from ...scene.formats.checkpoints import MANIFEST, CheckpointError, run_folder, skipped_messages
from ...scene.formats.models import POINT_CLOUD, read_model
from ...scene.images import read_image
from ...support.extras import require
from ...support.reading import read_json
from ...viewing.devices import pick_device, reserve_threads
from ...viewing.run_files import CAMERAS, CONFIG, METRICS, check_output
from ...viewing.trajectories import read_cameras
from ..configuration import read_config
from ..evaluation import Evaluation, evaluate
from ..history import PSNR_MAX, History
from ..report.page import REPORT, VIEWS, RunPage, ShownView, choose_views, shown_views, write_run_page
from ..report.plots import evenly_spaced
from .results import held_out_name
from .run_checkpoints import Checkpoint, read_newest
from .scenes import check_scene, locate_scene, read_run_capture, saved_frame
from .sessions import read_sessions

PROBLEMS = (ArgumentError, BackendError, UnsupportedError, OSError)
"""Errors after which the report is written without the part that failed."""


@dataclasses.dataclass
class _RunState:
    """The contents of a run's report so far, and the files of the run.

    Attributes:
        folder: Folder of the run.
        results: Folder of the metrics and images: that of the run, or one that ``tsplat eval`` has written.
        page: Contents of the report.
        path, checkpoint: The newest valid checkpoint, or None.
    """

    folder: Path
    results: Path
    page: RunPage
    path: Path | None = None
    checkpoint: Checkpoint | None = None

    @property
    def is_current(self) -> bool:
        """Whether the metrics belong to the newest checkpoint, or there is no checkpoint."""
        metrics = self.page.metrics
        return bool(metrics) and (self.checkpoint is None or metrics.get("steps") == self.checkpoint.step)


def report_run(
    run: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    views: int = VIEWS,
    scene: str | None = None,
) -> Path:
    """Writes the report of a run, a self-contained HTML file, and returns its path.

    The report shows the metrics and images that training wrote. If they do not belong to the checkpoint, for example
    because training was interrupted, it shows those that ``tsplat eval`` wrote, or evaluates the checkpoint. The page
    states which parts are missing.

    Args:
        run: The run's folder, whose newest checkpoint is used, or one of its checkpoints.
        out: The file to write; ``report.html`` in the run's folder if None.
        views: Maximum number of views with images.
        scene: Path of the scene, if it is found neither at its absolute path nor at its path relative to the run.

    Raises:
        FileError: The folder does not exist or has nothing to show, `scene` does not exist, or `out` is another file of
            a run.
        MissingExtraError: A package of the extra ``train`` is not installed.
        OSError: The file cannot be written.
    """
    require("PIL", "matplotlib")
    check_size("views", views)
    if not Path(run).is_dir():
        raise FileError(f"{run}: {'is not the folder of a run' if Path(run).exists() else 'no such folder'}")
    if scene is not None:
        check_scene(scene)
    folder = run_folder(run)
    path = folder / REPORT if out is None else Path(out)
    if path.absolute() != (folder / REPORT).absolute():
        check_output(path, folder)
    page = _collect(_read(folder, Path(run)), views, scene)
    size = write_run_page(path, page)
    for note in page.notes:
        print(f"note: {note}")
    print(f"wrote {path}: {size / 1e6:.2f} MB, {len(page.shown):,} views")
    return path


def _read(folder: Path, run: Path) -> _RunState:
    """Reads the metrics, the checkpoint `run` or the newest one, the configuration and the model, if they are valid."""
    page = RunPage(folder.resolve().name)
    state = _RunState(folder, folder, page)
    page.metrics = read_metrics(folder / METRICS, page.notes)
    try:
        state.path, state.checkpoint, errors = read_newest(run)
        page.notes += skipped_messages(errors, state.path)
        page.gaussians = state.checkpoint.gaussians
        if not state.is_current:
            _use_evaluation(state, state.checkpoint, folder / "eval" / state.path.name)
    except CheckpointError as error:
        page.notes.append(f"No checkpoint: {error}." if (folder / "checkpoints").exists() else "No checkpoints.")
    except PROBLEMS as error:
        page.notes.append(f"No checkpoint: {error}.")
    if page.gaussians is None:
        try:
            page.gaussians = read_model(folder / POINT_CLOUD)
        except PROBLEMS as error:
            page.notes.append(f"No model: {error}.")
    if not page.metrics and page.gaussians is None:
        raise FileError(
            f"{folder}: nothing to report; expected a run, found neither {METRICS} nor a checkpoint nor {POINT_CLOUD}; "
            "to make a run: tsplat train SCENE --out RUN"
        )
    try:
        page.config = read_config(folder / CONFIG)
    except PROBLEMS as error:
        if state.checkpoint is not None:
            page.config = state.checkpoint.config
        else:
            page.notes.append(f"No configuration: {error}.")
    page.model_bytes = (folder / POINT_CLOUD).stat().st_size if (folder / POINT_CLOUD).is_file() else None
    page.sessions = read_sessions(folder) or _session_of(state.path)
    return state


def _use_evaluation(state: _RunState, checkpoint: Checkpoint, results: Path) -> None:
    """Uses the metrics and images that ``tsplat eval`` has written for the newest checkpoint, if they exist."""
    if metrics := read_evaluation(results, checkpoint.step):
        state.page.metrics, state.results = {**metrics, "seconds": checkpoint.figures.get("seconds")}, results
        state.page.notes.append(f"Metrics and images were written by tsplat eval to {results}.")


def read_evaluation(results: Path, step: int) -> dict[str, Any]:
    """Reads the metrics that ``tsplat eval`` wrote to a folder; empty if they are not of this step."""
    metrics = read_metrics(results / METRICS, [])
    return metrics if metrics.get("steps") == step else {}


def read_metrics(path: Path, notes: list[str]) -> dict[str, Any]:
    """Reads ``metrics.json``. Entries of the wrong type are left out."""
    try:
        values = read_json(path)
    except FileNotFoundError:
        notes.append(f"No {METRICS}: the run was interrupted, or is not finished.")
        return {}
    except (OSError, ValueError) as error:
        notes.append(f"{METRICS} cannot be read ({error}).")
        return {}
    if not isinstance(values, dict):
        notes.append(f"{METRICS} is not a JSON object.")
        return {}
    rows = values.get("views")
    values["views"] = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return values


def _collect(state: _RunState, n: int, scene: str | None) -> RunPage:
    """Adds images, metrics of views and the history to the page."""
    page = state.page
    page.rows = page.metrics.get("views", [])
    if state.is_current and page.rows:
        page.shown = _read_images(state, n)
    if not page.shown and state.checkpoint is not None and state.path is not None:
        try:
            _evaluate(state, state.checkpoint, n, scene)
        except PROBLEMS as error:
            page.notes.append(f"No images: {error}.")
            if not state.is_current and page.metrics:
                step = page.metrics.get("steps")
                page.notes.append(f"Metrics are those of step {step}; the newest checkpoint is {state.path.name}.")
    if page.shown and page.gaussians is not None:
        try:
            device = pick_device("auto" if page.config is None else page.config.backend)[0]
            page.gaussians = page.gaussians.to(device)
        except BackendError as error:
            page.notes.append(f"No depth: {error}.")
            page.shown = [dataclasses.replace(view, camera=None) for view in page.shown]
    page.history = _history(state.checkpoint, page.metrics)
    return page


def _read_images(state: _RunState, n: int) -> list[ShownView]:
    """Reads the images of held-out views in the results: photograph and rendering side by side."""
    cameras: dict[str, Camera] = {}
    try:
        cameras = {camera.name: camera for camera in read_cameras(state.folder / CAMERAS) if camera.is_test}
    except PROBLEMS as error:
        state.page.notes.append(f"No depth: {error}.")
    rows, shown = state.page.rows, []
    for i, remark in choose_views([_psnr(row) for row in rows], n):
        name = str(rows[i].get("name", ""))
        path = state.results / "held_out" / held_out_name(i, name)
        try:
            image = read_image(path)
        except PROBLEMS as error:
            state.page.notes.append(f"No image of {name}: {error}.")
            continue
        half = image.shape[1] // 2
        camera = cameras.get(name)
        if camera is not None and (camera.width, camera.height) != (half, image.shape[0]):
            camera = None
        shown.append(ShownView(rows[i], image[:, :half], image[:, half:], camera, remark))
    return shown


def _evaluate(state: _RunState, checkpoint: Checkpoint, n: int, scene: str | None) -> None:
    """Evaluates a checkpoint on the held-out views or, if there are none, on training views."""
    assert state.path is not None
    page = state.page
    config = locate_scene(checkpoint.config, checkpoint.figures.get("scene", {}), state.folder, scene)
    device, _ = pick_device(config.backend, config.device)
    frame = saved_frame(checkpoint.figures, state.path)
    capture = read_run_capture(config, device, None, frame)
    reserve_threads(device, config.backend)
    chosen: Sequence[View] = capture.test or evenly_spaced(capture.train)
    chosen = checkpoint.with_lenses(chosen, capture.train)
    gaussians = checkpoint.local_gaussians().to(device)
    scores = evaluate(gaussians, chosen, background=config.backdrop, backend=config.backend, warm_up=True)
    page.is_test = bool(capture.test)
    page.rows = scores.to_json()["views"]
    page.shown = shown_views(scores, page.rows, n, frame=frame)
    if not state.is_current:
        page.metrics = {
            **(scores if page.is_test else Evaluation()).to_json(),
            "num_gaussians": len(checkpoint.gaussians),
            "steps": checkpoint.step,
            "seconds": checkpoint.figures.get("seconds"),
            "device": str(device),
            "left_out": list(capture.left_out),
        }
        page.notes.append(
            f"Metrics and images were computed from {state.path.name}, as {METRICS} is of another step or missing."
        )


def _psnr(row: dict[str, Any]) -> float | None:
    """Returns the PSNR of a view; None if it is infinite, and NaN if the entry is invalid."""
    value = row.get("psnr")
    number = to_float(value)
    return number if number is not None or value is None else float("nan")


def _history(checkpoint: Checkpoint | None, metrics: dict[str, Any]) -> History | None:
    """Returns the history of a checkpoint and of the final evaluation, which follows the last checkpoint."""
    if checkpoint is None:
        return None
    try:
        history = History(**checkpoint.figures["history"])
    except (LookupError, TypeError):
        return None
    psnr, step = to_float(metrics.get("psnr")), checkpoint.step
    if psnr is not None and metrics.get("steps") == step and step not in history.test_steps:
        history.record_test(step, min(psnr, PSNR_MAX), len(checkpoint.gaussians))
    return history


def _session_of(path: Path | None) -> list[dict[str, Any]]:
    """Returns a session with the software versions of a checkpoint, for a run without ``run.json``."""
    if path is None:
        return []
    try:
        software = read_json(path / MANIFEST)["software"]
    except (OSError, ValueError, LookupError, TypeError):
        return []
    return [{"software": software}]
