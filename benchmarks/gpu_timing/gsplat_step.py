"""The host and device time of a packed call of gsplat 1.5.3, under the same assumptions as for tsplat.

Host: gsplat's Python code from its wheel, with stand-ins for its C++ functions, whose time does not count. Device: the
recorded predictions for its compositing kernels. Each other kernel is assumed to take the time of an operator, plus the
minimum memory traffic that it can have, which favors gsplat.
"""

import contextlib
import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from . import gsplat_kernels
from .counting import BANDWIDTH, OPERATOR_US, WAITS, Operator, Operators, sort_operator
from .gsplat_footprints import TILE_SIZE
from .host import SIZE, Clock, N, tiny
from .scenes import LEAVES

RECORDS = Path(__file__).parents[1] / "results" / "predicted" / "peers.jsonl"
KERNELS = {"forward": 7, "backward": 3}
"""Number of launches of gsplat's kernels: projection (2), SH, intersection (2), offsets and compositing; and three in
the backward pass. Without SH, each has one less."""
IN_CPP = {"forward": ("cumsum", "_local_scalar_dense") * 2, "backward": ("zeros",) * 9}
"""Operators that gsplat's C++ functions call, except the sort."""
INTERSECTIONS = 30
"""Number of intersections of the tiny scene."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """Cost of a call of gsplat on the host: microseconds of Python by phase, and operators without the sort."""

    python_us: dict[str, float]
    operators: list[Operator]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Numbers of projected Gaussians and intersections of one image of width x height pixels in tiles of 16x16."""

    nnz: int
    intersections: int
    width: int
    height: int


def stand_ins(sizes: Sizes) -> dict[str, Callable[..., Any]]:
    """Returns stand-ins for gsplat's C++ functions, for one image.

    They return tensors of the same shapes, with zeros, except radii, which are one.
    """
    nnz, width, height = sizes.nnz, sizes.width, sizes.height
    tiles = -(-height // TILE_SIZE), -(-width // TILE_SIZE)

    def integers(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32)

    def projection(*arguments: Any) -> Any:
        ids = [torch.zeros(nnz, dtype=torch.long) for _ in range(3)]
        radii = torch.ones(nnz, 2, dtype=torch.int32)
        return integers(2), *ids, radii, torch.zeros(nnz, 2), torch.zeros(nnz), torch.zeros(nnz, 3), None

    def projection_of_surfels(means: Tensor, *arguments: Any) -> Any:
        rows = [torch.zeros(1, len(means), *shape) for shape in ((2,), (), (3, 3), (3,))]
        return torch.ones(1, len(means), 2, dtype=torch.int32), *rows

    def intersect(means2d: Tensor, radii: Tensor, depths: Tensor, *arguments: Any) -> Any:
        tiles_per_gauss = torch.zeros_like(depths, dtype=torch.int32)
        _ends = tiles_per_gauss.flatten().cumsum(0)
        _unsorted, found = (
            (torch.zeros(sizes.intersections, dtype=torch.long), integers(sizes.intersections)) for _ in range(2)
        )
        return tiles_per_gauss, *found

    def pixels(channels: int) -> Tensor:
        return torch.zeros(1, height, width, channels)

    def surfel_pixels(means2d: Tensor, transforms: Tensor, colors: Tensor, *arguments: Any) -> Any:
        ids = integers(1, height, width), integers(1, height, width)
        return pixels(colors.shape[-1]), pixels(1), pixels(3), pixels(1), pixels(1), *ids

    def like(*tensors: Tensor) -> list[Tensor]:
        return [torch.zeros_like(tensor) for tensor in tensors]

    return {
        "projection_ewa_3dgs_packed_fwd": projection,
        "projection_ewa_3dgs_packed_bwd": lambda means, _, quats, scales, *a: (
            torch.zeros_like(means), None, *like(quats, scales), None,
        ),
        "projection_2dgs_fused_fwd": projection_of_surfels,
        "projection_2dgs_fused_bwd": lambda means, quats, scales, *a: (*like(means, quats, scales), None),
        "spherical_harmonics_fwd": lambda degree, directions, *a: torch.zeros_like(directions),
        "spherical_harmonics_bwd": lambda k, degree, directions, coeffs, *a: tuple(like(coeffs, directions)),
        "intersect_tile": intersect,
        "intersect_offset": lambda *a: integers(1, *tiles),
        "rasterize_to_pixels_3dgs_fwd": lambda means2d, conics, colors, *a: (
            pixels(colors.shape[-1]), pixels(1), integers(1, height, width),
        ),
        "rasterize_to_pixels_3dgs_bwd": lambda means2d, conics, colors, opacities, *a: (
            None, *like(means2d, conics, colors, opacities),
        ),
        "rasterize_to_pixels_2dgs_fwd": surfel_pixels,
        "rasterize_to_pixels_2dgs_bwd": lambda means2d, transforms, colors, opacities, normals, densify, *a: (
            None, *like(means2d, transforms, colors, opacities, normals, densify),
        ),
    }  # fmt: skip


@contextlib.contextmanager
def peer_on_cpu(wheel: Path, functions: dict[str, Callable[..., Any]]) -> Iterator[Any]:
    """Context manager that yields gsplat's module `rendering`, with `functions` in place of its C++ functions."""
    with mock.patch.object(sys, "path", [str(wheel), *sys.path]):
        wrapper = importlib.import_module("gsplat.cuda._wrapper")
        rendering = importlib.import_module("gsplat.rendering")
    with mock.patch.multiple(
        wrapper, _make_lazy_cuda_func=functions.__getitem__, _make_lazy_cuda_obj=lambda name: name
    ):
        yield rendering


def measure(scene: dict[str, Any], wheel: Path, repeats: int = 200) -> Peer:
    """Measures gsplat's Python code on a tiny scene like the given one: the minimum thread CPU time of each phase."""
    given = {name: value for name, value in tiny(scene).items() if name != "packed"}
    leaves = {name: given[name].clone().requires_grad_() for name in LEAVES}
    clock, functions = Clock(), stand_ins(Sizes(N, INTERSECTIONS, SIZE, SIZE))
    ready = {name: clock.without(_undispatched(function)) for name, function in functions.items()}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    v_colors = torch.ones(1, SIZE, SIZE, 3)

    def run(rasterization: Callable[..., Any], enter: Callable[[str], None]) -> None:
        enter("forward")
        colors, _, _ = rasterization(**(given | leaves), packed=True)
        enter("backward")
        colors.backward(v_colors)
        enter("")
        for leaf in leaves.values():
            leaf.grad = None

    try:
        with peer_on_cpu(wheel, ready) as rendering:
            for _ in range(repeats):
                run(rendering.rasterization, clock.enter)
            with Operators() as operators:
                run(rendering.rasterization, lambda phase: setattr(operators, "phase", phase))
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
    """Returns the minimum number of bytes that gsplat's kernels, except compositing, read and write, by phase."""
    shape, row = 4 * (3 + 4 + 3 + 1), 4 * (2 + 2 + 1 + 3) + 8 * 3
    harmonics = nnz * 4 * 3 * (coefficients + 2) if coefficients else 0
    listing = nnz * 2 * 4 * 5 + intersections * (12 + 8) + 4 * tiles
    forward = 2 * n * shape + nnz * row + harmonics + listing
    backward = nnz * (shape + row) + 2 * n * shape + 2 * harmonics + 2 * n * 4 * 3 * coefficients
    return {"forward": forward, "backward": backward}


def lists(meta: dict[str, Any], width: int, height: int) -> tuple[int, int]:
    """Returns the numbers of gsplat's intersections and of tiles, for the projected Gaussians of one image."""
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
    """Returns the predicted device time of a call of gsplat, given that of its compositing kernels."""
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
    """Returns the number of launches of gsplat's kernels in a call."""
    return sum(KERNELS.values()) - 2 * (not sh)
