"""Static cost of kernels without a GPU: registers, spills and machine instructions.

Triton compiles for any target on any machine, and its wheel contains NVIDIA's disassembler. Kernels are compiled as
tsplat launches them (``benchmarks/launches.py``).

    python -m benchmarks.static_cost [--targets cuda:90 hip:gfx942 ...] [--channels 3 ...] [--kernels NAME ...] [--json]
    python -m benchmarks.static_cost --base REF       what differs from another commit
    python -m benchmarks.static_cost --write-budgets  write the limits of `make test`

For compositing, instructions of the loop over Gaussians are counted per 32 pixel-Gaussian evaluations, which is the
work of a warp: for all channels in `_features` kernels, which process channels in chunks, and for one pass over the
intersections in others. For other kernels, instructions of the whole program are counted per 32 lanes of output. Counts
are exact and do not depend on the machine. Stall cycles are those that the compiler encoded in these instructions.
"""

import argparse
import hashlib
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton._utils import find_paths_if
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .launches import CHANNELS, Launch, kernels_are_interpreted, shipped_launches
from .worktrees import ROOT, worktree

__all__ = ["BUDGETS", "TARGETS", "cost", "kernels_are_interpreted", "shipped_launches"]

TARGETS = ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942", "hip:gfx1100")
INSTRUCTION_BYTES = 16
"""Bytes of an instruction of NVIDIA GPUs since Volta."""
BUDGETS = Path(__file__).with_name("budgets.json")

WALKS = ("_composite", "_features", "_transmittance")
"""Kernels that walk the list of a tile or of a part."""

CLASSES = {
    "special": r"MUFU",
    "tensor": r"HMMA|IMMA|DMMA|HGMMA|WGMMA|UTCHMMA|UTC.*MMA",
    "shuffle": r"SHFL|VOTE|REDUX",
    "atomic": r"RED|ATOM",
    "memory": r"LD|ST|ULD|CCTL|MEMBAR",
    "control": r"BRA|BSSY|BSYNC|EXIT|BAR|WARPSYNC|NOP|CALL|RET|YIELD|BREAK|BMOV|DEPBAR",
    "float": r"F|HADD2|HMUL2|HFMA2",
}


def parse_target(text: str) -> GPUTarget:
    backend, arch = text.split(":")
    if backend == "cuda":
        return GPUTarget("cuda", int(arch), 32)
    return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)


def compile_launch(call: Launch, target: GPUTarget) -> Any:
    pointers = find_paths_if(tuple(call.signature.values()), lambda _, kind: kind.startswith("*"))
    aligned = {path: [["tt.divisibility", 16]] for path in pointers}
    source = ASTSource(call.kernel, signature=call.signature, constexprs=call.constants, attrs=aligned)
    return triton.compile(source, target=target, options=call.options)


def disassemble(cubin: bytes) -> str:
    """Returns a listing of machine code."""
    return _cuobjdump(cubin, "-sass")


def parse_listing(text: str) -> list[tuple[int, str]]:
    """Returns the addresses and texts of instructions."""
    instructions = [(int(a, 16), i.strip()) for a, i in re.findall(r"/\*([0-9a-f]{4,6})\*/\s+(.*?);", text)]
    last_branch = max(i for i, (_, text) in enumerate(instructions) if opcode(text) == "EXIT")
    # Padding after the last exit is never executed.
    return instructions[: last_branch + 1] + _called(instructions[last_branch + 1 :])


def stall_cycles(text: str) -> dict[int, int]:
    """Returns the stall cycles after each instruction, by address: bits 105 to 108 of 128."""
    words = re.findall(r"/\*([0-9a-f]{4,6})\*/\s+.*?;\s+/\* 0x[0-9a-f]{16} \*/\s+/\* (0x[0-9a-f]{16}) \*/", text)
    return {int(address, 16): int(high, 16) >> 41 & 15 for address, high in words}


def resource_usage(cubin: bytes) -> dict[str, int]:
    """Returns the number of registers, and the bytes of stack and shared memory."""
    usage = _cuobjdump(cubin, "-res-usage")
    return {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED):(\d+)", usage)}


def _cuobjdump(cubin: bytes, flag: str) -> str:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, flag, file.name], capture_output=True, text=True, check=True).stdout


def _called(tail: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Returns subroutines and out-of-line code after the last exit, without padding."""
    kept = list(tail)
    while kept and (opcode(kept[-1][1]) == "NOP" or kept[-1][1] == f"BRA 0x{kept[-1][0]:x}"):
        kept.pop()
    return kept


def opcode(instruction: str) -> str:
    return re.sub(r"^@!?U?P\w+ ", "", instruction).split(" ")[0].split(".")[0]


def loops(instructions: list[tuple[int, str]]) -> list[tuple[int, int]]:
    """Returns the indices of the first and the last instruction of each loop."""
    position = {address: i for i, (address, _) in enumerate(instructions)}
    found: dict[int, int] = {}
    # Branches after the last exit return from out-of-line code. A loop may end with a conditional exit and a branch.
    last = max(i for i, (_, text) in enumerate(instructions) if opcode(text) == "EXIT")
    if instructions[last][1].startswith("@"):
        last = next(i for i in range(last, len(instructions)) if instructions[i][1].startswith("BRA ")) + 1
    for i, (address, text) in enumerate(instructions[:last]):
        branch = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)
        if branch and int(branch[1], 16) < address and int(branch[1], 16) in position:
            start = position[int(branch[1], 16)]
            found[start] = max(found.get(start, 0), i)
    return sorted(found.items())


def loops_inside(nest: list[tuple[int, str]]) -> list[tuple[int, int]]:
    """Returns the innermost loops of a loop."""
    found = [(first, last) for first, last in loops([*nest, (-1, "EXIT")]) if (first, last) != (0, len(nest) - 1)]
    return [(a, b) for a, b in found if not any((a, b) != (c, d) and a <= c and d <= b for c, d in found)]


def body(kernel: str, instructions: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Returns the instructions to count: the loop over Gaussians in compositing, and all in other kernels."""
    if not kernel.startswith(WALKS):
        return instructions
    # This is the innermost loop with exponentials: the unrolled one, rather than the loop over its remainder.
    nests = [(first, last) for first, last in loops(instructions) if _exponentials(instructions[first : last + 1])]
    innermost = [(a, b) for a, b in nests if not any((a, b) != (c, d) and a <= c and d <= b for c, d in nests)]
    return max((instructions[first : last + 1] for first, last in innermost), key=_exponentials)


def _exponentials(instructions: list[tuple[int, str]]) -> int:
    return sum("MUFU.EX2" in text for _, text in instructions)


def walk_per_32(kernel: str, call: Launch, counted: list[tuple[int, str]]) -> float:
    """Returns the number of instructions per 32 pixel-Gaussian evaluations in compositing."""
    # There is one exponential per evaluation, so the number of exponentials is the unroll factor.
    once = len(counted) / _exponentials(counted)
    if kernel == "_features_bwd_kernel":
        products = [counted[first : last + 1] for first, last in loops_inside(counted)]
        again = sum(len(loop) for loop in products if any(re.search(CLASSES["tensor"], text) for _, text in loop))
        return once + (call.channel_groups - 1) * again / _exponentials(counted)
    # In the forward pass, one program per pass walks the list.
    return once * call.channel_groups


def per_32(call: Launch, n_instructions: int) -> float:
    """Returns the number of instructions per 32 lanes of output, given that of a program."""
    warps: int = call.options.get("num_warps", 4)
    shapes = (("BLOCK",), ("LANES",), ("ROWS", "COLUMNS"), ("GROUP", "COLUMNS"), ("WIDTH", "HEIGHT"))
    shape = next(names for names in shapes if call.arguments.keys() >= set(names))
    lanes: int = math.prod(call.arguments[name] for name in shape)
    return n_instructions * warps * 32 / lanes


def code_bytes(cubin: bytes) -> int:
    """Returns the size of all machine code in an ELF file, including padding."""
    (headers,) = struct.unpack_from("<Q", cubin, 40)
    size, n_sections, names = struct.unpack_from("<3H", cubin, 58)
    # Section headers: offset of the name, type, flags, address, offset in the file, size.
    sections = [struct.unpack_from("<2I4Q", cubin, headers + i * size) for i in range(n_sections)]
    return sum(section[5] for section in sections if cubin.startswith(b".text", sections[names][4] + section[0]))


def classify(instructions: list[tuple[int, str]]) -> dict[str, int]:
    counts = dict.fromkeys((*CLASSES, "integer"), 0)
    for _, text in instructions:
        name = next((name for name, pattern in CLASSES.items() if re.match(pattern, opcode(text))), "integer")
        counts[name] += 1
    return {name: count for name, count in counts.items() if count}


def cost(
    label: str, call: Launch, target_text: str, *, counted: bool = True, budget: float | None = None
) -> dict[str, Any]:
    """Returns the cost of a launch: kernel, variant, target, registers, spill_bytes, shared_bytes, per_32,
    stalls_per_32, by_class, code_hash.

    `stalls_per_32` are the cycles that a warp takes for the instructions of `per_32` if it never waits for memory or
    another warp.

    Without `counted`, instructions are not counted, as disassembling takes longer than compiling a short kernel. With a
    `budget`, they are counted only if they could exceed it; `per_32_at_most` is their number, or an upper bound from
    the size of the code.
    """
    target = parse_target(target_text)
    compiled = compile_launch(call, target)
    name = call.kernel.__name__
    record: dict[str, Any] = {"kernel": name, "variant": label, "target": target_text}
    if target.backend == "hip":
        text = compiled.asm["amdgcn"]
        found = re.findall(r"\.(vgpr_count|vgpr_spill_count|sgpr_spill_count):\s+(\d+)", text)
        value = {key: int(count) for key, count in found}
        return record | {
            "registers": value["vgpr_count"],
            "spill_bytes": 4 * 64 * value["vgpr_spill_count"] + 4 * value["sgpr_spill_count"],
            "shared_bytes": compiled.metadata.shared,
        }
    resources = resource_usage(compiled.asm["cubin"])
    record |= {"registers": resources["REG"], "spill_bytes": 0, "shared_bytes": compiled.metadata.shared}
    if budget is not None and name.startswith(WALKS):
        counted = True
    elif budget is not None:
        record["per_32_at_most"] = per_32(call, code_bytes(compiled.asm["cubin"]) // INSTRUCTION_BYTES)
        counted = record["per_32_at_most"] > budget
    if not counted and not resources["STACK"]:
        return record
    listing = disassemble(compiled.asm["cubin"])
    instructions, stalls = parse_listing(listing), stall_cycles(listing)
    spilled = any(opcode(text) in ("LDL", "STL") for _, text in instructions)
    loop = body(name, instructions)
    instructions_per_32 = walk_per_32(name, call, loop) if name.startswith(WALKS) else per_32(call, len(loop))
    if budget is not None:
        record["per_32_at_most"] = round(instructions_per_32, 2)
    mean_stall = sum(stalls[address] for address, _ in loop) / len(loop)
    return record | {
        "spill_bytes": resources["STACK"] if spilled else 0,
        "per_32": round(instructions_per_32, 2),
        "stalls_per_32": round(instructions_per_32 * mean_stall, 1),
        "by_class": classify(loop),
        "code_hash": hashlib.sha256("\n".join(text for _, text in instructions).encode()).hexdigest()[:16],
    }


def write_budgets(records: list[dict[str, Any]]) -> None:
    """Writes the largest cost of each kernel variant over NVIDIA targets, plus 3 % for other compiler versions."""
    budgets: dict[str, float] = {}
    for record in records:
        if "per_32" in record:
            key = f"{record['kernel']} {record['variant']}"
            budgets[key] = max(budgets.get(key, 0.0), round(1.03 * record["per_32"], 2))
    BUDGETS.write_text(json.dumps(budgets, indent=1, sort_keys=True) + "\n")


def compare(ref: str, arguments: list[str]) -> None:
    """Prints differences from another commit, in a temporary worktree."""
    results = []
    with worktree(ref) as there:
        for root in (there, ROOT):
            command = [sys.executable, "-m", "benchmarks.static_cost", "--json", *arguments]
            environment = os.environ | {"PYTHONPATH": str(root)}
            output = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, check=True).stdout
            results.append({(r["kernel"], r["variant"], r["target"]): r for r in json.loads(output)})
    before, after = results
    for key in sorted(before.keys() | after.keys()):
        old, new = (side.get(key, {}) for side in (before, after))
        for what in ("per_32", "stalls_per_32", "registers", "spill_bytes", "shared_bytes", "code_hash"):
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
        names = f"{'regs':>4} {'spill':>5} {'shared':>6} {'per 32':>7} {'stalls':>7}  by class"
        print(f"{'kernel':36} {'variant':24} {'target':11} {names}")
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
                    f"{record['shared_bytes']:6} {record.get('per_32', '-'):>7} {record.get('stalls_per_32', '-'):>7}  "
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
