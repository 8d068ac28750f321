"""Predicts the time of a call of `rasterization` and of a training step on an A100 or H100, without a GPU.

    python -m benchmarks.step [--scene NAME ...] [--gpu a100 h100] [--mode MODE ...] [--peer gsplat] [--base REF]
                              [--json FILE] [--write]

A call is forward and backward; a step is rasterization, loss, backward and Adam. The emulator and its timing model
predict the time of every kernel; PyTorch's operators and sorts have assumed times (gpu_timing/counting.py). Host time
is Python's time on a tiny scene (gpu_timing/host.py). Step time is the maximum of host and device time, plus an assumed
time for each wait. None of this was measured on a GPU.

Calls are traced before, so that passes replay them. Mode `capacity` calls rasterization with `packed=False` and a
capacity of 1.5 times the scene's intersections, doubled until its lists fit. Mode `graph` replays the graphs of calls
of `tsplat.graphed`: each replay is a launch, and copies are operators. It also gives a record of mode `captured`, which
is the device work of a call in one CUDA graph, as docs/howto/compile.md captures it by hand.

`--peer gsplat` compares with gsplat 1.5.3 (gpu_timing/gsplat_step.py); its step uses tsplat's loss and Adam. `--base
REF` also runs another commit, in eager mode. `--write` replaces the recorded results of these scenes, and writes
docs/performance.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import tsplat
from benchmarks import report
from benchmarks.gpu_timing import counting, graphs, gsplat_kernels, gsplat_step, host, peer, scenes
from benchmarks.gpu_timing.counting import PASSES, Operator
from benchmarks.step_page import WAIT_US
from benchmarks.worktrees import ROOT, worktree
from emulator.timing.model import GPUS
from tsplat.stages import capacity, overflow_checks

SCENES = ("cloud", "kettle-400x300", "garden-648x420", "garden-1296x840")
MODES = ("eager", "capacity", "graph")
RECORDED = ["eager", "graph"]
"""Modes whose results are recorded."""


def step_us(host_us: float, device_us: float, waits: int) -> float:
    """Returns the predicted time if host and device work in parallel, except during waits."""
    return max(host_us, device_us) + waits * WAIT_US


def execute(scene: dict[str, Any], gpus: list[str]) -> tuple[counting.Step, counting.Predictor, counting.Operators]:
    """Executes a training step on the emulator, whose call of rasterization is replayed.

    Returns the step, its launches with predicted times, and its operators.
    """
    predictor, operators = counting.Predictor(gpus), counting.Operators()
    host.forget()
    with host.emulated_gpu() as gpu:
        step = counting.Step(scene)
        step.warm_up()
        for _ in range(2):  # the first counts intersections, the second is traced
            step.run(lambda phase: None)
        gpu.machine.tracer = predictor

        def enter(phase: str) -> None:
            predictor.phase = operators.phase = phase

        with operators, host.replaying(), overflow_checks.deferred():
            step.run(enter)
    return step, predictor, operators


def record(
    launches: list[counting.Launched], operators: list[Operator], python: host.Host, phases: tuple[str, ...], gpu: str
) -> dict[str, Any]:
    """Returns the figures of several phases together."""
    launches = [launch for launch in launches if launch.phase in phases]
    operators = [operator for operator in operators if operator.phase in phases]
    waits = sum(operator.waits for operator in operators)
    # A larger scene may need more launches than the tiny one. A replayed launch takes less than a microsecond.
    more = len(launches) - sum(python.launches.get(phase, 0) for phase in phases)
    launch_us = sum(python.launch_us) / len(python.launch_us)
    python_us = sum(python.python_us[phase] for phase in phases)
    if not host.REPLAYS:
        python_us += max(more, 0) * launch_us
    host_us = python_us + (len(launches) + len(operators)) * host.LAUNCH_US
    kernels: dict[str, float] = {}
    for launch in launches:
        kernels[launch.kernel] = kernels.get(launch.kernel, 0.0) + launch.device_us[gpu]
    operators_us = sum(operator.device_us(gpu) for operator in operators)
    device_us = sum(kernels.values()) + operators_us
    return {
        "launches": len(launches), "operators": len(operators), "waits": waits, "host_us": host_us,
        "device_us": device_us, "step_us": step_us(host_us, device_us, waits), "python_us": python_us,
        "launch_us": launch_us, "launch_us_max": max(python.launch_us),
        "cpu_target_us": sum(python.cpu_us[phase] for phase in phases),
        "function_calls": sum(python.function_calls[phase] for phase in phases), "operators_us": operators_us,
        "kernels": kernels,
    }  # fmt: skip


def by_pass(
    mode: str, predictor: counting.Predictor, operators: counting.Operators, python: host.Host, gpu: str
) -> dict[str, dict[str, Any]]:
    """Returns the figures of each pass."""
    found = {}
    for of, phases in PASSES.items():
        found[of] = record(predictor.found, operators.found, python, phases, gpu)
        found[of] |= {"mode": mode, "allocations": sum(phase in phases for phase in operators.allocations)}
    return found


def by_graphs(around: graphs.Around, figures: dict[str, dict[str, Any]], gpu: str) -> dict[str, dict[str, Any]]:
    """Returns the figures of each pass with a graphed call, given the figures without graphs."""
    copies_us, n = sum(operator.device_us(gpu) for operator in around.operators), len(around.operators)
    python_us, launches = sum(around.python_us.values()), sum(graphs.REPLAYS.values())
    own = {
        "launches": launches, "operators": n, "waits": sum(operator.waits for operator in around.operators),
        "host_us": python_us + (launches + n) * host.LAUNCH_US, "python_us": python_us,
        "cpu_target_us": sum(around.cpu_us.values()),
    }  # fmt: skip
    found = {}
    for of, given in figures.items():
        # The rest of a step is not graphed.
        changed = {name: own[name] + given[name] - figures["call"][name] for name in own}
        device_us = given["device_us"] + copies_us
        changed |= {"device_us": device_us, "step_us": step_us(changed["host_us"], device_us, changed["waits"])}
        found[of] = given | changed | {"operators_us": given["operators_us"] + copies_us, "mode": "graph"}
        for name in ("allocations", "function_calls"):
            del found[of][name]
    return found


def by_capture(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of a call in one CUDA graph, given the figures without graphs."""
    one = {"launches": 1, "operators": 0, "waits": 0, "host_us": host.LAUNCH_US, "mode": "captured"}
    found = given | one | {"step_us": step_us(host.LAUNCH_US, given["device_us"], 0)}
    for name in ("allocations", "function_calls", "python_us", "cpu_target_us"):
        del found[name]
    return found


def records(
    name: str, scene: dict[str, Any], gpus: list[str], wheel: Path | None, repeats: int, modes: list[str]
) -> list[dict[str, Any]]:
    """Returns a record for each GPU, pass and mode, preceded by one of the peer, if its wheel is given.

    Mode `graph` also gives records of mode `captured`. Records of tsplat have `allocations`, except with graphs, and
    with a peer `ratio_device` and `ratio_step`. Records of the peer have `implementation`.
    """
    other = None if wheel is None else gsplat_step.measure(scene, wheel, repeats)
    count = tsplat.rasterization(**scene)[-1]["memory"]["n_intersections"]
    sized = scene | {"packed": False, "capacity": int(capacity.HEADROOM * count) + 1}
    figures: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for mode in modes:
        given = {"eager": scene, "capacity": sized, "graph": scene | {"packed": False}}[mode]
        python = host.measure(scene if mode == "graph" else given, repeats)  # for loss and Adam
        step, predictor, operators = execute(given, gpus)
        while step.meta["overflow"]:  # lists that exceed their capacity are empty
            sized["capacity"] *= 2
            step, predictor, operators = execute(given, gpus)
        figures[mode] = {gpu: by_pass(mode, predictor, operators, python, gpu) for gpu in gpus}
        if mode == "graph":
            figures["captured"] = {gpu: {"call": by_capture(figures[mode][gpu]["call"])} for gpu in gpus}
            around = graphs.measure(scene, repeats)
            figures[mode] = {gpu: by_graphs(around, figures[mode][gpu], gpu) for gpu in gpus}
        if mode == modes[0]:
            meta = step.meta
    found = []
    for gpu in gpus:
        for of in PASSES:
            labels, theirs = {"scene": name, "gpu": gpu, "pass": of}, None
            if other is not None and (compositing := gsplat_step.compositing_us(name, gpu)) is not None:
                device = gsplat_step.device_us(scene, other, meta, compositing, gpu)
                theirs = peer_record(other, scene, device, figures[modes[0]][gpu], of)
                found.append({"implementation": gsplat_kernels.NAME, **labels, **theirs})
            for ours in (figures[mode][gpu][of] for mode in figures if of in figures[mode][gpu]):
                if theirs is not None:
                    ours["ratio_device"] = ours["device_us"] / theirs["device_us"]
                    ours["ratio_step"] = ours["step_us"] / theirs["step_us"]
                found.append(labels | ours)
    return found


def peer_record(
    other: gsplat_step.Peer, scene: dict[str, Any], device_us: float, by_pass: dict[str, dict[str, Any]], of: str
) -> dict[str, Any]:
    """Returns the figures of a peer's call, or of its step, which uses tsplat's loss and Adam."""

    def rest(field: str) -> Any:
        return by_pass["step"][field] - by_pass["call"][field] if of == "step" else 0

    launches = gsplat_step.launches(scene.get("sh_degree") is not None)
    operators = len(other.operators) + 1  # the sort
    waits = sum(operator.waits for operator in other.operators)
    host_us = sum(other.python_us.values()) + (launches + operators) * host.LAUNCH_US + rest("host_us")
    device_us += rest("device_us")
    waits += rest("waits")
    return {
        "mode": "eager", "launches": launches + rest("launches"), "operators": operators + rest("operators"),
        "waits": waits, "host_us": host_us, "device_us": device_us, "step_us": step_us(host_us, device_us, waits),
    }  # fmt: skip


def line(found: dict[str, Any]) -> str:
    """Returns a record as text."""
    name = found.get("implementation", f"tsplat {found['mode']}")
    label = f"{found['scene']:16} {found['gpu']} {found['pass']:4} {name:15}"
    counts = f"{found['launches']:3} launches {found['operators']:3} operators {found['waits']} waits"
    times = " ".join(f"{what} {found[f'{what}_us']:8.1f}" for what in ("host", "device", "step"))
    ratio = "".join(
        f" | {what} {found[f'ratio_{what}']:.2f}" for what in ("device", "step") if f"ratio_{what}" in found
    )
    return f"{label} {counts} | predicted us: {times}{ratio}"


def base_records(ref: str, arguments: list[str]) -> list[dict[str, Any]]:
    """Returns the records of another commit's tsplat, run by the current benchmarks and emulator."""
    with tempfile.TemporaryDirectory() as folder, worktree(ref) as there:
        root, file = Path(folder) / "root", Path(folder) / "records.jsonl"
        root.mkdir()
        (root / "tsplat").symlink_to(there / "tsplat")
        if not (there / "tsplat" / "gpu_driver").exists():  # the emulator requires it
            (there / "tsplat" / "gpu_driver").symlink_to(ROOT / "tsplat" / "gpu_driver")
        for name in ("benchmarks", "emulator", "tests"):
            (root / name).symlink_to(ROOT / name)
        command = [sys.executable, "-m", "benchmarks.step", *arguments, "--json", str(file)]
        subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, check=True)
        found = [json.loads(text) for text in file.read_text().splitlines()]
    return [{"implementation": f"tsplat {ref}"} | found for found in found]


def write(found: list[dict[str, Any]]) -> None:
    """Replaces the recorded results of scenes and GPUs, and writes the page."""
    report.replace(report.STEPS, found, ("scene", "gpu"), lambda r: (SCENES.index(r["scene"]), r["gpu"]))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    scenes.add_arguments(parser, SCENES)
    parser.add_argument("--gpu", nargs="+", choices=GPUS, default=list(GPUS), help="default: all")
    parser.add_argument("--mode", nargs="+", choices=MODES, default=RECORDED, help="default: eager graph")
    parser.add_argument("--repeats", type=int, default=1000, help="number of runs, whose minimum host time counts")
    parser.add_argument("--base", metavar="REF", help="also run another commit")
    parser.add_argument("--write", action="store_true", help="replace the recorded results and write the page")
    peer.add_argument(parser)
    options = parser.parse_args(arguments)
    if options.write and options.mode != RECORDED:
        parser.error(f"--mode {' '.join(options.mode)}: recorded results are of --mode {' '.join(RECORDED)}")
    return options


def main() -> None:
    options = parse()
    wheel = peer.prepare(options.peer)
    found: list[dict[str, Any]] = []
    base: list[dict[str, Any]] = []
    for name, scene in scenes.available(options):
        for entry in records(name, scene, options.gpu, wheel, options.repeats, options.mode):
            print(line(entry), flush=True)
            found.append(entry)
    if options.base:
        arguments = ["--mode", "eager", "--scene", *options.scene, "--gpu", *options.gpu]
        arguments += ["--repeats", str(options.repeats)]
        arguments += ["--garden", str(options.garden), "--kettle", str(options.kettle)]
        base = base_records(options.base, arguments)
        print("\n".join(line(entry) for entry in base))
    if options.json:
        with options.json.open("a") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in [*base, *found])
    if options.write:
        write(found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
