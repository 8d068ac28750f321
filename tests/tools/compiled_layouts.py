"""Compares torch.compile with eager calls for tensors of all layouts: `python -m tests.tools.compiled_layouts`.

Each input of a function, and each gradient of its outputs, is tested in each layout with several origins: a leaf, a
parameter, a view of a leaf, or a view created in the graph. A call combines layouts and origins of all inputs. Few
inputs per call have a layout that changes values, so that the results remain meaningful. Tensor subclasses and
inference tensors, which raise an error, are tested one per call. Compiled and eager calls must return equal bits or
raise an error; the tool names the input that causes a failure. The order of cases alternates between backends,
compilers and functions. With `--log FILE`, the tool continues where an earlier run crashed or stopped.
"""

import argparse
import collections
import functools
import itertools
import math
import os
import random
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.support import scenes
from tests.support.layouts import LAYOUTS, MORE, lay_out
from tsplat import l1_and_ssim, l1_ssim_loss, rasterization

SUMMED = ("expanded", "one value", "last axis of one value", "overlapping", "negative of one value")
"""Layouts whose gradients are sums. Inductor adds in a different order if the view is created in its graph."""
CHANGING = (*SUMMED, "zero")
"""Layouts that change values."""

ORIGINS = ("leaf", "view", "in the graph", "parameter")
REFUSED = ("subclass", "inference")
"""Origins of tensors that raise an error, except in eager calls without gradients for them."""
NOT_TRACED = ("zero", "shared memory", "of NumPy, columns first")
"""Layouts that Dynamo cannot create in a graph."""

BACKENDS, COMPILERS = ("torch", "triton"), ("aot_eager", "inductor")

Choices = dict[str, tuple[str, str]]
"""Name of a tensor -> its layout and origin. "v" denotes the gradients of the outputs."""


class Subclass(Tensor):
    """A subclass of Tensor that overrides nothing."""


class Target(NamedTuple):
    """A function of named tensors, and the names of its differentiable inputs."""

    function: Callable[..., tuple[Tensor, ...]]
    tensors: dict[str, Tensor]
    differentiable: tuple[str, ...]


def targets(backend: str) -> dict[str, Target]:
    """Returns the functions to test with their inputs."""
    structure = scenes.Structure(n=9, cameras=2, width=18, height=13, seed=7)
    options = dict(packed=False, capacity=4000, backend=backend)

    def of_scene(structure: scenes.Structure, **more: Any) -> Target:
        scene = scenes.make(structure, torch.float32)
        given = {name: value for name, value in scene.items() if isinstance(value, Tensor)}
        if more.pop("extra", False):
            given["extra_signals"] = torch.rand(*scene["means"].shape[:-1], 2)
            given["backgrounds"] = torch.rand(*scene["backgrounds"].shape[:-1], scene["backgrounds"].shape[-1] + 2)
        if more.pop("in_two_tensors", False):
            given["colors"], given["shN"] = scene["colors"][..., :1, :].clone(), scene["colors"][..., 1:, :].clone()
        fixed = {name: value for name, value in scene.items() if name not in given} | options | more

        def render(**tensors: Tensor) -> tuple[Tensor, ...]:
            colors, alphas, meta = rasterization(**tensors, **fixed)
            if "extra_signals" in tensors:
                return colors, alphas, meta["render_extra_signals"]
            return colors, alphas

        differentiable = (*scenes.DIFFERENTIABLE, "shN", "extra_signals")
        return Target(render, given, tuple(name for name in differentiable if name in given))

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
        "harmonics in two tensors": of_scene(changed(sh_degree=2, n=10), in_two_tensors=True),
        "covariances": of_scene(changed(covars=True, batch=(2,), channels=5), extra=True),
        "evaluation in 3D": of_scene(changed(cameras=1), with_eval3d=True, with_ut=True, validate="off"),
    }


def cases(target: Target, compiler: str, rounds: int, third: int) -> list[Choices]:
    """Returns cases in which each tensor has each layout once per round, with a different origin in each round.

    Of the cases with tensors that raise an error, a third is selected.
    """
    names, layouts = [*target.tensors], [layout for layout in (*LAYOUTS, *MORE) if layout not in CHANGING]

    def choice(i: int, layout: str, k: int) -> tuple[str, str]:
        in_graph = layout not in NOT_TRACED and (compiler == "aot_eager" or layout not in SUMMED)
        possible = ORIGINS if in_graph else tuple(origin for origin in ORIGINS if origin != "in the graph")
        return layout, possible[(i + [*LAYOUTS, *MORE].index(layout) + k) % len(possible)]

    changed = [(i, layout, k) for i in range(len(names)) for layout in CHANGING for k in range(rounds)]
    n = rounds * len((*LAYOUTS, *MORE))
    taken = collections.Counter[tuple[int, str]]()
    changed = [entry for i in range(2) for entry in changed[i::2]]
    found = []
    for position in range(n):
        choices: Choices = {}
        for i, name in enumerate(names):
            if own := [entry for entry in changed[position::n] if entry[0] == i]:
                choices[name] = choice(*own[0])
                continue
            least = min(taken[i, layout] for layout in layouts)
            free = [layout for layout in layouts if taken[i, layout] == least]
            layout = free[7 * (i + position) % len(free)]
            choices[name] = choice(i, layout, taken[i, layout])
            taken[i, layout] += 1
        choices["v"] = layouts[position % len(layouts)], "leaf"
        found.append(choices)
    found += [{"v": (layout, "leaf")} for layout in CHANGING]
    found += [{"shared": ("contiguous", origin)} for origin in ("leaf", "view")]
    for i, (layout, origin) in enumerate(itertools.product((*LAYOUTS, *MORE), REFUSED)):
        if i % 3 == third:
            found.append({names[i % len(names)]: (layout, origin)})
    return found


def in_turn(backends: Sequence[str], compilers: Sequence[str], rounds: int) -> Iterator[tuple[str, str, str, Choices]]:
    """Yields backend, compiler, target name and case, with all of them distributed evenly over the sequence."""
    lists = []
    for (backend, compiler), name in itertools.product(itertools.product(backends, compilers), targets(backends[0])):
        of_target = cases(targets(backend)[name], compiler, rounds, len(lists) % 3)
        random.Random(0).shuffle(of_target)
        lists.append([(backend, compiler, name, choices) for choices in of_target])
    # Each list advances in proportion to its length, as targets with many tensors have many cases.
    order = [((i + 0.5) / len(part), n, case) for n, part in enumerate(lists) for i, case in enumerate(part)]
    yield from (case for _, _, case in sorted(order, key=lambda entry: entry[:2]))


def run(target: Target, choices: Choices, compiler: str | None) -> list[Tensor | None]:
    """Returns outputs and gradients."""
    leaves, given = {}, {}
    inside: dict[str, Callable[[Tensor], Tensor]] = {}
    tensors = {name: t.clone() for name, t in target.tensors.items()}
    if "shared" in choices:  # all inputs are slices of one tensor
        origin = choices["shared"][1]
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
        if name not in choices:
            given[name] = t.requires_grad_(needs) if needs else t
            if needs:
                leaves[name] = t
            continue
        layout, origin = choices[name]
        if origin in ("view", "in the graph"):
            leaf = t.requires_grad_(needs)
            given[name] = lay_out(leaf, layout) if origin == "view" else leaf
            if origin == "in the graph":
                inside[name] = functools.partial(lay_out, layout=layout)
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
        return target.function(**{name: inside[name](t) if name in inside else t for name, t in given.items()})

    call = function if compiler is None else torch.compile(function, fullgraph=True, backend=compiler)
    outputs = call(given)
    v = scenes.random_like(outputs, 3)
    if "v" in choices:
        v = [lay_out(t, choices["v"][0]) if t.dim() else t for t in v]
    # Some layouts belong to tensors without a gradient.
    gradients = torch.autograd.grad(outputs, list(leaves.values()), v, allow_unused=True)
    return [None if t is None else t.as_subclass(Tensor).detach().clone() for t in (*outputs, *gradients)]


def is_same(found: Tensor | None, expected: Tensor | None) -> bool:
    """Returns whether two results have equal bits, or are both NaN."""
    if found is None or expected is None:
        return found is expected
    equal = (found == expected) | (found.isnan() & expected.isnan())
    return found.dtype == expected.dtype and found.shape == expected.shape and bool(equal.all())


def check(target: Target, choices: Choices, compiler: str) -> str:
    """Compares a compiled call with an eager call. Returns the result as a message."""
    eager = refused = None
    try:
        eager = run(target, choices, None)
    except Exception as error:
        refused = error
    try:
        torch.compiler.reset()
        found = run(target, choices, compiler)
    except Exception as error:
        words = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return f"refused by both: {words}" if refused is not None else f"refused: {words}"
    if eager is None:
        return f"refused when eager only: {refused}"
    return "equal" if all(map(is_same, found, eager)) else "WRONG"


def at_fault(target: Target, choices: Choices, compiler: str, found: str) -> Choices:
    """Removes all choices that are not required for the result `found`. Returns the rest."""
    kind = found.partition(":")[0]
    for name in choices:
        fewer = {other: choice for other, choice in choices.items() if other != name}
        if fewer and check(target, fewer, compiler).partition(":")[0] == kind:
            choices = fewer
    return choices


def checked(log: Path | None) -> dict[str, str]:
    """Returns the result of each case in a log. A case that ended the process counts as wrong."""
    lines = log.read_text().splitlines() if log and log.exists() else []
    return {case: found or "WRONG: ended the process" for case, _, found in (line.partition(" -> ") for line in lines)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--compiler", nargs="+", default=COMPILERS, choices=COMPILERS)
    parser.add_argument("--target", help="check this function only")
    parser.add_argument("--rounds", type=int, default=2, help="check each layout with this many origins, up to 4")
    parser.add_argument("--shard", default="0/1", help="K/N: check part K of N, counted from 0")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no case later than this")
    parser.add_argument("--log", type=Path, help="append results to this file; cases that it has are not run again")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    shard, shards = map(int, arguments.shard.split("/"))
    all_targets = {backend: targets(backend) for backend in arguments.backend}
    results = checked(arguments.log)
    start = time.monotonic()
    n_cases, equal = 0, collections.defaultdict[tuple[str, ...], set[tuple[str, str]]](set)
    with open(arguments.log or os.devnull, "a") as log:
        if results and not arguments.log.read_text().endswith("\n"):
            log.write("\n")
        for backend, compiler, name, choices in in_turn(arguments.backend, arguments.compiler, arguments.rounds):
            label = f"{backend}, {compiler}, {name}: " + "; ".join(
                f"{of} {layout} ({origin})" for of, (layout, origin) in choices.items()
            )
            # Shards are selected by a hash, as a regular stride could select some functions more often than others.
            if arguments.target not in (None, name) or zlib.crc32(label.encode()) % shards != shard:
                continue
            n_cases += 1
            if label not in results and time.monotonic() - start < 60 * arguments.minutes:
                for output in (sys.stdout, log):  # before the case runs, as it may crash the process
                    print(label, end=" -> ", flush=True, file=output)
                target = all_targets[backend][name]
                results[label] = found = check(target, choices, compiler)
                if found != "equal" and len(choices) > 1:
                    results[label] = f"{found} | at fault: {at_fault(target, choices, compiler, found)}"
                for output in (sys.stdout, log):
                    print(results[label], flush=True, file=output)
            if results.get(label) == "equal":
                for of, choice in choices.items():
                    equal[backend, compiler, name, of].add(choice)
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for label, found in results.items():
        counts[", ".join(label.split(", ")[:2])][found.partition(":")[0].partition(" |")[0]] += 1
    for kind, of_kind in sorted(counts.items()):
        sizes = [
            len(found)
            for key, found in equal.items()
            if f"{key[0]}, {key[1]}" == kind and key[3] not in ("v", "shared")
        ]
        print(f"{kind}: {dict(of_kind)}; {sum(sizes)} layouts with origins, {min(sizes, default=0)} or more per input")
    print(f"{len(results)} of {n_cases} cases in {time.monotonic() - start:.0f} s")
    total = sum(counts.values(), collections.Counter())
    return 1 if total["WRONG"] or total["refused when eager only"] else 0


if __name__ == "__main__":
    sys.exit(main())
