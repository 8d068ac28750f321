"""The commands on scenes and runs: for each a function that runs it and returns an exit status.

The viewer and `tsplat.training` are imported only by the commands that use them, so that others start fast.
"""

import contextlib
import dataclasses
import json
import os
import threading
from argparse import Namespace
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

from .. import ArgumentError
from ..scene import View, summarize
from ..scene import prepare as run_prepare
from ..scene.capture.captures import is_capture
from ..scene.formats.checkpoints import is_run
from ..support.extras import require, require_installed
from ..support.process_identity import is_main_rank
from ..support.progress import stage_display
from ..support.suggestions import list_names
from ..viewing.devices import pick_device, reserve_threads
from ..viewing.run_cameras import find_run
from .capture_summary import capture_lines, summarize_capture
from .large_models import describe_memory, read_to_view, warn_user
from .shared_options import run_folder
from .shared_steps import launch, open_rows_of, options_of, print_next, result_only


def demo(arguments: Namespace) -> int:
    """Runs ``tsplat demo``."""
    from ..training import demo as run_demo

    run_demo(arguments.out, backend=arguments.backend, steps=arguments.steps, seed=arguments.seed)
    print_next("view", arguments.out)
    return 0


def prepare(arguments: Namespace) -> int:
    """Runs ``tsplat prepare``; its arguments have the names of the function's parameters."""
    require_installed("pycolmap")
    require("PIL", "rich")
    with stage_display() as show:
        prepared = run_prepare(
            on_progress=show,
            **{name: value for name, value in vars(arguments).items() if name in signature(run_prepare).parameters},
        )
    total = len(prepared.registered) + len(prepared.unregistered)
    print(
        f"registered {len(prepared.registered):,} of {total:,} photographs; {prepared.n_points:,} points, "
        f"mean reprojection error {prepared.error:.2f} px"
    )
    for reason in dict.fromkeys(prepared.reasons.values()):
        names = [name for name, other in prepared.reasons.items() if other == reason]
        print(f"not registered: {list_names(names, 20)}: {reason}")
    for note in prepared.notes:
        print(f"note: {note}")
    if prepared.n_models > 1:
        print(f"found {prepared.n_models} models that do not connect; kept the largest")
    masks = "" if arguments.masks is None and arguments.mask_below is None else ", masks/"
    print(f"wrote {arguments.out}: images/, sparse/0/{masks}; cameras.png shows the cameras and points")
    print_next("train", arguments.out, "--out", run_folder(arguments.out))
    return 0


def view(arguments: Namespace) -> int:
    """Runs ``tsplat view``."""
    from ..viewing.viewer import ViewedModel, Viewer, open_viewed
    from ..viewing.viewer.renderer import LARGE
    from ..viewing.viewer.server import MODULES, open_in_browser, print_address

    require(*MODULES)
    if arguments.scene is not None and not any(map(find_run, arguments.models)):
        raise ArgumentError(f"--scene: only for a run with cameras, found {', '.join(map(str, arguments.models))}")
    device, _ = pick_device(arguments.backend)
    reserve_threads(device, arguments.backend)

    def read(
        path: str | os.PathLike[str], warn: Callable[[str], object], scene: str | None = None, **options: Any
    ) -> ViewedModel:
        views = _photographs(path, scene, warn)
        gaussians = read_to_view(arguments, Path(path))
        return open_viewed(
            path,
            device,
            gaussians=gaussians,
            backend=arguments.backend,
            read_views=views,
            up=arguments.up,
            warn=warn,
            **options,
        )

    # The option applies to runs only, if there are any among the models.
    runs = [model for model in arguments.models if is_run(model)] or arguments.models
    models = []
    for model in arguments.models:
        checkpoint = arguments.checkpoint if model in runs else None
        models.append(read(model, warn_user, arguments.scene, force=arguments.force, checkpoint=checkpoint))
        if len(models[-1].gaussians) > LARGE:
            print(describe_memory(model, models[-1].gaussians), flush=True)
    options = options_of(arguments, "address", "port", "host_name", "draw")
    viewer = Viewer(models, **options, open_model=read)
    try:
        print_address(viewer, arguments.port, ", ".join(model.name for model in models), remark="; end with Ctrl-C")
        if arguments.open:
            open_in_browser(viewer.url)
        with contextlib.suppress(KeyboardInterrupt):
            models[0].warm_up()
            threading.Event().wait()
        print("stopped; open pages show their last image")
        shown = arguments.models[0]
        if is_run(shown):
            print_next("export", shown, "--out", f"{shown.resolve().name}.html")
        elif shown.is_file():
            print_next("convert", shown, f"{shown.stem}.html")
    finally:
        viewer.close("The viewer has been stopped. Start tsplat view again for a new address.")
    return 0


def _photographs(
    model: str | os.PathLike[str], scene: str | None, warn: Callable[[str], object]
) -> Callable[[], dict[str, View]] | None:
    """Returns a function that reads the photographs of a run's model; None for other models."""
    run = find_run(model)
    if run is None:
        return None
    from ..training.runs.scenes import photograph_reader

    return photograph_reader(run, scene, warn)


def evaluate(arguments: Namespace) -> int:
    """Runs ``tsplat eval``."""
    from ..training import evaluate_run
    from ..training.runs.context import require_extras

    require_extras(lpips=arguments.lpips)
    status = launch(arguments.command_line, arguments.ranks, "")
    if status is not None:
        return status
    options = options_of(arguments, "out", "scene", "lpips", "force", "checkpoint")
    with result_only(arguments, arguments.json):
        metrics = evaluate_run(arguments.run_folder, **options)
    if not arguments.json:
        # `tsplat report` shows the newest checkpoint, and reads evaluations in the folder of the run.
        if arguments.checkpoint is None and arguments.out is None:
            scene = [] if arguments.scene is None else ["--scene", arguments.scene]
            print_next("report", arguments.run_folder, *scene)
    elif is_main_rank():
        print(json.dumps(metrics))
    return 0


def report(arguments: Namespace) -> int:
    """Runs ``tsplat report``."""
    from ..training.runs.report import report_run

    page = report_run(arguments.run_folder, **options_of(arguments, "out", "views", "scene"))
    print(f"next: open {page} in a web browser")
    return 0


def info(arguments: Namespace) -> int:
    """Runs ``tsplat info``."""
    if arguments.model.is_dir() and is_capture(arguments.model) and not is_run(arguments.model):
        found = summarize_capture(arguments.model)
        print(json.dumps(found) if arguments.json else "\n".join(capture_lines(found)))
        return 0
    if (arguments.model / "checkpoints").is_dir():
        from ..training.runs.run_summary import open_run

        gaussians, run = open_run(arguments.model, warn=warn_user, **options_of(arguments, "force", "checkpoint"))
        summary = summarize(gaussians)
    else:
        run = None
        with open_rows_of(arguments, "info") as rows:
            summary = summarize(rows)
    if arguments.json:
        about = {} if run is None else {"run": dataclasses.asdict(run)}
        print(json.dumps(about | summary.to_json()))
    else:
        print("\n".join([*(() if run is None else run.lines()), *summary.lines()]))
    return 0
