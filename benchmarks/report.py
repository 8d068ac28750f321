"""Writes docs/performance.md and its plots from the records in benchmarks/results: `python -m benchmarks.report`."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks import machine, measured_page, memory_page
from benchmarks.compositing_limit import share
from benchmarks.gpu_timing.ratios import RATIOS, ratios
from benchmarks.predicted_tables import amd_table, details_table, sensitivity_table
from benchmarks.step_page import section
from benchmarks.time_plots import BACKENDS, plot_times

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
PLOT = ROOT / "docs" / "performance.png"
LIMITS = RESULTS / "limit" / "cpu.jsonl"
PREDICTED = RESULTS / "predicted"
SENSITIVITY = PREDICTED / "sensitivity.jsonl"
STEPS = PREDICTED / "step.jsonl"
AMD = RESULTS / "executed" / "amd.jsonl"
MEASURED = RESULTS / "measured" / "peers.jsonl"
COUNTS = RESULTS / "measured" / "counts.jsonl"
MEMORY = RESULTS / "executed" / "memory.jsonl"
PREDICTED_PLOT = ROOT / "docs" / "predicted_time.png"

TSPLAT = "tsplat"
GSPLAT = "gsplat 1.5.3"
IMPLEMENTATIONS = (TSPLAT, "tsplat 66fcafc", GSPLAT, "Faster-GS 16x12")
"""Implementations with predicted times."""

PLOTTED = {TSPLAT: "tsplat", GSPLAT: GSPLAT, "Faster-GS 16x12": "Faster-GS"}
"""Implementations in the plot, and their legends."""

WHAT = ("projection", "intersection", "compositing", "forward", "forward + backward")
HEAD = """# Performance

Median times of `benchmarks/run.py` in milliseconds, per device, for the backends `triton` / `torch`, on the smallest
scene also `reference`. Single stages are timed forward only. `benchmarks/cases.py` describes the scenes;
`benchmarks/results` has 20th and 80th percentiles. `python -m benchmarks.static_cost` counts the machine instructions
of the kernels without a GPU, and `make test` checks them against `benchmarks/budgets.json`.

![Bar charts of the time of a call on a CPU, for six scenes](performance.png)
"""

LIMIT = """
## Limit on a CPU

`python -m benchmarks.compositing_limit` compares the two walks of compositing with the limit of their instructions. An
evaluation is one Gaussian at one vector of pixels; the limit is the number of evaluations times the time of one under
ideal conditions (long lists, all Gaussians in the L1 cache). On one thread:

"""

LIMIT_NOTE = """
The rest of the time is spent at the start and end of lists, and on cache misses that occur too early for
[prefetching](decisions/0014-prefetching-on-cpus.md).
"""

PREDICTION = """
## Predicted GPU time

All times in this section are predicted; [some](#measured-on-a-gpu) have been measured since. `python -m
benchmarks.predicted_time` predicts the time of the compositing kernels on an A100 and an H100. `python -m
benchmarks.dynamic_cost` counts what they execute. Both render a scene forward and backward on an
[emulator](emulation.md) of sm_80; `--scene` chooses scenes, `--gpu` chooses GPUs, and `--json` writes records.

![Bar chart of predicted times of tsplat, gsplat and Faster-GS on an A100, for ten scenes](predicted_time.png)

Predicted microseconds on an A100, forward + backward, and in parentheses the sum on an H100:

"""

NOTES = """
- The figures include all compositing kernels: records, lists of [parts of tiles](decisions/0010-parts-of-tiles.md),
  pixels, and [sums of slots](decisions/0011-sums-of-slots.md). They do not include PyTorch's operators between them
  (cumulative sums, sorts), all other stages, and the gaps between launches, which are some microseconds each. tsplat
  launches more kernels and operators than the others: on the smallest scenes, gaps may cost more than the kernels.
- Where times were measured, ratios between tsplat and gsplat were 1.2 to 1.8 times as large as predicted. Smaller
  differences are ties.
- The other implementations composited the same projected Gaussians, with their own lists of tiles. Their kernels were
  compiled for sm_80 as well. Faster-GS has tiles of 16×12 pixels, the others of 16×16. "tsplat 66fcafc" is a commit in
  which one program with one warp walked the whole list of a tile.
- The columns of tsplat 66fcafc and Faster-GS were predicted once, with an earlier version of the timing model. For
  commit daf3354, whose compositing has the same design as 66fcafc, the current model predicts 2,549 + 3,405 us for
  kettle-400x300, 673 + 1,169 us for garden-648x420, 355 + 1,193 us for garden-1296x840, 473 + 1,241 us for
  garden-1920x1080, and 951 + 1,294 us for dense-tile.
- The backward pass gets a channel-major gradient of the image, as from `l1_ssim_loss`. With a channel-last gradient, it
  loads 14 % more sectors for the cloud and 3 % more for garden-648x420, in the same time.
- 16 and 64 channels (cloud-d16, cloud-d64) are composited by matrix products, in parts of 8×8 pixels.

### Idle tails and memory

The idle tail is the share of all sub-cores' cycles that are after a sub-core's last instruction, while others still
work, forward / backward. "Kept" is the memory that the forward pass saves for the backward pass, besides the inputs of
`rasterization()`:

"""

SENSITIVITY_TEXT = """
Most of the tail of dense-tile and of the clouds is in launches of a few microseconds, which have few programs
([decision 0016](decisions/0016-idle-tail-of-a-dense-tile.md)).

### Sensitivity

Predicted microseconds on an A100, forward + backward, with one parameter of the model changed at a time
(`--sensitivity`):

"""

RATIO_TEXT = """
### tsplat divided by gsplat

With `--peer gsplat`, both commands also execute the compositing kernels of gsplat 1.5.3 on the emulator, with the same
projected Gaussians and gsplat's lists: a Gaussian is in each tile that the bounding rectangle of its radii touches.
nvcc compiles them for sm_80 with gsplat's flags. The sources come from gsplat's wheel, which pip downloads once into
the emulator's cache; `TSPLAT_GSPLAT_WHEEL` gives another path. Images and gradients must agree with tsplat's.

The table has tsplat's figures divided by gsplat's, forward / backward, over all compositing kernels of a pass.
Instructions and sectors are exact counts of the code that the emulator executed; times are predicted:

"""

AMD_TEXT = """
### AMD GPUs

Times are not predicted for AMD GPUs. `python -m benchmarks.dynamic_cost --target gfx942` counts the instructions of
the same kernels. The table has million wave instructions, forward + backward, and their ratio to those of tsplat
66fcafc, forward / backward:

"""

AMD_NOTE = """
Both passes execute fewer instructions than 66fcafc. Parts are larger and chunks are longer than on NVIDIA GPUs: smaller
parts share less of the work of a Gaussian, and if lists are cut into chunks, another kernel walks them for the
transmittance at the start of each chunk ([decision 0010](decisions/0010-parts-of-tiles.md)).
"""

METHOD = """
- "eval3d" is evaluation in 3D, compared with gsplat's `rasterize_to_pixels_eval3d`; "2dgs" are 2D Gaussians, with
  color, depth, normals, distortion and median, compared with `rasterize_to_pixels_2dgs`. The clouds' 24 tiles do not
  fill a GPU; the garden has 1,107.
- 2D Gaussians: gsplat evaluates discs in their bounding boxes, which are largest for discs that reach the plane of the
  camera, or are seen from the side: 1 % of the discs of garden-648x420 make 61 % of its intersections. tsplat's lists
  of parts test the outline of a disc, a conic, and contain a tenth of the Gaussians that gsplat's warps evaluate. The
  discs of this scene have random rotations; models with fewer such discs gain less.
- gsplat's kernel for evaluation in 3D is compiled for pinhole cameras with a global shutter, without the code for other
  cameras, which favors gsplat.
- A sector is 32 bytes of global memory that one instruction of one warp accesses. Sectors in a cache count as well.
- gsplat's backward pass does not store: it adds to gradients by atomics, and each updated sector counts. Zeroing the
  gradients before is not counted.
- Nothing is compared if an image or a gradient differs by more than 1e-3 of its largest value. One in 100,000 values
  of an image may differ by 1/255, where a Gaussian's alpha equals the threshold up to rounding.

### How times are predicted

1. The emulator executes the machine code that Triton compiles for sm_80, and records which instructions each warp
   issues and which sectors of memory it accesses. Counts of instructions, sectors and bank conflicts are exact.
2. A timing model (`emulator/timing/core/model.c`) simulates this trace on the SMs of a GPU, cycle by cycle. Warps
   issue in order, and wait as the compiler encoded it: for stall cycles and scoreboards. Instructions occupy pipes;
   memory accesses go through L1, L2 slices and DRAM channels with their latencies and queues. Registers, shared memory
   and warp slots limit how many programs run at once.

For each kernel, the command prints predicted microseconds, executed warp instructions, sectors, the idle tail, and the
reasons for which sub-cores waited in other cycles.

Parameters are latencies and throughputs from publications and from NVIDIA's documentation; some are guesses, which
`emulator/timing/model.py` marks as assumed. `tests/emulator/timing/test_model.py` checks the model on
kernels with known cost: chains of dependent instructions, throughput of pipes, pointer chases, a copy, barriers.
Predictions are [compared with a GPU](#measured-on-a-gpu) above.

- Two predictions of the same scene differ by up to 2 %, as tensors have other addresses. Counts do not differ.
- The H100 runs the code for sm_80. Code compiled for sm_90 may be faster.
- Caches are warm: at the start of a launch, L2 contains the data that the launch accesses, as far as it fits. Each
  launch is modeled separately.
"""


def replace(
    path: Path, found: list[dict[str, Any]], names: Iterable[str], order: Callable[[dict[str, Any]], Any]
) -> None:
    """Replaces the records of a file with equal values of the fields `names`, sorts them, and writes the page."""

    def values(record: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(record.get(name) for name in names)

    new = {values(record) for record in found}
    kept = [record for record in _read(path) if values(record) not in new]
    path.write_text("".join(json.dumps(_rounded(record)) + "\n" for record in sorted(kept + found, key=order)))
    PAGE.write_text(page())


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(entry) for name, entry in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(records: list[dict[str, Any]]) -> str:
    """Returns the medians as a Markdown table: a row per scene, and in each cell a time per backend."""
    lines = [f"| scene | intersections | {' | '.join(WHAT)} |", "| --- | ---: |" + " ---: |" * len(WHAT)]
    for scene in dict.fromkeys(r["scene"] for r in records):
        own = [r for r in records if r["scene"] == scene]
        cells = [" / ".join(milliseconds(r["p50"]) for r in own if r["what"] == what) for what in WHAT]
        lines.append(f"| {scene} | {own[0]['n_intersections']:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def milliseconds(value: float) -> str:
    """Formats a time with three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def limit_table(records: list[dict[str, Any]]) -> str:
    """Returns the records of ``benchmarks.compositing_limit`` as a Markdown table."""
    lines = [
        "| scene | pass | evaluations, million | pixels each | vector instructions, at best | ns, at best | ms "
        "| share of the limit |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in records:
        lines.append(
            f"| {r['scene']} | {r['pass']} | {r['evaluations'] / 1e6:.2f} | {r['lanes']} | {r['instructions']} "
            f"| {r['ideal_ns']:.1f} | {r['ms']:.1f} | {share(r):.0%} |"
        )
    return "\n".join(lines) + "\n"


def with_sign(text: str) -> str:
    """Returns a text with × in sizes and separators in counts, which records write in ASCII.

    Names such as garden-648x420 do not change.
    """
    text = re.sub(r"\b\d+(?= at \d+x\d)", lambda count: f"{int(count[0]):,}", text)
    return re.sub(r"(?<![-\w])(\d+)x(\d+)\b", r"\1×\2", text)


def plot(by_device: dict[str, list[dict[str, Any]]]) -> None:
    """Writes a bar chart of the medians of whole calls on a CPU: two panels, and a group of bars per scene."""
    (device, records), *_ = by_device.items()
    panels: dict[str, dict[str, dict[str, float]]] = {}
    for what in WHAT[-2:]:
        own = [r for r in records if r["what"] == what]
        panels[what] = {
            legend: {r["scene"]: r["p50"] for r in own if r["backend"] == backend}
            for backend, legend in BACKENDS.items()
        }
    plot_times(PLOT, f"Time of a call on {device}", panels, "milliseconds", milliseconds)


def read_records() -> list[dict[str, Any]]:
    """Returns the records of predicted times, except those for variations of the model."""
    records = [record for name in ("tsplat", "peers") for record in _read(PREDICTED / f"{name}.jsonl")]
    return [record for record in records if record.get("variation") is None]


def by_scene(records: list[dict[str, Any]]) -> dict[str, dict[str, dict[tuple[str, str], float]]]:
    """Returns predicted microseconds by scene, implementation, and (GPU, pass)."""
    predictions: dict[str, dict[str, dict[tuple[str, str], float]]] = {}
    for r in records:
        passes = predictions.setdefault(r["scene"], {}).setdefault(r.get("implementation", TSPLAT), {})
        passes[r["gpu"], r["pass"]] = r["predicted_us"]
    return predictions


def both_passes(passes: dict[tuple[str, str], float], gpu: str) -> float | None:
    """Returns the predicted microseconds of forward + backward on a GPU, or None."""
    if (gpu, "forward") in passes:
        return passes[gpu, "forward"] + passes[gpu, "backward"]
    return passes.get((gpu, "forward + backward"))


def predicted_table(predictions: dict[str, dict[str, dict[tuple[str, str], float]]]) -> str:
    """Returns predicted microseconds as a Markdown table."""

    def us(value: float) -> str:
        return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:,.1f}"

    lines = [f"| scene | {' | '.join(IMPLEMENTATIONS)} |", "| --- |" + " ---: |" * len(IMPLEMENTATIONS)]
    for scene, by_implementation in predictions.items():
        cells = []
        for implementation in IMPLEMENTATIONS:
            passes = by_implementation.get(implementation)
            if passes is None:
                cells.append("")
                continue
            a100, h100 = both_passes(passes, "a100"), both_passes(passes, "h100")
            assert a100 is not None
            cell = f"{us(passes['a100', 'forward'])} + {us(passes['a100', 'backward'])} = {us(a100)}"
            cells.append(cell if h100 is None else f"{cell} ({us(h100)})")
        lines.append(f"| {scene} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def ratio_table(records: list[dict[str, Any]]) -> str:
    """Returns ratios of tsplat's counts and predicted times to gsplat's, where both are known, as Markdown."""
    found = {(r.get("implementation", TSPLAT), r["scene"], r["gpu"], r["pass"]): r for r in records}
    names = ["warp instructions", "sectors loaded", "sectors stored or updated", "predicted time, A100"]
    names.append("predicted time, H100")
    lines = [f"| scene | {' | '.join(names)} |", "| --- |" + " ---: |" * len(names)]
    for scene in dict.fromkeys(r["scene"] for r in records):
        by_gpu: dict[str, list[dict[str, float]]] = {}
        for gpu in ("a100", "h100"):
            pairs = [
                [found.get((implementation, scene, gpu, phase), {}) for implementation in (TSPLAT, GSPLAT)]
                for phase in ("forward", "backward")
            ]
            if all("warp_instructions" in record for pair in pairs for record in pair):
                by_gpu[gpu] = [ratios(ours, theirs) for ours, theirs in pairs]
        if len(by_gpu) < 2:
            continue
        columns = [("a100", field) for field in RATIOS] + [("h100", "ratio_predicted")]
        cells = [" / ".join(f"{of_pass[field]:.2f}" for of_pass in by_gpu[gpu]) for gpu, field in columns]
        lines.append(f"| {scene} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot_predicted(predictions: dict[str, dict[str, dict[tuple[str, str], float]]]) -> None:
    """Writes a bar chart of the predicted times on an A100 of the scenes with several implementations."""
    several = [scene for scene, found in predictions.items() if len(found) > 1]
    several.sort(key=lambda scene: ("2dgs" in scene, "eval3d" in scene, scene == "dense-tile"))
    scenes = {scene: predictions[scene] for scene in several}
    times: dict[str, dict[str, float]] = {}
    for implementation, legend in PLOTTED.items():
        totals = {scene: both_passes(found.get(implementation, {}), "a100") for scene, found in scenes.items()}
        times[legend] = {scene: total for scene, total in totals.items() if total is not None}
    title = "Predicted, not measured: kernels of compositing on an A100"
    plot_times(PREDICTED_PLOT, title, {"forward + backward": times}, "microseconds", "{:,.0f}".format)


def read_measurements() -> dict[str, list[dict[str, Any]]]:
    """Returns the records of measured times by device, without runs whose tests failed."""
    by_device: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("*.jsonl")):
        for record in _read(path):
            if "p50" in record and machine.counts(record):
                by_device.setdefault(record["device"], []).append(record)
    return by_device


def measured(records: list[dict[str, Any]]) -> str:
    """Returns the section of measurements on a GPU."""
    names = {TSPLAT: "tsplat", GSPLAT: "gsplat"}
    predicted = {
        (r["scene"], names[implementation], r["pass"]): r["predicted_us"]
        for r in records
        if r["gpu"] == "h100" and (implementation := r.get("implementation", TSPLAT)) in names
    }
    return measured_page.section(_read(MEASURED), predicted, [r for r in _read(COUNTS) if r["ncu"]])


def page() -> str:
    """Returns the text of docs/performance.md."""
    by_device = read_measurements()
    text = HEAD
    for device, records in by_device.items():
        cpu = f"CPU: {records[0]['cpu']}\n\n" if records[0].get("cpu") else ""
        text += f"\n## {device}, torch {records[0]['torch']}\n\n{cpu}{table(records)}"
    records = read_records()
    text += measured(records) + LIMIT + limit_table(_read(LIMITS)) + LIMIT_NOTE + section(_read(STEPS))
    text += memory_page.section(_read(MEMORY), _read(MEASURED))
    text += PREDICTION + predicted_table(by_scene(records)) + NOTES + details_table(records)
    text += SENSITIVITY_TEXT + sensitivity_table(_read(SENSITIVITY)) + RATIO_TEXT + ratio_table(records) + METHOD
    text += AMD_TEXT + amd_table(_read(AMD)) + AMD_NOTE
    return with_sign(text)


def main() -> None:
    PAGE.write_text(page())
    plot(read_measurements())
    plot_predicted(by_scene(read_records()))


if __name__ == "__main__":
    main()
