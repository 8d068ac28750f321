"""The demo: a procedural scene that needs no data, fitted in a few minutes."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch

from ..scene.cameras import intrinsics, orbit
from ..scene.capture.procedural import FOV, ORBIT_RADIUS, TARGET, procedural_capture
from ..scene.gaussians import Gaussians
from ..stages.backend import Backend, choose
from ..support.extras import require
from ..support.files import output_folder
from ..viewing.rendering import render
from .configuration import Config
from .pictures import animation
from .runs import fit_and_report, pick_device
from .trainer import Trainer

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
        ArgumentError: A size or number without meaning, or a folder that cannot be written to.
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
        config = dataclasses.replace(config, background=capture.background)
        start = Gaussians.from_points(capture.points, capture.colors, size.sh_degree)
        trainer = Trainer(start, capture.train, config)
        metrics = fit_and_report(trainer, start, capture, folder)
        viewmats = _turntable(size.frames).to(device)
        width, height = round(size.width * size.frame_scale), round(size.height * size.frame_scale)
        K = intrinsics(width, height, FOV).to(device)
        with torch.no_grad():
            frames = [
                render(trainer.gaussians, viewmat, K, width, height, background=capture.background, backend=backend)
                for viewmat in viewmats
            ]
        animation(folder / "turntable.gif", frames)
    print(f"written to {folder}: contact_sheet.png, curve.png, turntable.gif, metrics.json, point_cloud.ply")
    return metrics


def _turntable(frames: int) -> torch.Tensor:
    """Cameras once around the demo's scene. [frames, 4, 4]"""
    return orbit(TARGET, ORBIT_RADIUS, [360 * i / frames for i in range(frames)], [28.0] * frames)
