"""Times a training step of a tiny scene, whose kernels take little time, optionally compared with another commit.

    python -m benchmarks.training_step [--base REF] [--rounds N]

The preset `standard` trains 60 Gaussians with views of 32x24 pixels. Prints the thread CPU time of a step in
milliseconds, as the minimum over blocks of 20 steps after the first 100. With `--base`, another commit and this one are
timed in turn, each in a new process.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from tsplat.rendering import render
from tsplat.scene import Camera, Gaussians, View, intrinsics, look_at
from tsplat.training import Trainer, preset

N, WIDTH, HEIGHT, VIEWS = 60, 32, 24, 6
STEPS = 30_000
"""Number of steps of the run; only the first ones are taken, before Gaussians are added."""
WARM_UP, BLOCK, BLOCKS = 100, 20, 20


def trainer() -> Trainer:
    """Returns a trainer for random Gaussians, with views from around them."""
    generator = torch.Generator().manual_seed(0)
    points, colors = 0.5 * torch.randn(N, 3, generator=generator), torch.rand(N, 3, generator=generator)
    gaussians = Gaussians.from_points(points, colors, 3)
    views = []
    for i in range(VIEWS):
        viewmat = look_at((2 * i - VIEWS, -1.0, -3.0), (0, 0, 0))
        camera = Camera(viewmat, intrinsics(WIDTH, HEIGHT, 45), WIDTH, HEIGHT)
        with torch.no_grad():
            image = render(gaussians, camera)
        views.append(View((255 * image.clamp(0, 1)).round().to(torch.uint8), camera))
    return Trainer(gaussians, views, preset("standard", STEPS))


def best_ms() -> float:
    """Returns the mean time of a step in milliseconds, as the minimum over blocks of steps."""
    trained, times = trainer(), []
    for _ in range(WARM_UP):
        trained.advance()
    for _ in range(BLOCKS):
        start = time.thread_time()
        for _ in range(BLOCK):
            trained.advance()
        times.append((time.thread_time() - start) / BLOCK)
    return 1e3 * min(times)


def timed(root: Path) -> float:
    """Returns the result of :func:`best_ms` with the tsplat in a folder, in a new process."""
    environment = os.environ | {"PYTHONPATH": str(root)}
    found = subprocess.run(
        [sys.executable, __file__], cwd=root, env=environment, check=True, capture_output=True, text=True
    )
    return float(found.stdout)


def compare(ref: str, rounds: int) -> None:
    """Times another commit and this one in turn, and prints the best times of both."""
    from benchmarks.worktrees import ROOT, worktree  # timed processes, which also run this file, cannot import it

    with worktree(ref) as base:
        found = [(timed(base), timed(ROOT)) for _ in range(rounds)]
    before, now = map(min, zip(*found))
    print(f"{ref} {before:.3f} ms, this commit {now:.3f} ms, ratio {now / before:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", metavar="REF", help="also time another commit")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each commit")
    options = parser.parse_args()
    if options.base:
        compare(options.base, options.rounds)
        return
    torch.set_num_threads(1)
    print(f"{best_ms():.3f}")


if __name__ == "__main__":
    main()
