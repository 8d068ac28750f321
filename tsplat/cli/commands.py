"""The subcommands, each a function from parsed arguments to an exit status.

What a subcommand needs is imported when it runs, so that ``tsplat --help`` is fast, and rendering, converting and
describing a model import nothing of `tsplat.training`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import ArgumentError

if TYPE_CHECKING:
    from ..scene import Gaussians


def demo(arguments: Namespace) -> int:
    """``tsplat demo``."""
    from ..training import demo as run_demo

    run_demo(arguments.out, backend=arguments.backend, steps=arguments.steps, seed=arguments.seed)
    return 0


def prepare(arguments: Namespace) -> int:
    """``tsplat prepare``."""
    from ..scene import prepare as run_prepare
    from ..support.extras import require
    from ..support.progress import stage_display

    require("pycolmap", "PIL", "rich")
    with stage_display() as show:
        prepared = run_prepare(
            arguments.photos,
            arguments.out,
            max_size=arguments.max_size,
            single_camera=arguments.single_camera,
            camera_model=arguments.camera_model,
            seed=arguments.seed,
            on_progress=show,
        )
    unregistered = prepared.unregistered
    total = len(prepared.registered) + len(unregistered)
    print(
        f"registered {len(prepared.registered)} of {total} photographs; {prepared.n_points} points, "
        f"mean reprojection error {prepared.error:.2f} px"
    )
    if unregistered:
        more = f" and {len(unregistered) - 5} more" if len(unregistered) > 5 else ""
        print(f"not registered: {', '.join(unregistered[:5])}{more}")
    for note in prepared.notes:
        print(f"note: {note}")
    if prepared.n_models > 1:
        print(f"found {prepared.n_models} models that do not connect; kept the largest")
    print(f"wrote {arguments.out}: images/, sparse/0/")
    return 0


def render(arguments: Namespace) -> int:
    """``tsplat render``."""
    from ..scene import open_model
    from ..scene.images import write_png
    from ..support.extras import require
    from ..support.files import output_folder
    from ..support.progress import track
    from ..viewing import read_cameras, render_frames, write_frames
    from ..viewing.devices import pick_device, reserve_threads
    from ..viewing.framing import place_cameras
    from ..viewing.videos import check_video_path

    require("PIL")
    trajectory, out = arguments.trajectory, arguments.out
    if trajectory is not None:
        check_video_path(out)
    elif out.suffix.lower() != ".png":
        raise ArgumentError(f"--out: expected a file name ending in .png, found {str(out)!r}; videos need --trajectory")
    device, _ = pick_device(arguments.backend)
    reserve_threads(device, arguments.backend)
    gaussians = _drop_invalid(open_model(arguments.model, force=arguments.force))
    if trajectory in (None, "orbit", "spiral"):
        cameras = place_cameras(
            gaussians,
            arguments.width,
            arguments.height,
            arguments.fov,
            eye=arguments.eye,
            target=arguments.look_at,
            up=arguments.up,
            trajectory=trajectory,
            frames=arguments.frames,
        )
    else:
        cameras = read_cameras(trajectory)
    with output_folder(out.parent):
        frames = render_frames(
            gaussians.to(device),
            cameras,
            show=arguments.show,
            background=tuple(arguments.background),
            backend=arguments.backend,
        )
        if trajectory is None:
            write_png(out, next(frames))
        else:
            write_frames(out, track(frames, len(cameras), "rendering"), arguments.fps)
    return 0


def train(arguments: Namespace) -> int:
    """``tsplat train``."""
    from ..training import resume
    from ..training import train as run_train
    from ..training.options import Resume, parse, run_config

    options = parse(arguments.rest)
    status = _launch(arguments.command_line, options.ranks, options.gpus)
    if status is not None:
        return status
    if isinstance(options, Resume):
        resume(options.run, stop_after=options.stop_after, force=options.force)
    else:
        run_train(run_config(options), options.out, stop_after=options.stop_after)
    return 0


def evaluate(arguments: Namespace) -> int:
    """``tsplat eval``."""
    from ..training import evaluate_run

    status = _launch(arguments.command_line, arguments.ranks, "")
    if status is not None:
        return status
    evaluate_run(
        arguments.run_folder,
        out=arguments.out,
        scene=arguments.scene,
        lpips=arguments.lpips,
        force=arguments.force,
    )
    return 0


def convert(arguments: Namespace) -> int:
    """``tsplat convert`` and ``tsplat export``."""
    from ..scene import lost_on_write, open_model, write_model

    gaussians = open_model(arguments.model, force=arguments.force)
    write_model(arguments.out, gaussians)
    lost = lost_on_write(arguments.out, gaussians)
    print(f"wrote {len(gaussians)} Gaussians to {arguments.out}" + (f"; lost: {', '.join(lost)}" if lost else ""))
    return 0


def info(arguments: Namespace) -> int:
    """``tsplat info``."""
    from ..scene import open_model, summarize

    summary = summarize(open_model(arguments.model, force=arguments.force))
    print(summary.json() if arguments.json else "\n".join(summary.lines()))
    return 0


def _drop_invalid(gaussians: Gaussians) -> Gaussians:
    """Returns the valid Gaussians, and prints how many are left out."""
    valid = gaussians.valid
    if bool(valid.all()):
        return gaussians
    print(f"left out {int((~valid).sum())} of {len(gaussians)} Gaussians that have invalid values")
    return gaussians.map(lambda tensor: tensor[valid])


def _launch(command_line: Sequence[str], ranks: int, gpus: str) -> int | None:
    """Runs a command line as several ranks.

    Returns:
        The exit status; None if this process is itself a rank, or the only one, and is to run the command.
    """
    from ..training.processes.launcher import is_launched, launch, ranks_and_gpus

    if is_launched():
        return None
    ranks, chosen = ranks_and_gpus(ranks, gpus)
    return launch(command_line, ranks, chosen) if ranks > 1 else None
