"""Compares the emulator's counts of the compositing kernels with those of ncu on an NVIDIA GPU.

    python -m benchmarks.hardware_counts [--scene NAME ...] [--json FILE]
    python -m benchmarks.hardware_counts --step NAME      only render a scene on the GPU, forward and backward

For each kernel, counts are warp instructions, and sectors of global memory loaded and stored, over both passes. The
emulator executes the machine code for the GPU's architecture, if it supports that, otherwise for sm_80. If there is no
ncu or no GPU, or ncu may not read counters, only the emulator's counts are printed and recorded, and the exit status is
3. compute-sanitizer runs `--step`, too.
"""

import argparse
import collections
import csv
import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.cases import EMULATED_CASES, on_device
from benchmarks.gpu_timing import scenes
from benchmarks.predicted_time import COUNTS
from benchmarks.timing_worker import forward_backward
from emulator import build

METRICS = {
    "warp_instructions": "smsp__inst_executed.sum",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
}
"""ncu's names of the counts."""
UNAVAILABLE = 3
"""Exit status without ncu's counts."""
SCENES = scenes.SCENES | {"tiny": functools.partial(scenes.from_case, EMULATED_CASES[0])}
DEFAULT = ("cloud", "dense-tile")

ByKernel = dict[str, dict[str, int]]
"""Fields of `METRICS`."""


class UnavailableError(Exception):
    """ncu cannot count on this machine."""


def emulated(scene: str, target: str) -> ByKernel:
    """Returns the emulator's counts."""
    found: dict[str, collections.Counter[str]] = {}
    for executed in scenes.execute(SCENES[scene](scenes.Data()), traced=False, target=target).launches:
        found.setdefault(executed.kernel, collections.Counter()).update(executed.counts)
    return {kernel: {field: counts[COUNTS[field]] for field in METRICS} for kernel, counts in found.items()}


def measured(scene: str, kernels: list[str]) -> ByKernel:
    """Returns ncu's counts of kernels."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise UnavailableError("ncu is not installed")
    if not torch.cuda.is_available() or torch.version.hip is not None:
        raise UnavailableError("PyTorch does not find an NVIDIA GPU")
    command = [ncu, "--csv", "--page", "raw", "--clock-control", "none", "--kernel-name-base", "function"]
    command += ["--kernel-name", f"regex:^({'|'.join(kernels)})$", "--metrics", ",".join(METRICS.values())]
    command += [sys.executable, "-m", "benchmarks.hardware_counts", "--step", scene]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UnavailableError(f"ncu failed: {(done.stdout + done.stderr).strip()[-1000:]}")
    return parse(done.stdout)


def parse(text: str) -> ByKernel:
    """Returns the counts in ncu's output, summed over the launches of each kernel."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise UnavailableError(f"ncu printed no table: {text.strip()[-1000:]}")
    found: dict[str, collections.Counter[str]] = {}
    for row in csv.DictReader(lines[start:]):
        if not row["ID"]:  # units
            continue
        counts = {field: int(row[metric].replace(",", "").split(".")[0]) for field, metric in METRICS.items()}
        found.setdefault(row["Kernel Name"].split("(")[0], collections.Counter()).update(counts)
    return {kernel: dict(counts) for kernel, counts in found.items()}


def lines(scene: str, target: str, ours: ByKernel, theirs: ByKernel | None) -> list[str]:
    """Returns both counts as text, a line per kernel."""
    text = [f"== {scene}: emulated {target}" + (" / ncu" if theirs is not None else "")]
    for kernel, counts in ours.items():
        other = (theirs or {}).get(kernel, {})
        cells = [f"{field} {n:,}" + (f" / {other[field]:,}" if field in other else "") for field, n in counts.items()]
        text.append(f"{kernel:26} {', '.join(cells)}")
    return text


def own_target() -> str:
    """Returns the target of the GPU if the emulator supports it, otherwise the default target."""
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return scenes.TARGET
    major, minor = torch.cuda.get_device_capability()
    target = f"sm_{major}{minor}"
    return target if target in scenes.TARGETS else scenes.TARGET


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    names = list(SCENES)
    parser.add_argument("--scene", nargs="+", choices=names, default=DEFAULT, metavar="NAME", help=", ".join(names))
    parser.add_argument("--json", type=Path, help="append the records to this file as JSON lines")
    parser.add_argument("--step", choices=names, metavar="NAME", help="only render this scene on the GPU")
    options = parser.parse_args()
    if options.step:
        scene = SCENES[options.step](scenes.Data())
        forward_backward(on_device(scene, "cuda"))
        torch.cuda.synchronize()
        return 0
    if reason := build.missing():
        print(f"hardware_counts: nothing is counted, the emulator {reason}")
        return UNAVAILABLE
    target, missing = own_target(), None
    made_with = machine.describe(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    for name in options.scene:
        ours = emulated(name, target)
        theirs: ByKernel | None = None
        try:
            theirs = measured(name, list(ours))
        except UnavailableError as error:
            missing = error
        print("\n".join(lines(name, target, ours, theirs)), flush=True)
        if options.json:
            record: dict[str, Any] = {"scene": name, "target": target, "emulated": ours, "ncu": theirs} | made_with
            with options.json.open("a") as file:
                file.write(json.dumps(record) + "\n")
    if missing is not None:
        print(f"hardware_counts: only the emulator's counts, {missing}")
        return UNAVAILABLE
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
