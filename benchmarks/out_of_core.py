"""Measures commands on models larger than memory.

    python -m benchmarks.out_of_core [--count N] [--memory GB] [--folder FOLDER] [COMMAND ...]

Writes a PLY of a town of N Gaussians (20 million: 5 GB) into FOLDER, unless it exists; FOLDER needs three times as much
free space. Then runs the given commands, by default all, each in a separate process with ``--memory``. Prints seconds
of CPU time and peak resident memory (``ru_maxrss``), including libraries; files are not memory-mapped. Outputs are
deleted.
"""

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tsplat.config import SH_NORMS
from tsplat.scene import write_ply
from tsplat.scene.model_rows import ModelProperties, Rows

CELL, HALF = 10.0, 0.35
"""Distance of the houses in world units, and half of their width relative to it."""

COMMANDS = {
    "info": ["info", "{model}"],
    "ply": ["convert", "{model}", "{out}/a.ply"],
    "spz": ["convert", "{model}", "{out}/a.spz"],
    "spz4": ["convert", "{model}", "{out}/b.spz", "--format", "spz4"],
    "sog": ["convert", "{model}", "{out}/a.sog"],
    "streamed-sog": ["convert", "{model}", "{out}/streamed/lod-meta.json"],
    "decimate": ["edit", "{model}", "{out}/small.ply", "--decimate", "10%"],
    "render": ["render", "{model}", "--out", "{out}/a.png"],
}


class TownRows(Rows):
    """Houses of random heights and colors on a plane. Each range of rows is a sample, seeded by its first row."""

    def __init__(self, count: int) -> None:
        super().__init__(count, ModelProperties(3))
        self.n_side = max(1, round(math.sqrt(count / 20_000)))
        generator = torch.Generator().manual_seed(0)
        self.heights = 2 + 18 * torch.rand(self.n_side, self.n_side, generator=generator).square()
        self.colors = 0.2 + 0.6 * torch.rand(self.n_side, self.n_side, 3, generator=generator)
        self.looks = 0.05 * torch.randn(self.n_side, self.n_side, 15, 3, generator=generator)

    def columns(self, names: Sequence[str], start: int, stop: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(start)
        n = stop - start
        x, z = torch.randint(0, self.n_side, (2, n), generator=generator)
        u, v, w = 2 * torch.rand(3, n, generator=generator) - 1
        side = torch.randint(0, 6, (n,), generator=generator)  # four walls, the roof, the ground
        height = self.heights[x, z]
        a = torch.where(side == 0, HALF, torch.where(side == 1, -HALF, torch.where(side == 5, 0.5, HALF) * u))
        b = torch.where(side == 2, HALF, torch.where(side == 3, -HALF, torch.where(side == 5, 0.5, HALF) * v))
        y = torch.where(side == 4, height, torch.where(side == 5, torch.zeros(()), height * (w + 1) / 2))
        means = torch.stack([(x + a) * CELL, -y, (z + b) * CELL], 1)
        colors = torch.where((side == 5)[:, None], torch.tensor([0.3, 0.4, 0.25]), self.colors[x, z])
        colors = colors + 0.05 * torch.randn(n, 3, generator=generator)
        noise = 0.02 * torch.randn(n, 15, 3, generator=generator)
        tensors = {
            "means": means,
            "log_scales": math.log(0.05) + 0.5 * torch.randn(n, 3, generator=generator),
            "quats": torch.randn(n, 4, generator=generator),
            "opacity_logits": 2 + torch.randn(n, generator=generator),
            "sh0": ((colors - 0.5) / SH_NORMS[0][0])[:, None],
            "shN": self.looks[x, z] + noise,
        }
        return {name: tensors[name] for name in names}


def measure(arguments: list[str]) -> tuple[int, float, float, float]:
    """Runs a command. Returns its status, seconds of CPU and of wall time, and its peak resident memory in GB."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "tsplat", *arguments])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = usage.ru_utime + usage.ru_stime
    return os.waitstatus_to_exitcode(status), seconds, time.perf_counter() - start, usage.ru_maxrss * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000_000)
    parser.add_argument("--memory", default="2")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=", ".join(COMMANDS))
    arguments = parser.parse_args()
    model = arguments.folder / f"town_{arguments.count}.ply"
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if not model.exists():
        write_ply(model, TownRows(arguments.count))
    print(f"{model}: {arguments.count:,} Gaussians, {model.stat().st_size / 1e9:.2f} GB", flush=True)
    for name in arguments.commands or COMMANDS:
        out = Path(tempfile.mkdtemp(dir=arguments.folder))
        try:
            words = [word.format(model=model, out=out) for word in COMMANDS[name]]
            status, cpu, wall, peak = measure([*words, "--memory", arguments.memory])
            size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
            print(f"| {name} | {status} | {cpu:.0f} | {wall:.0f} | {peak:.2f} | {size / 1e6:,.0f} |", flush=True)
        finally:
            shutil.rmtree(out)


if __name__ == "__main__":
    main()
