"""Measures tsplat and gsplat side by side, alternating in one process: image difference, time and peak memory.

    python -m benchmarks.peers [--repeats N] [--json FILE]

Needs a GPU and `pip install gsplat==1.5.3`, which compiles its kernels at first use; without them it prints why nothing
is measured and exits with status 0. A scene is timed only if the images of both agree.
"""

import argparse
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tsplat
from benchmarks import machine
from benchmarks.cases import SCENES, Case, load
from benchmarks.run import timed
from benchmarks.timing_worker import DIFFERENTIABLE

DIFFERENCE_MAX = 2e-3
"""Largest mean absolute difference of the images for which a scene is timed."""

ROUNDS = 3
"""Rounds in which both are measured; the median of their medians is reported."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=15, help="timed repeats per round")
    parser.add_argument("--json", type=Path, help="append the records to this file as JSON lines")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("peers: PyTorch finds no GPU, which the kernels of gsplat need; nothing to compare")
        return
    try:
        import gsplat
    except ImportError as error:
        print(f"peers: {error}; pip install gsplat==1.5.3")
        return
    device = torch.device("cuda")
    made_with = machine.describe(device) | {"peer": f"gsplat {gsplat.__version__}"}
    print(", ".join(f"{key} {value}" for key, value in made_with.items() if value is not None))
    for case in SCENES:
        scene = load(case, device)
        if scene is None:
            print(f"{case.name}: skipped, its file does not exist")
            continue
        record = compare(case, scene, gsplat.rasterization, device, options.repeats)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(record | made_with) + "\n")
    sys.stdout.flush()


def compare(
    case: Case, scene: dict[str, Any], peer: Callable[..., Any], device: torch.device, repeats: int
) -> dict[str, Any]:
    """Returns the mean absolute difference of the images of a scene, and, if they agree, median milliseconds and peak
    memory."""
    calls: dict[str, Callable[..., Any]] = {"tsplat": tsplat.rasterization, "gsplat": peer}
    with torch.no_grad():
        images = {name: call(**scene)[0] for name, call in calls.items()}
    difference = float((images["tsplat"] - images["gsplat"]).abs().mean())
    record: dict[str, Any] = {"scene": case.name, "mean_difference": difference}
    del images
    if difference > DIFFERENCE_MAX:
        print(f"{case.name}: the images differ by {difference:.2g} on average, more than {DIFFERENCE_MAX}; not timed")
        return record

    def forward(call: Callable[..., Any]) -> None:
        with torch.no_grad():
            call(**scene)

    def forward_backward(call: Callable[..., Any]) -> None:
        leaves = {name: scene[name].detach().requires_grad_() for name in DIFFERENTIABLE}
        colors, alphas, _ = call(**(scene | leaves))
        torch.autograd.backward(colors.square().sum() + alphas.sum())

    for what, step in (("forward", forward), ("forward + backward", forward_backward)):
        times: dict[str, list[float]] = {name: [] for name in calls}
        peaks = dict.fromkeys(calls, 0)
        for _ in range(ROUNDS):
            for name, call in calls.items():
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                times[name].append(timed(functools.partial(step, call), device, repeats)["p50"])
                peaks[name] = max(peaks[name], torch.cuda.max_memory_allocated())
        median = {name: sorted(values)[ROUNDS // 2] for name, values in times.items()}
        record[what] = {"ms": median, "peak_bytes": peaks}
        print(
            f"{case.name:32} {what:20} tsplat {median['tsplat']:8.2f} ms, gsplat {median['gsplat']:8.2f} ms: "
            f"{median['gsplat'] / median['tsplat']:.2f}x as fast, {peaks['tsplat'] / peaks['gsplat']:.2f}x the memory",
            flush=True,
        )
    return record


if __name__ == "__main__":
    main()
