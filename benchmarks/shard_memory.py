"""Measures memory, exchanged bytes and time of training steps on shards, compared with a single process.

    python -m benchmarks.shard_memory [--gaussians 2000000] [--ranks 4] [--strategy standard|adaptive|mcmc]
        [--views-per-step 4] [--adam-moments fp32|bf16] [--whole]

Images of the random scene are tiny and show about a tenth of it, so memory is mainly that of the Gaussians. With
`--whole`, images have 800×600 pixels and show the whole scene. The command measures the peak of resident memory above
that before the Gaussians were created, for a step, a step that refines, a checkpoint, and an evaluation; the bytes that
a rank sends; and the CPU time of its thread. The maximum over ranks is printed.
"""

import argparse
import ctypes
import dataclasses
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from tsplat.runtime.process_group import RankGroup
from tsplat.scene import Camera, Gaussians, intrinsics, look_at
from tsplat.scene.capture.views import View
from tsplat.training import Checkpoint, RunConfig, Trainer, evaluate, preset, write_checkpoint
from tsplat.training.configuration import MomentsPrecision
from tsplat.training.parameters import scene_tensors

TINY, LARGE, FOV = (64, 48), (800, 600), 60.0
N_VIEWS = 4
OUTSIDE = 4.0
"""Distance of cameras that see the whole cube from its center."""
BLOCK = 2**16
WARM_UP = 20_000
"""Number of Gaussians of a run that loads modules and kernels: large enough for each rank to select Gaussians."""


def memory(field: str) -> int:
    """Returns the resident memory in bytes: current (VmRSS), or its peak (VmHWM) since :func:`forget_peak`."""
    text = Path("/proc/self/status").read_text().partition(f"{field}:")[2]
    return 1024 * int(text.split()[0])


def forget_peak() -> None:
    """Resets the peak of resident memory."""
    Path("/proc/self/clear_refs").write_text("5")


def random_rows(rows: range) -> Gaussians:
    """Returns random Gaussians in a cube from -1 to 1, created in blocks."""
    n = len(rows)
    tensors = {
        "means": torch.empty(n, 3),
        "log_scales": torch.full((n, 3), -5.0),
        "quats": torch.empty(n, 4),
        "opacity_logits": torch.empty(n),
        "sh0": torch.empty(n, 1, 3),
        "shN": torch.empty(n, 15, 3),
    }
    generator = torch.Generator().manual_seed(rows.start)
    for name in ("means", "quats", "opacity_logits", "sh0", "shN"):
        for block in torch.split(tensors[name], BLOCK):
            block.uniform_(-1, 1, generator=generator)
    return Gaussians(**tensors)  # type: ignore[arg-type]


def views(whole: bool) -> list[View]:
    """Returns views from inside of the cube, each of about a tenth of the Gaussians; or views of the whole cube."""
    targets = ((1.0, 0.2, 0.0), (-1.0, 0.1, 0.3), (0.0, 0.3, 1.0), (0.2, 0.0, -1.0))
    width, height = LARGE if whole else TINY
    K = intrinsics(width, height, FOV)
    images = torch.randint(0, 256, (N_VIEWS, height, width, 3), dtype=torch.uint8)
    center, up = (0.0, 0.0, 0.0), (0.0, 1.0, 0.0)
    poses = [
        look_at([OUTSIDE * x for x in target], center, up) if whole else look_at(center, target, up)
        for target in targets
    ]
    return [View(image, Camera(pose.float(), K.float(), width, height)) for image, pose in zip(images, poses)]


class SentBytes:
    """Counts the bytes that this process sends to other ranks, in place of `dist.all_to_all_single`."""

    def __init__(self, rank: int) -> None:
        self.rank, self.n, self._send = rank, 0, dist.all_to_all_single

    def __call__(
        self, received: Tensor, rows: Tensor, counts_received: list[int], counts: list[int], **group: Any
    ) -> None:
        self.n += (sum(counts) - counts[self.rank]) * rows[:1].numel() * rows.element_size()
        self._send(received, rows, counts_received, counts, **group)


def settings(name: Any, n: int, **changes: Any) -> RunConfig:
    """Returns settings of a preset with which the last of five steps refines, after two steps that passes replay."""
    config = preset(name, 1000)
    schedule: dict[str, Any] = dict(refine_start_iter=1, refine_every=4, refine_stop_iter=900, cap_max=n + n // 20)
    assert config.strategy is not None
    return dataclasses.replace(
        config,
        max_gaussians=2 * n,
        **changes,
        strategy=dataclasses.replace(config.strategy, **schedule),
    )


def run(
    ranks: RankGroup, n: int, config: RunConfig, seen: list[View], folder: Path
) -> tuple[int, dict[str, tuple[int, int, float]]]:
    """Takes five steps, saves and evaluates.

    Returns the number of Gaussians, and for each phase its peak memory and the mean bytes and seconds of its calls.
    """
    found = {}
    baseline, sent = memory("VmRSS"), SentBytes(ranks.rank)
    dist.all_to_all_single = sent  # type: ignore[assignment]
    trainer = Trainer(random_rows(range(n)[ranks.shard_rows(n)]), seen, config, ranks, is_shard=True)

    def save() -> None:
        tensors, figures = trainer.state()
        raw = scene_tensors(trainer.gaussians)
        others = {key: tensor for key, tensor in tensors.items() if key not in raw}
        names = trainer.per_gaussian_names
        checkpoint = Checkpoint(trainer.step, trainer.gaussians, others, {"trainer": figures}, config, names)
        write_checkpoint(folder, checkpoint, None, ranks, sharded=trainer.sharded)

    def score() -> None:
        evaluate(trainer.gaussians, seen, ranks=ranks, sharded=trainer.sharded)

    step = trainer.advance
    phases: dict[str, tuple[Callable[[], object], int]] = {
        "first steps": (step, 2), "step": (step, 2), "refinement": (step, 1), "checkpoint": (save, 1),
        "evaluation": (score, 1),
    }  # fmt: skip
    for phase, (call, n_calls) in phases.items():
        forget_peak()
        sent.n, start = 0, time.thread_time()
        for _ in range(n_calls):
            call()
        seconds = (time.thread_time() - start) / n_calls
        found[phase] = (memory("VmHWM") - baseline, sent.n // n_calls, seconds)
    dist.all_to_all_single = sent._send
    return trainer.n_gaussians, found


def measure(rank: int, world_size: int, n: int, name: str, changes: dict[str, Any], whole: bool, folder: str) -> None:
    """Measures on one rank; rank 0 prints the maxima over all ranks."""
    ctypes.CDLL(None).mallopt(-3, 2**20)  # blocks of 1 MiB or more are returned to the system at once
    torch.set_num_threads(1)
    if world_size > 1:
        dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world_size)
    ranks = RankGroup(dist.group.WORLD if world_size > 1 else None)
    seen = views(whole)
    run(ranks, WARM_UP, settings(name, WARM_UP, **changes), seen, Path(folder, "warm_up"))  # loads modules and kernels
    n, found = run(ranks, n, settings(name, n, **changes), seen, Path(folder, "checkpoints"))
    results = ranks.all_gather_object(found)
    for phase in found if ranks.is_main else ():
        peaks, sent, seconds = zip(*(result[phase] for result in results), strict=True)
        print(
            f"{name}, {world_size} ranks, {n:,} Gaussians, {phase}: {max(peaks) / 1e6:,.0f} MB, "
            f"{max(sent) / 1e6:,.1f} MB sent, {max(seconds):.2f} s",
            flush=True,
        )
    if world_size > 1:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gaussians", type=int, default=2_000_000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--strategy", choices=("standard", "adaptive", "mcmc"), default="standard")
    parser.add_argument("--views-per-step", type=int, default=N_VIEWS)
    parser.add_argument("--adam-moments", choices=get_args(MomentsPrecision), default="fp32")
    parser.add_argument("--whole", action="store_true", help="images of 800×600 that show all Gaussians")
    options = parser.parse_args()
    changes = dict(views_per_step=options.views_per_step, adam_moments=options.adam_moments)
    context = multiprocessing.get_context("fork")
    for world_size in dict.fromkeys((1, options.ranks)):
        with tempfile.TemporaryDirectory() as folder, context.Pool(world_size) as ranks:
            arguments = (world_size, options.gaussians, options.strategy, changes, options.whole, folder)
            ranks.starmap(measure, [(rank, *arguments) for rank in range(world_size)], chunksize=1)


if __name__ == "__main__":
    main()
