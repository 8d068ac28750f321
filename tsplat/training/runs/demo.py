"""The demo: trains on a procedural scene, without data, in under a minute on two cores."""

import dataclasses
import os
from typing import Any

from ...config import Backend
from ...runtime.backend import choose
from ...runtime.process_group import RankGroup
from ...scene.cameras import Camera, intrinsics, orbit
from ...scene.capture.procedural import FOV, ORBIT_RADIUS, TARGET, procedural_capture
from ...scene.gaussians import Gaussians
from ...support.extras import require
from ...support.files import output_folder
from ...support.interruption import stop_on_signals
from ...viewing.devices import pick_device, reserve_threads
from ...viewing.videos import render_frames, write_gif
from ..configuration import Config
from ..trainer import Trainer
from .context import lock_run
from .sessions import RunSession
from .train import fit_and_report

SHORT_RUN = Config(means_rate=1e-3, scales_rate=2.2e-2, quats_rate=1.5e-2, sh0_rate=1.5e-2, shN_rate=1.5e-3)
"""Learning rates for about a thousand steps; the defaults of :class:`Config` are designed for 30,000."""


@dataclasses.dataclass(frozen=True)
class _Size:
    """Size of the demo.

    Attributes:
        width, height: Image size in pixels.
        n_train, n_test: Number of training views and of held-out views.
        n_points: Number of Gaussians.
        sh_degree: Highest degree of spherical harmonics.
        steps: Optimizer steps.
        frames: Number of frames of the turntable.
        frame_scale: Ratio of the turntable's width to that of the images.
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


ON_CPU = _Size(256, 192, n_train=24, n_test=4, n_points=12_000, sh_degree=1, steps=600, frames=36, frame_scale=1.5)
ON_GPU = _Size(480, 360, n_train=96, n_test=6, n_points=60_000, sh_degree=2, steps=4000, frames=72)


def demo(
    out: str | os.PathLike[str],
    *,
    backend: Backend = "auto",
    steps: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Trains on a procedural scene, from a noisy and coarse point cloud; requires no data.

    Writes ``contact_sheet.png``, ``curve.png``, ``turntable.gif``, ``metrics.json``, ``point_cloud.ply``, ``run.json``
    and ``report.html``.

    Args:
        out: Folder to write to; created if it does not exist.
        steps: Optimizer steps; None for 600, or 4,000 on a GPU.
        seed: Random seed of the point cloud and of the order of views.

    Returns:
        The contents of ``metrics.json``.

    Raises:
        ArgumentError: Invalid steps, or a folder that cannot be written to, contains a run with checkpoints or is in
            use.
        BackendError: The backend cannot run on this machine.
        MissingExtraError: A package of the extra ``train`` is not installed.
    """
    require("PIL", "matplotlib", "rich", "scipy")
    device, description = pick_device(backend)
    size = ON_GPU if choose(device, backend)[0] == "triton" and device.type == "cuda" else ON_CPU
    config = dataclasses.replace(
        SHORT_RUN, steps=size.steps if steps is None else steps, seed=seed, sh_interval=300, backend=backend
    )
    with output_folder(out) as folder, lock_run(folder, RankGroup(), new=True):
        reserve_threads(device, backend)
        session = RunSession()
        with session.measure("reading"):
            capture = procedural_capture(
                size.width,
                size.height,
                size.n_train,
                size.n_test,
                size.n_points,
                supersampling=3,
                seed=seed,
                device=device,
            )
        print(description)
        config = dataclasses.replace(config, background=capture.background)
        start = Gaussians.from_points(capture.points, capture.colors, size.sh_degree)
        trainer = Trainer(start, capture.train, config)
        with stop_on_signals() as stop:
            metrics = fit_and_report(trainer, start, capture, folder, stop=stop, session=session)
        width, height = round(size.width * size.frame_scale), round(size.height * size.frame_scale)
        K = intrinsics(width, height, FOV)
        azimuths = [360 * i / size.frames for i in range(size.frames)]
        poses = orbit(TARGET, ORBIT_RADIUS, azimuths, [28.0] * size.frames)
        cameras = [Camera(viewmat, K, width, height) for viewmat in poses]
        frames = render_frames(trainer.gaussians, cameras, background=capture.background, backend=backend)
        write_gif(folder / "turntable.gif", frames)
    print(
        f"written to {folder}: contact_sheet.png, curve.png, turntable.gif, metrics.json, point_cloud.ply, report.html"
    )
    return metrics
