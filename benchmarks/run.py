"""Measures the speed of tsplat on this machine: single stages and whole calls, forward and forward + backward.

    python -m benchmarks.run [--device cpu|cuda] [--threads N] [--repeats N] [--json FILE] [--profile FILE] [--base REF]

Scenes:

- clouds: random Gaussians with a given standard deviation in pixels; on a GPU up to a million of them, and features of
  16, 64 and 256 channels;
- dense-tile: a cloud, and one tile whose list is about 100 times as long as the median;
- garden: the points of gsplat's garden (`--garden`, test_garden.npz) at 1, 2 and 4 times its image size, with opacities
  from 0.05 to 0.95 and scales of exp(N(0, 1/2)) times the mean distance to the three nearest neighbors;
- kettle, luma-seal: trained models (`--kettle`, a PLY).

Scenes whose files do not exist are skipped. The dense reference is measured on the smallest cloud.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import tsplat
from benchmarks.timing_worker import forward, forward_backward
from tests.support.paths import DATA, MODELS
from tsplat.config import Backend

GARDEN = DATA / "test_garden.npz"
KETTLE = MODELS / "kettle.from_spz.ply"
LUMA_SEAL = MODELS / "luma-seal.from_splat.ply"

WARM_UP = 2
"""Untimed repeats before the timed ones."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A scene and the backends to measure on it.

    Attributes:
        kind: How the scene is made; see the module.
        n: Number of Gaussians of a cloud; of those outside of the dense tile.
        width, height: Image size in pixels; for the garden, `width` is a multiple of its image size.
        deviation: Standard deviation in pixels of the Gaussians of a cloud.
        channels: Number of color channels of a cloud.
        sh_degree: Degree of the spherical harmonics of a cloud, in place of colors.
        backends: Backends to measure; the first one is compared with the others.
    """

    kind: Literal["cloud", "dense-tile", "garden", "kettle", "luma-seal"]
    n: int = 0
    width: int = 1
    height: int = 1
    deviation: float = 2.0
    channels: int = 3
    sh_degree: int | None = None
    backends: tuple[Backend, ...] = ("auto",)

    @property
    def name(self) -> str:
        if self.kind == "garden":
            return f"garden {self.width}x"
        if self.kind != "cloud":
            return f"{self.kind} at {self.width}x{self.height}"
        features = f", {self.channels} channels" if self.channels != 3 else ""
        features += f", SH degree {self.sh_degree}" if self.sh_degree is not None else ""
        return f"{self.n} at {self.width}x{self.height}, {self.deviation:g} px{features}"


CPU_CASES = (
    Case("cloud", 2_000, 96, 64, backends=("triton", "torch", "reference")),
    Case("cloud", 10_000, 192, 128, backends=("triton", "torch")),
    Case("cloud", 12_500, 283, 200, backends=("triton", "torch")),
    Case("cloud", 50_000, 400, 300, backends=("triton", "torch")),
    Case("cloud", 100_000, 800, 566, backends=("triton", "torch")),
    Case("kettle", 0, 800, 600, backends=("triton", "torch")),
)
SCENES = (
    Case("garden", width=1),
    Case("garden", width=2),
    Case("garden", width=4),
    Case("cloud", 1_000_000, 1296, 840, 2.5),
    Case("kettle", 0, 1600, 1200),
    Case("dense-tile", 22_000, 1296, 840),
    Case("cloud", 200_000, 800, 600, channels=16),
    Case("cloud", 200_000, 800, 600, channels=64),
    Case("cloud", 200_000, 800, 600, channels=256),
)
COMPARED = (
    Case("cloud", 10_000, 192, 128),
    Case("cloud", 100_000, 640, 480, sh_degree=3),
    Case("kettle", 0, 640, 480),
    Case("luma-seal", 0, 640, 480),
)
"""Scenes of `--base`."""

GPU_CASES = (
    Case("cloud", 2_000, 96, 64, backends=("triton", "torch")),
    Case("cloud", 100_000, 800, 600, backends=("triton", "torch")),
    *SCENES,
)


def load(case: Case, device: torch.device, garden: Path = GARDEN, kettle: Path = KETTLE) -> dict[str, Any] | None:
    """Returns the arguments of `rasterization` for a scene, or None if its file does not exist."""
    if case.kind == "cloud":
        scene = _cloud(case)
    elif case.kind == "dense-tile":
        scene = dense_tile(case.n, width=case.width, height=case.height)
    elif case.kind == "garden" and garden.exists():
        scene = _garden(garden, case.width)
    elif case.kind == "kettle" and kettle.exists():
        scene = _model(kettle, case)
    elif case.kind == "luma-seal" and LUMA_SEAL.exists():
        scene = _model(LUMA_SEAL, case)
    else:
        return None
    return {name: t.to(device) if isinstance(t, Tensor) else t for name, t in scene.items()}


def _cloud(case: Case, seed: int = 0) -> dict[str, Any]:
    """A random cloud that fills the image, with opacities from 0.1 to 0.9."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    focal = float(case.width)
    depth = 2 + 2 * uniform(case.n)
    x = (uniform(case.n) - 0.5) * case.width / focal * depth
    y = (uniform(case.n) - 0.5) * case.height / focal * depth
    spread = torch.exp(0.3 * torch.randn(case.n, 3, generator=generator))
    colors = uniform(case.n, case.channels)
    if case.sh_degree is not None:
        colors = 0.3 * torch.randn(case.n, (case.sh_degree + 1) ** 2, 3, generator=generator)
    return dict(
        sh_degree=case.sh_degree,
        means=torch.stack([x, y, depth], -1),
        quats=torch.randn(case.n, 4, generator=generator),
        scales=(case.deviation / focal * depth)[:, None] * spread,
        opacities=0.1 + 0.8 * uniform(case.n),
        colors=colors,
        viewmats=torch.eye(4)[None],
        Ks=torch.tensor([[[focal, 0, case.width / 2], [0, focal, case.height / 2], [0, 0, 1]]]),
        width=case.width,
        height=case.height,
    )


def dense_tile(sparse: int = 1_000, dense: int = 1_500, width: int = 256, height: int = 192) -> dict[str, Any]:
    """A cloud over the whole image, and Gaussians in the middle of one tile, faint enough that all are blended.

    With the default numbers, the list of that tile is about 100 times as long as the median.
    """
    scene = _cloud(Case("cloud", sparse, width, height))
    generator = torch.Generator().manual_seed(1)
    depth = 5 + torch.rand(dense, generator=generator)
    tile = torch.tensor([width // 32 * 16 + 8, height // 32 * 16 + 8])
    center = tile + 10 * (torch.rand(dense, 2, generator=generator) - 0.5)
    offset = (center - torch.tensor([width / 2, height / 2])) / width * depth[:, None]
    added = {
        "means": torch.cat([offset, depth[:, None]], 1),
        "quats": torch.randn(dense, 4, generator=generator),
        "scales": (0.8 / width * depth)[:, None].expand(-1, 3),
        "opacities": 0.02 + 0.02 * torch.rand(dense, generator=generator),
        "colors": torch.rand(dense, 3, generator=generator),
    }
    return scene | {name: torch.cat([scene[name], tensor]) for name, tensor in added.items()}


def _garden(path: Path, scale: int, seed: int = 0) -> dict[str, Any]:
    from scipy.spatial import cKDTree

    stored = np.load(path)
    points = stored["means3d"]
    n = len(points)
    spacing = cKDTree(points).query(points, k=4)[0][:, 1:].mean(1)
    generator = torch.Generator().manual_seed(seed)
    Ks = torch.from_numpy(stored["Ks"])[:1].clone()
    Ks[:, :2] *= scale
    return dict(
        means=torch.from_numpy(points),
        quats=torch.randn(n, 4, generator=generator),
        scales=torch.from_numpy(spacing).float()[:, None] * (0.5 * torch.randn(n, 3, generator=generator)).exp(),
        opacities=0.05 + 0.9 * torch.rand(n, generator=generator),
        colors=torch.from_numpy(stored["colors"]).float() / 255,
        viewmats=torch.from_numpy(stored["viewmats"])[:1],
        Ks=Ks,
        width=int(stored["width"]) * scale,
        height=int(stored["height"]) * scale,
    )


def _model(path: Path, case: Case) -> dict[str, Any]:
    from tsplat.scene import intrinsics, read_ply
    from tsplat.viewing.framing import look_at_all

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
    """Yields each stage's name and its forward pass on the outputs of the stages before."""
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


def profile(path: Path, device: torch.device) -> None:
    """Writes the time per kernel of a training step after a warm-up, on the first GPU scene whose file exists."""
    from torch.profiler import profile as torch_profile

    scene = next(scene for case in SCENES if (scene := load(case, device)) is not None)
    for _ in range(WARM_UP):
        forward_backward(scene)
    with torch_profile() as found:
        forward_backward(scene)
    key = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    path.write_text(found.key_averages().table(sort_by=key, row_limit=40))


def compare(ref: str, threads: int, repeats: int, only: str) -> None:
    """Times the scenes `COMPARED` at another commit, in a temporary worktree, and here; prints times and ratios.

    Both run twice, in turn, and the smaller time counts, as other processes may slow down either.
    """
    current = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        path, base = Path(folder) / "scenes.pt", Path(folder) / "base"
        scenes = {case.name: load(case, torch.device("cpu")) for case in COMPARED if only in case.name}
        torch.save({name: scene for name, scene in scenes.items() if scene is not None}, path)
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", base, ref], cwd=current, check=True)
        try:
            rounds = [(root, _times(root, path, threads, repeats)) for root in (base, current) * 2]
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", base], cwd=current, check=True)
    what = "CPU time" if threads == 1 else "wall time"
    print(f"{threads} thread{'s' if threads > 1 else ''}, {what} in ms{'scene':>13} {ref:>29} {'here':>9}")
    for key in rounds[0][1]:
        before, after = (min(times[key] for root, times in rounds if root == where) for where in (base, current))
        print(f"{key[0]:32} {key[1]:20} {before:9.1f} {after:9.1f}  {before / after:.1f} times as fast")


def _times(root: Path, path: Path, threads: int, repeats: int) -> dict[tuple[str, str], float]:
    """Runs the worker on the tsplat of a folder."""
    command = [sys.executable, str(Path(__file__).with_name("timing_worker.py")), str(path), str(threads), str(repeats)]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": str(threads)}
    out = subprocess.run(command, cwd=root, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    records = [json.loads(line) for line in out.splitlines()]
    return {(r["scene"], what): ms for r in records for what, ms in r.items() if what != "scene"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
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
    device = torch.device(options.device)
    if options.profile:
        profile(options.profile, device)
        return
    if options.base:
        compare(options.base, options.threads, options.repeats, options.only or "")
        return
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()}, {options.threads} threads"
    )
    print(f"{name}, torch {torch.__version__}, tsplat {tsplat.__version__}")
    print(f"{'scene':40} {'backend':10} {'what':20} {'intersections':>13} {'p20 ms':>9} {'p50 ms':>9} {'p80 ms':>9}")
    for case in GPU_CASES if device.type == "cuda" else CPU_CASES:
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
                        file.write(json.dumps(record | {"device": name, "torch": torch.__version__}) + "\n")
        for other in case.backends[1:]:
            for what in ("forward", "forward + backward"):
                ratio = medians[other, what] / medians[case.backends[0], what]
                print(f"{case.name}: {case.backends[0]} is {ratio:.1f} times as fast as {other}, {what}")


if __name__ == "__main__":
    main()
