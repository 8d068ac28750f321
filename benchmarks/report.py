"""Writes docs/performance.md and its plot from the records in benchmarks/results: `python -m benchmarks.report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
PLOT = ROOT / "docs" / "performance.png"

HEAD = """# Performance

Median times of `benchmarks/run.py` in milliseconds, with the 20th and 80th percentiles, per device. Single stages are
timed forward only. The scenes are described at the top of that file. `python -m benchmarks.static_cost` counts the
machine instructions of the kernels without a GPU, and `make test` checks them against `benchmarks/budgets.json`.

![Median times by scene](performance.png)
"""

TAIL = """
## Predicted GPU time

`python -m benchmarks.predicted_time` predicts how long the compositing kernels take on an A100 and on an H100, without
a GPU. `python -m benchmarks.dynamic_cost` counts what they execute. Both render a scene forward and backward on an
[emulator](emulation.md) of sm_80; `--scene` chooses scenes, `--gpu` GPUs, `--json` writes records.

1. The emulator executes the machine code that Triton compiles for sm_80, and records which instructions each warp
   issues and which sectors of memory it accesses. Counts of instructions, sectors and bank conflicts are exact.
2. A timing model (`benchmarks/gpu_timing/core/model.c`) runs this trace on the SMs of a GPU, cycle by cycle. Warps
   issue in order, and wait as the compiler encoded it: for stall cycles and scoreboards. Instructions occupy pipes;
   memory accesses go through L1, L2 slices and DRAM channels with their latencies and queues. Registers, shared memory
   and warp slots limit how many programs run at once.

For each kernel it prints predicted microseconds, executed warp instructions, sectors, and the idle tail: the share of
all cycles of all sub-cores after a sub-core's last instruction, when others still work. The rest says what the
sub-cores' other cycles went to. `--sensitivity` repeats the prediction with those parameters changed that are known
least.

Parameters are latencies and throughputs from publications and from NVIDIA's documentation; some are guesses, which
`benchmarks/gpu_timing/model.py` marks as assumed. `tests/benchmarks/gpu_timing/test_model.py` checks the model on
kernels whose cost is known: chains of dependent instructions, throughput of pipes, pointer chases, a copy, barriers.

What a prediction is not:

- It is not a measurement. No prediction for these kernels has been compared with a GPU yet. We expect errors of up to
  40 % in times, and of up to 25 % in ratios between kernels.
- It does not include PyTorch's operators, kernels other than compositing, or the gaps between launches, which are some
  microseconds each.
- The H100 runs the code for sm_80. Code compiled for sm_90 may be faster.
- Caches are warm: L2 holds what a launch accesses when it begins, as far as it fits. Each launch is modeled alone.
"""


def table(records: list[dict[str, Any]]) -> str:
    """Returns the records as a Markdown table."""
    lines = [
        "| scene | backend | operation | intersections | ms | 20 % to 80 % |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    for r in records:
        # Older records have the number of intersections under another name.
        n_intersections = r.get("n_intersections", r.get("pairs"))
        intersections = f"{n_intersections:,}" if n_intersections else ""
        spread = f"{r['p20']:.2f} to {r['p80']:.2f}"
        lines.append(f"| {r['scene']} | {r['backend']} | {r['what']} | {intersections} | {r['p50']:.2f} | {spread} |")
    return "\n".join(lines) + "\n"


def plot(by_device: dict[str, list[dict[str, Any]]]) -> None:
    """Writes a bar chart of the medians."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.2 + 0.32 * sum(map(len, by_device.values()))), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    labels, values, colors = [], [], []
    for device, records in by_device.items():
        for r in records:
            labels.append(f"{r['scene']} | {r['what']} ({r['backend']}, {device})")
            values.append(r["p50"])
            colors.append({"forward": "#3b6ea5", "forward + backward": "#c2410c"}.get(r["what"], "#b9c6d6"))
    axes.barh(range(len(values)), values, color=colors)
    axes.set_yticks(range(len(values)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="ms")
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(PLOT)


def main() -> None:
    by_device: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            by_device.setdefault(record["device"], []).append(record)
    text = HEAD
    for device, records in by_device.items():
        text += f"\n## {device}, torch {records[0]['torch']}\n\n{table(records)}"
    if not any("NVIDIA" in device or "AMD" in device for device in by_device):
        text += "\nNot yet measured on a GPU; `benchmarks/gpu.sh` runs the benchmarks there.\n"
    PAGE.write_text(text + TAIL)
    plot(by_device)


if __name__ == "__main__":
    main()
