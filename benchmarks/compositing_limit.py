"""Measures how close compositing on a CPU comes to the limit of its own instructions. Uses one thread.

    python -m benchmarks.compositing_limit [--only NAME] [--repeats N] [--json FILE]

An evaluation is one Gaussian at one vector of pixels: 16 pixels with AVX-512, 8 with AVX2. No other work of the
compositing walks grows with the scene, so their limit is the number of evaluations times the time of one under ideal
conditions: long lists, and every Gaussian in the L1 cache. This time is measured with the same machine code. The
difference to 100 % is due to the start and the end of lists, cache misses, and mispredicted branches.
"""

import argparse
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import tsplat
from benchmarks.cases import COMPARED, Case, load
from benchmarks.launches import by_field
from benchmarks.timing_worker import forward_backward
from tsplat import triton_cpu
from tsplat.config import TRANSMITTANCE_MIN
from tsplat.kernels import launch as launching
from tsplat.triton_cpu import launcher, machine, target

FORWARD, BACKWARD = "_composite_fwd_kernel", "_composite_bwd_kernel"
ENTRIES = 1000
"""Length of the lists of the ideal scene, whose Gaussians are so faint that no pixel stops."""

CHUNK = 100_000
"""Number of list entries whose alphas are computed at a time."""

Launch = tuple[Any, tuple[int, ...], dict[str, Any]]


def recorded(step: Callable[[], Any]) -> dict[str, Launch]:
    """Runs a step, and returns the launches of the two walks, which can be repeated."""
    found: dict[str, Launch] = {}

    def record(kernel: Any, n_programs: int, arguments: dict[str, Any]) -> None:
        if kernel.__name__ in (FORWARD, BACKWARD):
            found[kernel.__name__] = (kernel, (n_programs,), arguments)

    with mock.patch.object(launching, "observer", record):
        step()
    return found


def pixels(launch: Launch) -> int:
    """Returns the number of pixels of a part of a tile."""
    own = by_field(launch[2])
    return int(own["WIDTH"] * own["HEIGHT"])


def milliseconds(launch: Launch, repeats: int) -> float:
    """Returns the shortest time of a launch."""
    kernel, grid, kwargs = launch
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        triton_cpu.launch(kernel, grid, (), kwargs)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def ideal_step(width: int = 128, height: int = 96) -> None:
    """Composites one faint Gaussian ENTRIES times in each tile, forward and backward."""
    means2d = torch.tensor([[[width / 2, height / 2]]], requires_grad=True)
    conics = torch.tensor([[[1e-6, 0.0, 1e-6]]])
    tiles = (height // 16, width // 16)
    n_tiles = tiles[0] * tiles[1]
    colors, alphas = tsplat.rasterize_to_pixels(
        means2d, conics, torch.ones(1, 1, 3), torch.full((1, 1), 0.005), width, height, 16,
        torch.arange(n_tiles).view(1, *tiles) * ENTRIES, torch.zeros(n_tiles * ENTRIES, dtype=torch.int32),
        backend="triton",
    )  # fmt: skip
    (colors.sum() + alphas.sum()).backward()  # type: ignore[no-untyped-call]


def list_slices(offsets: Tensor) -> Iterator[slice]:
    """Yields ranges of lists with about CHUNK entries each."""
    starts = offsets.tolist()
    first = 0
    for index in range(1, len(starts)):
        if starts[index] - starts[first] >= CHUNK or index == len(starts) - 1:
            yield slice(first, index)
            first = index


def walked(launch: Launch) -> int:
    """Returns the number of list entries that the forward walk evaluates before all pixels of a part have stopped."""
    a = by_field(launch[2])
    offsets, records, step = a["offsets"], a["records"].double(), a["STEP"]
    total = 0
    for lists in list_slices(offsets):
        starts = offsets[lists.start : lists.stop + 1]
        lengths = starts.diff()
        index = torch.arange(lists.start, lists.stop).repeat_interleave(lengths)
        place = torch.arange(int(starts[0]), int(starts[-1])) - offsets[index]
        tile, part = index % a["n_tiles"] + a["first_tile"], index // a["n_tiles"]
        across = a["TILE"] // a["WIDTH"]
        left = tile % a["tiles_per_image"] % a["tile_width"] * a["TILE"] + part % across * a["WIDTH"]
        top = tile % a["tiles_per_image"] // a["tile_width"] * a["TILE"] + part // across * a["HEIGHT"]
        record = records[a["ids"][int(starts[0]) : int(starts[-1])].long()]
        x = left[:, None] + torch.arange(a["WIDTH"])
        y = top[:, None] + torch.arange(a["HEIGHT"])
        dx = (x + 0.5 - record[:, :1])[:, None, :]
        dy = (y + 0.5 - record[:, 1:2])[:, :, None]
        c = record[:, 2:7, None, None]
        e = c[:, 3] + c[:, 0] * dx * dx + (c[:, 2] * dy + c[:, 1] * dx) * dy
        alpha = torch.where(e >= a["LOG2_ALPHA_MIN"], torch.minimum(e.exp2(), c[:, 4]), 0.0)
        inside = ((x < a["width"])[:, None, :] & (y < a["height"])[:, :, None]).flatten(1)
        log_t = torch.log1p(-alpha).flatten(1).cumsum(0)
        before = torch.nn.functional.pad(log_t, (0, 0, 1, 0))[starts[:-1] - starts[0]]
        owner = index - lists.start
        alive = (inside & (log_t - before[owner] > math.log(TRANSMITTANCE_MIN))).any(1)
        # The first entry after which all pixels have stopped; this is checked every `step` entries.
        ended = torch.full((len(lengths),), 2**40).scatter_reduce(
            0, owner, torch.where(alive, 2**40, place + 1), "amin"
        )
        total += int(torch.minimum((ended + step - 1) // step * step, lengths).sum())
    return total


def walked_back(launch: Launch) -> int:
    """Returns the number of list entries that the backward walk evaluates: up to the last one that any pixel added."""
    a = by_field(launch[2])
    height, width = a["pixel_ends"].shape[1:]
    ends = torch.nn.functional.pad(a["pixel_ends"], (0, -width % a["TILE"], 0, -height % a["TILE"]))
    parts = ends.unfold(1, a["HEIGHT"], a["HEIGHT"]).unfold(2, a["WIDTH"], a["WIDTH"])
    return int(parts.flatten(3).amax(3).sum())


def _assembly(module: str, cpu: target.Target) -> str:
    """Returns the assembly of a module of LLVM IR."""
    with machine.lock:
        text: str = machine._target_machine(cpu).emit_assembly(target.import_llvm().parse_assembly(module))
        return text


def vector_instructions(launch: Launch) -> int:
    """Returns the number of vector instructions of the main innermost loop: one Gaussian at all pixels."""
    kernel, _, kwargs = launch
    own = launcher.Launcher(kernel)
    types, constants = own.signature(own.bind((), kwargs))
    text = _assembly(launcher.llvm_ir(kernel, types, constants, "limit"), target.host_target())
    lines, labels, loops = text.splitlines(), {}, []
    for number, line in enumerate(lines):
        if found := re.match(r"(\.L\w+):", line):
            labels[found[1]] = number
        elif (found := re.match(r"\s+j\w+\s+(\.L\w+)", line)) and found[1] in labels:
            loops.append((labels[found[1]], number))
    innermost = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return max(sum("%zmm" in line or "%ymm" in line for line in lines[a:b]) for a, b in innermost)


def measure(cases: Iterable[Case], repeats: int) -> Iterator[dict[str, Any]]:
    """Yields a record per scene and pass.

    `evaluations` of `lanes` pixels took `ms`; under ideal conditions, one takes `ideal_ns` and `instructions` vector
    instructions.
    """
    lanes = target.host_target().lanes
    passes = (("forward", FORWARD, walked), ("backward", BACKWARD, walked_back))
    ideal = {}
    for name, launch in recorded(ideal_step).items():
        vectors = pixels(launch) // lanes
        nanoseconds = 1e6 * milliseconds(launch, repeats) / (int(by_field(launch[2])["offsets"][-1]) * vectors)
        ideal[name] = {"ideal_ns": nanoseconds, "instructions": round(vector_instructions(launch) / vectors)}
    for case in cases:
        scene = load(case, torch.device("cpu"))
        if scene is None:
            continue
        launches = recorded(lambda scene=scene: forward_backward(scene, backend="triton"))  # type: ignore[misc]
        for what, name, count in passes:
            launch = launches[name]
            evaluations = count(launch) * pixels(launch) // lanes
            counts = {"scene": case.name, "pass": what, "lanes": lanes, "evaluations": evaluations}
            yield counts | ideal[name] | {"ms": milliseconds(launch, repeats)}


def share(record: dict[str, Any]) -> float:
    """Returns the fraction of the limit that a record reaches."""
    return float(1e-6 * record["evaluations"] * record["ideal_ns"] / record["ms"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="run only scenes whose name contains this text")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="append the records to this file as JSON lines")
    options = parser.parse_args()
    torch.set_num_threads(1)
    triton_cpu.set_num_threads(1)
    for r in measure([case for case in COMPARED if options.only in case.name], options.repeats):
        print(f"{r['scene']:40} {r['pass']:8} {r['evaluations'] / 1e6:8.2f} M evaluations of {r['lanes']} pixels, "
              f"at best {r['ideal_ns']:.2f} ns and {r['instructions']} vector instructions each; {r['ms']:8.2f} ms, "
              f"{share(r):.0%} of the limit", flush=True)  # fmt: skip
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(r) + "\n")


if __name__ == "__main__":
    main()
