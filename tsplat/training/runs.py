"""Whole runs: read or make a scene, fit it, judge it on held-out views, and write down what came of it."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from ..backend import Backend, choose
from ..checks import check_choice, check_size
from ..scene.cameras import intrinsics, orbit
from ..scene.captures import Capture
from ..scene.colmap import read_colmap
from ..scene.extras import require
from ..scene.files import output_folder, write_json
from ..scene.gaussians import Gaussians
from ..scene.ply import write_ply
from ..scene.procedural import FOV, ORBIT_RADIUS, TARGET, procedural_capture
from ..strategies import DefaultStrategy, MCMCStrategy
from .evaluation import Score, evaluate, mean_psnr, mean_ssim
from .history import History
from .live import progress_display, stop_on_interrupt
from .pictures import animation, contact_sheet, curve, side_by_side
from .rendering import render
from .trainer import Config, Progress, fit

Preset = Literal["fixed", "default", "mcmc"]
PRESETS = ("fixed", "default", "mcmc")

TEST_TIMES = 12
"""How often held-out views are rendered while training."""

SHORT_RUN = Config(means_rate=6.4e-4, scales_rate=1e-2, quats_rate=4e-3, sh0_rate=1e-2, shN_rate=1e-3)
"""For about a thousand steps: the rates of :class:`Config` are meant for thirty times as many."""


@dataclasses.dataclass(frozen=True)
class DemoSize:
    """How big the demo is.

    Attributes:
        width, height: Picture size in pixels.
        n_train, n_test: Views to fit, and views held out.
        n_points: Gaussians.
        sh_degree: Highest degree of spherical harmonics.
        steps: Optimiser steps.
        frames: Of the turntable.
        frame_scale: How many times larger than the pictures the turntable is.
    """

    width: int
    height: int
    n_train: int
    n_test: int
    n_points: int
    sh_degree: int
    steps: int
    frames: int
    frame_scale: float = 1.0


ON_CPU = DemoSize(176, 132, n_train=32, n_test=4, n_points=6000, sh_degree=1, steps=1200, frames=40, frame_scale=2)
ON_GPU = DemoSize(480, 360, n_train=96, n_test=6, n_points=60_000, sh_degree=2, steps=4000, frames=72)


def pick_device(backend: Backend = "auto") -> tuple[torch.device, str]:
    """The device to run on, a GPU if there is one, and in words what runs there and why.

    Raises:
        BackendError: The backend cannot run there.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name, reason = choose(device, backend)
    return device, f"backend {name} on {device}: {reason}"


def demo(
    out: str | os.PathLike[str],
    *,
    backend: Backend = "auto",
    steps: int | None = None,
    seed: int = 0,
    size: DemoSize | None = None,
) -> dict[str, Any]:
    """Fits a procedural scene from a noisy coarse point cloud; needs no data.

    Writes ``contact_sheet.png``, ``curve.png``, ``turntable.gif``, ``metrics.json`` and ``point_cloud.ply``.

    Args:
        out: The folder to write to; made if it is not there.
        steps: In place of those of ``size``.
        seed: Of the point cloud and of the order of views.
        size: By default what a CPU, or a GPU with Triton, does in a few minutes.

    Returns:
        What is in ``metrics.json``.

    Raises:
        ArgumentError: An argument without meaning, or a folder that cannot be written to.
        BackendError: The backend cannot run here.
        MissingExtraError: A package of the extra ``train`` is not installed.
    """
    require("PIL", "matplotlib", "rich", "scipy")
    device, words = pick_device(backend)
    size = size or (ON_GPU if choose(device, backend)[0] == "triton" and device.type == "cuda" else ON_CPU)
    config = dataclasses.replace(
        SHORT_RUN, steps=size.steps if steps is None else steps, seed=seed, sh_interval=300, backend=backend
    )
    with output_folder(out) as folder:
        capture = procedural_capture(
            size.width, size.height, size.n_train, size.n_test, size.n_points, seed=seed, device=device
        )
        print(words)
        metrics, gaussians = _run(capture, size.sh_degree, config, folder)
        viewmats = _turntable(size.frames).to(device)
        width, height = round(size.width * size.frame_scale), round(size.height * size.frame_scale)
        K = intrinsics(width, height, FOV).to(device)
        with torch.no_grad():
            frames = [
                render(gaussians, viewmat, K, width, height, background=capture.background, backend=backend)
                for viewmat in viewmats
            ]
        animation(folder / "turntable.gif", frames)
    print(f"written to {folder}: contact_sheet.png, curve.png, turntable.gif, metrics.json, point_cloud.ply")
    return metrics


def train(
    scene: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    steps: int = Config.steps,
    downscale: int = 1,
    seed: int = 0,
    sh_degree: int = 3,
    backend: Backend = "auto",
    preset: Preset = "fixed",
    max_gaussians: int = 1_000_000,
) -> dict[str, Any]:
    """Fits photographs with cameras by COLMAP, from its sparse points; every eighth image is held out.

    Writes ``held_out/``, each view's photograph beside what was rendered, ``contact_sheet.png``, ``curve.png``,
    ``metrics.json`` and ``point_cloud.ply``.

    Args:
        scene: A folder as :func:`tsplat.scene.read_colmap` takes it.
        out: The folder to write to; made if it is not there.
        downscale: How many times smaller to make the photographs.
        seed: Of the order of views, and of what strategies draw.
        preset: ``"fixed"``, as many Gaussians as sparse points; ``"default"`` and ``"mcmc"``, the strategies of
            :mod:`tsplat.strategies` with their own schedules.
        max_gaussians: With ``"mcmc"``, how many there may be.

    Returns:
        What is in ``metrics.json``.

    Raises:
        ArgumentError: As :func:`tsplat.scene.read_colmap`, or a folder that cannot be written to.
        UnsupportedError: A camera with lens distortion.
        BackendError: The backend cannot run here.
        MissingExtraError: A package of the extra ``train`` is not installed.
    """
    require("PIL", "matplotlib", "pycolmap", "rich", "scipy")
    device, words = pick_device(backend)
    check_choice("preset", preset, PRESETS)
    check_size("max_gaussians", max_gaussians)
    generator = torch.Generator().manual_seed(seed)
    config = Config(steps=steps, seed=seed, backend=backend)
    if preset == "default":
        config = dataclasses.replace(config, strategy=DefaultStrategy(generator=generator))
    elif preset == "mcmc":
        strategy = MCMCStrategy(cap_max=max_gaussians, generator=generator)
        config = dataclasses.replace(config, strategy=strategy, opacity_weight=0.01, scale_weight=0.01)
    with output_folder(out) as folder:
        capture = read_colmap(scene, downscale).to(device)
        print(words)
        metrics, _ = _run(capture, sh_degree, config, folder)
    print(f"written to {folder}: held_out/, contact_sheet.png, curve.png, metrics.json, point_cloud.ply")
    return metrics


def _run(capture: Capture, sh_degree: int, config: Config, folder: Path) -> tuple[dict[str, Any], Gaussians]:
    start = Gaussians.from_points(capture.points, capture.colors, sh_degree)
    config = dataclasses.replace(config, background=capture.background)
    view = capture.train[0]
    print(
        f"{len(capture.train)} views of about {view.width}x{view.height} to fit, {len(capture.test)} held out; "
        f"{len(start)} Gaussians, {config.steps} steps",
        flush=True,
    )

    options: dict[str, Any] = dict(background=config.background, backend=config.backend)

    def judge(gaussians: Gaussians) -> list[Score]:
        return evaluate(gaussians, capture.test, **options)

    before = judge(start)
    history = History()
    history.record_test(0, mean_psnr(before))
    done, interval = 0, max(1, config.steps // TEST_TIMES)
    began = time.perf_counter()
    with stop_on_interrupt() as stopped, progress_display(config.steps) as show:

        def on_step(progress: Progress) -> bool:
            nonlocal done
            done = progress.step
            show(progress)
            history.record(progress)
            if done % interval == 0 and done < config.steps:
                history.record_test(done, mean_psnr(judge(progress.gaussians)))
            return stopped()

        result = fit(start, capture.train, config, on_step)
    seconds = time.perf_counter() - began
    if done < config.steps:
        print(f"ended after {done} of {config.steps} steps")
    after = judge(result)
    history.record_test(done, mean_psnr(after))
    metrics = {
        "psnr": _number(mean_psnr(after)),
        "ssim": mean_ssim(after),
        "psnr_initial": _number(mean_psnr(before)),
        "ssim_initial": mean_ssim(before),
        "psnr_train": _number(mean_psnr(evaluate(result, capture.train, **options))),
        "num_gaussians": len(result),
        "steps": done,
        "seconds": round(seconds, 2),
        "seed": config.seed,
        "backend": choose(result.means.device, config.backend)[0],
        "device": str(result.means.device),
        "views": [{"name": s.view.name, "psnr": _number(s.psnr), "ssim": s.ssim} for s in after],
    }
    print("held out     PSNR      SSIM")
    for name, scores in (("before", before), ("after", after)):
        print(f"{name:9} {mean_psnr(scores):5.2f} dB  {mean_ssim(scores):.4f}")
    _write(folder, result, before, after, history, metrics)
    return metrics, result


def _write(
    folder: Path,
    gaussians: Gaussians,
    before: Sequence[Score],
    after: Sequence[Score],
    history: History,
    metrics: dict[str, Any],
) -> None:
    write_ply(folder / "point_cloud.ply", gaussians)
    contact_sheet(folder / "contact_sheet.png", before, after)
    curve(folder / "curve.png", history)
    (folder / "held_out").mkdir(exist_ok=True)
    for i, score in enumerate(after):
        side_by_side(folder / "held_out" / f"{i:03d}_{Path(score.view.name).stem}.png", score)
    write_json(folder / "metrics.json", metrics)


def _turntable(frames: int) -> torch.Tensor:
    """Cameras once around the demo's scene. [frames, 4, 4]"""
    return orbit(TARGET, ORBIT_RADIUS, [360 * i / frames for i in range(frames)], [28.0] * frames)


def _number(value: float) -> float | None:
    """JSON has no infinity, which is the PSNR of equal pictures."""
    return value if math.isfinite(value) else None
