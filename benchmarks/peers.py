"""tsplat beside gsplat, in one process and in turn: pictures compared first, then time and memory as ratios.

    python -m benchmarks.peers [--repeats N] [--json FILE]

Needs a GPU and `pip install gsplat==1.5.3` (which compiles its kernels at first use); without either it says so and
ends well.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tsplat
from benchmarks.run import SCENES, Case, load, timed

WANTED = ("means", "quats", "scales", "opacities", "colors")
CLOSE = 2e-3
"""Mean absolute difference of pictures above which nothing is timed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path, help="append records to this file, one a line")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("peers: no GPU here; gsplat's kernels need one, so there is nothing to compare")
        return
    try:
        import gsplat
    except ImportError as error:
        print(f"peers: {error}; pip install gsplat==1.5.3")
        return
    device = torch.device("cuda")
    name = torch.cuda.get_device_name(device)
    print(f"{name}, torch {torch.__version__}, tsplat {tsplat.__version__}, gsplat {gsplat.__version__}")
    for case in SCENES:
        scene = load(case, device)
        if scene is None:
            print(f"{case.name}: skipped, its data is not here")
            continue
        record = compare(case, scene, gsplat.rasterization, device, options.repeats)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(record | {"device": name, "peer": f"gsplat {gsplat.__version__}"}) + "\n")
    sys.stdout.flush()


def compare(
    case: Case, scene: dict[str, Any], peer: Callable[..., Any], device: torch.device, repeats: int
) -> dict[str, Any]:
    """One scene: the difference of the pictures, and for each of both the times and peak memory, taken in turn."""
    calls: dict[str, Callable[..., Any]] = {"tsplat": tsplat.rasterization, "gsplat": peer}
    with torch.no_grad():
        pictures = {who: call(**scene)[0] for who, call in calls.items()}
    difference = float((pictures["tsplat"] - pictures["gsplat"]).abs().mean())
    record: dict[str, Any] = {"scene": case.name, "mean_difference": difference}
    del pictures
    if difference > CLOSE:
        print(f"{case.name}: pictures differ by {difference:.2g} in the mean, more than {CLOSE}; not timed")
        return record

    def forward(call: Callable[..., Any]) -> None:
        with torch.no_grad():
            call(**scene)

    def both(call: Callable[..., Any]) -> None:
        leaves = {name: scene[name].detach().requires_grad_() for name in WANTED}
        colors, alphas, _ = call(**(scene | leaves))
        torch.autograd.backward(colors.square().sum() + alphas.sum())

    for what, step in (("forward", forward), ("forward + backward", both)):
        times: dict[str, list[float]] = {who: [] for who in calls}
        peaks = dict.fromkeys(calls, 0)
        for _ in range(3):
            for who, call in calls.items():
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                times[who].append(timed(functools.partial(step, call), device, repeats)["p50"])
                peaks[who] = max(peaks[who], torch.cuda.max_memory_allocated())
        median = {who: sorted(values)[1] for who, values in times.items()}
        record[what] = {"ms": median, "peak_bytes": peaks}
        print(
            f"{case.name:32} {what:20} tsplat {median['tsplat']:8.2f} ms, gsplat {median['gsplat']:8.2f} ms: "
            f"{median['gsplat'] / median['tsplat']:.2f}x as fast, {peaks['tsplat'] / peaks['gsplat']:.2f}x the memory",
            flush=True,
        )
    return record


if __name__ == "__main__":
    main()
