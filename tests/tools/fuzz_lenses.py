"""Tests random scenes with every lens, lidars and every primitive in fp32: `python -m tests.tools.fuzz_lenses --family
eval3d --count 500`.

Kernels are compiled for the CPU, or emulated with `--arch sm_80`, and compared with the fp64 reference under the
tolerance policy of tests/support/closeness.py. Their decisions must equal those of the reference, except within
rounding errors of a threshold (decisions.py). Images and gradients are compared with the reference's results for the
same decisions. Scenes cycle through a limited number of kinds of calls (`--kinds 4`), because compilation dominates the
time: about 10 s of CPU time per kind on an emulated GPU, then a third of a second per scene.
"""

import argparse
import contextlib
import functools
import random
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import tsplat
from emulator.machine import EmulationError
from emulator.package import tsplat_emulated
from tests.stages import test_surfels
from tests.support import lidars
from tests.support.closeness import SAMPLES, assert_fp32, jitter, observe_decisions
from tests.support.lenses import CASES, make
from tests.support.scenes import leaves, random_like
from tests.tools.decisions import check_decisions, double
from tsplat import reference
from tsplat.reference import surfel_formulas

FAMILIES = ("unscented", "eval3d", "2dgs", "lidar")
MODES = ("RGB", "RGB+ED", "D", "RGB-Ed", "d", "RGB+D", "Ed", "RGB-d")
"""Render modes through which the kinds of calls cycle. Lowercase modes (distances along rays) are replaced by the
corresponding uppercase ones where they are not supported."""

N_KINDS = {"unscented": len(CASES), "eval3d": len(CASES), "2dgs": 12, "lidar": 12}


def draw(family: str, seed: int, kinds: int | None = None, lens: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a random scene and the options of its kind of call."""
    r, dtype = random.Random(seed), torch.float32
    # Consecutive kinds are similar.
    kind = (seed if kinds is None else 5 * (seed % kinds)) % N_KINDS[family]
    structure = dict(
        n=r.choice([2, 3, 7, 9, 12, 15]), width=r.randint(3, 24), height=r.randint(3, 24), cameras=r.choice([1, 2]),
        size=r.choice([0.5, 1.0, 3.0, 8.0]), backgrounds=True,
    )  # fmt: skip
    if family == "2dgs":
        structure |= dict(sh_degree=(None, 2)[kind // 6], batch=((), (2,))[kind % 2])
        options = dict(render_mode=("RGB", "RGB+D", "RGB+ED")[kind % 3])
        scene = test_surfels.make(seed, dtype, **structure)
    elif family == "lidar":
        drawn = dict(rows=r.randint(2, 24), columns=r.randint(2, 40), offsets=r.choice([0.0, 0.05, 0.3, 2.0]))
        drawn |= dict(span=r.choice([None, None, 1.0, 2.5, 6.0]), unevenness=r.choice([0.0, 0.5, 1.5]))
        drawn |= {name: structure[name] for name in ("n", "cameras", "size")}
        drawn["poles"] = r.random() < 0.3
        scene = lidars.make(seed, dtype=dtype, sweeps=kind % 4 == 3, **drawn)
        options = dict(render_mode=MODES[kind % len(MODES)], return_normals=kind % 5 == 0, with_eval3d=True)
        del scene["with_eval3d"]
    else:
        structure |= dict(sh_degree=(None, 2)[kind % 2], batch=((), (2,))[kind // 2 % 2])
        mode = MODES[kind // 2 % len(MODES)]
        options = dict(
            render_mode=mode if family == "eval3d" else mode.replace("-", "+").upper(),
            rasterize_mode=("classic", "antialiased")[kind // 4 % 2], with_eval3d=family == "eval3d",
            global_z_order=kind % 5 != 0, return_normals=family == "eval3d" and kind % 3 == 0,
        )  # fmt: skip
        cases = [case for case in CASES if lens in case[0]]
        scene = make(*cases[kind % len(cases)], seed, dtype, **structure)
        options["global_z_order"] = scene.pop("global_z_order", options["global_z_order"])
    options |= dict(
        tile_size=(16, 8, 4)[kind % 3], packed=kind % 2 == 1, numerics=("gsplat-1.5", "gsplat-1.6")[kind // 2 % 2]
    )
    return scene, options


def run(scene: dict[str, Any], options: dict[str, Any], render: Any) -> dict[str, Tensor | None]:
    """Returns images and the gradients of a random loss."""
    inputs = leaves(scene)
    if "viewmats_rs" in scene:
        inputs["viewmats"] = scene["viewmats"]
    colors, alphas, *others, meta = render(**inputs, **options)
    images = {"colors": colors, "alphas": alphas}
    if others:
        images |= {"normals": others[0], "distort": others[2]}
    elif options.get("return_normals"):
        images["normals"] = meta["normals"]
    images = {name: image for name, image in images.items() if image is not None}
    wanted = {name: t for name, t in inputs.items() if isinstance(t, Tensor) and t.requires_grad}
    outputs = [image for image in images.values() if image.requires_grad]
    gradients: tuple[Tensor | None, ...] = (None,) * len(wanted)
    if outputs:
        v_outputs = random_like(tuple(outputs), 0)
        gradients = torch.autograd.grad(outputs, tuple(wanted.values()), v_outputs, allow_unused=True)
    return {name: image.detach() for name, image in images.items()} | dict(zip(wanted, gradients))


def run_kernels(scene: dict[str, Any], options: dict[str, Any]) -> dict[str, Tensor | None]:
    render = tsplat.rasterization if "with_eval3d" in options else tsplat.rasterization_2dgs
    return run(scene, options | dict(backend="triton"), render)


def run_reference(
    scene: dict[str, Any], options: dict[str, Any], decisions: reference.Decisions
) -> dict[str, Tensor | None]:
    with _decided(decisions):
        if "with_eval3d" in options:
            return run(scene, options | dict(backend="reference", packed=False), tsplat.rasterization)
        return run(scene, {k: v for k, v in options.items() if k != "packed"}, test_surfels.render_reference)


@contextlib.contextmanager
def _decided(decisions: reference.Decisions) -> Iterator[None]:
    """Makes the reference use the given decisions, including those about tiles."""
    rasterize, composite = reference.rasterize, surfel_formulas.composite

    @functools.wraps(rasterize)
    def decided(**named: Any) -> Any:
        return rasterize(**named | dict(decisions=decisions))

    def everywhere(*arguments: Any) -> Tensor:
        return torch.ones((), dtype=torch.bool)

    with (
        patch.object(reference, "rasterize", decided),
        patch.object(
            surfel_formulas, "composite", lambda *a, **named: composite(*a, contributes=decisions.contributes, **named)
        ),
        patch.object(reference, "_in_tiles", everywhere),
        patch.object(surfel_formulas, "_in_tiles", everywhere),
    ):
        yield


def decisions_of(scene: dict[str, Any], options: dict[str, Any]) -> reference.Decisions:
    if "with_eval3d" in options:
        options = {name: value for name, value in options.items() if name != "return_normals"}
        return observe_decisions(scene, **options, backend="triton")
    with patch.object(tsplat, "rasterization", _surfels):
        return observe_decisions(scene, **options, backend="triton")


def _surfels(**arguments: Any) -> tuple[Tensor, Tensor, dict[str, Any]]:
    colors, alphas, *_, meta = tsplat.rasterization_2dgs(**arguments)
    return colors, alphas, meta


def check(
    family: str, seed: int, kinds: int | None = None, arch: str | None = None, code: Any = None, lens: str = ""
) -> float:
    """Returns the largest ratio of an error to its bound. Raises AssertionError if it exceeds 1."""
    scene, options = draw(family, seed, kinds, lens)
    # The reference runs outside the context, as code that the emulator watches takes ten times as long.
    with contextlib.nullcontext() if arch is None else tsplat_emulated(arch, code):
        decisions = decisions_of(scene, options)
        found = run_kernels(scene, options)
    check_decisions(scene, options, decisions, seed)
    truth = run_reference(double(scene), options, decisions)
    plain = run_reference(scene, options, decisions)
    try:
        return max(assert_fp32(name, found[name], truth[name], plain[name]) for name in truth)
    except AssertionError:
        worst = {name: plain[name] for name in truth}
        for sample in range(SAMPLES):
            moved = jitter(scene, seed + sample)
            one, exact = (run_reference(s, options, decisions) for s in (moved, double(moved)))
            for name, tensor in truth.items():
                if tensor is None or one[name] is None or exact[name] is None:
                    continue
                candidate = tensor + (one[name].double() - exact[name])
                if (candidate - tensor).abs().max() > (worst[name].double() - tensor).abs().max():
                    worst[name] = candidate
        return max(assert_fp32(name, found[name], truth[name], worst[name]) for name in truth)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=FAMILIES, action="append", help="all")
    parser.add_argument("--count", type=int, default=500, help="scenes of each family (500)")
    parser.add_argument("--seed", type=int, default=0, help="of the first scene (0)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="of CPU time, after which it stops")
    parser.add_argument("--kinds", type=int, help="of calls in each family (all)")
    parser.add_argument("--lens", default="", help="word in the name of a lens of tests/support/lenses.py (all)")
    parser.add_argument("--arch", help="of the emulated GPU: sm_80, sm_90, gfx942 (compiled for the CPU)")
    parser.add_argument("--code", help="ptx, sass or amdgcn (that of the emulated GPU)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    failures = 0
    for family in arguments.family or FAMILIES:
        tried, violations, worst, seed = 0, 0, 0.0, arguments.seed
        began = time.thread_time()
        while tried < arguments.count and time.thread_time() - began < 60 * arguments.minutes:
            try:
                error = check(family, seed, arguments.kinds, arguments.arch, arguments.code, arguments.lens)
                worst = max(worst, error)
            except (AssertionError, EmulationError) as failure:
                violations += 1
                print(f"{family} {seed}: {str(failure).splitlines()[0]}", flush=True)
            tried, seed = tried + 1, seed + 1
            if tried % 50 == 0:
                print(f"  {tried} scenes, {time.thread_time() - began:.0f} s", flush=True)
        where = arguments.arch or "compiled for the CPU"
        print(
            f"{family}, {where}: {tried} scenes, {violations} violations, largest error over its bound {worst:.3f}, "
            f"{time.thread_time() - began:.0f} s of CPU time", flush=True,
        )  # fmt: skip
        failures += violations
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
