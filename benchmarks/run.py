"""How fast the package is on this machine: whole calls, forward and forward + backward, with ratios in one run.

    python -m benchmarks.run [--device cpu|cuda] [--threads N] [--repeats N] [--json FILE]

Scenes are seeded clouds of Gaussians of a given standard deviation in pixels. The dense reference runs where it fits.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tsplat
from tsplat.backend import Backend


@dataclasses.dataclass(frozen=True)
class Case:
    """N Gaussians of a standard deviation in pixels on a picture, and the backends to time."""

    n: int
    width: int
    height: int
    deviation: float
    backends: tuple[Backend, ...]

    @property
    def name(self) -> str:
        return f"{self.n} at {self.width}x{self.height}, {self.deviation:g} px"


CPU_CASES = (
    Case(2_000, 96, 64, 2.0, ("torch", "reference")),
    Case(10_000, 192, 128, 2.0, ("torch",)),
    Case(50_000, 400, 300, 2.0, ("torch",)),
)
GPU_CASES = (
    Case(2_000, 96, 64, 2.0, ("triton", "torch")),
    Case(100_000, 800, 600, 2.0, ("triton", "torch")),
    Case(1_000_000, 1296, 840, 2.5, ("triton",)),
)


def cloud(case: Case, device: torch.device, seed: int = 0) -> dict[str, Any]:
    """A seeded cloud that fills the picture, opacities from 0.1 to 0.9."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    focal = float(case.width)
    depth = 2 + 2 * uniform(case.n)
    x = (uniform(case.n) - 0.5) * case.width / focal * depth
    y = (uniform(case.n) - 0.5) * case.height / focal * depth
    spread = torch.exp(0.3 * torch.randn(case.n, 3, generator=generator))
    scene = dict(
        means=torch.stack([x, y, depth], -1),
        quats=torch.randn(case.n, 4, generator=generator),
        scales=(case.deviation / focal * depth)[:, None] * spread,
        opacities=0.1 + 0.8 * uniform(case.n),
        colors=uniform(case.n, 3),
        viewmats=torch.eye(4)[None],
        Ks=torch.tensor([[[focal, 0, case.width / 2], [0, focal, case.height / 2], [0, 0, 1]]]),
    )
    return {name: t.to(device) for name, t in scene.items()} | dict(width=case.width, height=case.height)


def timed(step: Callable[[], None], device: torch.device, repeats: int) -> dict[str, float]:
    """Milliseconds at the 20th, 50th and 80th percentile, after a warm-up."""
    samples = []
    for repeat in range(repeats + 2):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if repeat >= 2:
            samples.append(1e3 * (time.perf_counter() - start))
    p20, p50, p80 = torch.tensor(samples).quantile(torch.tensor([0.2, 0.5, 0.8])).tolist()
    return {"p20": p20, "p50": p50, "p80": p80}


def measure(case: Case, backend: Backend, device: torch.device, repeats: int) -> list[dict[str, Any]]:
    """One record for forward alone and one for forward + backward."""
    scene = cloud(case, device)
    wanted = ("means", "quats", "scales", "opacities", "colors")

    def forward() -> None:
        with torch.no_grad():
            tsplat.rasterization(**scene, backend=backend)

    def both() -> None:
        leaves = {name: scene[name].detach().requires_grad_() for name in wanted}
        colors, alphas, _ = tsplat.rasterization(**(scene | leaves), backend=backend)
        torch.autograd.backward(colors.square().sum() + alphas.sum())

    with torch.no_grad():
        _, _, meta = tsplat.rasterization(**scene, backend=backend)
    pairs = meta["flatten_ids"].numel() if "flatten_ids" in meta else None
    records = []
    for what, step in (("forward", forward), ("forward + backward", both)):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        record = {"scene": case.name, "backend": backend, "what": what, "pairs": pairs}
        record |= timed(step, device, repeats)
        if device.type == "cuda":
            record["peak_bytes"] = torch.cuda.max_memory_allocated()
        records.append(record)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="append records to this file, one a line")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()}, {options.threads} threads"
    )
    print(f"{name}, torch {torch.__version__}, tsplat {tsplat.__version__}")
    print(f"{'scene':32} {'backend':10} {'what':20} {'pairs':>9} {'p20 ms':>9} {'p50 ms':>9} {'p80 ms':>9}")
    for case in GPU_CASES if device.type == "cuda" else CPU_CASES:
        medians: dict[tuple[str, str], float] = {}
        for backend in case.backends:
            for record in measure(case, backend, device, options.repeats):
                medians[backend, record["what"]] = record["p50"]
                print(
                    f"{record['scene']:32} {backend:10} {record['what']:20} {record['pairs'] or '-':>9} "
                    f"{record['p20']:9.2f} {record['p50']:9.2f} {record['p80']:9.2f}",
                    flush=True,
                )
                if options.json:
                    with options.json.open("a") as file:
                        file.write(json.dumps(record | {"device": name, "torch": torch.__version__}) + "\n")
        for other in case.backends[1:]:
            for what in ("forward", "forward + backward"):
                ratio = medians[other, what] / medians[case.backends[0], what]
                print(f"{case.name}: {case.backends[0]} is {ratio:.1f} times as fast as {other}, {what}")


if __name__ == "__main__":
    main()
