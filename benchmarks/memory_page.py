"""The section "Memory of a call" of docs/performance.md, from the records of `benchmarks.call_memory`."""

from typing import Any

from benchmarks.gpu_timing.gsplat_kernels import NAME

TEXT = """
## Memory of a call

`python -m benchmarks.call_memory --peer gsplat` counts the most bytes that tensors take at one time during a call of
`rasterization()`, above its arguments, in MB. **Counts are exact, of what runs on the CPU and on an
[emulated](emulation.md) GPU of sm_80.** A call is forward and backward, in a loop: gradients of the call before are
released between both passes, as where memory was [measured](#measured-on-a-gpu). The first call of a kind runs the
stages, the second is traced, and later ones are [replayed](architecture.md#how-a-call-runs).

"""

NOTES = f"""
- Calls are packed and count intersections first, but for those with a capacity, which are not packed: room for 1.5
  times the scene's intersections, doubled until its lists fit.
- Forward: the forward pass of a replayed call alone.
- {NAME}: its own Python, over functions that allocate tensors of the shapes that its C++ does. "Allocated" are all
  tensors of its forward pass together; "forward" are the most at one time. What its sort needs besides tensors is not
  counted.
- What NumPy allocates on the CPU, for sorts, is not counted. Arenas that do not leave a pass are counted in each; in
  fact a CPU keeps one of up to 256 MiB for the next pass. `make test` checks the counts of cloud against
  `benchmarks/memory_budgets.json`.
"""


def section(records: list[dict[str, Any]], measured: list[dict[str, Any]]) -> str:
    """Returns the section as Markdown."""
    return TEXT + table(records, measured) + NOTES


def table(records: list[dict[str, Any]], measured: list[dict[str, Any]]) -> str:
    """Returns megabytes by scene and device, beside those of a peer, and beside what was measured on a GPU."""
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
    """Returns a number of megabytes with one digit behind the point."""
    return f"{n_bytes / 1e6:,.1f}"
