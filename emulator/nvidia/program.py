"""Kernels from PTX or SASS in the format that the NVIDIA core executes."""

import ctypes
import dataclasses
import re

import numpy as np

from emulator import build, machine
from emulator.program import Launch, Program

from . import sass_text

INSTRUCTION = np.dtype(
    [
        ("op", "u2"), ("guard_negated", "u1"), ("count", "u1"), ("size", "u1"), ("sign", "u1"), ("wide", "u1"),
        ("flag", "u1"), ("guard", "i4"), ("place", "i4", 6), ("list", "i4"), ("immediate", "i8"), ("target", "i4"),
        ("uniform", "i4"), ("space", "i4"), ("spare", "i4"),
    ]
)  # fmt: skip
SPECIAL_NAMES = (
    "tid.x tid.y tid.z ntid.x ntid.y ntid.z ctaid.x ctaid.y ctaid.z nctaid.x nctaid.y nctaid.z laneid warpid "
    "lanemask_eq lanemask_lt lanemask_le lanemask_gt lanemask_ge smid nwarpid clock"
)
SPECIAL = {name: number for number, name in enumerate(SPECIAL_NAMES.split())}
"""Special registers -> numbers in nvidia_control.inc."""
SPACES = {"generic": 0, "global": 1, "const": 1, "shared": 2, "local": 3, "param": 4}
WIDE_ADDRESS = 256
"""Flag that is added to a space if addresses have 8 bytes."""
LANES = 32
SLOT = 4 * LANES
"""Bytes of a 32-bit register of all lanes."""


class Gpu(ctypes.Structure):
    """Mirrors Gpu of core/nvidia.h."""

    _fields_ = [
        ("model", ctypes.POINTER(machine.Model)),
        *(
            (name, ctypes.c_void_p)
            for name in ("code", "lists", "parameters", "local", "registers", "constants")
        ),
        *((name, ctypes.c_uint64) for name in ("register_bytes", "constant_bytes", "local_bytes")),
        ("warps", ctypes.c_void_p),
        ("is_machine_code", ctypes.c_int32),
        ("spare", ctypes.c_int32),
    ]  # fmt: skip


@dataclasses.dataclass
class NvidiaProgram(Program):
    """A parsed kernel: its instructions, and the initial registers of a warp."""

    code: np.ndarray
    lists: np.ndarray
    """Places of the operands of instructions with more than six; see core/nvidia.h."""
    register_bytes: int
    constants: bytes
    """The first bytes of the registers, which contain immediate operands."""
    local_bytes: int
    bank: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """Constants of SASS in the bank of arguments: offset in `constants`, offset in the bank."""
    bank_arguments: int = 0
    """Offset of the arguments in this bank."""
    bank_stack: int = 0
    """Offset of the top of the stack in this bank."""
    is_machine_code: bool = False
    addresses: list[int] = dataclasses.field(default_factory=list)
    """Addresses of SASS instructions."""
    cubin: bytes = b""
    """Binary of SASS code, which contains the source lines."""

    def source_lines(self) -> list[str]:
        if self.cubin and not any(self.lines):
            by_address = sass_text.source_lines(self.cubin, self.name)
            self.lines = [by_address.get(address, "") for address in self.addresses]
        return self.lines

    @property
    def shared_granule(self) -> int:
        stores = (self.code["op"] == build.nvidia_operations()["st"]) & (self.code["space"] & 15 == SPACES["shared"])
        pieces = (self.code["size"].astype(int) * self.code["count"])[stores]
        return min(int(min(pieces, default=4)), 4).bit_length() - 1

    def kind(self, statement: str) -> str:
        return sass_kind(statement) if self.is_machine_code else ptx_kind(statement)

    def execute(self, model: machine.Model, launch: Launch) -> bool:
        core = build.nvidia_core()
        machine.check_layout(core)
        assert core.sizes(0) == INSTRUCTION.itemsize and core.sizes(1) == ctypes.sizeof(Gpu)
        warps = -(-launch.threads // LANES)
        constants = self._constants(launch)
        registers = np.zeros(warps * self.register_bytes + 256, np.uint8)
        local = np.zeros(warps * LANES * self.local_bytes + 16, np.uint8)
        gpu = Gpu(
            model=ctypes.pointer(model), code=self.code.ctypes.data, lists=self.lists.ctypes.data,
            parameters=launch.arguments.ctypes.data, local=local.ctypes.data,
            registers=registers.ctypes.data + -registers.ctypes.data % 256, constants=constants.ctypes.data,
            register_bytes=self.register_bytes, constant_bytes=len(self.constants), local_bytes=self.local_bytes,
            is_machine_code=self.is_machine_code,
        )  # fmt: skip
        return bool(core.execute(ctypes.byref(gpu)))

    def _constants(self, launch: Launch) -> np.ndarray:
        constants = np.frombuffer(self.constants or bytes(1), np.uint8).copy()
        if self.bank:
            bank = np.zeros(self.bank_arguments + len(launch.arguments) + 64, np.uint8)
            bank[self.bank_arguments : self.bank_arguments + len(launch.arguments)] = launch.arguments
            bank[:24] = np.array([*launch.threads_along, *launch.grid], np.uint32).view(np.uint8)
            bank[self.bank_stack : self.bank_stack + 4] = np.array([self.local_bytes], np.uint32).view(np.uint8)
            for at, offset in self.bank:
                constants[at : at + SLOT] = np.tile(bank[offset : offset + 4], LANES)
        return constants


_PTX = {
    "move": "mov selp cvt cvta",
    "special": "ex2 lg2 rcp rsqrt sqrt sin cos tanh",
    "integer": "add sub mul mad div rem min max and or xor not shl shr bfe bfi prmt lop3 shf popc clz brev neg abs",
    "float": "fma copysign",
    "compare": "setp",
    "shuffle": "shfl vote redux activemask match",
    "matrix": "mma wgmma",
    "load": "ld ldu ldmatrix",
    "store": "st stmatrix",
    "atomic": "atom red",
    "barrier": "bar barrier membar fence cp",
    "control": "bra ret exit",
}
_SASS = {
    "float": "FADD FMUL FFMA FMNMX FSEL FSET FRND DADD DMUL DFMA",
    "special": "MUFU",
    "compare": "FCHK FSETP ISETP PLOP3 UISETP UPLOP3 DSETP",
    "move": "MOV CS2R S2R S2UR R2UR UMOV SEL USEL ULDC LDC LDCU P2R R2P UP2UR UR2UP HFMA2 B2R PRMT I2F F2I I2FP F2F",
    "shuffle": "SHFL VOTE VOTEU REDUX",
    "matrix": "HMMA DMMA HGMMA",
    "load": "LDG LDS LDL LDSM",
    "store": "STG STS STL STSM",
    "atomic": "RED REDG ATOMG ATOMS",
    "barrier": "BAR WARPSYNC WARPGROUP FENCE",
    "control": "BRA EXIT BSSY BSYNC BREAK CALL RET NOP YIELD",
}
_KIND_OF_PTX = {word: kind for kind, words in _PTX.items() for word in words.split()}
_KIND_OF_SASS = {word: kind for kind, words in _SASS.items() for word in words.split()}


def ptx_kind(statement: str) -> str:
    """Returns the class of a PTX instruction."""
    opcode = re.sub(r"^@\S+\s+", "", statement).split(" ")[0]
    parts = opcode.split(".")
    if parts[0] == "ld" and "param" in parts:
        return "parameter"
    kind = _KIND_OF_PTX.get(parts[0], "other")
    if kind == "integer" and parts[-1] in ("f32", "f64", "f16", "bf16", "f32x2"):
        return "float"
    shared = any(part.startswith("shared") for part in parts) or parts[0] in ("ldmatrix", "stmatrix")
    return f"shared {kind}" if shared and kind in ("load", "store", "atomic") else kind


def sass_kind(statement: str) -> str:
    """Returns the class of a SASS instruction."""
    opcode = re.sub(r"^@!?U?P\w+ ", "", statement).split(" ")[0]
    if opcode.startswith(("IMAD.MOV", "IMAD.U32")):
        return "move"
    base = opcode.split(".")[0]
    kind = _KIND_OF_SASS.get(base, "integer")
    return f"shared {kind}" if base in ("LDS", "LDSM", "STS", "STSM", "ATOMS") else kind
