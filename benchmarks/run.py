"""How fast the package is on this machine: stages and whole calls, forward and forward + backward.

    python -m benchmarks.run [--device cpu|cuda] [--threads N] [--repeats N] [--json FILE] [--profile FILE] [--base REF]

Scenes: seeded clouds of Gaussians of a given standard deviation in pixels, a million of them and features of 16, 64 and
256 channels on a GPU; the points of gsplat's garden (`--garden`, test_garden.npz) with scales drawn as exp(N(0, 1/2))
times the mean distance to three neighbors and opacities from 0.05 to 0.95, at 1, 2 and 4 times its size; a real
capture (`--kettle`, a PLY). Scenes whose data is not here are left out. The dense reference runs where it fits.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tsplat
from tsplat.stages.backend import Backend

DATA = Path(__file__).parents[2] / "shared" / "data"
GARDEN = DATA / "test_garden.npz"
KETTLE = DATA / "models" / "kettle.from_spz.ply"

WANTED = ("means", "quats", "scales", "opacities", "colors")


@dataclasses.dataclass(frozen=True)
class Case:
    """A scene and the backends to time on it.

    Attributes:
        kind: "cloud", "garden" or "kettle".
        n, width, height: Gaussians of a cloud, and pixels; of a garden, how many times its size the pictures are.
        deviation: Standard deviation of a cloud's Gaussians in pixels.
        channels: Of features.
    """

    kind: str
    n: int = 0
    width: int = 1
    height: int = 1
    deviation: float = 2.0
    channels: int = 3
    backends: tuple[Backend, ...] = ("auto",)

    @property
    def name(self) -> str:
        if self.kind == "garden":
            return f"garden {self.width}x"
        if self.kind == "kettle":
            return f"kettle at {self.width}x{self.height}"
        features = f", {self.channels} channels" if self.channels != 3 else ""
        return f"{self.n} at {self.width}x{self.height}, {self.deviation:g} px{features}"


CPU_CASES = (
    Case("cloud", 2_000, 96, 64, backends=("torch", "reference")),
    Case("cloud", 10_000, 192, 128, backends=("torch",)),
    Case("cloud", 12_500, 283, 200, backends=("torch",)),
    Case("cloud", 50_000, 400, 300, backends=("torch",)),
    Case("cloud", 100_000, 800, 566, backends=("torch",)),
    Case("kettle", 0, 800, 600, backends=("torch",)),
)
SCENES = (
    Case("garden", width=1),
    Case("garden", width=2),
    Case("garden", width=4),
    Case("cloud", 1_000_000, 1296, 840, 2.5),
    Case("kettle", 0, 1600, 1200),
    Case("cloud", 200_000, 800, 600, channels=16),
    Case("cloud", 200_000, 800, 600, channels=64),
    Case("cloud", 200_000, 800, 600, channels=256),
)
GPU_CASES = (
    Case("cloud", 2_000, 96, 64, backends=("triton", "torch")),
    Case("cloud", 100_000, 800, 600, backends=("triton", "torch")),
    *SCENES,
)


def load(case: Case, device: torch.device, garden: Path = GARDEN, kettle: Path = KETTLE) -> dict[str, Any] | None:
    """A scene's keyword arguments of `rasterization`, or None where its data is not here."""
    if case.kind == "cloud":
        scene = _cloud(case)
    elif case.kind == "garden" and garden.exists():
        scene = _garden(garden, case.width)
    elif case.kind == "kettle" and kettle.exists():
        scene = _model(kettle, case)
    else:
        return None
    return {name: t.to(device) if isinstance(t, Tensor) else t for name, t in scene.items()}


def _cloud(case: Case, seed: int = 0) -> dict[str, Any]:
    """A seeded cloud that fills the picture, opacities from 0.1 to 0.9."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    focal = float(case.width)
    depth = 2 + 2 * uniform(case.n)
    x = (uniform(case.n) - 0.5) * case.width / focal * depth
    y = (uniform(case.n) - 0.5) * case.height / focal * depth
    spread = torch.exp(0.3 * torch.randn(case.n, 3, generator=generator))
    return dict(
        means=torch.stack([x, y, depth], -1),
        quats=torch.randn(case.n, 4, generator=generator),
        scales=(case.deviation / focal * depth)[:, None] * spread,
        opacities=0.1 + 0.8 * uniform(case.n),
        colors=uniform(case.n, case.channels),
        viewmats=torch.eye(4)[None],
        Ks=torch.tensor([[[focal, 0, case.width / 2], [0, focal, case.height / 2], [0, 0, 1]]]),
        width=case.width,
        height=case.height,
    )


def _garden(path: Path, times: int, seed: int = 0) -> dict[str, Any]:
    from scipy.spatial import cKDTree

    stored = np.load(path)
    points = stored["means3d"]
    n = len(points)
    spacing = cKDTree(points).query(points, k=4)[0][:, 1:].mean(1)
    generator = torch.Generator().manual_seed(seed)
    Ks = torch.from_numpy(stored["Ks"])[:1].clone()
    Ks[:, :2] *= times
    return dict(
        means=torch.from_numpy(points),
        quats=torch.randn(n, 4, generator=generator),
        scales=torch.from_numpy(spacing).float()[:, None] * (0.5 * torch.randn(n, 3, generator=generator)).exp(),
        opacities=0.05 + 0.9 * torch.rand(n, generator=generator),
        colors=torch.from_numpy(stored["colors"]).float() / 255,
        viewmats=torch.from_numpy(stored["viewmats"])[:1],
        Ks=Ks,
        width=int(stored["width"]) * times,
        height=int(stored["height"]) * times,
    )


def _model(path: Path, case: Case) -> dict[str, Any]:
    from tsplat.scene import intrinsics, read_ply
    from tsplat.viewing import look_at_all

    gaussians = read_ply(path)
    viewmat, _ = look_at_all(gaussians, case.width, case.height, 50.0)
    return dict(
        means=gaussians.means,
        quats=gaussians.quats,
        scales=gaussians.scales,
        opacities=gaussians.opacities,
        colors=gaussians.sh_coeffs(gaussians.sh_degree),
        sh_degree=gaussians.sh_degree,
        viewmats=viewmat[None],
        Ks=intrinsics(case.width, case.height, 50.0)[None],
        width=case.width,
        height=case.height,
    )


def timed(step: Callable[[], None], device: torch.device, repeats: int) -> dict[str, float]:
    """Milliseconds at the 20th, 50th and 80th percentile, after a warm-up."""
    samples = []
    for repeat in range(repeats + 2):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if repeat >= 2:
            samples.append(1e3 * (time.perf_counter() - start))
    p20, p50, p80 = torch.tensor(samples).quantile(torch.tensor([0.2, 0.5, 0.8])).tolist()
    return {"p20": p20, "p50": p50, "p80": p80}


def stages(scene: dict[str, Any], backend: Backend) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each stage by itself, forward, on what the ones before it made."""
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
    """One record for each stage, for forward alone and for forward + backward."""

    def forward() -> None:
        with torch.no_grad():
            tsplat.rasterization(**scene, backend=backend)

    def both() -> None:
        leaves = {name: scene[name].detach().requires_grad_() for name in WANTED}
        colors, alphas, _ = tsplat.rasterization(**(scene | leaves), backend=backend)
        torch.autograd.backward(colors.square().sum() + alphas.sum())

    with torch.no_grad():
        _, _, meta = tsplat.rasterization(**scene, backend=backend)
        steps: list[tuple[str, Callable[[], Any]]] = [] if backend == "reference" else list(stages(scene, backend))
    pairs = meta["memory"]["pairs"] if "memory" in meta else None
    records = []
    for what, step in (*steps, ("forward", forward), ("forward + backward", both)):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with torch.set_grad_enabled(what == "forward + backward"):
            record = {"scene": case.name, "backend": backend, "what": what, "pairs": pairs}
            record |= timed(step, device, repeats)
        if device.type == "cuda":
            record["peak_bytes"] = torch.cuda.max_memory_allocated()
        records.append(record)
    return records


def profile(path: Path, device: torch.device) -> None:
    """Writes the kernels of a training step on the first scene that is here, by time."""
    from torch.profiler import profile as torch_profile

    scene = next(scene for case in SCENES if (scene := load(case, device)) is not None)
    with torch_profile() as found:
        leaves = {name: scene[name].detach().requires_grad_() for name in WANTED}
        colors, alphas, _ = tsplat.rasterization(**(scene | leaves))
        torch.autograd.backward(colors.square().sum() + alphas.sum())
    key = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    path.write_text(found.key_averages().table(sort_by=key, row_limit=40))


def compare(ref: str, arguments: list[str]) -> None:
    """Runs the same at another commit, in a checkout of it that goes again, and prints ratios of medians."""
    here = Path(__file__).parents[1]
    results: list[dict[Any, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "base"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", there, ref], cwd=here, check=True)
        try:
            for root in (there, here):
                out = Path(folder) / f"{root.name}.jsonl"
                command = [sys.executable, "-m", "benchmarks.run", *arguments, "--json", str(out)]
                subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, check=True)
                records = [json.loads(line) for line in out.read_text().splitlines()]
                results.append({(r["scene"], r["backend"], r["what"]): r["p50"] for r in records})
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", there], cwd=here, check=True)
    before, after = results
    for key in before.keys() & after.keys():
        print(f"{key[0]:32} {key[1]:10} {key[2]:20} {before[key] / after[key]:.2f} times as fast as at {ref}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--garden", type=Path, default=GARDEN, help="test_garden.npz")
    parser.add_argument("--kettle", type=Path, default=KETTLE, help="a PLY")
    parser.add_argument("--only", help="scenes whose name contains this")
    parser.add_argument("--json", type=Path, help="append records to this file, one a line")
    parser.add_argument("--profile", type=Path, help="write kernels by time to this file, and do nothing else")
    parser.add_argument("--base", metavar="REF", help="compare with another commit")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    if options.profile:
        profile(options.profile, device)
        return
    if options.base:
        compare(options.base, [a for a in sys.argv[1:] if a not in ("--base", options.base)])
        return
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()}, {options.threads} threads"
    )
    print(f"{name}, torch {torch.__version__}, tsplat {tsplat.__version__}")
    print(f"{'scene':40} {'backend':10} {'what':20} {'pairs':>9} {'p20 ms':>9} {'p50 ms':>9} {'p80 ms':>9}")
    for case in GPU_CASES if device.type == "cuda" else CPU_CASES:
        if options.only and options.only not in case.name:
            continue
        scene = load(case, device, options.garden, options.kettle)
        if scene is None:
            print(f"{case.name}: skipped, its data is not here")
            continue
        medians: dict[tuple[str, str], float] = {}
        for backend in case.backends:
            for record in measure(case, scene, backend, device, options.repeats):
                medians[backend, record["what"]] = record["p50"]
                print(
                    f"{record['scene']:40} {backend:10} {record['what']:20} {record['pairs'] or '-':>9} "
                    f"{record['p20']:9.2f} {record['p50']:9.2f} {record['p80']:9.2f}",
                    flush=True,
                )
                if options.json:
                    with options.json.open("a") as file:
                        file.write(json.dumps(record | {"device": name, "torch": torch.__version__}) + "\n")
        for other in case.backends[1:]:
            for what in ("forward", "forward + backward"):
                ratio = medians[other, what] / medians[case.backends[0], what]
                print(f"{case.name}: {case.backends[0]} is {ratio:.1f} times as fast as {other}, {what}")


if __name__ == "__main__":
    main()
