"""Estimates the cost of a training step on many GPUs, from counted communication and predicted times.

    python -m benchmarks.scaling [--kettle FILE] [--write] [--out-of-sight]

Counted: the number of projected Gaussians that each rank sends to each other rank, with one camera per rank, if
Gaussians are assigned to ranks at random or in blocks along a Morton curve. The scenes are the procedural scene and a
trained model, which is skipped if its file does not exist.

Predicted: the time of each stage on H100 GPUs, from its bytes and instructions, for larger scenes and up to 1024 GPUs.
None of these times was measured on a GPU.

`--out-of-sight` measures, on this CPU, the cost in training of Gaussians that a camera does not see.

`--write` writes the tables to docs/scaling.md.
"""

import argparse
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor

import tsplat
from benchmarks.cases import KETTLE
from benchmarks.pages import write_tables
from tsplat.scene import Camera, Gaussians, View, intrinsics, look_at, orbit, procedural_capture, read_ply
from tsplat.scene.morton import morton_order
from tsplat.training import Trainer, preset
from tsplat.viewing.framing import guess_up, look_at_all

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"

WIDTH, HEIGHT = 1296, 840
FOV = 40.0
CLOSER = 5.0
"""Ratio of the field of view of whole views to that of close views."""

CHUNK = 256
"""Number of consecutive Gaussians of a rank that could be culled together, by a common bounding box."""

Assignment = Literal["random", "Morton"]


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Rows of packed tensors (projected Gaussians) that ranks exchange in a step.

    `rows` [ranks, ranks] has the number of visible Gaussians of the first rank in the camera of the second; `chunks`
    [ranks] has, for each camera, the fraction of chunks with at least one visible Gaussian.
    """

    rows: Tensor
    chunks: Tensor
    n_gaussians: int

    @property
    def visible(self) -> float:
        """Fraction of all Gaussians that a camera sees, averaged over cameras."""
        return float(self.rows.sum()) / (self.n_gaussians * len(self.rows))

    @property
    def leaving(self) -> float:
        """Number of rows sent to other ranks, averaged over ranks."""
        return float(self.rows.sum() - self.rows.diagonal().sum()) / len(self.rows)

    @property
    def imbalance(self) -> float:
        """Ratio of the busiest rank's rows to the average."""
        return float(self.rows.sum(1).max() / self.rows.sum(1).double().mean().clamp_min(1))

    @property
    def staying(self) -> float:
        """Fraction of rows whose Gaussian and camera are on the same rank."""
        return float(self.rows.diagonal().sum() / self.rows.sum().clamp_min(1))

    def placed(self) -> "Traffic":
        """Returns the traffic with cameras reassigned to ranks, so that most rows stay on their rank."""
        from scipy.optimize import linear_sum_assignment

        _, cameras = linear_sum_assignment(self.rows.numpy(), maximize=True)
        return dataclasses.replace(self, rows=self.rows[:, torch.from_numpy(cameras)])


def partition(means: Tensor, assignment: Assignment) -> Tensor:
    """Returns the indices [N] int64 of Gaussians in the order of ranks: each rank has the next N / ranks of them."""
    if assignment == "Morton":
        return morton_order(means)
    return torch.randperm(len(means), generator=torch.Generator().manual_seed(0))


def count_traffic(visible: Tensor, order: Tensor) -> Traffic:
    """Counts the rows that ranks exchange in a step with one camera per rank.

    `visible` [C, N] has the Gaussians that camera i, of rank i, sees; `order` [N] is the result of :func:`partition`.
    """
    n_cameras, n = visible.shape
    owners = torch.arange(n) * n_cameras // n
    rows = torch.stack([torch.bincount(owners[view[order]], minlength=n_cameras) for view in visible], 1)
    chunks = torch.nn.functional.pad(visible[:, order], (0, -n % CHUNK)).view(n_cameras, -1, CHUNK).any(-1)
    return Traffic(rows, chunks.double().mean(1), n)


def find_visible(gaussians: Gaussians, viewmats: Tensor, K: Tensor) -> Tensor:
    """Returns which Gaussians each camera sees, [C, N] bool."""
    visible = []
    for viewmat in viewmats:
        radii, *_ = tsplat.fully_fused_projection(
            gaussians.means, None, gaussians.quats, gaussians.scales, viewmat[None], K[None], WIDTH, HEIGHT,
            opacities=gaussians.opacities,
        )  # fmt: skip
        assert radii is not None
        visible.append((radii[0] > 0).all(-1))
    return torch.stack(visible)


def scenes(kettle: Path) -> Iterator[tuple[str, Gaussians, tuple[float, float, float]]]:
    """Yields name, Gaussians and up direction of each scene."""
    capture = procedural_capture(250, 200, n_train=8, n_test=1, n_points=100_000, supersampling=1)
    yield "procedural", Gaussians.from_points(capture.points, capture.colors, 0), (0.0, -1.0, 0.0)
    if kettle.exists():
        gaussians = read_ply(kettle)
        yield "kettle", gaussians, guess_up(gaussians)


def cameras(gaussians: Gaussians, up: tuple[float, float, float], n: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yields the kind, "whole" or "close", world-to-camera matrices [n, 4, 4] and intrinsics of views."""
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
    "| scene | views | ranks | assignment | visible per camera | rows sent per rank | MB | stay "
    "| stay, cameras reassigned | busiest rank | chunks visible |\n"
    "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
)


def count_table(kettle: Path) -> str:
    """Returns the counted communication as a Markdown table."""
    table = COUNT_HEAD
    for name, gaussians, up in scenes(kettle):
        for ranks in (4, 16, 64):
            for kind, viewmats, K in cameras(gaussians, up, ranks):
                visible = find_visible(gaussians, viewmats, K)
                assignments: tuple[Assignment, ...] = ("random", "Morton")
                for assignment in assignments:
                    traffic = count_traffic(visible, partition(gaussians.means, assignment))
                    table += (
                        f"| {name}, {len(gaussians):,} | {kind} | {ranks} | {assignment} | {traffic.visible:.0%} "
                        f"| {traffic.leaving:,.0f} | {traffic.leaving * ROW_BYTES / 1e6:.2f} | {traffic.staying:.0%} "
                        f"| {traffic.placed().staying:.0%} | {traffic.imbalance:.2f} x "
                        f"| {float(traffic.chunks.mean()):.0%} |\n"
                    )
    return table


ROW_BYTES, ROW_BYTES_BACK = 56, 40
"""Bytes of an exchanged row with RGB in fp32, forward and backward, according to `tsplat.stages.exchange`."""

FLOATS = 59
"""Number of parameters of a Gaussian with spherical harmonics of degree 3."""

OPTIMIZER_BYTES = 7 * 4 * FLOATS
"""Memory traffic of Adam per Gaussian: parameters and two moments are read and written, gradients are read."""

PARAMETER_BYTES = 4 * 4 * FLOATS
"""Memory per Gaussian: parameters, gradients and two moments."""

TESTED_BYTES = 48
"""Memory traffic of projecting a Gaussian that is not visible: parameters except colors, validity, result."""

VISIBLE_BYTES = 36 + 192 + 12 + 2 * (44 + 192)
"""Memory traffic of projection and shading per row, forward and backward."""

COMPOSITING_MS = 2.2
"""Milliseconds for sorting and compositing a million rows, forward and backward, with 3 intersections per row, and 20
and 56 instructions per 32 pixels (counted by `benchmarks.static_cost`), if all issue slots are used."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """An H100 and its interconnect: data-sheet values times the fraction that is commonly achieved.

    Bandwidths of memory, and per direction between GPUs of the same node (`near`) and of different nodes (`far`), are
    in bytes per second, latencies in seconds per collective and rank, and the capacity in bytes. `record` is the time
    for processing a rank's metadata in seconds, the only measured value, on one core.
    """

    memory: float = 0.75 * 3.35e12
    near: float = 0.75 * 450e9
    far: float = 0.8 * 50e9
    node: int = 8
    latency: float = 30e-6
    latency_per_rank: float = 1e-6
    record: float = 6e-6
    capacity: float = 70e9


@dataclasses.dataclass(frozen=True)
class Step:
    """Predicted seconds and bytes of a step on one rank, with one camera per rank."""

    project: float
    exchange: float
    metadata: float
    composite: float
    optimize: float
    link_bytes: float
    memory_bytes: float

    @property
    def total(self) -> float:
        """Seconds."""
        return self.project + self.exchange + self.metadata + self.composite + self.optimize


def predict(n: float, ranks: int, visible: float, tested: float = 1.0, machine: Machine | None = None) -> Step:
    """Predicts the cost of a step; `tested` is the fraction of the Gaussians that are projected per camera."""
    m = machine or Machine()
    own = n / ranks
    # Each rank projects its Gaussians for the cameras of all ranks, and composites the image of one camera.
    project = (own * ranks * tested * TESTED_BYTES + visible * VISIBLE_BYTES + own * 4 * FLOATS) / m.memory
    leaving = visible * (1 - 1 / ranks)
    link_bytes = leaving * (ROW_BYTES + ROW_BYTES_BACK)
    far = max(ranks - m.node, 0) / max(ranks - 1, 1)
    collectives = 5 * (m.latency + ranks * m.latency_per_rank) if ranks > 1 else 0.0
    packing = 4 * visible * (ROW_BYTES + ROW_BYTES_BACK) / m.memory if ranks > 1 else 0.0
    return Step(
        project=project,
        exchange=collectives + packing + link_bytes * ((1 - far) / m.near + far / m.far),
        metadata=ranks * m.record if ranks > 1 else 0.0,
        composite=COMPOSITING_MS * 1e-9 * visible,
        optimize=own * OPTIMIZER_BYTES / m.memory,
        link_bytes=link_bytes,
        # Visibility has one byte per Gaussian and camera.
        memory_bytes=own * PARAMETER_BYTES + own * ranks + visible * (2 * ROW_BYTES + 200),
    )


SIZES = ((1e6, 0.5e6), (1e7, 1.5e6), (1e8, 3e6), (1e9, 3e6))
"""Assumed numbers of Gaussians, in total and visible per camera."""

WORLD_SIZES = (1, 4, 8, 16, 64, 256, 1024)
CHUNKS_MIN = 0.05
"""Assumed minimum fraction of chunks that remain after culling chunks."""

PREDICTION_HEAD = (
    "| Gaussians | visible per camera | GPUs | project | exchange | metadata | composite | optimize | ms per step "
    "| images/s | MB sent | GB per GPU | ms with chunks culled |\n" + "| ---: " * 13 + "|\n"
)


def prediction_table() -> str:
    """Returns the predicted times as a Markdown table; configurations that do not fit into memory are left out."""
    table = PREDICTION_HEAD
    for n, visible in SIZES:
        for ranks in WORLD_SIZES:
            step = predict(n, ranks, visible)
            if step.memory_bytes > Machine().capacity:
                continue
            culled = predict(n, ranks, visible, max(CHUNKS_MIN, visible / n))
            times = " | ".join(
                f"{1e3 * t:.2f}" for t in (step.project, step.exchange, step.metadata, step.composite, step.optimize)
            )
            table += (
                f"| {n:,.0f} | {visible:,.0f} | {ranks} | {times} | {1e3 * step.total:.2f} | {ranks / step.total:,.0f} "
                f"| {step.link_bytes / 1e6:.0f} | {step.memory_bytes / 1e9:.1f} | {1e3 * culled.total:.2f} |\n"
            )
    return table


SEEN, PLACES = 50_000, 10
"""Number of Gaussians that each camera of :func:`out_of_sight` sees, and number of places with this many Gaussians."""

STEPS, FIRST_STEPS = 200, 20
"""Number of measured steps, in which Gaussians are added twelve times, and of steps before, which compile kernels."""


def out_of_sight() -> None:
    """Measures the cost of Gaussians that a camera does not see in training, as CPU time of this thread.

    It measures steps of the preset `standard` with the Gaussians of one place; of ten places, with rows in the order of
    places or shuffled; and of ten places without selections, see :mod:`tsplat.training.selection`.
    """
    for name, places, shuffled, selects in (
        ("one place", 1, False, True),
        ("all places, one after the other", PLACES, False, True),
        ("all places, shuffled", PLACES, True, True),
        ("all places, without selection", PLACES, False, False),
    ):
        gaussians, views = town(places, shuffled)
        config = preset(steps=30 * STEPS)
        assert config.strategy is not None
        schedule: dict[str, Any] = dict(refine_start_iter=FIRST_STEPS, refine_every=STEPS // 12)
        strategy = dataclasses.replace(config.strategy, **schedule)
        trainer = Trainer(gaussians, views, dataclasses.replace(config, strategy=strategy, max_gaussians=10**7))
        with mock.patch.object(trainer._view_gradients, "_selects_rows", selects and places > 1):
            for _ in range(FIRST_STEPS):
                trainer.advance()
            start = time.thread_time()
            for _ in range(STEPS):
                trainer.advance()
        seconds = (time.thread_time() - start) / STEPS
        print(
            f"{name}, {len(gaussians):,} to {trainer.n_gaussians:,} Gaussians: {1e3 * seconds:.0f} ms per step",
            flush=True,
        )


def town(places: int, shuffled: bool) -> tuple[Gaussians, list[View]]:
    """Returns :data:`SEEN` Gaussians per place, and a view of 648×420 pixels per place, which shows only that place."""
    generator = torch.Generator().manual_seed(0)
    n = places * SEEN
    points = torch.rand(n, 3, generator=generator) * torch.tensor([2.0, 1.3, 1.0]) - torch.tensor([1, 0.65, -2.5])
    place = torch.arange(n) // SEEN
    points[:, 0] += 10.0 * place
    gaussians = Gaussians.from_points(points, torch.rand(n, 3, generator=generator), opacity=0.5)
    gaussians = dataclasses.replace(gaussians, log_scales=torch.full((n, 3), -5.5))
    if shuffled:
        gaussians = gaussians.select(torch.randperm(n, generator=generator))
    views = []
    for i in range(places):
        viewmat = torch.eye(4)
        viewmat[0, 3] = -10.0 * i
        image = torch.randint(0, 256, (105, 162, 3), generator=generator, dtype=torch.uint8)
        image = image.repeat_interleave(4, 0).repeat_interleave(4, 1)
        views.append(View(image, Camera(viewmat, intrinsics(648, 420, 50.0).float(), 648, 420)))
    return gaussians, views


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kettle", type=Path, default=KETTLE, help="PLY of a trained model")
    parser.add_argument("--write", action="store_true", help="write the tables to docs/scaling.md")
    parser.add_argument(
        "--out-of-sight", action="store_true", help="only measure the cost of Gaussians that are not visible"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.out_of_sight:
        out_of_sight()
        return
    tables = f"## Counted\n\n{count_table(options.kettle)}\n## Predicted, not measured\n\n{prediction_table()}"
    print(tables)
    if options.write:
        write_tables(PAGE, tables)


if __name__ == "__main__":
    main()
