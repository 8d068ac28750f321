"""Counts exactly what tsplat's compositing kernels execute on a scene, without a GPU.

    python -m benchmarks.dynamic_cost [--scene NAME ...] [--target sm_80] [--json FILE] [--peer gsplat]
    python -m benchmarks.dynamic_cost --write-budgets  write the limits of `make test`

Each scene is rendered forward and backward on an emulated GPU, which executes the machine code for sm_80 or another
target. For each kernel, the output has: warp instructions by class; active lanes per instruction; stall cycles per
instruction, as NVIDIA's compiler encoded them; sectors of 32 bytes of global memory (of 128 bytes on AMD GPUs, without
scalar loads) that are loaded, stored, and updated by atomics; bank conflicts, that is, additional passes over the banks
of shared memory; and branches at which lanes of a warp diverge. Counts are not times; see `benchmarks.predicted_time`.

With `--peer gsplat`, the compositing kernels of gsplat 1.5.3 are compiled by nvcc and executed in the same way, on the
same projected Gaussians with gsplat's lists, provided that images and gradients agree. Ratios tsplat / gsplat are
printed for each pass. Exits with status 3 if gsplat's kernels cannot be obtained or compiled.
"""

import argparse
import collections
import json
from pathlib import Path
from typing import Any

from benchmarks.gpu_timing import gsplat_kernels, peer, ratios, scenes
from emulator.counters import CLASSES
from emulator.timing.trace import Executed

BUDGETS = Path(__file__).with_name("executed_budgets.json")
BUDGETED = "cloud"
"""The scene that has budgets."""
FIELDS = ("warp_instructions", "load_sectors", "store_sectors")
"""Counts that budgets limit."""


def summarize(launches: list[Executed]) -> dict[str, Any]:
    """Returns the sums of what launches executed."""
    counts: collections.Counter[str] = collections.Counter()
    for executed in launches:
        counts.update(executed.counts)
    registers = [executed.registers for executed in launches if executed.registers is not None]
    stalls = [executed.stall_cycles for executed in launches if executed.stall_cycles is not None]
    return {
        "launches": len(launches),
        "programs": counts["programs"],
        "registers": max(registers, default=None),
        "warp_instructions": counts["instructions"],
        "lanes_per_instruction": counts["lanes"] / max(counts["instructions"], 1),
        "by_class": {name: counts[name] for name in CLASSES if counts[name]},
        "stall_cycles": sum(stalls) if stalls else None,
        "load_sectors": counts["load sectors"],
        "store_sectors": counts["store sectors"],
        "atomic_sectors": counts["atomic sectors"],
        "bank_conflicts": counts["bank passes"] - counts["conflict-free passes"],
        "divergent_branches": counts["divergent branches"],
    }


def records(scene: str, run: scenes.Run, target: str = scenes.TARGET) -> list[dict[str, Any]]:
    """Returns one record per pass and kernel.

    Records of tsplat also have `kept_bytes`, the bytes that the forward pass saves for the backward pass. `registers`
    and `stall_cycles` are None on AMD GPUs.
    """
    of_scene: dict[str, Any] = {"scene": scene, "target": target}
    if isinstance(run, scenes.TsplatRun):
        of_scene["kept_bytes"] = run.kept_bytes
    found: dict[tuple[str, str], list[Executed]] = {}
    for executed in run.launches:
        found.setdefault((executed.phase, executed.kernel), []).append(executed)
    return [
        of_scene | {"pass": phase, "kernel": kernel} | summarize(launches)
        for (phase, kernel), launches in found.items()
    ]


def compared(scene: str, ours: scenes.Run, theirs: scenes.Run) -> list[dict[str, Any]]:
    """Returns one record per pass with the ratios of `ratios.RATIOS`, summed over all kernels of the pass."""
    found = []
    for phase in ("forward", "backward"):
        pair = (summarize([e for e in run.launches if e.phase == phase]) for run in (ours, theirs))
        found.append({"scene": scene, "pass": phase, "peer": gsplat_kernels.NAME} | ratios.ratios(*pair))
    return found


def budgets(found: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Returns the counts that budgets limit, by pass and kernel."""
    return {f"{record['pass']} {record['kernel']}": {field: record[field] for field in FIELDS} for record in found}


def write_budgets() -> None:
    """Writes the counts of the scene with budgets on sm_80."""
    found = budgets(records(BUDGETED, scenes.execute(scenes.SCENES[BUDGETED](scenes.Data()), traced=False)))
    BUDGETS.write_text(json.dumps(found, indent=1) + "\n")


def line(record: dict[str, Any]) -> str:
    if "peer" in record:
        return f"{record['pass']:8} {ratios.line(record)}"
    total = max(record["warp_instructions"], 1)
    classes = sorted(record["by_class"].items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name} {100 * count / total:.0f} %" for name, count in classes if count >= total / 200)
    stalls = f" and {record['stall_cycles'] / total:4.2f} stall cycles" if record["stall_cycles"] is not None else ""
    atomics = f" {record['atomic_sectors']:,} updated" if record["atomic_sectors"] else ""
    return (
        f"{record['pass']:8} {record['kernel']:26} {record['warp_instructions']:>13,} warp instructions of "
        f"{record['lanes_per_instruction']:4.1f} lanes{stalls} | "
        f"sectors {record['load_sectors']:>11,} loaded "
        f"{record['store_sectors']:>10,} stored{atomics} | {record['bank_conflicts']:,} bank conflicts | "
        f"{record['divergent_branches']:,} divergent branches | {shown}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    scenes.add_arguments(parser)
    parser.add_argument("--target", choices=scenes.TARGETS, default=scenes.TARGET, help=f"default: {scenes.TARGET}")
    parser.add_argument("--write-budgets", action="store_true", help=f"only write {BUDGETS.name}")
    peer.add_argument(parser)
    options = parser.parse_args()
    if options.write_budgets:
        write_budgets()
        return
    if options.peer and options.target != scenes.TARGET:
        parser.error(f"--peer: gsplat is compiled for {scenes.TARGET} only, found --target {options.target}")
    wheel = peer.prepare(options.peer)
    for scene, run in scenes.chosen(options, traced=False, target=options.target):
        found = records(scene, run, options.target)
        if wheel is not None:
            other = peer.execute(run, wheel, traced=False)
            found += [record | {"implementation": gsplat_kernels.NAME} for record in records(scene, other)]
            found += compared(scene, run, other)
        for record in found:
            print(line(record))
        if options.json:
            with options.json.open("a") as file:
                file.writelines(json.dumps(record) + "\n" for record in found)


if __name__ == "__main__":
    main()
