"""The section "Memory of a call" of docs/performance.md, from the records of `benchmarks.call_memory`."""

from typing import Any

from benchmarks.gpu_timing.gsplat_kernels import NAME

TEXT = """
## Memory of a call

`python -m benchmarks.call_memory --peer gsplat` counts the peak memory of tensors during a call of `rasterization()`,
above its arguments, in MB. **Counts are exact, for the CPU and for an [emulated](emulation.md) sm_80 GPU.** A call is a
forward and a backward pass in a loop: gradients of the previous call are released between both passes, as in the
[measurement](#measured-on-a-gpu) on a GPU. The first call with given sizes and options runs the stages, the second is
traced, and later ones are [replayed](architecture.md#how-a-call-runs).

"""

NOTES = f"""
- Calls are packed and count intersections first. Calls with a capacity are not packed; the capacity is 1.5 times the
  scene's intersections, doubled until its lists fit.
- Forward: only the forward pass of a replayed call.
- {NAME}: its Python code, with functions that allocate the same tensors as its C++ functions. "Allocated" is the sum of
  all tensors of its forward pass; "forward" is their peak. Memory of its sort besides tensors is not counted.
- Memory that NumPy allocates for sorts on the CPU is not counted. Scratch arenas are counted in each pass, although a
  CPU keeps one of up to 256 MiB for the next pass. Zeros that calls read in place of absent gradients of images are
  kept, and not counted: four bytes per pixel, if alphas have no gradient. `make test` checks the counts of cloud
  against `benchmarks/memory_budgets.json`.
"""


def section(records: list[dict[str, Any]], measured: list[dict[str, Any]]) -> str:
    """Returns the section as Markdown."""
    return TEXT + table(records, measured) + NOTES


def table(records: list[dict[str, Any]], measured: list[dict[str, Any]]) -> str:
    """Returns megabytes by scene and device, with those of a peer and those measured on a GPU, as Markdown."""
    names = (
        "first call", "traced", "replayed", "replayed, capacity", "forward", f"{NAME}: call", "forward", "allocated",
        f"measured, {NAME}",
    )  # fmt: skip
    lines = [f"| scene | device | {' | '.join(names)} |", "| --- | --- |" + " ---: |" * len(names)]
    peers = {r["scene"]: r for r in records if "implementation" in r}
    on_gpu = {r["scene"]: r["peak_bytes"] for r in measured if r["implementation"] == "gsplat" and "peak_bytes" in r}
    own = [r for r in records if "implementation" not in r]
    for scene, device in dict.fromkeys((r["scene"], r["device"]) for r in own):
        found = {(r["layout"], r["state"]): r for r in own if (r["scene"], r["device"]) == (scene, device)}
        values = [found["packed", state]["loop"] for state in ("stages", "traced", "replayed")]
        values += [found["capacity", "replayed"]["loop"], found["packed", "replayed"]["forward"]]
        if (other := peers.get(scene)) is not None:
            values += [other["loop"], other["forward"], other["total"]]
        cells = [megabytes(value) for value in values]
        cells += [megabytes(on_gpu[scene])] if other is not None and scene in on_gpu else []
        cells += [""] * (len(names) - len(cells))
        lines.append(f"| {scene} | {'CPU' if device == 'cpu' else device} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def megabytes(n_bytes: int) -> str:
    """Formats bytes as megabytes with one decimal."""
    return f"{n_bytes / 1e6:,.1f}"
