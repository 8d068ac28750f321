"""Records launches of the emulator, with traces of NVIDIA's machine code for the timing model."""

import collections
import dataclasses
import re
from collections.abc import Callable

import numpy as np

from emulator.counters import Counts
from emulator.nvidia import sass_text
from emulator.nvidia.program import NvidiaProgram
from emulator.program import Launch, Memory, Program
from emulator.tracing import RawTrace

INSTRUCTION = np.dtype([(name, "u1") for name in ("pipe", "slots", "kind", "stall", "write", "read", "wait", "left")])
"""Mirrors Instruction of core/machine.h."""
PIPES = ("fma", "alu", "xu", "mio", "uniform", "branch", "tensor", "none")
KINDS = (
    "alu", "load", "store", "atomic", "shared load", "shared store", "shuffle", "mufu", "barrier", "exit", "branch",
    "depbar", "special", "local load", "local store", "reduction",
)  # fmt: skip

_OPCODES = {
    ("fma", "alu"): "FADD FMUL FFMA IMAD IMUL HFMA2 HADD2 HMUL2 FSWZADD FADD32I FMUL32I FFMA32I IMUL32I",
    ("alu", "alu"): "IADD3 LOP3 SHF LEA ISETP FSETP FMNMX IMNMX SEL FSEL PRMT SGXT PLOP3 MOV P2R R2P VOTE CS2R IABS "
    "VABSDIFF BMSK FCHK R2UR ICMP VIADD LOP IADD",
    ("xu", "mufu"): "MUFU F2I I2F F2F FRND POPC FLO BREV I2I F2FP REDUX",
    ("branch", "alu"): "BSSY BSYNC BREAK WARPSYNC BMOV YIELD NANOSLEEP RPCMOV KILL",
    ("branch", "branch"): "BRA CALL RET JMP BRX",
    ("branch", "exit"): "EXIT",
    ("branch", "barrier"): "BAR",
    ("tensor", "alu"): "HMMA IMMA DMMA",
    ("none", "depbar"): "DEPBAR",
    ("mio", "load"): "LDG LD",
    ("mio", "store"): "STG ST",
    ("mio", "atomic"): "ATOMG ATOM",
    ("mio", "reduction"): "RED",
    ("mio", "shared load"): "LDS LDSM ATOMS",
    ("mio", "shared store"): "STS STSM",
    ("mio", "local load"): "LDL",
    ("mio", "local store"): "STL",
    ("mio", "shuffle"): "SHFL",
    ("mio", "special"): "S2R S2UR B2R",
}
_CLASS_OF = {opcode: which for which, opcodes in _OPCODES.items() for opcode in opcodes.split()}


def classify(statement: str) -> tuple[str, str]:
    """Returns the pipe and the kind of a machine instruction, in `PIPES` and `KINDS`."""
    opcode = re.sub(r"^@!?U?P\w+\s+", "", statement).split(" ")[0].split(".")[0]
    return _CLASS_OF.get(opcode) or ("uniform" if opcode.startswith("U") else "none", "alu")


def instruction_table(statements: list[str], control: list[int]) -> np.ndarray:
    """Returns [n] `INSTRUCTION`. `control` has the compiler's control bits of each instruction."""
    table = np.zeros(len(statements), INSTRUCTION)
    for row, text, bits in zip(table, statements, control, strict=True):
        pipe, kind = classify(text)
        row["pipe"], row["kind"] = PIPES.index(pipe), KINDS.index(kind)
        row["slots"] = 2 if re.search(r"\bIMAD\.(?:\w+\.)*(?:WIDE|HI)\b", text) else 1
        row["stall"], row["write"], row["read"], row["wait"] = bits & 15, bits >> 5 & 7, bits >> 8 & 7, bits >> 11 & 63
        if match := re.search(r"DEPBAR\S* SB(\d), (0x[0-9a-f]+)", text):
            row["left"] = int(match[1]) << 4 | int(match[2], 16)
    return table


@dataclasses.dataclass(frozen=True)
class Trace:
    """The trace of a launch for the timing model."""

    table: np.ndarray
    """[n] `INSTRUCTION`, the machine instructions."""
    rows: np.ndarray
    """int32, for each instruction of the emulator the index of its machine instruction, or -1 for a helper."""
    registers: int
    shared_bytes: int
    programs: int
    warps: int
    """Number of warps of one program."""
    raw: RawTrace


@dataclasses.dataclass(frozen=True)
class Executed:
    """An executed launch: its kernel, its counters, and its trace if it was recorded."""

    kernel: str
    phase: str
    """Phase in which it was launched: "forward" or "backward"."""
    counts: collections.Counter[str]
    """See :meth:`emulator.counters.Counts.summary`."""
    registers: int | None = None
    """Registers per thread. This and `stall_cycles` are None unless NVIDIA's machine code was executed."""
    stall_cycles: int | None = None
    """Sum over all warp instructions of the cycles that the warp must wait before its next instruction."""
    trace: Trace | None = None


class Recorder:
    """A tracer of a machine: collects the launches for which `wanted` is true, with their traces if `traced`."""

    def __init__(self, wanted: Callable[[Launch], bool], *, traced: bool = True) -> None:
        self.wanted, self.traced = wanted, traced
        self.phase = "forward"
        self.launches: list[Executed] = []
        self._bases: dict[int, tuple[int, int]] = {}
        self._top = 0

    def base(self, memory: Memory) -> int:
        """Returns the address of a tensor. Tensors do not overlap and are aligned to 512 bytes, as on GPUs."""
        base, size = self._bases.get(memory.address, (0, 0))
        if size < memory.size:
            base = self._top
            self._bases[memory.address] = base, memory.size
            self._top += -(-memory.size // 512) * 512 + 512
        return base

    def traces(self, launch: Launch) -> bool:
        return self.traced and self.wanted(launch)

    def executed(self, program: Program, launch: Launch, counts: dict[str, np.ndarray], raw: RawTrace | None) -> None:
        if not self.wanted(launch):
            return
        total = Counts(program)
        programs = launch.grid[0] * launch.grid[1] * launch.grid[2]
        total.add(counts, programs)
        if not isinstance(program, NvidiaProgram):
            self.launches.append(Executed(program.name, self.phase, total.summary()))
            return
        registers = sass_text.registers(program.cubin, program.name)
        rows, table = machine_code(program)
        stalls = int(counts["issued"][rows >= 0].astype(np.int64) @ table["stall"].astype(np.int64))
        trace = None
        if raw is not None:
            warps = -(-launch.threads // program.lanes)
            trace = Trace(table, rows, registers, launch.shared_bytes, programs, warps, raw)
        self.launches.append(Executed(program.name, self.phase, total.summary(), registers, stalls, trace))


def machine_code(program: NvidiaProgram) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `rows` and the `table` of a trace; see :class:`Trace`."""
    statements = [statement for statement in program.statements if statement]
    control = sass_text.control_words(sass_text.listing(program.cubin), program.name)
    is_machine_instruction = np.array([bool(statement) for statement in program.statements])
    rows = np.where(is_machine_instruction, np.cumsum(is_machine_instruction) - 1, -1).astype(np.int32)
    return rows, instruction_table(statements, control)
