"""Kernels in the format that the AMD core executes."""

import ctypes
import dataclasses
import re

import numpy as np

from emulator import build, machine
from emulator.program import Launch, Memory, Program

from .code_object import Descriptor

OPERAND = np.dtype(
    [(name, "u1") for name in ("kind", "modifiers", "count", "part")]
    + [(name, "u4") for name in ("register", "low", "high")]
)
INSTRUCTION = np.dtype(
    [
        ("op", "i4"), ("n_sources", "i4"), ("target", "i4"), ("flags", "i4"), ("immediate", "i4", 4),
        ("result", OPERAND), ("second_result", OPERAND), ("source", OPERAND, 4),
    ]
)  # fmt: skip
SECTOR_BYTES = 128


class Gpu(ctypes.Structure):
    """Mirrors Gpu of core/amd.h."""

    _fields_ = [
        ("model", ctypes.POINTER(machine.Model)),
        ("code", ctypes.c_void_p),
        ("user_registers", ctypes.c_void_p),
        ("waves", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("n_instructions", ctypes.c_int32),
        ("n_user_registers", ctypes.c_uint32),
        ("rsrc2", ctypes.c_uint32),
        ("scratch_bytes", ctypes.c_uint32),
    ]


@dataclasses.dataclass
class AmdProgram(Program):
    """A parsed AMD kernel: its instructions and its descriptor."""

    code: np.ndarray
    descriptor: Descriptor

    def kind(self, statement: str) -> str:
        return amd_kind(statement)

    @property
    def argument_bytes(self) -> int:
        return self.descriptor.argument_bytes

    @property
    def shared_granule(self) -> int:
        return 0

    def execute(self, model: machine.Model, launch: Launch) -> bool:
        core = build.amd_core(self.lanes)
        machine.check_layout(core)
        assert core.sizes(0) == INSTRUCTION.itemsize and core.sizes(1) == ctypes.sizeof(Gpu)
        address = launch.arguments.ctypes.data
        user = np.array(self.descriptor.user_registers(launch.arguments.tobytes(), address), np.uint32)
        gpu = Gpu(
            model=ctypes.pointer(model), code=self.code.ctypes.data, user_registers=user.ctypes.data,
            n_instructions=len(self.code), n_user_registers=len(user), rsrc2=self.descriptor.rsrc2,
            scratch_bytes=self.descriptor.scratch_bytes,
        )  # fmt: skip
        return bool(core.execute(ctypes.byref(gpu)))

    def hidden_arguments(self, grid: tuple[int, int, int], threads: int) -> dict[int, bytes]:
        values = {f"hidden_block_count_{axis}": number for axis, number in zip("xyz", grid)}
        values |= {"hidden_group_size_x": threads, "hidden_group_size_y": 1, "hidden_group_size_z": 1}
        hidden = self.descriptor.hidden
        return {hidden[name][0]: n.to_bytes(hidden[name][1], "little") for name, n in values.items() if name in hidden}

    def own_memories(self, launch: Launch) -> list[Memory]:
        """Returns the kernel arguments, which instructions load like other data."""
        return [Memory(launch.arguments.ctypes.data, len(launch.arguments), readonly=True)]


def amd_kind(statement: str) -> str:
    """Returns the class of an AMD instruction."""
    name = re.split(r"\s", statement, maxsplit=1)[0]
    for pattern, kind in _KINDS:
        if re.match(pattern, name):
            return kind
    return "other"


_KINDS = [
    (r"s_load|s_buffer_load", "parameter"),
    (r"(global|buffer|flat)_load", "load"),
    (r"(global|buffer|flat)_store", "store"),
    (r"(global|buffer|flat)_atomic", "atomic"),
    (r"scratch_load", "load"),
    (r"scratch_store", "store"),
    (r"ds_(bpermute|permute|swizzle)|v_permlane|v_readlane|v_readfirstlane|v_writelane", "shuffle"),
    (r"ds_(read|load)", "shared load"),
    (r"ds_(write|store)", "shared store"),
    (r"s_barrier|s_waitcnt|buffer_(gl|wbl|inv)", "barrier"),
    (r"v_(mfma|wmma)", "matrix"),
    (r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_", "special"),
    (r"[vs]_cmpk?x?_", "compare"),
    (r"[vs]_(mov|cndmask|cselect|cmov)|v_cvt|v_perm_b32|v_pk_mov", "move"),
    (r"v_\w+_f(16|32|64)\b|v_(dual|pk)_\w+_f(16|32)", "float"),
    (r"s_(branch|cbranch|endpgm|nop|delay|clause|sendmsg|setprio|set_inst|sleep|code_end)|s_\w+_saveexec", "control"),
    (r"[vs]_", "integer"),
]
