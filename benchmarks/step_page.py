"""The section "How fast is a step" of docs/performance.md, from the records of `benchmarks.step`."""

from typing import Any

from benchmarks.gpu_timing.counting import BANDWIDTH, OPERATOR_US
from benchmarks.gpu_timing.gsplat_kernels import NAME
from benchmarks.gpu_timing.host import LAUNCH_US

WAIT_US = 10.0
"""Assumed time of a wait, until the CPU has the result and the device has work again."""
NAMES = {"eager": "tsplat", "graph": "tsplat, graphed", "captured": "tsplat, captured"}
KINDS = {"call": "Call: `rasterization()` forward and backward", "step": "Training step"}

TEXT = """
## How fast is a step

A step takes time not only for kernels, but also for Python, launches, PyTorch's operators, and waits for the device.
`python -m benchmarks.step --peer gsplat` predicts all of these. **All times in this section are predicted**, in
microseconds. On the machine of the [measured GPU](#measured-on-a-gpu), host times were about 5 times as long for
gsplat, and 3 times for tsplat, measured before calls replayed passes. A call is a packed `rasterization()`, forward and
backward; a training step is rasterization, L1 + SSIM loss, backward and Adam. Step time is the maximum of host and
device time, plus waits. Ratios are tsplat / gsplat. [Graphed](howto/compile.md#calls-that-replay-graphs) calls replay
CUDA graphs; they have not been run on a GPU. A [captured](howto/compile.md#cuda-graphs-by-hand) call is one CUDA graph.

Eager calls replay [passes](architecture.md#how-a-call-runs). If they are not packed, Python takes 146 us for cloud,
186 us for garden-648x420 and 190 us for kettle-400x300; the table has the times of packed calls. Up to 4,096 Gaussians
and 8,192 intersections are sorted by one launch each, as in cloud. PyTorch sorts those of the other scenes, which takes
40 us of Python.

"""

NOTES = f"""
- Kernels: all kernels are executed on the [emulator](emulation.md), and the timing model predicts their time, see
  [below](#predicted-gpu-time).
- Operators: PyTorch's operators that launch or wait, without views and allocations. Each is assumed to take
  {OPERATOR_US:g} us on the device, plus the time to read and write its results at {BANDWIDTH["a100"] / 1e6:g} TB/s
  (A100) or {BANDWIDTH["h100"] / 1e6:g} TB/s (H100). A sort is a radix sort with 8 bits per pass.
- Host: Python's thread CPU time on this project's CPU, the minimum of at least 300 runs, for 20 Gaussians at 16×16
  pixels on the emulated driver, without the kernels, and with PyTorch's sorts if the scene has them; plus an assumed
  {LAUNCH_US:g} us below Python for each launch and operator. Host times vary by a factor of two with the load of the
  machine; one process measures both implementations.
- Waits: reads of values and sizes from the device, which are assumed to take {WAIT_US:g} us each.
- {NAME}: its Python code, with C++ functions that return tensors; the prediction for its compositing kernels, see
  [below](#tsplat-divided-by-gsplat); and for each other kernel the time of an operator, with its minimum memory
  traffic, which favors gsplat. Its step has tsplat's loss and Adam. Launches are those of its own kernels.
- Graphed: replays count as launches, and copies as operators. Here, graphs read arguments in place, as the addresses of
  parameters do not change; activations at other addresses would be copied. The capacity of each list is 1.06 times the
  required length. Loss and Adam are as in other steps.
- Captured: the kernels and operators of a graphed call in one graph, without copies of images and gradients. This is
  one launch, without Python; copying cameras into tensors of the graph is not counted. Adam cannot be captured.
- Launch: Python's time of one launch, average and maximum, with a launcher that does nothing. Tiny call: 20 Gaussians
  at 16×16 pixels on the CPU target, measured, including kernels.
"""


def section(records: list[dict[str, Any]]) -> str:
    """Returns the section as Markdown."""
    text = TEXT
    for of, title in KINDS.items():
        text += f"{title}:\n\n{table([r for r in records if r['pass'] == of])}\n"
    return text + "On the host:\n\n" + host_table(records) + NOTES


def table(records: list[dict[str, Any]]) -> str:
    """Returns counts and predicted times of one pass, with ratios to a peer, if known, as Markdown."""
    names = ("launches", "operators", "waits", "host", "device", "step", "ratio, device", "ratio, step")
    lines = [f"| scene | GPU | implementation | {' | '.join(names)} |", "| --- | --- | --- |" + " ---: |" * len(names)]
    for r in records:
        cells = [r["scene"], r["gpu"].upper(), r.get("implementation", NAMES[r["mode"]])]
        cells += [str(r[name]) for name in ("launches", "operators", "waits")]
        cells += [f"{r[f'{name}_us']:,.0f}" for name in ("host", "device", "step")]
        cells += [f"{r[name]:.2f}" if name in r else "" for name in ("ratio_device", "ratio_step")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def host_table(records: list[dict[str, Any]]) -> str:
    """Returns the host costs of tsplat's calls, as Markdown."""
    names = (
        "Python", "launch", "launch, at most", "function calls", "allocations", "tiny call, CPU target",
        "Python, graphed", "tiny call, graphed",
    )  # fmt: skip
    lines = [f"| scene | {' | '.join(names)} |", "| --- |" + " ---: |" * len(names)]
    own = [r for r in records if r["pass"] == "call" and "implementation" not in r]
    graphed = {r["scene"]: r for r in own if r["mode"] == "graph"}
    for r in {r["scene"]: r for r in own if r["mode"] == "eager"}.values():
        cells = [f"{r['python_us']:,.0f}", f"{r['launch_us']:.1f}", f"{r['launch_us_max']:.1f}"]
        cells += [f"{r['function_calls']:,}", str(r["allocations"]), f"{r['cpu_target_us']:,.0f}"]
        replayed = graphed.get(r["scene"])
        cells += ["" if replayed is None else f"{replayed[f'{name}_us']:,.0f}" for name in ("python", "cpu_target")]
        lines.append(f"| {r['scene']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
