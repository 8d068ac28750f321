"""Measures the speed of tsplat on this machine: single stages and whole calls, forward and forward + backward.

    python -m benchmarks.run [--device cpu|cuda|emulated] [--threads N] [--repeats N] [--json FILE] [--profile FILE]
        [--base REF]

`benchmarks/cases.py` describes the scenes. `--device emulated` runs tiny scenes on an emulated GPU, to try out this
command; its times are meaningless.

Scenes whose files do not exist are skipped. The dense reference is measured on the smallest cloud.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import tsplat
from benchmarks import machine
from benchmarks.cases import COMPARED, CPU_CASES, EMULATED_CASES, GARDEN, GPU_CASES, KETTLE, SCENES, Case, load
from benchmarks.timing_worker import forward, forward_backward
from benchmarks.worktrees import ROOT, worktree
from tsplat.config import Backend

EMULATED = "sm_80"
"""Target of `--device emulated`."""
WARM_UP = 2
"""Number of untimed repeats before the timed ones."""


def timed(step: Callable[[], None], device: torch.device, repeats: int) -> dict[str, float]:
    """Measures a function after a warm-up; returns the 20th, 50th and 80th percentile in milliseconds."""
    samples = []
    for repeat in range(repeats + WARM_UP):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if repeat >= WARM_UP:
            samples.append(1e3 * (time.perf_counter() - start))
    p20, p50, p80 = torch.tensor(samples).quantile(torch.tensor([0.2, 0.5, 0.8])).tolist()
    return {"p20": p20, "p50": p50, "p80": p80}


def stages(scene: dict[str, Any], backend: Backend) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yields the name of each stage, and a function that runs its forward pass on the outputs of earlier stages."""
    geometry = [scene[name] for name in ("means", "quats", "scales", "viewmats", "Ks", "width", "height")]
    means, quats, scales, viewmats, Ks, width, height = geometry
    opacities = scene["opacities"].expand(viewmats.shape[0], -1)
    tiles = (-(-width // 16), -(-height // 16))

    def project() -> Any:
        return tsplat.fully_fused_projection(
            means, None, quats, scales, viewmats, Ks, width, height, opacities=scene["opacities"], backend=backend
        )

    radii, means2d, depths, conics, _ = project()

    def intersect() -> Any:
        return tsplat.isect_tiles(
            means2d, radii, depths, 16, *tiles, conics=conics, opacities=opacities, backend=backend
        )

    _, ids, flatten_ids = intersect()
    offsets = tsplat.isect_offset_encode(ids, viewmats.shape[0], *tiles)
    shown = scene["colors"] if scene.get("sh_degree") is None else scene["colors"][:, 0]

    def composite() -> Any:
        return tsplat.rasterize_to_pixels(
            means2d, conics, shown.expand(viewmats.shape[0], -1, -1), opacities, width, height, 16, offsets,
            flatten_ids, backend=backend,
        )  # fmt: skip

    yield "projection", project
    yield "intersection", intersect
    yield "compositing", composite


def measure(case: Case, scene: dict[str, Any], backend: Backend, device: torch.device, repeats: int) -> list[Any]:
    """Returns a record for each stage, for the forward pass, and for forward + backward."""
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("forward", functools.partial(forward, scene, backend=backend)),
        ("forward + backward", functools.partial(forward_backward, scene, backend=backend)),
    ]
    with torch.no_grad():
        _, _, meta = tsplat.rasterization(**scene, backend=backend)
        steps: list[tuple[str, Callable[[], Any]]] = [] if backend == "reference" else list(stages(scene, backend))
    n_intersections = meta["memory"]["n_intersections"] if "memory" in meta else None
    records = []
    for what, step in (*steps, *calls):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with torch.set_grad_enabled(what == "forward + backward"):
            record = {"scene": case.name, "backend": backend, "what": what, "n_intersections": n_intersections}
            record |= timed(step, device, repeats)
        if device.type == "cuda":
            record["peak_bytes"] = torch.cuda.max_memory_allocated()
        records.append(record)
    return records


def profile(path: Path, device: torch.device, cases: Sequence[Case]) -> None:
    """Writes the time per kernel of a call, forward and backward, after a warm-up, on the first available scene."""
    from torch.profiler import profile as torch_profile

    case, scene = next((case, scene) for case in cases if (scene := load(case, device)) is not None)
    for _ in range(WARM_UP):
        forward_backward(scene, backend=case.backends[0])
    with torch_profile() as found:
        forward_backward(scene, backend=case.backends[0])
    key = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    path.write_text(found.key_averages().table(sort_by=key, row_limit=40))


def compare(ref: str, threads: int, repeats: int, only: str) -> None:
    """Times the scenes `COMPARED` here and at another commit, in a temporary worktree; prints times and ratios.

    Both run twice, in turn, and the minimum counts, as other processes may slow down either.
    """
    with tempfile.TemporaryDirectory() as folder, worktree(ref) as base:
        path = Path(folder) / "scenes.pt"
        scenes = {case.name: load(case, torch.device("cpu")) for case in COMPARED if only in case.name}
        torch.save({name: scene for name, scene in scenes.items() if scene is not None}, path)
        rounds = [(root, _times(root, path, threads, repeats)) for root in (base, ROOT) * 2]
    what = "CPU time" if threads == 1 else "wall time"
    print(f"{threads} thread{'s' if threads > 1 else ''}, {what} in ms{'scene':>13} {ref:>29} {'here':>9}")
    for key in rounds[0][1]:
        before, after = (min(times[key] for root, times in rounds if root == where) for where in (base, ROOT))
        print(f"{key[0]:32} {key[1]:20} {before:9.1f} {after:9.1f}  {before / after:.1f} times as fast")


def _times(root: Path, path: Path, threads: int, repeats: int) -> dict[tuple[str, str], float]:
    """Runs the worker with the tsplat in a folder. Returns milliseconds by scene and pass."""
    command = [sys.executable, str(Path(__file__).with_name("timing_worker.py")), str(path), str(threads), str(repeats)]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": str(threads)}
    out = subprocess.run(command, cwd=root, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    records = [json.loads(line) for line in out.splitlines()]
    return {(r["scene"], what): ms for r in records for what, ms in r.items() if what != "scene"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--device", help="cpu, cuda or emulated", default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--threads", type=int, default=1, help="number of CPU threads")
    parser.add_argument("--repeats", type=int, default=7, help="timed repeats")
    parser.add_argument("--garden", type=Path, default=GARDEN, help="gsplat's test_garden.npz")
    parser.add_argument("--kettle", type=Path, default=KETTLE, help="PLY of a trained model")
    parser.add_argument("--only", help="run only scenes whose name contains this text")
    parser.add_argument("--json", type=Path, help="append the records to this file as JSON lines")
    parser.add_argument("--profile", type=Path, help="only write the time per kernel to this file")
    parser.add_argument("--base", metavar="REF", help="only compare with this commit, on a CPU")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.base:
        compare(options.base, options.threads, options.repeats, options.only or "")
        return
    if options.device != "emulated":
        cases = GPU_CASES if options.device.startswith("cuda") else CPU_CASES
        run(options, torch.device(options.device), cases, SCENES, None)
        return
    from emulator.package import tsplat_emulated

    with tsplat_emulated(EMULATED):
        run(options, torch.device("cpu"), EMULATED_CASES, EMULATED_CASES, f"emulated {EMULATED}, times mean nothing")


def run(
    options: argparse.Namespace, device: torch.device, cases: Sequence[Case], profiled: Sequence[Case], name: str | None
) -> None:
    """Measures the scenes, or writes the profile of the first of `profiled`; `name` replaces the device's name."""
    if options.profile:
        profile(options.profile, device, profiled)
        return
    made_with = machine.describe(device, name)
    print(", ".join(f"{key} {value}" for key, value in made_with.items() if value is not None))
    print(f"{'scene':40} {'backend':10} {'what':20} {'intersections':>13} {'p20 ms':>9} {'p50 ms':>9} {'p80 ms':>9}")
    for case in cases:
        if options.only and options.only not in case.name:
            continue
        scene = load(case, device, options.garden, options.kettle)
        if scene is None:
            print(f"{case.name}: skipped, its file does not exist")
            continue
        medians: dict[tuple[str, str], float] = {}
        for backend in case.backends:
            for record in measure(case, scene, backend, device, options.repeats):
                medians[backend, record["what"]] = record["p50"]
                print(
                    f"{record['scene']:40} {backend:10} {record['what']:20} {record['n_intersections'] or '-':>13} "
                    f"{record['p20']:9.2f} {record['p50']:9.2f} {record['p80']:9.2f}",
                    flush=True,
                )
                if options.json:
                    with options.json.open("a") as file:
                        file.write(json.dumps(record | made_with) + "\n")
        for other in case.backends[1:]:
            for what in ("forward", "forward + backward"):
                ratio = medians[other, what] / medians[case.backends[0], what]
                print(f"{case.name}: {case.backends[0]} is {ratio:.1f} times as fast as {other}, {what}")


if __name__ == "__main__":
    main()
