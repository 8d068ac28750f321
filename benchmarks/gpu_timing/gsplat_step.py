"""The host and device time of a call of gsplat 1.5.3, packed, under the assumptions made for tsplat.

Host: gsplat's own Python, from its wheel, over C++ functions that return tensors; their time does not count. Device:
the recorded predictions for its compositing kernels. All its other kernels are assumed to cost what an operator does,
and the least memory traffic that they can have, which favors gsplat.
"""

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from . import gsplat_kernels
from .counting import BANDWIDTH, OPERATOR_US, WAITS, Operator, Operators, sort_operator
from .host import SIZE, Clock, N, tiny
from .scenes import LEAVES

RECORDS = Path(__file__).parents[1] / "results" / "predicted" / "peers.jsonl"
KERNELS = {"forward": 7, "backward": 3}
"""Launches of gsplat's own kernels: projection (2), SH, intersection (2), offsets and compositing; and three backward.
Without SH there is one less in each."""
IN_CPP = {"forward": ("cumsum", "_local_scalar_dense") * 2, "backward": ("zeros",) * 9}
"""Operators that its C++ functions call, apart from the sort."""
INTERSECTIONS = 30
"""Of the tiny scene, in tensors that stand in for the results of C++."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """What a call of gsplat costs on the host: microseconds of Python by phase, and operators without the sort."""

    python_us: dict[str, float]
    operators: list[Operator]


def _functions() -> dict[str, Callable[..., Any]]:
    """Returns functions in place of gsplat's C++, which return tensors for the tiny scene."""
    ids, zeros = torch.arange(N), torch.zeros(N, dtype=torch.long)

    def projection(*arguments: Any) -> Any:
        radii = torch.ones(N, 2, dtype=torch.int32)
        rows = torch.rand(N, 2), torch.rand(N), torch.rand(N, 3)
        return torch.tensor([0, N]), zeros, zeros, ids, radii, *rows, None

    return {
        "projection_ewa_3dgs_packed_fwd": projection,
        "projection_ewa_3dgs_packed_bwd": lambda *a: (
            torch.rand(N, 3), None, torch.rand(N, 4), torch.rand(N, 3), None,
        ),
        "spherical_harmonics_fwd": lambda degree, directions, *a: torch.rand(directions.shape),
        "spherical_harmonics_bwd": lambda k, degree, directions, coeffs, *a: (
            torch.rand(coeffs.shape), torch.rand(directions.shape),
        ),
        "intersect_tile": lambda *a: (
            torch.ones(N, dtype=torch.int32), torch.arange(INTERSECTIONS),
            torch.zeros(INTERSECTIONS, dtype=torch.int32),
        ),
        "intersect_offset": lambda *a: torch.zeros(1, 1, 1, dtype=torch.int32),
        "rasterize_to_pixels_3dgs_fwd": lambda *a: (
            torch.rand(1, SIZE, SIZE, 3), torch.rand(1, SIZE, SIZE, 1), torch.zeros(1, SIZE, SIZE, dtype=torch.int32),
        ),
        "rasterize_to_pixels_3dgs_bwd": lambda means2d, conics, colors, opacities, *a: (
            None, torch.rand(means2d.shape), torch.rand(conics.shape), torch.rand(colors.shape),
            torch.rand(opacities.shape),
        ),
    }  # fmt: skip


def measure(scene: dict[str, Any], wheel: Path, repeats: int = 200) -> Peer:
    """Measures a call of gsplat's Python on a tiny scene like a given one: thread CPU time, the best of each phase."""
    given = {name: value for name, value in tiny(scene).items() if name != "packed"}
    leaves = {name: given[name].clone().requires_grad_() for name in LEAVES}
    clock, functions = Clock(), _functions()
    ready = {name: clock.without(_undispatched(function)) for name, function in functions.items()}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with mock.patch.object(sys, "path", [str(wheel), *sys.path]):
        wrapper = importlib.import_module("gsplat.cuda._wrapper")
        rasterization = importlib.import_module("gsplat.rendering").rasterization
    v_colors = torch.ones(1, SIZE, SIZE, 3)

    def run(enter: Callable[[str], None]) -> None:
        enter("forward")
        colors, _, _ = rasterization(**(given | leaves), packed=True)
        enter("backward")
        colors.backward(v_colors)
        enter("")
        for leaf in leaves.values():
            leaf.grad = None

    try:
        with mock.patch.multiple(
            wrapper, _make_lazy_cuda_func=ready.__getitem__, _make_lazy_cuda_obj=lambda name: name
        ):
            for _ in range(repeats):
                run(clock.enter)
            with Operators() as operators:
                run(lambda phase: setattr(operators, "phase", phase))
    finally:
        torch.set_num_threads(threads)
    found = [operator for operator in operators.found if operator.phase]
    found += [Operator(phase, name, waits=name in WAITS) for phase, names in IN_CPP.items() for name in names]
    return Peer(clock.best_us, found)


def _undispatched(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function whose operators are not counted."""

    def wrapped(*arguments: Any) -> Any:
        with torch.utils._python_dispatch._disable_current_modes():
            return function(*arguments)

    return wrapped


def traffic(n: int, nnz: int, intersections: int, tiles: int, coefficients: int) -> dict[str, int]:
    """Returns the least bytes that gsplat's kernels other than compositing read and write, by phase."""
    shape, row = 4 * (3 + 4 + 3 + 1), 4 * (2 + 2 + 1 + 3) + 8 * 3
    harmonics = nnz * 4 * 3 * (coefficients + 2) if coefficients else 0
    listing = nnz * 2 * 4 * 5 + intersections * (12 + 8) + 4 * tiles
    forward = 2 * n * shape + nnz * row + harmonics + listing
    backward = nnz * (shape + row) + 2 * n * shape + 2 * harmonics + 2 * n * 4 * 3 * coefficients
    return {"forward": forward, "backward": backward}


def lists(meta: dict[str, Any], width: int, height: int) -> tuple[int, int]:
    """Returns the number of gsplat's intersections and of tiles, for the projected Gaussians of one image."""
    means2d, radii, depths = (meta[name].detach() for name in ("means2d", "radii", "depths"))
    starts, ids = gsplat_kernels.tile_lists(
        means2d.reshape(-1, 2), radii.reshape(-1, 2), depths.flatten(), width, height
    )
    return len(ids), len(starts) - 1


def compositing_us(scene: str, gpu: str) -> float | None:
    """Returns the recorded prediction for gsplat's compositing kernels, forward + backward; None if there is none."""
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    keys = {"scene": scene, "gpu": gpu, "implementation": gsplat_kernels.NAME}
    found = [r["predicted_us"] for r in records if keys.items() <= r.items() and not r.get("variation")]
    return sum(found) if found else None


def device_us(scene: dict[str, Any], peer: Peer, meta: dict[str, Any], compositing: float, gpu: str) -> float:
    """Returns the predicted device time of a call of gsplat, from that of its compositing kernels."""
    width, height, n = scene["width"], scene["height"], len(scene["means"])
    intersections, tiles = lists(meta, width, height)
    sh = scene.get("sh_degree") is not None
    coefficients = (scene["sh_degree"] + 1) ** 2 if sh else 0
    nnz = meta["radii"].reshape(-1, 2).shape[0]
    n_bytes = sum(traffic(n, nnz, intersections, tiles, coefficients).values())
    kernels = sum(KERNELS.values()) - 2 - 2 * (not sh)
    operators = [*peer.operators, sort_operator("forward", intersections, 32 + tiles.bit_length(), 8, 4)]
    return (
        compositing + kernels * OPERATOR_US + n_bytes / BANDWIDTH[gpu]
        + sum(operator.device_us(gpu) for operator in operators)
    )  # fmt: skip


def launches(sh: bool) -> int:
    """Returns the number of launches of gsplat's own kernels in a call."""
    return sum(KERNELS.values()) - 2 * (not sh)
