"""Predicts the time of tsplat's compositing kernels on an A100 or H100, without a GPU.

    python -m benchmarks.predicted_time [--scene NAME ...] [--gpu a100 h100] [--json FILE] [--sensitivity]
        [--peer gsplat]

Each scene is rendered forward and backward on an emulated GPU, which executes the machine code for sm_80. A timing
model simulates the trace of each warp; see docs/performance.md and emulator/timing/core/model.c. Predicted times are
not measurements. They do not include PyTorch's operators, other kernels, or gaps between launches.

With `--peer gsplat`, the compositing kernels of gsplat 1.5.3 are compiled by nvcc and executed in the same way, on the
same projected Gaussians with gsplat's lists, provided that images and gradients agree. Ratios tsplat / gsplat are
printed. Exits with status 3 if gsplat's kernels cannot be obtained or compiled.
"""

import argparse
import itertools
import json
from typing import Any

from benchmarks.gpu_timing import gsplat_kernels, peer, scenes
from benchmarks.gpu_timing.ratios import line, ratios
from emulator.timing.model import CAUSES, GPUS, VARIATIONS, Gpu, Prediction, predict
from emulator.timing.trace import Executed

COUNTS = {
    "warp_instructions": "instructions",
    "load_sectors": "load sectors",
    "store_sectors": "store sectors",
    "atomic_sectors": "atomic sectors",
}
"""Name of the counter of each field of records."""


def summarize(launches: list[tuple[Executed, Prediction]]) -> dict[str, Any]:
    """Returns the predicted time, the executed counts, and shares of sub-core cycles, over several launches.

    `idle_tail` is the share of cycles after each sub-core's last instruction; `waited` has shares of the cycles before.
    Shares of several launches are weighted by time.
    """
    total = sum(prediction.predicted_us for _, prediction in launches)
    causes = {
        cause: sum(prediction.causes[cause] * prediction.predicted_us / total for _, prediction in launches)
        for cause in CAUSES
    }
    tail = causes.pop("tail")
    counts = {field: sum(executed.counts[name] for executed, _ in launches) for field, name in COUNTS.items()}
    return counts | {
        "predicted_us": total,
        "idle_tail": tail,
        "waited": {cause: share / (1 - tail) for cause, share in sorted(causes.items(), key=lambda item: -item[1])},
    }


def records(scene: str, run: scenes.Run, gpu_name: str, gpu: Gpu, variation: str | None = None) -> list[dict[str, Any]]:
    """Returns a record for the forward pass and one for the backward pass.

    They have `scene`, `pass`, `gpu`, `variation` of the model (None for none), the results of `summarize` for the pass,
    and `kernels`: the same for each kernel, with its `launches` and `registers`. Records of tsplat also have
    `kept_bytes`, the bytes that the forward pass saves for the backward pass.
    """
    predicted = []
    for executed in run.launches:
        assert executed.trace is not None
        predicted.append((executed, predict(gpu, executed.trace)))
    kept = {"kept_bytes": run.kept_bytes} if isinstance(run, scenes.TsplatRun) else {}
    found = []
    for phase in ("forward", "backward"):
        of_phase = [entry for entry in predicted if entry[0].phase == phase]
        kernels = {}
        for name in dict.fromkeys(executed.kernel for executed, _ in of_phase):
            launches = [entry for entry in of_phase if entry[0].kernel == name]
            registers = max(executed.trace.registers for executed, _ in launches if executed.trace is not None)
            kernels[name] = {"launches": len(launches), "registers": registers} | summarize(launches)
        record = {"scene": scene, "pass": phase, "gpu": gpu_name, "variation": variation}
        found.append(record | kept | summarize(of_phase) | {"kernels": kernels})
    return found


def compared(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the records of gsplat and tsplat for the same passes and variations, in turn.

    Records of tsplat get `peer` and the ratios of `ratios.RATIOS`; records of gsplat get `implementation`.
    """
    found = []
    for record, other in zip(ours, theirs, strict=True):
        found += [
            other | {"implementation": gsplat_kernels.NAME},
            record | {"peer": gsplat_kernels.NAME} | ratios(record, other),
        ]
    return found


def lines(record: dict[str, Any]) -> list[str]:
    """Returns a record as text: one line per kernel, one for the pass, and one with ratios to a peer."""
    label = f"{record['gpu']} {record['pass']:8}"
    implementation = record.get("implementation", "tsplat")
    ratio_line = [f"{label} {line(record)}"] if "peer" in record else []
    if record["variation"]:
        name = f"{implementation}, {record['variation']}"
        return [f"{label} {name:46} predicted {record['predicted_us']:9.1f} us", *ratio_line]

    text = []
    for name, kernel in record["kernels"].items():
        waited = ", ".join(f"{cause} {100 * share:.0f}" for cause, share in kernel["waited"].items() if share >= 0.01)
        calls = f" x{kernel['launches']}" if kernel["launches"] > 1 else ""
        more = f" | {kernel['registers']:3} registers | % of cycles before: {waited}"
        text.append(f"{label} {name + calls:30} {_numbers(kernel)}{more}")
    return [*text, f"{label} {implementation + ', all':30} {_numbers(record)}", *ratio_line]


def _numbers(found: dict[str, Any]) -> str:
    atomics = f" {found['atomic_sectors']:,} updated" if found["atomic_sectors"] else ""
    return (
        f"predicted {found['predicted_us']:9.1f} us | {found['warp_instructions']:>13,} warp instructions | sectors "
        f"{found['load_sectors']:>11,} loaded {found['store_sectors']:>10,} stored{atomics} | "
        f"idle tail {100 * found['idle_tail']:3.0f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    scenes.add_arguments(parser)
    parser.add_argument("--gpu", nargs="+", choices=GPUS, default=list(GPUS), help="default: all")
    parser.add_argument("--sensitivity", action="store_true", help="also vary the least certain parameters")
    peer.add_argument(parser)
    options = parser.parse_args()
    wheel = peer.prepare(options.peer)
    for scene, run in scenes.chosen(options, traced=True):
        other = None if wheel is None else peer.execute(run, wheel, traced=True)
        for name, variation in itertools.product(options.gpu, (None, *VARIATIONS) if options.sensitivity else (None,)):
            gpu = GPUS[name] if variation is None else VARIATIONS[variation](GPUS[name])
            found = records(scene, run, name, gpu, variation)
            if other is not None:
                found = compared(found, records(scene, other, name, gpu, variation))
            for record in found:
                print("\n".join(lines(record)), flush=True)
            if options.json:
                with options.json.open("a") as file:
                    file.writelines(json.dumps(record) + "\n" for record in found)


if __name__ == "__main__":
    main()
