"""The section "Measured on a GPU" of docs/performance.md, from the records of `benchmarks.peers`."""

from typing import Any

TEXT = """
## Measured on a GPU

`python -m benchmarks.peers` measures a call, `rasterization()` forward and backward, side by side with gsplat's on
the same scenes: {made_with}. Microseconds:

"""

NOTES = """
- Call: of many calls one after another, which wait only where the call itself waits. Host: the same of 20 Gaussians at
  16×16 pixels, whose kernels take next to no time. Device: all kernels and copies, as PyTorch's profiler counts them;
  of these, compositing forward + backward. Memory is what a call allocates at most, above inputs.
- tsplat counts intersections first, as gsplat does. "graph" is a replay of the CUDA graph of a call with room for twice
  as many, see [CUDA graphs](howto/compile.md#cuda-graphs-by-hand).
- **An eager call takes longer than gsplat's for scenes of this size, although its kernels take a quarter to a half of
  the time**: the GPU waits for Python. By a graph, a call takes about as long as its kernels. [Graphed
  calls](howto/compile.md#calls-that-replay-graphs) replay graphs in any training loop; they were not run there.
- PyTorch runs the backward pass of a GPU in a thread of its own. Inside of
  `torch.autograd.set_multithreading_enabled(False)`, the call with 20 Gaussians took 1,705 us instead of 2,346, and
  gsplat's 1,370 instead of 1,521.
- Largest differences of images (mean absolute) and of gradients (norm, relative) between both implementations:
  {difference}.
- Training at 400×400 pixels with 64,501 Gaussians of SH degree 3: about 85 steps per second without graphs and 190 to
  270 with them, 140 to 220 while the strategy adds Gaussians every 4 steps and each graph is captured again. Metrics of
  all held-out views are equal to the last digit.

Compositing as [predicted](#predicted-gpu-time) for an H100 and measured on this GPU, forward / backward. The kernels of
tsplat take 1.2 to 1.7 times as long as predicted, those of gsplat 0.8 to 0.96 times:

"""

END = """
The emulator counts exactly what the GPU executes: for all compositing kernels of {scenes}, warp instructions and
sectors loaded and stored are those of NVIDIA's profiler `ncu`, to the last one (`python -m
benchmarks.hardware_counts`), but for the sectors that `_composite_bwd_kernel` loads, of which `ncu` counts {loads}
times as many.
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
    """Returns the profiler's counts divided by the emulator's, where they differ."""
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
    """Returns the times as Markdown, with those of tsplat divided by the peer's."""
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
    """Returns predicted and measured times of compositing as Markdown, of the scenes that have both."""
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
