"""The section "Measured on a GPU" of docs/performance.md, from the records of `benchmarks.peers`."""

from typing import Any

TEXT = """
## Measured on a GPU

`python -m benchmarks.peers` measures a call, `rasterization()` forward and backward, side by side with gsplat's on
the same scenes: {made_with}. Microseconds:

"""

NOTES = """
- Call: time per call of many successive calls, without additional synchronization. Host: the same for 20 Gaussians at
  16×16 pixels, whose kernels take almost no time. Device: all kernels and copies, according to PyTorch's profiler;
  compositing is a part of this, forward + backward. Memory is the peak memory of a call, above its inputs.
- tsplat counts intersections first, as gsplat does. "graph" is a replay of the CUDA graph of a call with a capacity of
  twice the number of intersections, see [CUDA graphs](howto/compile.md#cuda-graphs-by-hand).
- **For scenes of this size, an eager call takes longer than gsplat's, although its kernels take a quarter to a half of
  the time**: the GPU waits for Python. With a graph, a call takes about as long as its kernels. [Graphed
  calls](howto/compile.md#calls-that-replay-graphs) replay graphs in any training loop; they were not part of this run.
- On a GPU, PyTorch runs the backward pass in a separate thread. Inside of
  `torch.autograd.set_multithreading_enabled(False)`, the call with 20 Gaussians took 1,705 us instead of 2,346, and
  gsplat's 1,370 instead of 1,521.
- Largest differences of images (mean absolute) and of gradients (norm, relative) between both implementations:
  {difference}.
- Training at 400×400 pixels with 64,501 Gaussians of SH degree 3 ran at about 85 steps per second without graphs, and
  at 190 to 270 with graphs; while the strategy added Gaussians every 4 steps, so that each graph was captured again, at
  140 to 220. Metrics of all held-out views are equal to the last digit.

The next table compares compositing times that were [predicted](#predicted-gpu-time) for an H100 with those measured on
this GPU, forward / backward. tsplat's kernels take 1.2 to 1.7 times as long as predicted, gsplat's 0.8 to 0.96 times:

"""

END = """
The emulator counts exactly what the GPU executes (`python -m benchmarks.hardware_counts`): for all compositing kernels
of {scenes}, its counts of warp instructions and of loaded and stored sectors equal those of NVIDIA's profiler `ncu`.
The exception is the number of sectors that `_composite_bwd_kernel` loads: `ncu` counts {loads} times as many.
"""


def section(
    records: list[dict[str, Any]], predicted: dict[tuple[str, str, str], float], counts: list[dict[str, Any]]
) -> str:
    """Returns the section as Markdown; empty without records.

    Args:
        predicted: Microseconds on an H100 by scene, implementation ("tsplat", "gsplat") and pass.
        counts: Records of `benchmarks.hardware_counts`.
    """
    records = [record for record in records if "error" not in record]
    if not records:
        return ""
    first = records[0]
    made_with = f"{first['device']}, driver {first['driver']}, torch {first['torch']}, triton {first['triton']}, "
    differences = [record["differences"] for record in records if record.get("differences")]
    image = max(found["image"] for found in differences)
    gradient = max(value for found in differences for name, value in found.items() if name != "image")
    text = TEXT.format(made_with=made_with + first["peer"]) + table(records)
    text += NOTES.format(difference=f"{image:.1e} and {gradient:.1e}")
    scenes = " and ".join(record["scene"] for record in counts)
    loads = " to ".join(f"{ratio:.2f}" for ratio in sorted(differing(counts)))
    return text + predicted_table(records, predicted) + END.format(scenes=scenes, loads=loads)


def differing(counts: list[dict[str, Any]]) -> list[float]:
    """Returns the ratios of the profiler's counts to the emulator's, where they differ."""
    return [
        theirs[field] / count
        for record in counts
        for kernel, ours in record["emulated"].items()
        for field, count in ours.items()
        if (theirs := record["ncu"][kernel])[field] != count
    ]


def label(record: dict[str, Any]) -> str:
    if record["implementation"] != "tsplat":
        return str(record["peer"])
    return "tsplat" if record["mode"] == "eager" else f"tsplat, {record['mode']}"


def table(records: list[dict[str, Any]]) -> str:
    """Returns the times as Markdown, with the ratios of tsplat's times to the peer's."""
    names = ("call", "host", "device", "compositing", "memory, MB", "ratio, call", "ratio, device")
    lines = [f"| scene | implementation | {' | '.join(names)} |", "| --- | --- |" + " ---: |" * len(names)]
    peers = {record["scene"]: record for record in records if record["implementation"] != "tsplat"}
    for r in records:
        parts = r["compositing_us"]
        cells = [r["scene"], label(r), *(f"{r[f'{name}_us']:,.0f}" for name in ("call", "host", "device"))]
        cells.append(f"{parts['forward']:,.0f} + {parts['backward']:,.0f}")
        cells.append("" if r["mode"] == "graph" else f"{r['peak_bytes'] / 1e6:,.0f}")
        peer = peers.get(r["scene"])
        compared = ("call_us", "device_us")
        cells += ["" if peer is None or peer is r else f"{r[name] / peer[name]:.2f}" for name in compared]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def predicted_table(records: list[dict[str, Any]], predicted: dict[tuple[str, str, str], float]) -> str:
    """Returns predicted and measured times of compositing as Markdown, for the scenes that have both."""
    names = [f"{name}, {how}" for name in ("tsplat", "gsplat", "ratio") for how in ("predicted", "measured")]
    lines = [f"| scene | {' | '.join(names)} |", "| --- |" + " ---: |" * len(names)]
    eager = {(r["scene"], r["implementation"]): r["compositing_us"] for r in records if r["mode"] == "eager"}
    passes = ("forward", "backward")
    for scene in dict.fromkeys(record["scene"] for record in records):
        both = ("tsplat", "gsplat")
        if any((scene, name) not in eager or (scene, name, "forward") not in predicted for name in both):
            continue
        pairs: list[list[float]] = []
        for name in both:
            pairs += [[predicted[scene, name, of] for of in passes], [eager[scene, name][of] for of in passes]]
        cells = [" / ".join(f"{value:,.0f}" for value in pair) for pair in pairs]
        cells += [" / ".join(f"{a / b:.2f}" for a, b in zip(pairs[k], pairs[k + 2])) for k in (0, 1)]
        lines.append(f"| {scene} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
