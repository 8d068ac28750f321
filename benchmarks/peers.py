"""Compares tsplat and gsplat on a GPU: difference of results, time of calls and of kernels, peak memory.

    python -m benchmarks.peers [--scene NAME ...] [--mode MODE ...] [--seconds S] [--json FILE]

Requires a GPU and `pip install gsplat==1.5.3`, which compiles its kernels at first use; without them, it prints the
reason and exits with status 3. A call is `rasterization()` forward and backward, as in `benchmarks.step`. It measures,
in microseconds:

- call: the time per call of many successive calls, without synchronization between them; the median of rounds, in which
  implementations take turns;
- host: the same for 20 Gaussians at 16x16 pixels, whose kernels take almost no time;
- device: all kernels and copies of a call, according to PyTorch's profiler, and the part of compositing, forward and
  backward.

Modes of tsplat: `eager` counts intersections first, as gsplat does; `capacity` has a capacity of twice the number of
intersections, and does not wait for the device; `graph` replays the CUDA graph of such a call; `graphed` calls
`tsplat.graphed`. A scene is measured only if the images of both agree.
"""

import argparse
import functools
import importlib
import json
import pkgutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tsplat
from benchmarks import machine
from benchmarks.cases import Case, on_device
from benchmarks.gpu_timing import host, scenes
from tsplat.kernels import compositing as package

DIFFERENCE_MAX = 2e-3
"""Maximum mean absolute difference of images for which a scene is measured."""
ROUNDS = 5
"""Number of rounds. Each round measures all implementations; the results are medians over rounds."""
UNAVAILABLE = 3
"""Exit status without a GPU or without gsplat."""
MODES = ("eager", "capacity", "graph", "graphed")
PEER_COMPOSITING = "rasterize_to_pixels"
"""Part of the names of gsplat's compositing kernels."""
SCENES: dict[str, Callable[[scenes.Data], dict[str, Any]]] = scenes.SCENES | {
    "garden-2592x1680": functools.partial(scenes.from_case, Case("garden", width=4)),
    "kettle-1600x1200": functools.partial(scenes.from_case, Case("kettle", 0, 1600, 1200)),
    "cloud-1M": functools.partial(scenes.from_case, Case("cloud", 1_000_000, 1296, 840, 2.5)),
    "cloud-1M-sh3": functools.partial(scenes.from_case, Case("cloud", 1_000_000, 1296, 840, 2.5, sh_degree=3)),
}

Call = Callable[[], Any]


class Implementation:
    """A rendering function and its name, with the leaves of a scene and the gradients of its images."""

    def __init__(self, name: str, render: Callable[..., Any], scene: dict[str, Any], **options: Any) -> None:
        self.name = name
        self.render = functools.partial(render, **options)
        self.scene = scene
        self.leaves = {key: scene[key].detach().clone().requires_grad_() for key in scenes.LEAVES}
        self.v: list[Tensor] = []
        self.graph: Any = None

    def outputs(self) -> list[Tensor]:
        """Returns the images with a gradient: colors and alphas, and for 2D Gaussians, normals and distortion."""
        found = self.render(**self.scene | self.leaves)
        return [found[i] for i in ((0, 1, 2, 4) if len(found) > 3 else (0, 1))]

    def forward(self) -> None:
        with torch.no_grad():
            self.render(**self.scene)

    def gradients_of(self, outputs: list[Tensor]) -> list[Tensor]:
        """Returns the gradients of outputs, which are the same for each call."""
        if not self.v:
            # Channel-major, like the gradient of an image loss.
            v = (2 * outputs[0].detach()).movedim(-1, 1).contiguous().movedim(1, -1)
            self.v = [v, *(torch.ones_like(t) for t in outputs[1:])]
        return self.v

    def call(self) -> None:
        outputs = self.outputs()
        v = self.gradients_of(outputs)
        for leaf in self.leaves.values():
            leaf.grad = None
        torch.autograd.backward(outputs, v)

    def capture(self) -> None:
        """Captures a call in a CUDA graph."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.call()
        torch.cuda.current_stream().wait_stream(stream)
        tsplat.check_overflow()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.call()

    def replay(self) -> None:
        self.graph.replay()

    def gradients(self) -> dict[str, Tensor]:
        self.call()
        return {name: leaf.grad for name, leaf in self.leaves.items() if leaf.grad is not None}


def implementations(scene: dict[str, Any], peer: Any) -> list[Implementation]:
    """Returns tsplat and, if `peer` is its module, gsplat, for a scene."""
    scene = dict(scene)
    if scene.pop("surfels", False):
        scene.pop("sh_degree", None)
        scene["colors"] = scene["colors"][None]  # gsplat concatenates them with the depths of cameras
        found = [Implementation("tsplat", tsplat.rasterization_2dgs, scene, render_mode="RGB+D")]
        if peer is not None:
            options = {"render_mode": "RGB+D", "distloss": True}
            found.append(Implementation("gsplat", peer.rasterization_2dgs, scene, **options))
        return found
    found = [Implementation("tsplat", tsplat.rasterization, scene)]
    if peer is not None:
        # gsplat's evaluation in 3D requires packed=False.
        options = {"packed": False} if scene.get("with_eval3d") else {}
        found.append(Implementation("gsplat", peer.rasterization, scene, **options))
    return found


def in_mode(ours: Implementation, mode: str) -> Call:
    """Returns a function that makes a call in a mode."""
    if mode == "eager":
        return ours.call
    if mode == "graphed":
        return Implementation(mode, tsplat.graphed(ours.render), ours.scene).call
    count = ours.render(**ours.scene)[-1]["memory"]["n_intersections"]
    sized = Implementation(mode, ours.render, ours.scene, packed=False, capacity=2 * count + 1000)
    if mode == "capacity":
        return sized.call
    sized.capture()
    return sized.replay


def microseconds(call: Call, seconds: float) -> float:
    """Returns the time per call of successive calls, measured for about `seconds`."""
    torch.cuda.synchronize()
    start, n = time.perf_counter(), 0
    while n < 3 or time.perf_counter() - start < seconds:
        call()
        n += 1
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / n * 1e6


def medians(calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """Returns the median time per call of each function, measured in rounds."""
    for call in calls.values():
        for _ in range(5):
            call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            found[name].append(microseconds(call, seconds / ROUNDS))
    return {name: sorted(values)[ROUNDS // 2] for name, values in found.items()}


def kernels(call: Call, repeats: int = 10) -> dict[str, float]:
    """Returns the microseconds of each kernel and copy of a call, by name."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    totals: dict[str, float] = {}
    for event in found.events():
        if event.device_type.name == "CUDA" and not event.name.startswith("ProfilerStep"):
            totals[event.name] = totals.get(event.name, 0.0) + event.device_time / repeats
    return totals


@functools.cache
def compositing_names() -> frozenset[str]:
    """Returns the names of tsplat's compositing kernels."""
    modules = [importlib.import_module(f"{scenes.KERNELS}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    return frozenset(value.__name__ for m in modules for value in vars(m).values() if hasattr(value, "launch"))


def compositing(by_kernel: dict[str, float]) -> float:
    """Returns the sum of the microseconds of compositing kernels."""
    names = compositing_names()
    return sum(us for name, us in by_kernel.items() if name in names or PEER_COMPOSITING in name)


def differences(ours: Implementation, theirs: Implementation) -> dict[str, float]:
    """Returns the mean absolute difference of images, and the relative difference of gradients, by their norms."""
    with torch.no_grad():
        one, other = ours.render(**ours.scene)[0], theirs.render(**theirs.scene)[0]
    found = {"image": float((one - other).abs().mean())}
    one, other = ours.gradients(), theirs.gradients()
    return found | {f"v_{name}": float((one[name] - t).norm() / t.norm()) for name, t in other.items()}


def measure(name: str, modes: Iterable[str], peer: Any, seconds: float) -> list[dict[str, Any]]:
    """Measures each implementation and mode on a scene; prints and returns the records."""
    scene = SCENES[name](scenes.Data())
    found, small = (implementations(on_device(given, "cuda"), peer) for given in (scene, host.tiny(scene)))
    compared = differences(*found) if len(found) == 2 else {}
    if compared.get("image", 0.0) > DIFFERENCE_MAX:
        print(f"{name}: images differ by {compared['image']:.2g} on average, more than {DIFFERENCE_MAX}; not measured")
        return []
    records: list[dict[str, Any]] = []
    calls: dict[str, Call] = {}
    tiny_calls: dict[str, Call] = {}
    for mode in modes:
        try:
            calls[mode], tiny_calls[mode] = in_mode(found[0], mode), in_mode(small[0], mode)
        except Exception as error:  # continue with the other modes
            print(f"{name}: mode {mode} failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
            records.append({"scene": name, "implementation": "tsplat", "mode": mode, "error": str(error)[:2000]})
            torch.cuda.synchronize()
    if peer is not None:
        calls["gsplat"], tiny_calls["gsplat"] = found[1].call, small[1].call
    call_us, host_us = medians(calls, seconds), medians(tiny_calls, seconds / 2)
    forward_us = medians({i.name: i.forward for i in found}, seconds / 2)
    forward_compositing = {i.name: compositing(kernels(i.outputs)) for i in found}
    for label, call in calls.items():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        peak = torch.cuda.max_memory_allocated() - before
        by_kernel = kernels(call)
        implementation = "gsplat" if label == "gsplat" else "tsplat"
        forward = forward_compositing[implementation]
        parts = {"forward": forward, "backward": compositing(by_kernel) - forward}
        record: dict[str, Any] = {
            "scene": name, "implementation": implementation, "mode": "eager" if label == "gsplat" else label,
            "call_us": call_us[label], "host_us": host_us[label], "device_us": sum(by_kernel.values()),
            "compositing_us": parts, "peak_bytes": peak, "kernels": by_kernel,
        }  # fmt: skip
        if record["mode"] == "eager":
            record |= {"forward_us": forward_us[implementation], "differences": compared}
        records.append(record)
        print(
            f"{name:24} {implementation} {record['mode']:8} call {call_us[label]:8.0f} us, host {host_us[label]:6.0f}, "
            f"device {record['device_us']:8.0f}, compositing {parts['forward']:7.1f} + {parts['backward']:7.1f}, "
            f"forward {record.get('forward_us', 0):7.0f}, {peak / 1e6:7.0f} MB",
            flush=True,
        )
    if compared:
        print(f"{name:24} differences {', '.join(f'{k} {v:.1e}' for k, v in compared.items())}", flush=True)
    return records


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    names = list(SCENES)
    parser.add_argument("--scene", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--mode", nargs="+", choices=MODES, default=MODES, metavar="MODE", help=", ".join(MODES))
    parser.add_argument("--seconds", type=float, default=0.5, help="time for the calls of each implementation and mode")
    parser.add_argument("--json", type=Path, help="append the records to this file as JSON lines")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("peers: PyTorch does not find a GPU, which gsplat's kernels require; nothing to compare")
        return UNAVAILABLE
    try:
        import gsplat
    except ImportError as error:
        print(f"peers: {error}; pip install gsplat==1.5.3")
        return UNAVAILABLE
    made_with = machine.describe(torch.device("cuda")) | {"peer": f"gsplat {gsplat.__version__}"}
    print(", ".join(f"{key} {value}" for key, value in made_with.items() if value is not None))
    for name in options.scene:
        try:
            records = measure(name, options.mode, gsplat, options.seconds)
        except FileNotFoundError as error:
            print(f"{name}: skipped, {error} does not exist")
            continue
        if options.json:
            with options.json.open("a") as file:
                file.writelines(json.dumps(record | made_with) + "\n" for record in records)
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
