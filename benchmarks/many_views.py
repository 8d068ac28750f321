"""Measures a capture with thousands of views: memory, loading time, and time that steps wait for images.

    python -m benchmarks.many_views [--views 5000] [--photographs 20] [--width 640] [--height 480] [--steps 200]
        [--points 20000]

The photographs are ray traced once; the views are hard links to them, which are read and decoded like separate files.
Memory is the peak of this process above its memory before. The first steps, which have to read their images, are not
counted as waiting.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.shard_memory import forget_peak, memory
from benchmarks.town import make_town, town_cameras, write_town
from tsplat.scene import read_capture
from tsplat.training import Trainer, preset
from tsplat.training.runs.initial_gaussians import initial_gaussians

WARM_UP = 10
"""Number of first steps that are not counted."""


def write_views(folder: Path, n_views: int, n_photographs: int, size: tuple[int, int], n_points: int) -> None:
    """Writes a few photographs of a town, and `n_views` views that are links to them."""
    town = make_town(6)
    write_town(folder, town, town_cameras(town, n_photographs, *size), n_points)
    content = json.loads((folder / "transforms.json").read_text())
    frames = []
    for i in range(n_views):
        frame = content["frames"][i % n_photographs]
        path = f"images/view_{i:05d}.png"
        os.link(folder / frame["file_path"], folder / path)
        frames.append(frame | {"file_path": path})
    (folder / "transforms.json").write_text(json.dumps(content | {"frames": frames}))


def measure(folder: Path, steps: int) -> str:
    """Loads the capture and trains on it."""
    forget_peak()
    before, started, cpu = memory("VmRSS"), time.perf_counter(), time.process_time()
    capture = read_capture(folder)
    loaded, cpu = time.perf_counter() - started, time.process_time() - cpu
    config = dataclasses.replace(preset("fixed", steps), background=capture.background)
    trainer = Trainer(initial_gaussians(config, capture), capture.train, config)
    waited = 0.0
    for step in range(1, steps + 1):
        progress = trainer.advance()
        if step == WARM_UP:
            started, waited = time.perf_counter(), progress.waited or 0.0
    seconds, waited = time.perf_counter() - started, (progress.waited or 0.0) - waited
    return (
        f"{len(capture.train):,} training views: loaded in {loaded:.1f} s, {cpu:.1f} s of CPU time; "
        f"{steps - WARM_UP} steps in {seconds:.1f} s, of which {waited / seconds:.2%} waiting for images; "
        f"peak memory {(memory('VmHWM') - before) / 1e6:,.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    sizes = dict(views=5000, photographs=20, width=640, height=480, steps=200, points=20_000)
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.steps <= WARM_UP:
        parser.error(f"--steps: expected more than {WARM_UP}, found {options.steps}")
    with TemporaryDirectory() as folder:
        scene, size = Path(folder) / "scene", (options.width, options.height)
        write_views(scene, options.views, options.photographs, size, options.points)
        print(measure(scene, options.steps))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
