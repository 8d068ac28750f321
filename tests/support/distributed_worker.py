"""Runs the ranks of tests/stages/test_exchange.py: `python -m tests.support.distributed_worker SIZE FOLDER CASES SEED`.

Starting processes is slow, so all ranks are forked from one process and run all jobs one after the other. Each rank
writes a log, and a report to another file.
"""

import contextlib
import dataclasses
import datetime
import importlib
import itertools
import json
import math
import multiprocessing
import os
import random
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import tsplat
from benchmarks.scaling import ROW_BYTES, ROW_BYTES_BACK
from tests.support import cases, scenes
from tests.support.closeness import FP32_EPSILONS, assert_exact, compare
from tsplat.stages.meta import released_rows

TIMEOUT = datetime.timedelta(seconds=120)
PER_GAUSSIAN = ("means", "quats", "scales", "covars", "opacities", "colors", "extra_signals")
PER_CAMERA = ("viewmats", "Ks", "backgrounds")
DIFFERENTIABLE = (*scenes.DIFFERENTIABLE, "extra_signals")


@dataclasses.dataclass(frozen=True)
class Shard:
    """The Gaussians and cameras of one rank."""

    gaussians: slice
    cameras: slice

    def select(self, scene: dict[str, Any]) -> dict[str, Any]:
        parts = dict.fromkeys(PER_GAUSSIAN, self.gaussians) | dict.fromkeys(PER_CAMERA, self.cameras)
        return {name: value[parts[name]] if isinstance(value, Tensor) else value for name, value in scene.items()}


def shards(n_gaussians: list[int], n_cameras: list[int]) -> list[Shard]:
    def slices(counts: list[int]) -> list[slice]:
        return [slice(sum(counts[:i]), sum(counts[: i + 1])) for i in range(len(counts))]

    return [Shard(*ranges) for ranges in zip(slices(n_gaussians), slices(n_cameras))]


def split(r: random.Random, n: int, ranks: int) -> list[int]:
    """Splits n over the ranks: evenly, randomly, 99 to 1, or all on one rank."""
    how = r.choice(["even", "random", "random", "skewed", "one"])
    if how == "even":
        return [n // ranks + (i < n % ranks) for i in range(ranks)]
    if how == "random":
        bounds = [0, *sorted(r.randint(0, n) for _ in range(ranks - 1)), n]
        return [b - a for a, b in itertools.pairwise(bounds)]
    counts = [0] * ranks
    few = n // 100 if how == "skewed" else 0
    first = r.randrange(ranks)
    counts[first], counts[(first + 1) % ranks] = n - few, few
    return counts


def gradients(
    inputs: dict[str, Any], settings: dict[str, Any], cameras: slice, v: tuple[Tensor, ...]
) -> tuple[dict[str, Tensor | None], dict[str, Any]]:
    """Returns images and input gradients, given the gradients v of all cameras' images."""
    colors, alphas, meta = tsplat.rasterization(**inputs, **settings)
    assert colors.requires_grad
    assert alphas.requires_grad
    if meta["means2d"].requires_grad:
        meta["means2d"].retain_grad()
    images = (colors, alphas, meta.get("render_extra_signals"))
    backward = [(image, v_image[cameras]) for image, v_image in zip(images, v, strict=True) if image is not None]
    torch.autograd.backward(*zip(*backward))
    found = {"colors": colors.detach(), "alphas": alphas.detach()}
    if inputs["extra_signals"] is not None:
        found["extra_signals"] = meta["render_extra_signals"].detach()
    leaves = {n: inputs[n] for n in DIFFERENTIABLE if inputs[n] is not None}
    return found | {f"v_{n}": None if t.grad is None else t.grad.to_dense() for n, t in leaves.items()}, meta


def one_case(seed: int, groups: dict[int, dist.ProcessGroup]) -> dict[str, float] | None:
    """Compares a random case with a single process: images bit by bit, gradients to 1e-9 in fp64. Returns figures."""
    r = random.Random(seed)
    size = r.choice([2, 3, 4, 4])
    n, n_cameras = r.choice([0, 1, 12, 30, 100]), r.randint(0, 2 * size)
    parts = shards(split(r, n, size), split(r, n_cameras, size))
    # The exchange does not depend on the backend, and Triton kernels must be compiled.
    backend = r.choice(["triton", *["torch"] * 7])
    case = cases.draw_for_tests(seed) if backend == "triton" else cases.draw(seed)
    structure = dataclasses.replace(case.structure, n=n, cameras=n_cameras, batch=(), per_camera_colors=False)
    settings = case.mode | case.layout | dict(backend=backend)
    in_3d = not structure.covars and r.random() < 0.2
    if in_3d:
        along_rays = settings["render_mode"].replace("+", "-").replace("D", "d")
        settings |= dict(with_ut=True, with_eval3d=True, absgrad=False, return_normals=True, render_mode=along_rays)
    dtype, half = r.choice([torch.float64, torch.float32]), r.random() < 0.2
    frozen, frozen_cameras = r.choice([None, None, None, *range(size)]), r.random() < 0.3
    rank = dist.get_rank()
    if rank >= size:
        return None
    scene = scenes.make(structure, dtype)
    if half:
        scene["colors"] = scene["colors"].to(torch.bfloat16)
    if n > 5 and r.random() < 0.3:
        scene["means"][n // 2] = torch.nan
    if n and r.random() < 0.4:
        # Gaussians with equal depths are composited in order of their index.
        scene["means"] = scene["means"][[r.randrange(n) for _ in range(n)]]

    scene["extra_signals"], n_extra = None, 2
    if r.random() < 0.5:
        settings["extra_signals_sh_degree"] = degree = r.choice([None, 1])
        extra = torch.empty(n, n_extra) if degree is None else torch.empty(n, 4, n_extra)
        (extra,) = scenes.random_like((extra,), seed)
        scene["extra_signals"] = extra.to(torch.float16 if half else dtype)
        if scene["backgrounds"] is not None:
            scene["backgrounds"] = torch.nn.functional.pad(scene["backgrounds"], (0, n_extra), value=0.25)

    def leaves(scene: dict[str, Any]) -> dict[str, Any]:
        inputs = scenes.leaves(scene)
        if scene["extra_signals"] is not None:
            inputs["extra_signals"] = scene["extra_signals"].clone().requires_grad_()
        if frozen_cameras:
            inputs["viewmats"] = inputs["viewmats"].detach()
        return inputs

    own, whole = parts[rank], leaves(scene)
    shape = (n_cameras, structure.height, structure.width)
    channels = int(settings["render_mode"] != "RGB")
    channels += scene["colors"].shape[-1] if "RGB" in settings["render_mode"] else 0
    v = scenes.random_like(tuple(torch.empty(*shape, size, dtype=dtype) for size in (channels, 1, n_extra)), seed)
    truth, truth_meta = gradients(whole, settings, slice(None), v)
    inputs = leaves(own.select(scene))
    if rank == frozen:
        inputs = {k: t.detach() if isinstance(t, Tensor) else t for k, t in inputs.items()}
    local = dict(sparse_grad=settings["packed"] and (seed + rank) % 2 == 0, segmented=(seed + rank) % 3 == 0)
    found, meta = gradients(inputs, settings | local | dict(distributed=True, group=groups[size]), own.cameras, v)

    for name in ("colors", "alphas", *(["extra_signals"] if scene["extra_signals"] is not None else [])):
        expected = truth[name][own.cameras]
        assert torch.equal(found[name], expected), f"{name}: {int((found[name] != expected).sum())} entries differ"
    assert meta["n_cameras"] == own.cameras.stop - own.cameras.start
    assert not in_3d or torch.equal(meta["normals"], truth_meta["normals"][own.cameras])
    if settings["packed"]:
        rendered = (truth_meta["camera_ids"] >= own.cameras.start) & (truth_meta["camera_ids"] < own.cameras.stop)
        assert torch.equal(meta["received"]["camera_ids"], truth_meta["camera_ids"][rendered] - own.cameras.start)
        for name in ("gaussian_ids", "radii", "means2d", "depths", "conics", "opacities", "tiles_per_gauss"):
            if in_3d and name == "conics":
                continue
            from_all = (meta if name == "tiles_per_gauss" else meta["received"])[name]
            assert torch.equal(from_all, truth_meta[name][rendered]), name
    worst = same = compared = 0.0
    tensors = {
        name: (found[f"v_{name}"], whole[name].grad[own.cameras if name in PER_CAMERA else own.gaussians])
        for name in DIFFERENTIABLE
        if inputs[name] is not None and whole[name].grad is not None and rank != frozen
    }
    if rank != frozen:
        for name, (a, b) in projected_of_rank(meta, truth_meta, own, settings).items():
            assert torch.equal(a, b), f"meta[{name!r}]: {int((a != b).sum())} entries differ"
        tensors |= {} if in_3d else gradients_of_means2d(meta, truth_meta, own, settings)
    for name, (a, b) in tensors.items():
        if a is None and not b.any():
            continue
        eps = FP32_EPSILONS * torch.finfo(b.dtype if b.dtype.itemsize == 2 else torch.float32).eps
        worst = max(worst, assert_exact(name, a, b) if b.dtype == torch.float64 else compare(name, a, b, eps))
        # Camera gradients are summed rank by rank; all other sums have the order of a single process.
        assert name == "viewmats" or torch.equal(a, b), f"v_{name}: {int((a != b).sum())} entries differ"
        same, compared = same + torch.equal(a, b), compared + 1
    return {"worst": worst, "same": same, "compared": compared}


def projected_of_rank(
    meta: dict[str, Any], truth: dict[str, Any], own: Shard, settings: dict[str, Any]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns the entries of `meta` for this rank's Gaussians, from this rank and from a single process."""
    names = ("radii", "means2d", "depths", "conics", "opacities")
    if not settings["packed"]:
        return {name: (meta[name], truth[name][:, own.gaussians]) for name in names}
    mine = _is_mine(truth, own)
    found = {name: (meta[name], truth[name][mine]) for name in (*names, "camera_ids")}
    return found | {"gaussian_ids": (meta["gaussian_ids"], truth["gaussian_ids"][mine] - own.gaussians.start)}


def gradients_of_means2d(
    meta: dict[str, Any], truth: dict[str, Any], own: Shard, settings: dict[str, Any]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns the gradients of projected means, which densification reads, from this rank and from a single process."""
    chosen: Any = _is_mine(truth, own) if settings["packed"] else (slice(None), own.gaussians)
    found = {"means2d.grad": (meta["means2d"].grad, truth["means2d"].grad[chosen])}
    if settings["absgrad"]:
        found["means2d.absgrad"] = (meta["means2d"].absgrad, truth["means2d"].absgrad[chosen])
    return found


def _is_mine(truth: dict[str, Any], own: Shard) -> Tensor:
    ids: Tensor = truth["gaussian_ids"]
    return (ids >= own.gaussians.start) & (ids < own.gaussians.stop)


def equality(groups: dict[int, dist.ProcessGroup], cases: int, first: int) -> dict[str, float]:
    tried, worst, same, compared = 0, 0.0, 0.0, 0.0
    for seed in range(first, first + cases):
        try:
            found = one_case(seed, groups)
        except Exception as error:
            raise AssertionError(f"case {seed}: {error}") from error
        if found is not None:
            tried, worst = tried + 1, max(worst, found["worst"])
            same, compared = same + found["same"], compared + found["compared"]
    return {"tried": tried, "worst": worst, "same": same, "compared": compared}


def surfels(_groups: dict[int, dist.ProcessGroup]) -> dict[str, float]:
    """Checks 2D Gaussians on four ranks: images and all gradients have the same bits as in a single process."""
    own, worst = shards([5, 4, 0, 11], [1, 2, 0, 1])[dist.get_rank()], 0.0
    for packed in (True, False):
        scene = scenes.make(scenes.Structure(n=20, cameras=4, sh_degree=1), torch.float64)
        del scene["covars"], scene["camera_model"]
        found = {}
        for name, part, options in (("whole", scene, {}), ("own", own.select(scene), dict(distributed=True))):
            leaves = scenes.leaves(part)
            *images, meta = tsplat.rasterization_2dgs(
                **leaves, render_mode="RGB+ED", packed=packed, depth_mode="ray", **options
            )
            images.pop(3)  # normals of depth maps, [H, W, 3] for one camera
            v = scenes.random_like(tuple(image.new_empty(4, *image.shape[1:]) for image in images), 0)
            cameras = own.cameras if options else slice(None)
            torch.autograd.backward(images, [v_image[cameras] for v_image in v])
            found[name] = images, leaves, meta["gradient_2dgs"].grad, meta
        (images, leaves, v_centers, meta), (expected, whole, v_all, truth) = found["own"], found["whole"]
        for one, other in zip(images, expected, strict=True):
            assert torch.equal(one, other[own.cameras])
        for name in ("means", "quats", "scales", "opacities", "colors"):
            assert torch.equal(leaves[name].grad, whole[name].grad[own.gaussians]), name
        worst = max(worst, assert_exact("viewmats", leaves["viewmats"].grad, whole["viewmats"].grad[own.cameras]))
        chosen: Any = _is_mine(truth, own) if packed else (slice(None), own.gaussians)
        assert torch.equal(v_centers, v_all[chosen])
        assert torch.equal(meta["ray_transforms"], truth["ray_transforms"][chosen])
        assert meta["received"]["ray_transforms"].shape[1:] == (3, 3)
    return {"worst": worst}


def call(change: dict[str, Any], **tensors: Any) -> tuple[Tensor, Tensor, dict[str, Any]]:
    structure = scenes.Structure(n=20, cameras=4, sh_degree=1, spare_bases=5, backgrounds=False)
    own = shards([5, 4, 0, 11], [1, 2, 0, 1])[dist.get_rank()]
    scene = scenes.leaves(own.select(scenes.make(structure, torch.float32)))
    return tsplat.rasterization(**(scene | dict(distributed=True) | tensors | change))


DISAGREEMENTS: dict[str, dict[str, Any]] = {
    "width": dict(width=22),
    "height": dict(height=20),
    "near_plane": dict(near_plane=0.1),
    "far_plane": dict(far_plane=7.0),
    "radius_clip": dict(radius_clip=1.5),
    "eps2d": dict(eps2d=0.1),
    "sh_degree": dict(sh_degree=0),
    "packed": dict(packed=False),
    "tile_size": dict(tile_size=8),
    "render_mode": dict(render_mode="RGB+D"),
    "absgrad": dict(absgrad=True),
    "rasterize_mode": dict(rasterize_mode="antialiased"),
    "backend": dict(backend="torch"),
    "numerics": dict(numerics="inria"),
    "camera_model": dict(camera_model="ortho"),
    "validate": dict(validate="off"),
    "compute dtype": dict(opacities="double"),
    "colors dtype": dict(colors="bfloat16"),
    "colors per Gaussian": dict(colors="fewer"),
    "extra_signals dtype": dict(extra_signals="half"),
    "extra_signals per Gaussian": dict(extra_signals="one channel"),
    "extra_signals_sh_degree": dict(extra_signals_sh_degree=1),
    "grad mode": dict(grad=False),
}


def disagreements(_groups: dict[int, dist.ProcessGroup]) -> dict[str, float]:
    """Checks that a setting that differs raises an error with its name and the rank on all ranks, and the next call
    works."""
    rank = dist.get_rank()
    for i, (name, change) in enumerate(DISAGREEMENTS.items()):
        odd = i % 4
        message = raised(tsplat.DisagreementError, lambda mine=change if rank == odd else {}: _changed(mine), name)
        assert f"{name}: " in message, (name, message)
        assert f"on rank {odd}" in message, (name, message)
        assert message.count("on rank") == 2, (name, message)
    call({})
    return {"fields": len(DISAGREEMENTS)}


def _changed(change: dict[str, Any]) -> None:
    n = [5, 4, 0, 11][dist.get_rank()]
    tensors: dict[str, Any] = {
        "double": torch.full((n,), 0.5, dtype=torch.float64),
        "bfloat16": torch.zeros(n, 9, 3, dtype=torch.bfloat16),
        "fewer": torch.zeros(n, 4, 3),
        "half": torch.zeros(n, 4, 2, dtype=torch.float16),
        "one channel": torch.zeros(n, 4, 1),
    }
    extra = dict(extra_signals=torch.zeros(n, 4, 2), extra_signals_sh_degree=0)
    change = extra | {
        name: tensors.get(value, value) if isinstance(value, str) else value for name, value in change.items()
    }
    with torch.set_grad_enabled(change.pop("grad", True)):
        call(change)


def rejections(_groups: dict[int, dist.ProcessGroup]) -> dict[str, float]:
    """Checks that an argument that one rank rejects raises an error on all ranks: PeerError with its message on
    others."""
    rank = dist.get_rank()
    n = [5, 4, 0, 11][rank]
    cases: list[tuple[int, dict[str, Any], type[Exception], str]] = [
        (1, dict(quats=torch.zeros(7, 4)), tsplat.ShapeError, "quats: expected"),
        (3, dict(validate="error", opacities=torch.full((n,), -3.0)), tsplat.InvalidValueError, "opacities: "),
        (0, dict(tile_size=5), tsplat.UnsupportedError, "tile_size: 5"),
        (2, dict(width="wide" * 5000), tsplat.ArgumentError, "width: expected a positive int"),
        (2, dict(camera_model="\N{SNOWMAN}" * 9000), tsplat.ArgumentError, "camera_model: expected"),
    ]
    for odd, change, error, text in cases:
        if rank == odd:
            assert text in raised(error, lambda mine=change: call(mine))
        else:
            message = raised(tsplat.PeerError, lambda: call({}))
            assert message.startswith(f"rank {odd} stopped with {error.__name__}: {text}"), message
    on_meta = {name: torch.zeros(n, k, device="meta") for name, k in (("means", 3), ("quats", 4), ("scales", 3))}
    on_meta |= {"opacities": torch.zeros(n, device="meta"), "colors": torch.zeros(n, 9, 3, device="meta")}
    c = [1, 2, 0, 1][rank]
    on_meta |= {"viewmats": torch.zeros(c, 4, 4, device="meta"), "Ks": torch.zeros(c, 3, 3, device="meta")}
    error = tsplat.DeviceError if rank == 0 else tsplat.PeerError
    message = raised(error, lambda: call(on_meta if rank == 0 else {}))
    assert "means: is on meta, which holds no values" in message
    scene = scenes.make(scenes.Structure(n=3), torch.float32) | dict(distributed=True)
    del scene["covars"], scene["camera_model"]
    error = tsplat.ArgumentError if rank == 1 else tsplat.PeerError
    message = raised(error, lambda: tsplat.rasterization_2dgs(**scene, distloss=rank == 1))
    assert "render_mode: expected one with depth, as distloss is True" in message
    batch = dict(means=torch.zeros(1, n, 3))
    assert "colors per camera" in raised(tsplat.UnsupportedError, lambda: call(dict(colors=torch.zeros(c, n, 9, 3))))
    extra = dict(extra_signals=torch.zeros(c, n, 2))
    assert "extra_signals per camera" in raised(tsplat.UnsupportedError, lambda: call(extra))
    assert "backend" in raised(tsplat.UnsupportedError, lambda: call(dict(backend="reference")))
    assert raised(tsplat.ShapeError, lambda: call(batch))
    call({})
    return {"rejected": len(cases) + 6}


def memory(_groups: dict[int, dist.ProcessGroup]) -> dict[str, float]:
    """Checks that too little memory on one rank raises an error on all ranks before gradients are exchanged, and that
    the next call works."""
    rank, retried = dist.get_rank(), 0
    enough, little, budget = dict(capacity=10_000), dict(capacity=2), dict(memory_budget=1)
    unfitting = enough | dict(memory_budget=1000)
    cases: list[tuple[int, dict[str, Any], dict[str, Any], type[Exception], type[Exception], str]] = [
        (1, little, enough, tsplat.CapacityError, tsplat.CapacityError, "capacity: rank 1: expected at most "),
        (3, little, {}, tsplat.CapacityError, tsplat.CapacityError, "capacity: rank 3: expected at most "),
        (1, budget, {}, tsplat.MemoryBudgetError, tsplat.PeerError, "need"),
        (0, budget, enough, tsplat.MemoryBudgetError, tsplat.PeerError, "need"),
        (3, unfitting, enough, tsplat.MemoryBudgetError, tsplat.PeerError, "capacity: "),
    ]
    for odd, change, others, own_error, error, text in cases:
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                message = raised(
                    own_error if rank == odd else error, lambda mine=change if rank == odd else others: call(mine), text
                )
                assert text in message, message
                assert rank == odd or f"rank {odd}" in message, message
                colors, alphas, _ = call(enough if "capacity" in others else {})
            if grad:
                (colors.sum() + alphas.sum()).backward()
            retried += 1
    # Enough for a band of one row of tiles: one rank renders in bands, and no rank raises an error.
    whole = call({})[0]
    banded, _, meta = call(dict(memory_budget=10_000) if rank == 1 else {})
    assert torch.equal(banded, whole)
    assert (meta["memory"]["bands"] > 1) == (rank == 1)
    return {"retried": retried}


def raised(error: type[Exception], action: Callable[[], Any], what: str = "") -> str:
    try:
        action()
    except error as found:
        return str(found)
    raise AssertionError(f"{error.__name__} was not raised {what}")


def release(_groups: dict[int, dist.ProcessGroup]) -> dict[str, float]:
    """Checks that all tensors of a call are freed with its results, with or without absgrad and a backward pass."""
    for absgrad in (False, True):
        for backward in (False, True):
            colors, alphas, meta = call(dict(absgrad=absgrad))
            kept = [weakref.ref(t) for t in (meta["received"]["means2d"], meta["means2d"], colors)]
            if backward:
                (colors.sum() + alphas.sum()).backward()
            del colors, alphas, meta
            assert [reference() for reference in kept] == [None] * 3, (absgrad, backward)
    found = []
    for context in (contextlib.nullcontext(), released_rows()):
        with context:
            colors, alphas, meta = call(dict(packed=True))
        found.append((colors, alphas, meta["received"]["means2d"], meta["received"]["gaussian_ids"]))
        assert len(meta["means2d"]) == len(meta["gaussian_ids"]) and meta["means2d"].dim() == 2
        assert len(meta["means2d"]) == 0 or len(found) == 1
        (colors.sum() + alphas.sum()).backward()
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    return {}


def destruction(_groups: dict[int, dist.ProcessGroup]) -> dict[str, float]:
    """Checks that a loss keeps no threads of a destroyed process group alive, and that its backward pass raises an
    error."""
    before = threads()
    group = dist.new_group(timeout=TIMEOUT)
    colors, _, _ = call(dict(group=group))
    assert threads() > before
    dist.destroy_process_group(group)
    del group
    assert threads() == before
    message = raised(tsplat.ArgumentError, lambda: colors.sum().backward())
    assert message.startswith("group: the process group was destroyed; call torch.distributed.destroy_process_group()")
    return {}


def threads() -> int:
    """Returns the number of threads of this process. Until PyTorch 2.10, gloo's threads have no names."""
    return len(list(Path("/proc/self/task").iterdir()))


def volume(_groups: dict[int, dist.ProcessGroup]) -> dict[str, float]:
    """Checks the number of bytes per projected Gaussian with RGB in docs/distributed.md, forward and backward."""
    sent = []
    send = dist.all_to_all_single

    def counted(output: Tensor, tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        sent.append(math.prod(tensor.shape[1:]) * tensor.element_size())
        return send(output, tensor, *arguments, **options)

    dist.all_to_all_single = counted
    try:
        colors, _, _ = call({})
        colors.sum().backward()
    finally:
        dist.all_to_all_single = send
    # Sizes of counts, projected Gaussians, their gradients, and camera gradients.
    assert sent == [8, ROW_BYTES, ROW_BYTES_BACK, 64], sent
    return {}


def timeout(_groups: dict[int, dist.ProcessGroup]) -> dict[str, float]:
    """Checks that the other ranks raise an error after the group's timeout if one rank does not call."""
    # Long enough for all ranks to join the group on a busy machine.
    group = dist.new_group(timeout=datetime.timedelta(seconds=5))
    began = time.monotonic()
    if dist.get_rank() != 1:
        raised(RuntimeError, lambda: call(dict(group=group)))
    seconds = time.monotonic() - began
    dist.barrier()  # rank 1 stays until the others have raised
    return {"seconds": seconds}


def death(_groups: dict[int, dist.ProcessGroup]) -> dict[str, float]:
    """Checks that if one rank dies between forward and backward, the others raise an error long before the timeout of
    120 seconds."""
    colors, _, _ = call({})
    began = time.monotonic()
    if dist.get_rank() == 3:
        return {}
    raised(RuntimeError, lambda: colors.sum().backward())
    return {"seconds": time.monotonic() - began}


def run_jobs(rank: int, size: int, folder: Path, cases: int, seed: int) -> None:
    log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("warn")
    warnings.simplefilter("error")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=TIMEOUT)
    made = {n: dist.new_group(list(range(n)), timeout=TIMEOUT) for n in (2, 3, 4)}
    groups = {n: group for n, group in made.items() if isinstance(group, dist.ProcessGroup)}
    jobs: dict[str, Callable[[], dict[str, float]]] = {
        "equality": lambda: equality(groups, cases, seed),
        **{
            job.__name__: lambda job=job: job(groups)
            for job in (surfels, disagreements, rejections, memory, release, destruction, volume, timeout)
        },
        "death": lambda: death(groups),
    }
    report: dict[str, Any] = {}
    for name, job in jobs.items():
        began = time.monotonic()
        try:
            report[name] = {"figures": job(), "error": None}
        except Exception:
            report[name] = {"figures": {}, "error": traceback.format_exc()[-3000:]}
        report[name]["took"] = time.monotonic() - began
        temporary = folder / f"{rank}.tmp"
        temporary.write_text(json.dumps(report))
        temporary.replace(folder / f"{rank}.json")
        if report[name]["error"]:
            break
    # Destroying the process group would wait for the rank that died.
    os._exit(0)


def main() -> None:
    size, folder, cases, seed = int(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])
    for module in ("torch._dynamo", "tsplat.kernels"):
        importlib.import_module(module)  # before the fork, for all ranks
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=run_jobs, args=(rank, size, folder, cases, seed)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
