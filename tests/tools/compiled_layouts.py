"""Compare torch.compile with eager calls for tensors of all layouts: `python -m tests.tools.compiled_layouts`.

One input of a function at a time, or the gradients of its outputs, have a layout. The input is a leaf, a view of one, a
view that is made in the graph, or a tensor of another class. Calls give equal bits, or refuse the tensor in words.
"""

import argparse
import collections
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.support import scenes
from tests.support.layouts import LAYOUTS, MORE, lay_out
from tsplat import l1_and_ssim, l1_ssim_loss, rasterization

SUMMED = ("expanded", "one value", "last axis of one value", "overlapping", "negative of one value")
"""Layouts whose gradients are sums, which Inductor adds in another order where the view is made in its graph."""

ORIGINS = ("leaf", "view", "in the graph", "parameter", "subclass", "inference")


class Subclass(Tensor):
    """A tensor of another class, whose operations are those of tensors."""


class Target(NamedTuple):
    """A function of named tensors, some of which are differentiable."""

    function: Callable[..., tuple[Tensor, ...]]
    tensors: dict[str, Tensor]
    differentiable: tuple[str, ...]


def targets(backend: str) -> dict[str, Target]:
    """The functions that graphs contain, each with tensors that differ in kind."""
    structure = scenes.Structure(n=9, cameras=2, width=18, height=13, seed=7)
    options = dict(packed=False, capacity=4000, backend=backend)

    def of_scene(structure: scenes.Structure, **more: Any) -> Target:
        scene = scenes.make(structure, torch.float32)
        given = {name: value for name, value in scene.items() if isinstance(value, Tensor)}
        if more.pop("extra", False):
            given["extra_signals"] = torch.rand(*scene["means"].shape[:-1], 2)
            given["backgrounds"] = torch.rand(*scene["backgrounds"].shape[:-1], scene["backgrounds"].shape[-1] + 2)
        fixed = {name: value for name, value in scene.items() if name not in given} | options | more

        def render(**tensors: Tensor) -> tuple[Tensor, ...]:
            colors, alphas, meta = rasterization(**tensors, **fixed)
            if "extra_signals" in tensors:
                return colors, alphas, meta["render_extra_signals"]
            return colors, alphas

        return Target(render, given, tuple(name for name in (*scenes.DIFFERENTIABLE, "extra_signals") if name in given))

    image, target = torch.rand(2, 2, 13, 15, 3, generator=torch.Generator().manual_seed(0))
    images = dict(image=image, target=target)

    def both(image: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        return l1_and_ssim(image, target, padding="valid", backend=backend)

    def loss(image: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        return (l1_ssim_loss(image, target, backend=backend),)

    changed = (
        structure._replace if hasattr(structure, "_replace") else lambda **c: scenes.dataclasses.replace(structure, **c)
    )
    return {
        "loss": Target(loss, images, ("image",)),
        "two losses": Target(both, images, ("image",)),
        "rasterization": of_scene(structure, render_mode="RGB+ED"),
        "harmonics": of_scene(changed(sh_degree=1, n=10), rasterize_mode="antialiased"),
        "covariances": of_scene(changed(covars=True, batch=(2,), channels=5), extra=True),
        "evaluation in 3D": of_scene(changed(cameras=1), with_eval3d=True, with_ut=True, validate="off"),
    }


def cases(target: Target) -> Iterator[tuple[str, str, str]]:
    """Names of a tensor, a layout and an origin; or "v0", ... for gradients of outputs."""
    for name in target.tensors:
        for layout in (*LAYOUTS, *MORE):
            for origin in ORIGINS[:3]:
                yield name, layout, origin
        for origin in ORIGINS[3:]:
            yield name, "contiguous", origin
            yield name, "columns of a table", origin
    for layout in (*LAYOUTS, *MORE):
        yield "v", layout, "leaf"
    yield "shared", "contiguous", "leaf"
    yield "shared", "contiguous", "view"


def run(target: Target, case: tuple[str, str, str], compiler: str | None) -> list[Tensor]:
    """Outputs and gradients."""
    chosen, layout, origin = case
    leaves, given = {}, {}
    inside: Callable[[Tensor], Tensor] | None = None
    tensors = {name: t.clone() for name, t in target.tensors.items()}
    if chosen == "shared":  # all tensors are parts of one
        members = {name: t for name, t in tensors.items() if origin == "leaf" or name in target.differentiable}
        whole = torch.cat([t.flatten() for t in members.values()])
        if origin == "view":
            whole.requires_grad_()
        parts = whole.split([t.numel() for t in members.values()])
        tensors |= {name: part.view(t.shape) for (name, t), part in zip(members.items(), parts)}
        if origin == "view":
            leaves["whole"] = whole
    for name, t in tensors.items():
        needs = name in target.differentiable and "whole" not in leaves
        if chosen != name:
            given[name] = t.requires_grad_(needs) if needs else t
            if needs:
                leaves[name] = t
            continue
        if origin in ("view", "in the graph"):
            leaf = t.requires_grad_(needs)
            given[name] = lay_out(leaf, layout) if origin == "view" else leaf
            inside = (lambda t: lay_out(t, layout)) if origin == "in the graph" else None
        elif origin == "inference":
            with torch.inference_mode():
                given[name], needs = lay_out(t.clone(), layout), False
        else:
            leaf = lay_out(t, layout).detach()
            if origin == "parameter":
                leaf = torch.nn.Parameter(leaf, requires_grad=needs)
            elif origin == "subclass":
                leaf = leaf.as_subclass(Subclass)
            given[name] = leaf = leaf.requires_grad_(needs)
        if needs:
            leaves[name] = leaf

    def function(given: dict[str, Tensor]) -> tuple[Tensor, ...]:
        if inside is not None:
            given = {**given, chosen: inside(given[chosen])}
        return target.function(**given)

    call = function if compiler is None else torch.compile(function, fullgraph=True, backend=compiler)
    outputs = call(given)
    v = scenes.random_like(outputs, 3)
    if chosen == "v":
        v = [lay_out(t, layout) if t.dim() else t for t in v]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), v)
    return [t.as_subclass(Tensor).detach().clone() for t in (*outputs, *gradients)]


def check(target: Target, case: tuple[str, str, str], compiler: str) -> str:
    """Says how a compiled call compares with an eager one."""
    eager = refused = None
    try:
        eager = run(target, case, None)
    except Exception as error:
        refused = error
    try:
        found = run(target, case, compiler)
    except Exception as error:
        words = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if refused is not None:
            return f"refused by both: {words}"
        return f"refused: {words}"
    if eager is None:
        return f"refused when eager only: {refused}"
    same = len(eager) == len(found) and all(
        a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
        for a, b in zip(eager, found)
    )
    return "equal" if same else "WRONG"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="triton", choices=("torch", "triton"))
    parser.add_argument("--compiler", default="aot_eager", choices=("aot_eager", "inductor"))
    parser.add_argument("--target", help="check this function only")
    parser.add_argument(
        "--every", type=int, default=1, help="check one of this many cases; 3 and its multiples give leaves only"
    )
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    counts: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    for name, target in targets(arguments.backend).items():
        if arguments.target not in (None, name):
            continue
        for i, case in enumerate(cases(target)):
            if i % arguments.every or (
                arguments.compiler == "inductor" and case[1:] in [(s, ORIGINS[2]) for s in SUMMED]
            ):
                continue
            print(f"{name}: {', '.join(case)}: ", end="", flush=True)  # a crash follows the name of its case
            torch.compiler.reset()
            found = check(target, case, arguments.compiler)
            counts[found.partition(":")[0]] += 1
            print(found, flush=True)
    print(f"{arguments.backend}, {arguments.compiler}: {dict(counts)} in {time.monotonic() - start:.0f} s")
    return 1 if counts["WRONG"] or counts["refused when eager only"] else 0


if __name__ == "__main__":
    sys.exit(main())
