"""What the kernels cost on machines that are not there: registers, spills and machine instructions.

Triton compiles for any target on any machine, and NVIDIA's disassembler lies in its wheel. The launches are those the
package makes: its own launchers run on a tiny scene while their kernel calls are recorded instead of executed.

    python -m benchmarks.static_cost [--targets cuda:90 hip:gfx942 ...] [--channels 3 ...] [--kernels NAME ...] [--json]
    python -m benchmarks.static_cost --base REF       the same at another commit, and what differs
    python -m benchmarks.static_cost --write-budgets  what `make test` allows at most, from what is

Compositing is counted in instructions of the loop over Gaussians per 32 pixel-Gaussian pairs (a warp's worth), for all
channels where `_features` kernels take them chunk by chunk, and for one pass over the pairs elsewhere; other kernels in
instructions of the whole program per 32 lanes of output. Everything is exact and the same on every machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from tsplat import kernels as kernels_module
from tsplat.config import DEFAULT_NUMERICS
from tsplat.kernels import launch

TARGETS = ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942", "hip:gfx1100")
CHANNELS = (1, 3, 4, 8, 16, 64)
BUDGETS = Path(__file__).with_name("budgets.json")

TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.bool: "*i1",
}
WALKS = ("_composite", "_features")
"""Kernels that walk a tile's list."""

CLASSES = {
    "special": r"MUFU",
    "tensor": r"HMMA|IMMA|DMMA|HGMMA|WGMMA|UTCHMMA|UTC.*MMA",
    "shuffle": r"SHFL|VOTE|REDUX",
    "atomic": r"RED|ATOM",
    "memory": r"LD|ST|ULD|CCTL|MEMBAR",
    "control": r"BRA|BSSY|BSYNC|EXIT|BAR|WARPSYNC|NOP|CALL|RET|YIELD|BREAK|BMOV|DEPBAR",
    "float": r"F|HADD2|HMUL2|HFMA2",
}


@dataclasses.dataclass(frozen=True)
class Launch:
    """One kernel call as a launcher made it."""

    kernel: JITFunction[Any]
    signature: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, Any]
    chunks: int = 1
    """Of how many channels each, where the kernel does not know their number when it is compiled."""


@contextlib.contextmanager
def recorded(vendor: str) -> Iterator[list[Launch]]:
    """Records kernel calls in place of running them, made as for a device of that vendor."""
    launches: list[Launch] = []

    def record(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        values = dict(zip(self.arg_names, args)) | {k: v for k, v in kwargs.items() if k in self.arg_names}
        options = {k: v for k, v in kwargs.items() if k not in self.arg_names}
        signature, constants = {}, {}
        for parameter in self.params:
            name, value = parameter.name, values[parameter.name]
            if parameter.is_constexpr or value is None:
                signature[name], constants[name] = "constexpr", value
            elif isinstance(value, Tensor):
                signature[name] = TYPES[value.dtype]
            else:
                signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
        chunks = 1
        if self.__name__.startswith("_features"):
            chunks = -(-(values["n_colors"] + (values["depths"] is not None)) // values["CHUNK"])
        launches.append(Launch(self, signature, constants, options, chunks))

    with mock.patch.object(JITFunction, "run", record), mock.patch.object(launch, "vendor", return_value=vendor):
        yield launches


def shipped_launches(
    vendor: str, channels: tuple[int, ...] = CHANNELS, tile_sizes: tuple[int, ...] = (16,)
) -> list[tuple[str, Launch]]:
    """Every kernel the package launches, with a label, from its own launchers on inputs of the right shape."""
    kernels: Any = kernels_module  # called with starred lists, which a type checker cannot follow
    n, images, width, height = 300, 1, 320, 256
    f = torch.ones
    found: list[tuple[str, Launch]] = []
    means, quats, scales, opacities = f(1, n, 3), f(1, n, 4), f(1, n, 3), f(1, n)
    covars, viewmats, Ks = f(1, n, 6), f(1, images, 4, 4), f(1, images, 3, 3)
    radii, means2d, conics, depths = torch.ones(n, 2, dtype=torch.int32), f(n, 2), f(n, 3), f(n)
    order = torch.arange(n)
    sound = torch.ones(1, n, dtype=torch.bool)
    shared: dict[str, Any] = dict(width=width, height=height, eps2d=0.3, numerics=DEFAULT_NUMERICS)
    for given, label in (((quats, scales, None), ""), ((None, None, covars), " covars")):
        for compensate in (False, True):
            scene: list[Any] = [means, *given, opacities, viewmats, Ks]
            v_rows: list[Any] = [order, radii, means2d, depths, conics, depths if compensate else None, depths]
            limits: dict[str, Any] = dict(near_plane=0.01, far_plane=1e10, radius_clip=0.0)
            with recorded(vendor) as launches:
                for packed in (False, True):
                    kernels.projection_fwd(*scene, sound, **shared, **limits, compensate=compensate, packed=packed)
                kernels.projection_bwd(*scene, *v_rows, **shared, compensate=compensate, needs_viewmats=True)
            found += [(f"{'antialiased' if compensate else 'classic'}{label}", call) for call in launches]
        with recorded(vendor) as launches:
            for colors, per_camera in ((f(1, n, 3), False), (f(1, images, n, 3), True)):
                kernels.valid_gaussians(means, *given, opacities, colors, per_camera=per_camera)
        found += [(f"soundness{label}", call) for call in launches]
    for degree in range(5):
        coeffs, centers = f(1, n, (degree + 1) ** 2, 3), f(1, images, 3)
        with recorded(vendor) as launches:
            kernels.spherical_harmonics_fwd(means, centers, coeffs, order, radii, degree=degree)
            kernels.spherical_harmonics_bwd(
                means, centers, coeffs, order, radii, f(n, 3), degree=degree, needs_centers=True
            )
        found += [(f"degree {degree}", call) for call in launches]
    starts = torch.arange(n + 1)
    ints = torch.ones(n, dtype=torch.int32)
    for tile_size in tile_sizes:
        for exact in (True, False):
            ellipse = (means2d, radii, conics if exact else None, depths if exact else None, order)
            with recorded(vendor) as launches:
                kernels.tile_rows(
                    *ellipse, None, n_per_image=n, tile_size=tile_size, tile_height=8, band=(0, 8), extend=3.33
                )
                kernels.tile_columns(*ellipse, ints, starts, n, tile_size=tile_size, tile_width=8, extend=3.33)
                kernels.tile_pairs(
                    order, order, ints, starts, ints, ints, starts, n,
                    n_per_image=n, tile_width=8, tile_height=8, key_dtype=torch.int16, key_bias=2**15,
                )  # fmt: skip
            found += [(f"tile {tile_size} {'ellipse' if exact else 'rectangle'}", call) for call in launches]
        n_tiles = (width // tile_size) * (height // tile_size)
        offsets = torch.zeros(n_tiles + 1, dtype=torch.int64)
        transmittances, last_ids = f(images, height, width), torch.ones(images, height, width, dtype=torch.int32)
        masks = torch.ones(images, n_tiles, dtype=torch.bool)
        features = [(d, False) for d in channels] + [(0, True), (3, True)]
        for d, has_depths in features:
            shown: list[Any] = [f(n, d) if d else None, depths if has_depths else None, f(images, d) if d else None]
            rows = (means2d, conics, depths, *shown)
            size: dict[str, Any] = dict(first_tile=0, tile_size=tile_size, numerics=DEFAULT_NUMERICS)
            picture, single = f(images, height, width, d + has_depths), f(images, height, width)
            with recorded(vendor) as launches:
                for ids in (None, last_ids):
                    kernels.composite_fwd(
                        *rows, masks, offsets, ints, picture, transmittances, ids, channel_chunk=32, **size
                    )
                for absgrad in (False, True):
                    sums = f(n, kernels.sum_columns(d + has_depths, absgrad))
                    kernels.composite_bwd(
                        *rows, offsets, ints, order, starts, starts, order, transmittances, last_ids, picture, single,
                        sums, absgrad=absgrad, **size,
                    )  # fmt: skip
                    kernels.composite_gradients(sums, conics, depths, features=d + has_depths, absgrad=absgrad)
            for call in launches:
                extra = " absgrad" if call.constants.get("ABSGRAD") else ""
                extra += " picture only" if call.constants.get("last_ids", 0) is None else ""
                found.append((f"D={d}{' and depth' if has_depths else ''} tile {tile_size}{extra}", call))
    image = f(images, height, width, 3)
    for valid in (False, True):
        with recorded(vendor) as launches:
            _, _, maps = kernels.l1_ssim_fwd(image, image, valid=valid, dtype=torch.float32)
            kernels.l1_ssim_bwd(image, image, maps, f(2))
        found += [("valid" if valid else "same", call) for call in launches]
    for visible in (None, sound[0]):
        with recorded(vendor) as launches:
            kernels.adam_step(means[0], means[0], means[0], means[0], f(6), visible)
        found += [("exact" if visible is None else "visible only", call) for call in launches]
    unique: dict[str, tuple[str, Launch]] = {}
    for label, call in found:
        key = repr((call.kernel.__name__, call.signature, call.constants, call.options, call.chunks))
        unique.setdefault(key, (label, call))
    return list(unique.values())


def kernels_are_interpreted() -> bool:
    return not isinstance(kernels_module.compositing._pack_kernel, JITFunction)


def parse_target(text: str) -> GPUTarget:
    backend, arch = text.split(":")
    if backend == "cuda":
        return GPUTarget("cuda", int(arch), 32)
    return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)


def compile_launch(call: Launch, target: GPUTarget) -> Any:
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, kind in enumerate(call.signature.values()) if kind.startswith("*")
    }
    source = ASTSource(call.kernel, signature=call.signature, constexprs=call.constants, attrs=aligned)
    return triton.compile(source, target=target, options=call.options)


def disassemble(cubin: bytes) -> tuple[list[tuple[int, str]], dict[str, int]]:
    """Instructions with their addresses, and registers, stack and shared bytes."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text, usage = (
            subprocess.run([tool, flag, file.name], capture_output=True, text=True, check=True).stdout
            for flag in ("-sass", "-res-usage")
        )
    instructions = [(int(a, 16), i.strip()) for a, i in re.findall(r"/\*([0-9a-f]{4,6})\*/\s+(.*?);", text)]
    last_branch = max(i for i, (_, text) in enumerate(instructions) if opcode(text) == "EXIT")
    resources = {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED):(\d+)", usage)}
    # Padding behind the last exit is never run.
    return instructions[: last_branch + 1] + _called(instructions[last_branch + 1 :]), resources


def _called(tail: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Subroutines and out-of-line code behind the last exit, without the padding."""
    kept = list(tail)
    while kept and (opcode(kept[-1][1]) == "NOP" or re.match(r"BRA 0x", kept[-1][1])):
        kept.pop()
    return kept


def opcode(instruction: str) -> str:
    return re.sub(r"^@!?U?P\w+ ", "", instruction).split(" ")[0].split(".")[0]


def loops(instructions: list[tuple[int, str]]) -> list[tuple[int, int]]:
    """First and last instruction of each backward branch's body."""
    position = {address: i for i, (address, _) in enumerate(instructions)}
    found: dict[int, int] = {}
    # Branches behind the last exit come back from code that was moved out of line.
    last = max(i for i, (_, text) in enumerate(instructions) if opcode(text) == "EXIT")
    for i, (address, text) in enumerate(instructions[:last]):
        branch = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)
        if branch and int(branch[1], 16) < address and int(branch[1], 16) in position:
            start = position[int(branch[1], 16)]
            found[start] = max(found.get(start, 0), i)
    return sorted(found.items())


def loops_inside(nest: list[tuple[int, str]]) -> list[tuple[int, int]]:
    """The innermost loops of a loop."""
    found = [(first, last) for first, last in loops([*nest, (-1, "EXIT")]) if (first, last) != (0, len(nest) - 1)]
    return [(a, b) for a, b in found if not any((a, b) != (c, d) and a <= c and d <= b for c, d in found)]


def body(kernel: str, instructions: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The instructions counted: the loop over Gaussians in compositing, everything elsewhere."""
    if not kernel.startswith(WALKS):
        return instructions
    # The smallest loop with an exponential in it; in the variant for any number of channels it has loops inside.
    nests = [instructions[first : last + 1] for first, last in loops(instructions)]
    return min((nest for nest in nests if _exponentials(nest)), key=len)


def _exponentials(instructions: list[tuple[int, str]]) -> int:
    return sum("MUFU.EX2" in text for _, text in instructions)


def per_32(kernel: str, call: Launch, counted: list[tuple[int, str]]) -> float:
    """Instructions per 32 pairs of pixel and Gaussian in compositing, per 32 lanes elsewhere."""
    constants = call.constants
    warps: int = call.options.get("num_warps", 4)
    if kernel.startswith(WALKS):
        # One exponential a pair tells how often the compiler has unrolled the loop.
        once = len(counted) / _exponentials(counted)
        if kernel == "_features_bwd_kernel":
            products = [counted[first : last + 1] for first, last in loops_inside(counted)]
            again = sum(len(loop) for loop in products if any(re.search(CLASSES["tensor"], text) for _, text in loop))
            return once + (call.chunks - 1) * again / _exponentials(counted)
        # Forward, another program walks the list for each chunk of channels.
        return once * call.chunks
    if "ROWS" in constants:
        lanes: int = constants["ROWS"] * constants["COLUMNS"]
    else:
        lanes = constants.get("BLOCK") or constants["GROUP"] * constants["CHUNK"] * constants["COLUMNS"]
    return len(counted) * warps * 32 / lanes


def classify(instructions: list[tuple[int, str]]) -> dict[str, int]:
    counts = dict.fromkeys((*CLASSES, "integer"), 0)
    for _, text in instructions:
        name = next((name for name, pattern in CLASSES.items() if re.match(pattern, opcode(text))), "integer")
        counts[name] += 1
    return {name: count for name, count in counts.items() if count}


def cost(label: str, call: Launch, target_text: str) -> dict[str, Any]:
    """One record: kernel, target, registers, spill_bytes, shared_bytes, per_32_pairs, by_class."""
    target = parse_target(target_text)
    compiled = compile_launch(call, target)
    name = call.kernel.__name__
    record: dict[str, Any] = {"kernel": name, "variant": label, "target": target_text}
    if "CHANNELS" in call.constants:
        colors = call.constants["CHANNELS"]
        record["D"] = "any" if colors < 0 else colors + ("depths" not in call.constants)
    if target.backend == "hip":
        text = compiled.asm["amdgcn"]
        found = re.findall(r"\.(vgpr_count|vgpr_spill_count|sgpr_spill_count):\s+(\d+)", text)
        value = {key: int(count) for key, count in found}
        return record | {
            "registers": value["vgpr_count"],
            "spill_bytes": 4 * 64 * value["vgpr_spill_count"] + 4 * value["sgpr_spill_count"],
            "shared_bytes": compiled.metadata.shared,
        }
    instructions, resources = disassemble(compiled.asm["cubin"])
    spilled = any(opcode(text) in ("LDL", "STL") for _, text in instructions)
    counted = body(name, instructions)
    return record | {
        "registers": resources["REG"],
        "spill_bytes": resources["STACK"] if spilled else 0,
        "shared_bytes": compiled.metadata.shared,
        "per_32_pairs": round(per_32(name, call, counted), 2),
        "by_class": classify(counted),
    }


def write_budgets(records: list[dict[str, Any]]) -> None:
    """Writes the largest cost of each kernel's variant over NVIDIA's targets, and 3 % more for the compiler to vary."""
    budgets: dict[str, float] = {}
    for record in records:
        if "per_32_pairs" in record:
            key = f"{record['kernel']} {record['variant']}"
            budgets[key] = max(budgets.get(key, 0.0), round(1.03 * record["per_32_pairs"], 2))
    BUDGETS.write_text(json.dumps(budgets, indent=1, sort_keys=True) + "\n")


def compare(ref: str, arguments: list[str]) -> None:
    """Prints what costs something else at another commit, from a checkout of it that goes again."""
    here = Path(__file__).parents[1]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "base"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", there, ref], cwd=here, check=True)
        try:
            for root in (there, here):
                command = [sys.executable, "-m", "benchmarks.static_cost", "--json", *arguments]
                environment = os.environ | {"PYTHONPATH": str(root)}
                output = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, check=True).stdout
                results.append({(r["kernel"], r["variant"], r["target"]): r for r in json.loads(output)})
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", there], cwd=here, check=True)
    before, after = results
    for key in sorted(before.keys() | after.keys()):
        old, new = (side.get(key, {}) for side in (before, after))
        for what in ("per_32_pairs", "registers", "spill_bytes", "shared_bytes"):
            if old.get(what) != new.get(what):
                print(f"{key[0]:36} {key[1]:32} {key[2]:11} {what}: {old.get(what, '-')} -> {new.get(what, '-')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--channels", nargs="+", type=int, default=CHANNELS)
    parser.add_argument("--tile-sizes", nargs="+", type=int, default=(16,))
    parser.add_argument("--kernels", nargs="+", help="only kernels whose name contains one of these")
    parser.add_argument("--json", action="store_true", help="print a list of records")
    parser.add_argument("--base", metavar="REF", help="compare with another commit")
    parser.add_argument("--write-budgets", action="store_true", help=f"write {BUDGETS.name}")
    options = parser.parse_args()
    if options.base:
        compare(options.base, [argument for argument in sys.argv[1:] if argument not in ("--base", options.base)])
        return
    records = []
    if not options.json:
        print(
            f"{'kernel':36} {'variant':24} {'target':11} {'regs':>4} {'spill':>5} {'shared':>6} {'per 32':>7}  by class"
        )
    for target in options.targets:
        vendor = "nvidia" if target.startswith("cuda") else "amd"
        for label, call in shipped_launches(vendor, tuple(options.channels), tuple(options.tile_sizes)):
            if options.kernels and not any(part in call.kernel.__name__ for part in options.kernels):
                continue
            record = cost(label, call, target)
            records.append(record)
            if not options.json:
                print(
                    f"{record['kernel']:36} {label:24} {target:11} {record['registers']:4} {record['spill_bytes']:5} "
                    f"{record['shared_bytes']:6} {record.get('per_32_pairs', '-'):>7}  "
                    + " ".join(f"{k} {v}" for k, v in record.get("by_class", {}).items()),
                    flush=True,
                )
    if options.json:
        json.dump(records, sys.stdout, indent=1)
        print()
    if options.write_budgets:
        write_budgets(records)


if __name__ == "__main__":
    main()
