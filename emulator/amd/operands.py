"""Operands of AMD instructions: registers, constants and their modifiers."""

import re
import struct
from typing import Literal

NONE, VECTOR, SCALAR, CONSTANT = range(4)
NEGATED, ABSOLUTE = 1, 2
SIGNED = 4
"""Modifier of a part of a register whose value is signed; see :func:`part_of`."""
NAMED = {"vcc": 106, "vcc_lo": 106, "vcc_hi": 107, "null": 124, "m0": 125, "exec": 126, "exec_lo": 126, "exec_hi": 127}
"""Numbers of the scalar registers that have names."""
PAIRS = ("vcc", "exec")
ACCUMULATION = 256
"""Number of the first accumulation register, after the vector registers."""
PARTS = {"BYTE_0": 1, "BYTE_1": 2, "BYTE_2": 3, "BYTE_3": 4, "WORD_0": 5, "WORD_1": 6}
"""Parts of a register that SDWA instructions read, and halves that 16-bit instructions of RDNA3 read and write."""
ONE_OVER_TWO_PI = 0x3E22F983

Operand = tuple[int, int, int, int, int, int, int]
"""Fields of program.OPERAND: kind, modifiers, count, part, register, low, high."""
ABSENT: Operand = (NONE, 0, 0, 0, 0, 0, 0)
Width = Literal["16", "32", "integer 64", "float 64"]


def operand(token: str, width: Width = "32") -> Operand:
    """Parses an operand."""
    modifiers, token = 0, token.strip()
    if match := re.fullmatch(r"sext\((.*)\)", token):
        token, modifiers = match[1], SIGNED
    elif match := re.fullmatch(r"neg\((.*)\)", token):
        token, modifiers = match[1], NEGATED
    elif token.startswith("-") and not re.match(r"-[\d.]", token):
        token, modifiers = token[1:], NEGATED
    if match := re.fullmatch(r"\|(.*)\||abs\((.*)\)", token):
        token, modifiers = match[1] or match[2], modifiers | ABSOLUTE
    if token == "off":
        return ABSENT
    if token in NAMED:
        return (SCALAR, modifiers, 2 if token in PAIRS else 1, 0, NAMED[token], 0, 0)
    if match := re.fullmatch(r"([avs])(?:(\d+)|\[(\d+):(\d+)\])", token):
        first = int(match[2] or match[3])
        count = int(match[4]) - first + 1 if match[4] else 1
        first += ACCUMULATION if match[1] == "a" else 0
        return (SCALAR if match[1] == "s" else VECTOR, modifiers, count, 0, first, 0, 0)
    if (match := re.fullmatch(r"v(\d+)\.([lh])", token)) and not modifiers:
        return (VECTOR, 0, 1, PARTS["WORD_1" if match[2] == "h" else "WORD_0"], int(match[1]), 0, 0)
    if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", token):
        return (CONSTANT, modifiers, 1, 0, 0, *_integer(token, width))
    if re.fullmatch(r"-?\d+\.\d+(e[+-]?\d+)?", token):
        return (CONSTANT, modifiers, 1, 0, 0, *_float(token, width))
    raise NotImplementedError(f"operand {token}")


def short(token: str) -> Operand:
    """Parses a 16-bit constant, which is sign-extended."""
    value = int(token, 0) & 0xFFFF
    return operand(str(value - (value >> 15 << 16)))


def _integer(token: str, width: Width) -> tuple[int, int]:
    value, literal = int(token, 0), "0x" in token
    if literal and width == "float 64":  # a literal is the upper half of a double
        return 0, value & 0xFFFFFFFF
    return value & 0xFFFFFFFF, 0 if literal else value >> 32 & 0xFFFFFFFF


def _float(token: str, width: Width) -> tuple[int, int]:
    if width == "float 64":
        low, high = struct.unpack("<II", struct.pack("<d", float(token)))
        return low, high
    if width == "16":
        return struct.unpack("<H", struct.pack("<e", float(token)))[0], 0
    if token.startswith("0.15915494"):
        return ONE_OVER_TWO_PI, 0
    return struct.unpack("<I", struct.pack("<f", float(token)))[0], 0


def part_of(value: Operand, selection: str) -> Operand:
    """Returns an operand of an SDWA instruction, which reads only a byte or a half of it."""
    kind, modifiers, count, _, *rest = value
    part = PARTS[selection] + (len(PARTS) if modifiers & SIGNED else 0)
    return (kind, modifiers & ~SIGNED, count, part, *rest)
