"""What a training step over many GPUs costs: rows counted on real scenes, and times modeled from them.

    python -m benchmarks.scaling [--kettle FILE] [--write]

Counted: who sends how many rows to whom, for Gaussians given to ranks at random or in blocks along a Morton curve, with
a camera for each rank, on the procedural scene and on a real capture (left out where it is not here). Modelled: the
time of each stage from the bytes and instructions it needs on an H100, for scenes and numbers of GPUs that are not
here. No time in these tables was measured on a GPU. `--write` puts the tables into docs/scaling.md.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import tsplat
from benchmarks.run import KETTLE
from tsplat.ops.morton import morton_order
from tsplat.scene import Gaussians, intrinsics, look_at, orbit, procedural_capture, read_ply
from tsplat.viewing import guess_up, look_at_all

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"

WIDTH, HEIGHT = 1296, 840
FOV = 40.0
CLOSER = 5.0
"""How many times narrower the field of view of close views is."""

CHUNK = 256
"""Gaussians that are next to each other in a rank's memory, of which a test of their common bounding box would say
whether any can be visible."""


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Rows that a step moves, counted.

    Attributes:
        rows: [ranks, ranks] int64, visible rows that the first rank owns on cameras of the second.
        chunks: [ranks] share of pairs of chunk and camera in which anything is visible.
        n_gaussians: Of all ranks.
    """

    rows: Tensor
    chunks: Tensor
    n_gaussians: int

    @property
    def visible(self) -> float:
        """Share of all Gaussians that a camera sees, on average."""
        return float(self.rows.sum()) / (self.n_gaussians * len(self.rows))

    @property
    def leaving(self) -> float:
        """Rows that leave a rank, on average."""
        return float(self.rows.sum() - self.rows.diagonal().sum()) / len(self.rows)

    @property
    def imbalance(self) -> float:
        """Rows of the rank that has the most visible, over the average."""
        return float(self.rows.sum(1).max() / self.rows.sum(1).double().mean().clamp_min(1))

    @property
    def staying(self) -> float:
        """Share of rows whose camera's rank owns the Gaussian."""
        return float(self.rows.diagonal().sum() / self.rows.sum().clamp_min(1))

    def placed(self) -> Traffic:
        """The same with cameras given to the ranks that own most of what they see."""
        from scipy.optimize import linear_sum_assignment

        _, cameras = linear_sum_assignment(self.rows.numpy(), maximize=True)
        return dataclasses.replace(self, rows=self.rows[:, torch.from_numpy(cameras)])


def partition(means: Tensor, ranks: int, how: str) -> Tensor:
    """Ids [N] int64 in the order of ranks, of which each owns the next N / ranks: "random", or "Morton" blocks."""
    if how == "Morton":
        return morton_order(means)
    return torch.randperm(len(means), generator=torch.Generator().manual_seed(0))


def count(seen: Tensor, order: Tensor) -> Traffic:
    """Traffic of a step with a camera for each rank, who own equal parts of `order`.

    Args:
        seen: [C, N] bool, what each camera sees; rank i has camera i.
        order: [N] int64, Gaussians in the order of ranks.
    """
    n_cameras, n = seen.shape
    owners = torch.arange(n) * n_cameras // n
    rows = torch.stack([torch.bincount(owners[view[order]], minlength=n_cameras) for view in seen], 1)
    chunks = torch.nn.functional.pad(seen[:, order], (0, -n % CHUNK)).view(n_cameras, -1, CHUNK).any(-1)
    return Traffic(rows, chunks.double().mean(1), n)


def look(gaussians: Gaussians, viewmats: Tensor, K: Tensor) -> Tensor:
    """What cameras see. [C, N] bool"""
    seen = []
    for viewmat in viewmats:
        radii, *_ = tsplat.fully_fused_projection(
            gaussians.means, None, gaussians.quats, gaussians.scales, viewmat[None], K[None], WIDTH, HEIGHT,
            opacities=gaussians.opacities,
        )  # fmt: skip
        assert radii is not None
        seen.append((radii[0] > 0).all(-1))
    return torch.stack(seen)


def scenes(kettle: Path) -> Iterator[tuple[str, Gaussians, tuple[float, float, float]]]:
    """Name, Gaussians and direction up."""
    capture = procedural_capture(250, 200, n_train=8, n_test=1, n_points=100_000, supersampling=1)
    yield "procedural", Gaussians.from_points(capture.points, capture.colors, 0), (0.0, -1.0, 0.0)
    if kettle.exists():
        gaussians = read_ply(kettle)
        yield "kettle", gaussians, guess_up(gaussians)


def cameras(gaussians: Gaussians, up: tuple[float, float, float], n: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Kind, world-to-camera matrices [n, 4, 4] and intrinsics: whole views around a scene, and close ones."""
    viewmat, target = look_at_all(gaussians, WIDTH, HEIGHT, FOV, up)
    eye = -viewmat[:3, :3].T @ viewmat[:3, 3]
    turns = [360 * (0.381966 * i % 1) for i in range(n)]
    around = orbit(target.tolist(), float((eye - target).norm()), turns, [10 + 40 * i / n for i in range(n)], up)
    yield "whole", around, intrinsics(WIDTH, HEIGHT, FOV)
    generator = torch.Generator().manual_seed(1)
    points = gaussians.means[torch.randint(len(gaussians), (n,), generator=generator)]
    eyes = -torch.einsum("cji,cj->ci", around[:, :3, :3], around[:, :3, 3])
    close = torch.stack([look_at(e, p, up) for e, p in zip(eyes.tolist(), points.tolist())])
    yield "close", close, intrinsics(WIDTH, HEIGHT, FOV / CLOSER)


COUNT_HEAD = (
    "| scene | views | ranks | order | a camera sees | rows leave a rank | MB | stay | stay, cameras placed "
    "| busiest rank | chunks touched |\n| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
)


def count_table(kettle: Path) -> str:
    table = COUNT_HEAD
    for name, gaussians, up in scenes(kettle):
        for ranks in (4, 16, 64):
            for kind, viewmats, K in cameras(gaussians, up, ranks):
                seen = look(gaussians, viewmats, K)
                for how in ("random", "Morton"):
                    traffic = count(seen, partition(gaussians.means, ranks, how))
                    table += (
                        f"| {name}, {len(gaussians):,} | {kind} | {ranks} | {how} | {traffic.visible:.0%} "
                        f"| {traffic.leaving:,.0f} | {traffic.leaving * ROW_BYTES / 1e6:.2f} | {traffic.staying:.0%} "
                        f"| {traffic.placed().staying:.0%} | {traffic.imbalance:.2f} x "
                        f"| {float(traffic.chunks.mean()):.0%} |\n"
                    )
    return table


ROW_BYTES, ROW_BYTES_BACK = 56, 40
"""A row of RGB in fp32, forth and back; counted from `tsplat.stages.exchange`."""

FLOATS = 59
"""Of a Gaussian with spherical harmonics of degree 3."""

OPTIMIZER_BYTES = 7 * 4 * FLOATS
"""Parameter, two moments read and written, gradient read."""

PARAMETER_BYTES = 4 * 4 * FLOATS
"""Parameter, gradient and two moments, in memory."""

TESTED_BYTES = 48
"""What projection moves to find that a Gaussian is not visible: its parameters but for colors, soundness, result."""

VISIBLE_BYTES = 36 + 192 + 12 + 2 * (44 + 192)
"""What a visible row writes and reads in projection and shading, and what its gradients do on the way back."""

DRAWN_MS = 2.2
"""Milliseconds a million visible rows, sorted and composited forth and back: 3 pairs of row and tile each, 20 and 56
instructions for 32 pixels, as `benchmarks.static_cost` counts them, all issue slots used."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """An H100 and its links: data sheet, times what is commonly reached of it; nothing here was measured.

    Attributes:
        memory: Bytes a second.
        near, far: Bytes a second each way between GPUs of one node, and of several.
        node: GPUs in a node.
        latency, latency_a_rank: Seconds of a collective, and more for each rank.
        record: Seconds to read a rank's record on the host; measured on one core of a CPU.
        capacity: Bytes of memory for parameters and rows.
    """

    memory: float = 0.75 * 3.35e12
    near: float = 0.75 * 450e9
    far: float = 0.8 * 50e9
    node: int = 8
    latency: float = 30e-6
    latency_a_rank: float = 1e-6
    record: float = 6e-6
    capacity: float = 70e9


@dataclasses.dataclass(frozen=True)
class Step:
    """Seconds of a step's stages on a rank, with a camera for each rank, and bytes."""

    project: float
    exchange: float
    agree: float
    draw: float
    optimize: float
    link_bytes: float
    memory_bytes: float

    @property
    def total(self) -> float:
        return self.project + self.exchange + self.agree + self.draw + self.optimize


def model(n: float, ranks: int, visible: float, tested: float = 1.0, machine: Machine | None = None) -> Step:
    """A step of `ranks` GPUs on n Gaussians.

    Args:
        visible: Rows that a camera sees.
        tested: Share of Gaussians that projection looks at for a camera; less than 1 if chunks were culled first.
    """
    m = machine or Machine()
    own = n / ranks
    # Each rank looks at its Gaussians for the cameras of all ranks, and draws what one camera sees.
    project = (own * ranks * tested * TESTED_BYTES + visible * VISIBLE_BYTES + own * 4 * FLOATS) / m.memory
    leaving = visible * (1 - 1 / ranks)
    link_bytes = leaving * (ROW_BYTES + ROW_BYTES_BACK)
    far = max(ranks - m.node, 0) / max(ranks - 1, 1)
    collectives = 5 * (m.latency + ranks * m.latency_a_rank) if ranks > 1 else 0.0
    packing = 4 * visible * (ROW_BYTES + ROW_BYTES_BACK) / m.memory if ranks > 1 else 0.0
    return Step(
        project=project,
        exchange=collectives + packing + link_bytes * ((1 - far) / m.near + far / m.far),
        agree=ranks * m.record if ranks > 1 else 0.0,
        draw=DRAWN_MS * 1e-9 * visible,
        optimize=own * OPTIMIZER_BYTES / m.memory,
        link_bytes=link_bytes,
        # A byte for each pair of Gaussian and camera says whether it is visible.
        memory_bytes=own * PARAMETER_BYTES + own * ranks + visible * (2 * ROW_BYTES + 200),
    )


SIZES = ((1e6, 0.5e6), (1e7, 1.5e6), (1e8, 3e6), (1e9, 3e6))
"""Gaussians, and how many a camera sees: assumed."""

WORLDS = (1, 4, 8, 16, 64, 256, 1024)
CULLED = 0.05
"""Share of chunks left after culling by chunk, at least, in a scene of which a camera sees a small part: assumed."""

MODEL_HEAD = (
    "| Gaussians | a camera sees | GPUs | project | exchange | agree | draw | optimize | ms a step | images/s "
    "| MB sent | GB a GPU | ms with chunks culled |\n" + "| ---: " * 13 + "|\n"
)


def model_table() -> str:
    table = MODEL_HEAD
    for n, visible in SIZES:
        for ranks in WORLDS:
            step = model(n, ranks, visible)
            if step.memory_bytes > Machine().capacity:
                continue
            culled = model(n, ranks, visible, max(CULLED, visible / n))
            times = " | ".join(
                f"{1e3 * t:.2f}" for t in (step.project, step.exchange, step.agree, step.draw, step.optimize)
            )
            table += (
                f"| {n:,.0f} | {visible:,.0f} | {ranks} | {times} | {1e3 * step.total:.2f} | {ranks / step.total:,.0f} "
                f"| {step.link_bytes / 1e6:.0f} | {step.memory_bytes / 1e9:.1f} | {1e3 * culled.total:.2f} |\n"
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kettle", type=Path, default=KETTLE, help="a PLY")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/scaling.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tables = f"## Counted\n\n{count_table(options.kettle)}\n## Modelled, not measured\n\n{model_table()}"
    print(tables)
    if options.write:
        before, rest = PAGE.read_text().split(BEGIN)
        _, after = rest.split(END)
        PAGE.write_text(f"{before}{BEGIN}\n\n{tables}\n{END}{after}")


if __name__ == "__main__":
    main()
