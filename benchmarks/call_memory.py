"""Counts the memory of a call of rasterization, forward and backward, on the CPU and on an emulated GPU.

    python -m benchmarks.call_memory [--scene NAME ...] [--device cpu sm_80] [--peer gsplat] [--json FILE] [--write]
    python -m benchmarks.call_memory --write-budgets  write the limits of `make test`

PyTorch's allocator reports each allocation and release, also inside of operators; allocations of NumPy are not counted.
The result is the peak in bytes above the memory before the call, which has the arguments and the gradients of images.
`forward` is the peak of the forward pass alone; `call` includes the gradients of arguments; `loop` is a call in a loop,
as `benchmarks.peers` measures it on a GPU, in which gradients of the previous call are released between both passes.
Each kind of call is counted three times: the first call runs the stages, the second is traced, and the third is
replayed.

With `--peer gsplat`, the Python code of gsplat 1.5.3 is run as well, over functions that allocate the same tensors as
its C++ functions (gpu_timing/gsplat_step.py). Memory of its sort, besides tensors, is not counted. `--write` replaces
the recorded results, and writes docs/performance.md.
"""

import argparse
import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import tsplat
from benchmarks import peers, report
from benchmarks.gpu_timing import gsplat_kernels, gsplat_step, host, peer, scenes
from tsplat.passes import arenas, replay_cache
from tsplat.stages import capacity

BUDGETS = Path(__file__).with_name("memory_budgets.json")
BUDGETED = "cloud"
"""The scene that has budgets."""
BUDGETED_LAYOUTS = {"cpu": ("packed", "capacity"), "sm_80": ("packed",)}
SCENES = ("cloud", "kettle-400x300", "garden-648x420", "garden-1296x840", "garden-648x420-2dgs")
DEVICES = ("cpu", "sm_80")
LAYOUTS: dict[str, dict[str, Any]] = {
    "packed": {"packed": True},
    "unpacked": {"packed": False},
    "capacity": {"packed": False, "capacity": 0},
}
"""Options of calls. A capacity is chosen for the scene."""
STATES = ("stages", "traced", "replayed")
"""States of the first, second and third call of a kind."""
MARK = "benchmarks: backward"


@dataclasses.dataclass(frozen=True)
class Peak:
    """Peak memory in bytes, see the module. `total` is the sum of all allocations of the forward pass."""

    forward: int
    call: int
    loop: int
    total: int


def count(implementation: peers.Implementation) -> Peak:
    """Counts the memory of a call."""
    for leaf in implementation.leaves.values():
        leaf.grad = None
    with _profiled() as found:
        outputs = implementation.outputs()
        with torch.profiler.record_function(MARK):
            pass
        torch.autograd.backward(outputs, implementation.gradients_of(outputs))
    gradients = sum(leaf.nbytes for leaf in implementation.leaves.values())
    own: dict[int, int] = {}
    now, total, peaks = 0, 0, [0]
    for name, address, n_bytes in sorted_events(found[0]):
        if name == MARK:
            peaks.append(now)
        elif n_bytes > 0:
            own[address] = n_bytes
            now += n_bytes
            total += n_bytes if len(peaks) == 1 else 0
        else:
            now -= own.pop(address, 0)  # memory of before the call is not known
        peaks[-1] = max(peaks[-1], now)
    forward, backward = peaks
    return Peak(forward, max(forward, backward), max(forward, backward - gradients), total)


@contextlib.contextmanager
def _profiled() -> Iterator[list[Any]]:
    """Context manager that yields a list, which contains the profiler's tree of events afterwards."""
    found: list[Any] = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        yield found
    found.append(profile.profiler.kineto_results.experimental_event_tree())


def sorted_events(tree: Any) -> list[tuple[str, int, int]]:
    """Returns the name, address and bytes of each allocation, release (negative) and mark, in order of time."""
    found, todo = [], list(tree)
    while todo:
        event = todo.pop()
        todo += event.children
        if event.tag.name == "Allocation":
            found.append((event.start_time_ns, event.name, event.extra_fields.ptr, event.extra_fields.alloc_size))
        elif event.name == MARK:
            found.append((event.start_time_ns, MARK, 0, 0))
    return [event[1:] for event in sorted(found, key=lambda event: event[0])]


@contextlib.contextmanager
def on_device(device: str) -> Iterator[None]:
    """Context manager that runs kernels on the CPU or on an emulated GPU; each pass allocates its arenas."""
    arenas._cached_scratch.clear()
    with (
        contextlib.nullcontext() if device == "cpu" else host.emulated_gpu(device),
        mock.patch.object(arenas, "SCRATCH_CACHED_MAX", -1),
    ):
        yield


def records(name: str, scene: dict[str, Any], device: str, layouts: dict[str, Any] = LAYOUTS) -> list[dict[str, Any]]:
    """Returns a record for each layout and state, with the fields of `Peak`."""
    found = []
    with on_device(device):
        for layout, options in layouts.items():
            if "capacity" in options:
                options = options | {"capacity": _capacity(scene)}
            implementation = peers.implementations(scene | options | {"backend": "triton"}, None)[0]
            implementation.call()  # loads modules and kernels, and makes gradients of images
            replay_cache.clear_caches()
            for state in STATES:
                labels = {"scene": name, "device": device, "layout": layout, "state": state}
                found.append(labels | dataclasses.asdict(count(implementation)))
    return found


def _capacity(scene: dict[str, Any]) -> int:
    """Returns a capacity of 1.5 times the intersections of a scene, doubled until its lists fit."""
    implementation = peers.implementations(scene | {"packed": False, "backend": "triton"}, None)[0]
    with torch.no_grad():
        n = implementation.render(**implementation.scene)[-1]["memory"]["n_intersections"]
        room = int(capacity.HEADROOM * n) + 1
        while True:
            try:
                implementation.render(**implementation.scene | {"capacity": room})
            except tsplat.CapacityError:
                room *= 2
            else:
                return room


def peer_record(name: str, scene: dict[str, Any], wheel: Path) -> dict[str, Any]:
    """Returns the record of gsplat, for the projected Gaussians of tsplat and gsplat's tiles."""
    ours = peers.implementations(scene, None)[0]
    with torch.no_grad():
        meta = ours.render(**ours.scene)[-1]
    width, height, zeros_like = scene["width"], scene["height"], torch.zeros_like
    intersections, _ = gsplat_step.lists(meta, width, height)
    sizes = gsplat_step.Sizes(meta["radii"].reshape(-1, 2).shape[0], intersections, width, height)

    def on_cpu(tensor: Tensor, *, device: Any = None, **options: Any) -> Tensor:
        return zeros_like(tensor, **options)

    with (
        gsplat_step.peer_on_cpu(wheel, gsplat_step.stand_ins(sizes)) as rendering,
        mock.patch.object(torch, "zeros_like", on_cpu),
        mock.patch.object(torch.cuda, "synchronize"),
    ):
        theirs = peers.implementations(scene, rendering)[1]
        theirs.call()
        found = count(theirs)
    return {"scene": name, "implementation": gsplat_kernels.NAME, "intersections": intersections} | (
        dataclasses.asdict(found)
    )


def budgets(found: list[dict[str, Any]]) -> dict[str, int]:
    """Returns the bytes that budgets limit, by device, layout, state and peak."""
    return {f"{r['device']} {r['layout']} {r['state']} {of}": r[of] for r in found for of in ("forward", "call")}


def budgeted() -> dict[str, int]:
    """Counts the calls that have budgets."""
    scene, found = scenes.SCENES[BUDGETED](scenes.Data()), []
    for device, names in BUDGETED_LAYOUTS.items():
        found += records(BUDGETED, scene, device, {name: LAYOUTS[name] for name in names})
    return budgets(found)


def line(r: dict[str, Any]) -> str:
    """Returns a record as text."""
    label = r.get("implementation") or f"{r['device']:5} {r['layout']:8} {r['state']:8}"
    figures = ", ".join(f"{of} {r[of] / 1e6:8.2f}" for of in ("forward", "call", "loop", "total"))
    return f"{r['scene']:20} {label:24} MB: {figures}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    scenes.add_arguments(parser, SCENES)
    parser.add_argument("--device", nargs="+", choices=DEVICES, default=list(DEVICES), help="default: all")
    parser.add_argument("--write-budgets", action="store_true", help=f"only write {BUDGETS.name}")
    parser.add_argument("--write", action="store_true", help="replace the recorded results and write the page")
    peer.add_argument(parser)
    options = parser.parse_args()
    if options.write_budgets:
        BUDGETS.write_text(json.dumps(budgeted(), indent=1) + "\n")
        return
    wheel = None if options.peer is None else gsplat_kernels.find_wheel(download=True)
    found: list[dict[str, Any]] = []

    def add(new: list[dict[str, Any]]) -> None:
        print("\n".join(map(line, new)), flush=True)
        found.extend(new)

    for name, scene in scenes.available(options):
        for device in options.device:
            add(records(name, scene, device))
        if wheel is not None:
            add([peer_record(name, scene, wheel)])
    if options.json:
        with options.json.open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in found)
    if options.write:
        report.replace(report.MEMORY, found, ("scene", "device"), lambda r: SCENES.index(r["scene"]))


if __name__ == "__main__":
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    torch.set_num_threads(1)
    main()
