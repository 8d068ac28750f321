"""The subcommands, each a function from parsed arguments to an exit status.

The viewer and `tsplat.training` are imported when a subcommand needs them, so that ``tsplat --help`` is fast, and
rendering, converting and describing a model import nothing of `tsplat.training`.
"""

import contextlib
import os
import shlex
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from .. import ArgumentError
from ..scene import Camera, Gaussians, View, intrinsics, open_model, summarize
from ..scene import prepare as run_prepare
from ..scene.extents import with_near_planes
from ..scene.formats.checkpoints import is_run
from ..scene.gaussians import drop_invalid
from ..scene.images import write_png
from ..scene.model_rows import Rows, as_rows
from ..support.extras import require, require_installed
from ..support.files import output_folder, staged_folder
from ..support.progress import stage_display, track
from ..viewing import path_along, read_cameras, render_frames, write_frames
from ..viewing.devices import pick_device, reserve_threads
from ..viewing.framing import place_cameras
from ..viewing.outputs import check_output
from ..viewing.run_cameras import complete_framing, find_background, find_cameras, find_run, vertical_fov
from ..viewing.slabs import render_large_frames
from ..viewing.trajectories import choose_camera
from ..viewing.videos import VIDEO_SUFFIXES, check_video_path, frame_name, frame_size, map_writer, stale_frames
from .large_models import FRAMING, Task, open_large, read_smaller, warn_user


def demo(arguments: Namespace) -> int:
    """``tsplat demo``."""
    from ..training import demo as run_demo

    run_demo(arguments.out, backend=arguments.backend, steps=arguments.steps, seed=arguments.seed)
    _print_next("view", arguments.out)
    return 0


def _print_next(*words: str | Path) -> None:
    """Prints the command to run next, on one rank."""
    if os.environ.get("RANK", "0") == "0":
        print(f"next: tsplat {shlex.join(map(str, words))}")


def prepare(arguments: Namespace) -> int:
    """``tsplat prepare``, whose arguments are named as those of the function."""
    require_installed("pycolmap")
    require("PIL", "rich")
    with stage_display() as show:
        prepared = run_prepare(
            on_progress=show,
            **{name: value for name, value in vars(arguments).items() if name in signature(run_prepare).parameters},
        )
    total = len(prepared.registered) + len(prepared.unregistered)
    print(
        f"registered {len(prepared.registered)} of {total} photographs; {prepared.n_points} points, "
        f"mean reprojection error {prepared.error:.2f} px"
    )
    for reason in dict.fromkeys(prepared.reasons.values()):
        names = [name for name, other in prepared.reasons.items() if other == reason]
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        print(f"not registered: {', '.join(names[:20])}{more}: {reason}")
    for note in prepared.notes:
        print(f"note: {note}")
    if prepared.n_models > 1:
        print(f"found {prepared.n_models} models that do not connect; kept the largest")
    masks = "" if arguments.masks is None else ", masks/"
    print(f"wrote {arguments.out}: images/, sparse/0/{masks}; cameras.png shows the cameras and points")
    scene = arguments.out
    _print_next("train", scene, "--out", scene.with_name(f"{scene.name}_run") if scene.name else "run")
    return 0


def render(arguments: Namespace) -> int:
    """``tsplat render``."""
    out, placing = arguments.out, ("eye", "look_at", "up")
    if arguments.trajectory is None and arguments.view is None and out.suffix in VIDEO_SUFFIXES:
        # Along the cameras of a run, unless they are placed.
        placed = any(getattr(arguments, name) is not None for name in placing)
        along = not placed and any(not camera.is_test for camera in find_cameras(arguments.model))
        arguments.trajectory = "path" if along else "orbit"
    trajectory = arguments.trajectory
    # With a trajectory, check_video_path() checks the other packages as well.
    require(*([] if trajectory is not None else ["PIL"]), *(["rich"] if sys.stdout.isatty() and trajectory else []))
    if arguments.view is not None:
        excluded = ("trajectory", "width", "height", "fov", *placing)
        refuse(arguments, excluded, "not with --view, which uses the camera and the size of the view")
    if trajectory is not None:
        check_video_path(out)
    elif out.suffix.lower() != ".png":
        raise ArgumentError(f"--out: expected a file name ending in .png, found {str(out)!r}; videos end in .mp4")
    check_output(out, arguments.model)
    if arguments.maps:
        map_writer(out)  # raises if it has none
    start = time.perf_counter()
    device, _ = pick_device(arguments.backend)
    reserve_threads(device, arguments.backend)
    large = open_large(arguments, "render")
    gaussians = large.sample(FRAMING) if large is not None else drop_invalid(open_model_of(arguments), print)
    cameras = with_near_planes(_cameras(arguments, gaussians), gaussians.means)
    background = tuple(arguments.background or find_background(arguments.model) or (0.0, 0.0, 0.0))
    for camera in cameras if trajectory is not None else ():
        frame_size(out, camera.width, camera.height)  # before anything is rendered
    is_folder = trajectory is not None and not out.suffix
    with contextlib.ExitStack() as stack:
        if large is not None:
            stack.enter_context(large)
        target = out
        if is_folder:
            target = stack.enter_context(staged_folder(out, stale_frames))  # frames and maps together
        else:
            stack.enter_context(output_folder(out.parent))
        on_map = map_writer(target) if arguments.maps else None
        options = {"background": background, "on_map": on_map, **options_of(arguments, "show", "backend")}
        if large is None:
            frames = render_frames(gaussians.to(device), cameras, **options)
        else:
            frames = render_large_frames(large, cameras, out.parent, device=device, **options)
        if trajectory is None:
            write_png(out, next(frames))
        else:
            write_frames(target, track(frames, len(cameras), "rendering"), arguments.fps)
    # Of a folder, which may have other files, only the frames.
    paths = [out / frame_name(i) for i in range(len(cameras))] if out.is_dir() else [out]
    width, height = frame_size(out, cameras[0].width, cameras[0].height)
    what = "" if trajectory is None else f"{len(cameras)} frames of "
    print(
        f"wrote {out}: {what}{width}×{height} pixels, "
        f"{sum(path.stat().st_size for path in paths) / 1e6:.2f} MB, in {time.perf_counter() - start:.1f} s"
    )
    return 0


def view(arguments: Namespace) -> int:
    """``tsplat view``."""
    from ..viewing.viewer import ViewedModel, Viewer, open_viewed
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
        found = read_smaller(arguments, Path(path))
        return open_viewed(
            path, device, gaussians=found, backend=arguments.backend, read_views=views, warn=warn, **options
        )

    # Beside runs, other models need no checkpoint.
    runs = [path for path in arguments.models if is_run(path)] or arguments.models
    models = []
    for path in arguments.models:
        checkpoint = arguments.checkpoint if path in runs else None
        models.append(read(path, warn_user, arguments.scene, force=arguments.force, checkpoint=checkpoint))
    viewer = Viewer(models, address=arguments.address, port=arguments.port, open_model=read)
    try:
        print_address(viewer, arguments.port, ", ".join(model.name for model in models), remark="; end with Ctrl-C")
        if arguments.open:
            open_in_browser(viewer.url)
        with contextlib.suppress(KeyboardInterrupt):
            models[0].warm_up()
            threading.Event().wait()
    finally:
        viewer.close()
    return 0


def _photographs(
    model: str | os.PathLike[str], scene: str | None, warn: Callable[[str], object]
) -> Callable[[], dict[str, View]] | None:
    """Returns a function that reads the photographs of a run's model; None for other models."""
    run = find_run(model)
    if run is None:
        return None
    from ..training.runs.scenes import find_photographs

    return find_photographs(run, scene, warn)


def _cameras(arguments: Namespace, gaussians: Gaussians) -> list[Camera]:
    """The cameras that ``tsplat render`` renders."""
    trajectory = arguments.trajectory
    if arguments.view is None and trajectory not in (None, "path", "orbit", "spiral"):
        return read_cameras(trajectory)
    cameras = find_cameras(arguments.model)
    if arguments.view is not None:
        if not cameras:
            raise ArgumentError(f"--view: {arguments.model} has no cameras.json of a run")
        return [choose_camera(cameras, arguments.view)]
    size = {name: getattr(arguments, name) for name in ("width", "height", "fov")}
    if trajectory is None and cameras and not any(getattr(arguments, name) for name in ("eye", "look_at", "up")):
        # The first photograph, in its own size unless another is given.
        first = cameras[0]
        if all(value is None for value in size.values()):
            return [first]
        width, height = size["width"] or 800, size["height"] or 600
        fov = vertical_fov([first]) if size["fov"] is None else size["fov"]
        return [Camera(first.viewmat, intrinsics(width, height, fov), width, height)]
    framing = complete_framing(
        gaussians, cameras, fov=arguments.fov, eye=arguments.eye, target=arguments.look_at, up=arguments.up
    )
    width, height = arguments.width or 800, arguments.height or 600
    training = [camera for camera in cameras if not camera.is_test]
    if trajectory == "path":
        if not training:
            raise ArgumentError(f"--trajectory: {arguments.model} has no cameras.json of a run; use orbit")
        refuse(arguments, ("eye", "look_at", "up"), "not with a path along cameras; use --trajectory orbit")
        K = intrinsics(width, height, framing["fov"])
        return [Camera(viewmat, K, width, height) for viewmat in path_along(training, arguments.frames)]
    inside = [] if arguments.eye else training  # a place that is given may be anywhere
    path = options_of(arguments, "trajectory", "frames")
    return place_cameras(gaussians, width, height, **framing, **path, inside=inside)


def train(arguments: Namespace) -> int:
    """``tsplat train``."""
    from ..training import resume
    from ..training import train as run_train
    from ..training.processes.launcher import ranks_and_gpus
    from ..training.runs.context import require_extras
    from ..training.runs.live_view import check_view
    from .train_options import parse

    options = parse(arguments.rest)
    require_extras(options.settings, view=options.view is not None)
    check_view(options.view, ranks_and_gpus(options.ranks, options.gpus)[0])
    status = launch(arguments.command_line, options.ranks, options.gpus)
    if status is not None:
        return status
    if options.resume is not None:
        names = ("steps", "stop_after", "force", "checkpoint", "scene", "accept_changes", "view")
        resume(options.resume, **options_of(options, *names))
        _print_next("view", options.resume)
    else:
        print_note(arguments.rest)
        config = options.settings if options.minutes is None else lambda n: parse(arguments.rest, n).settings
        run_train(config, options.out, **options_of(options, "minutes", "stop_after", "view"))
        _print_next("view", options.out)
    return 0


def print_note(words: Sequence[str]) -> None:
    """Prints, on one rank, a note about the number of steps of `tsplat train` with these arguments, if there is one."""
    from .train_options import note_steps

    note = note_steps(words)
    if note and os.environ.get("RANK", "0") == "0":
        print(note)


def evaluate(arguments: Namespace) -> int:
    """``tsplat eval``."""
    from ..training import evaluate_run
    from ..training.runs.context import require_extras

    require_extras(lpips=arguments.lpips)
    status = launch(arguments.command_line, arguments.ranks, "")
    if status is not None:
        return status
    evaluate_run(arguments.run_folder, **options_of(arguments, "out", "scene", "lpips", "force", "checkpoint"))
    return 0


def report(arguments: Namespace) -> int:
    """``tsplat report``."""
    from ..training.runs.report import report_run

    report_run(arguments.run_folder, **options_of(arguments, "out", "views", "scene"))
    return 0


def info(arguments: Namespace) -> int:
    """``tsplat info``."""
    with open_rows_of(arguments, "info") as rows:
        summary = summarize(rows)
    print(summary.json() if arguments.json else "\n".join(summary.lines()))
    return 0


def open_rows_of(arguments: Namespace, task: Task) -> Rows:
    """Opens the model of a command as rows: of a file if it is larger than memory, else of Gaussians."""
    large = open_large(arguments, task)
    return as_rows(open_model_of(arguments)) if large is None else large


def open_model_of(arguments: Namespace) -> Gaussians:
    """Reads the model of a command, and prints a line on stderr for each damaged checkpoint that is skipped."""
    return open_model(arguments.model, warn=warn_user, **options_of(arguments, "force", "checkpoint"))


def refuse(arguments: Namespace, names: Iterable[str], why: str) -> None:
    """Raises ArgumentError if one of these options is given."""
    for name in names:
        if getattr(arguments, name) is not None:
            raise ArgumentError(f"--{name.replace('_', '-')}: {why}")


def options_of(arguments: object, *names: str) -> dict[str, Any]:
    """Returns options as the keyword arguments of the same names."""
    return {name: getattr(arguments, name) for name in names}


def launch(command_line: Sequence[str], ranks: int, gpus: str) -> int | None:
    """Runs a command line as several ranks, and returns the exit status; None if this process is to run the command."""
    from ..training.processes.environment import is_launched
    from ..training.processes.launcher import launch as run_ranks
    from ..training.processes.launcher import ranks_and_gpus

    ranks, chosen = ranks_and_gpus(ranks, gpus)
    return None if ranks == 1 or is_launched() else run_ranks(command_line, ranks, chosen)
