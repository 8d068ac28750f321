"""Translates SASS into instructions of the NVIDIA core."""

import re
from typing import Any

import numpy as np

from emulator.program import UnsupportedInstructionError

from . import sass_text
from .program import LANES, SLOT, NvidiaProgram
from .ptx import ERRORS
from .sass_control import Control
from .sass_doubles import Doubles
from .sass_operands import ALL_LANES

IDLE = {
    "NOP", "YIELD", "DEPBAR", "LDGDEPBAR", "MEMBAR", "ERRBAR", "CCTL", "BMOV", "NANOSLEEP", "WARPSYNC.ALL", "ACQBULK",
    "FENCE", "WARPGROUP", "ENDCOLLECTIVE", "CGAERRBAR",
}  # fmt: skip
"""Instructions without an effect on the emulator, as all others take effect at once."""
BANK_ARGUMENTS = {80: 0x160, 86: 0x160, 89: 0x160, 90: 0x210}
"""Compute capability -> offset of the arguments in the constant bank."""
BANK_STACK = 0x28
RESERVED_SHARED_BYTES = 1024
"""Bytes of shared memory that the system reserves before the kernel's shared memory, from sm_90 on."""
STACK_BYTES = 4096


def translate(text: str, name: str, capability: int, compiler_constants: bytes = b"") -> NvidiaProgram:
    """Returns the function `name` of a listing. `capability` is a compute capability such as 80.

    Arguments have the same layout as in PTX.
    """
    if capability not in BANK_ARGUMENTS:
        raise UnsupportedInstructionError(f"machine code of sm_{capability}")
    program = _Translator(text, name, compiler_constants).finish(BANK_ARGUMENTS[capability])
    program.static_shared_bytes = RESERVED_SHARED_BYTES if capability >= 90 else 0
    return program


class _Translator(Doubles, Control):
    def __init__(self, text: str, name: str, compiler_constants: bytes) -> None:
        super().__init__(compiler_constants)
        self.name = name
        self.row_at: dict[int, int] = {}
        self.addresses: list[int] = []
        for address, statement in sass_text.function(text, name):
            self.row_at[address] = len(self.rows)
            self.temporaries = 0
            try:
                self._instruction(statement)
            except (*ERRORS, AssertionError) as error:
                raise UnsupportedInstructionError(f"{name} {address:#x}: {statement} ({error!r})") from error
            self.addresses += [address] * (len(self.rows) - len(self.addresses))

    def _instruction(self, text: str) -> None:
        self.guard, self.is_uniform, self.statement = (-1, 0), False, text
        if match := re.match(r"@(!?)(U?P\w)\s+(.*)$", text):
            self.guard = (self.predicate(match[2])[0], int(match[1] == "!"))
            text = match[3]
        opcode, _, rest = text.partition(" ")
        modifiers = opcode.split(".")
        base = modifiers[0]
        values = [x.strip() for x in rest.split(",")] if rest.strip() else []
        if opcode in IDLE or base in IDLE:
            self.emit("nop")
            return
        if base[0] == "U":
            self.is_uniform, base = True, base[1:]
        if base == "VOTEU":
            self.is_uniform, base = True, "VOTE"
        method = getattr(self, "do_" + base.lower(), None)
        if method is None:
            raise UnsupportedInstructionError(opcode)
        method(modifiers, values)

    def jump_target(self, target: Any) -> int:
        return self.row_at[target]

    def finish(self, bank_arguments: int) -> NvidiaProgram:
        lists = [self.final_place(x) for x in self.lists]
        returns = len(lists)
        lists += [self.row_at.get(16 * i, -1) for i in range(max(self.row_at) // 16 + 1)]
        code = self.assemble()
        code["list"][code["list"] == -1] = returns
        constants = bytearray(SLOT * max(len(self.constants), 1))
        bank = []
        for (kind, value), index in self.constants.items():
            if kind == "bank":
                bank.append((SLOT * index, value))
            else:
                constants[SLOT * index : SLOT * (index + 1)] = (value & ALL_LANES).to_bytes(4, "little") * LANES
        registers = self.final_place(self.place(self.TEMPORARIES + self.most_temporaries + 2))
        program = NvidiaProgram(
            name=self.name, statements=self.statements, lines=[""] * len(code), code=code,
            lists=np.array(lists, np.int32), register_bytes=registers,
            constants=bytes(constants[: SLOT * len(self.constants)]), local_bytes=STACK_BYTES, bank=bank,
            bank_arguments=bank_arguments, bank_stack=BANK_STACK, is_machine_code=True,
        )  # fmt: skip
        program.addresses = self.addresses
        return program
