"""Operands of SASS instructions: registers, predicates, constants and addresses."""

import re
import struct
from typing import Any

from emulator.program import UnsupportedInstructionError

from .emitter import Emitter
from .program import SLOT, SPACES, WIDE_ADDRESS

ALL_LANES = 0xFFFFFFFF
FLOATS = {"+INF": 0x7F800000, "-INF": 0xFF800000, "+QNAN": 0x7FFFFFFF, "-QNAN": 0xFFFFFFFF}


class Operands(Emitter):
    """Assigns places: first to constants, then fixed places to registers, then to temporaries.

    A machine instruction becomes one counted instruction of the core. Helpers before and after it, which are not
    counted, handle negated operands, register pairs and similar cases.
    """

    BASE = 1 << 28
    """Offset added to places of registers until the number of constants before them is known."""
    REGISTERS, UNIFORM, PREDICATES, UNIFORM_PREDICATES, HIDDEN, TEMPORARIES = 0, 256, 320, 328, 336, 344
    BANK_ARGUMENTS = 0x160

    def __init__(self, compiler_constants: bytes = b"") -> None:
        super().__init__()
        self.compiler_constants = compiler_constants
        """Contents of constant bank 2."""
        self.constants: dict[tuple[str, int], int] = {}
        """Index of each constant; keys are ("value", bits) or ("bank", offset)."""
        self.statements: list[str] = []
        self.statement = ""
        self.is_uniform = False
        self.temporaries = self.most_temporaries = 0

    # --- emission

    def emit(self, op: str, *places: int, **fields: Any) -> None:
        """Adds the counted instruction of the current statement."""
        self.row(op, *places, **({"uniform": int(self.is_uniform)} | fields))
        self.statements.append(self.statement)
        self.statement = ""

    def help(self, op: str, *places: int, **fields: Any) -> None:
        """Adds an instruction that is not counted."""
        self.row(op, *places, **({"uniform": int(self.is_uniform)} | fields))
        self.statements.append("")

    # --- places

    def place(self, index: int) -> int:
        return self.BASE + SLOT * index

    def value(self, bits: int) -> int:
        """Returns the place of an immediate value."""
        return SLOT * self.constants.setdefault(("value", bits & ALL_LANES), len(self.constants))

    def bank(self, offset: int) -> int:
        """Returns the place of a value in the constant bank of kernel arguments."""
        return SLOT * self.constants.setdefault(("bank", offset), len(self.constants))

    def temporary(self, slots: int = 1) -> int:
        at = self.temporaries
        self.temporaries += slots
        self.most_temporaries = max(self.most_temporaries, self.temporaries)
        return self.place(self.TEMPORARIES + at)

    def plain(self, text: str, offset: int = 0) -> int | None:
        """Returns the place of a register or constant without modifiers, None for a number."""
        if match := re.fullmatch(r"(U?R)(\d+|Z)", text):
            if match[2] == "Z":
                return self.value(0)
            return self.place((self.REGISTERS if match[1] == "R" else self.UNIFORM) + int(match[2]) + offset)
        if match := re.fullmatch(r"c\[0x0\]\[(0x[0-9a-f]+)\]", text):
            return self.bank(int(match[1], 16) + 4 * offset)
        if match := re.fullmatch(r"c\[0x2\]\[(0x[0-9a-f]+)\]", text):
            at = int(match[1], 16) + 4 * offset
            if at + 4 > len(self.compiler_constants):
                raise UnsupportedInstructionError(f"{text}: bank 2 has {len(self.compiler_constants)} bytes")
            return self.value(int.from_bytes(self.compiler_constants[at : at + 4], "little"))
        if text.startswith("c["):
            raise UnsupportedInstructionError(text)
        return None

    @staticmethod
    def number(text: str, kind: str) -> int:
        """Returns the bits of an immediate operand. `kind` is "f" for a float, "i" for an integer."""
        if kind == "f" and text in FLOATS:
            return FLOATS[text]
        if kind == "f" and not re.fullmatch(r"-?0x[0-9a-f]+", text):
            return int.from_bytes(struct.pack("<f", float(text)), "little")
        return int(text, 0) & ALL_LANES

    def read(self, text: str, kind: str = "i") -> int:
        """Returns the place of a 32-bit operand; helpers apply its modifiers."""
        text = text.replace(".reuse", "").strip()
        found = self.plain(text)
        if found is not None:
            return found
        match = re.fullmatch(r"([-~]?)(\|?)([a-zA-Z]+\w*(?:\[[^\]]*\])*)\|?", text)
        inner = self.plain(match[3]) if match else None
        if match is None or inner is None:
            return self.value(self.number(text, kind))
        modifiers = ["abs"] * bool(match[2]) + {"": [], "-": ["neg"], "~": ["not"]}[match[1]]
        for modifier in modifiers:
            out = self.temporary()
            self.help(f"{modifier}_{'f32' if kind == 'f' and modifier != 'not' else '32'}", out, inner)
            inner = out
        return inner

    def read_high(self, text: str) -> int:
        """Returns the place of the upper half of a pair of registers."""
        found = self.plain(text.replace(".reuse", "").strip(), 1)
        return self.value(0) if found is None else found

    def pair(self, text: str) -> int:
        """Returns the place of a 64-bit value; helpers gather it from a pair of registers."""
        place = self.temporary(2)
        self.help("pack_64", place, self.read(text), self.read_high(text))
        return place

    def double(self, text: str) -> int:
        """Returns the place of an fp64 operand; helpers gather it from a pair of registers and apply its modifiers."""
        match = re.fullmatch(r"(-?)(\|?)((?:UR|R|c\[)[^|]*)\|?", text.replace(".reuse", "").strip())
        if match is None:
            low, high = struct.unpack("<II", struct.pack("<d", float(text)))
            place = self.temporary(2)
            self.help("pack_64", place, self.value(low), self.value(high))
            return place
        place = self.pair(match[3])
        for name in ["abs_f64"] * bool(match[2]) + ["neg_f64"] * bool(match[1]):
            out = self.temporary(2)
            self.help(name, out, place)
            place = out
        return place

    def write(self, text: str, offset: int = 0) -> int:
        if text in ("RZ", "URZ"):
            return self.temporary()
        found = self.plain(text, offset)
        assert found is not None, text
        return found

    def predicate(self, text: str) -> tuple[int, int]:
        """Returns the place of a predicate operand, and -1 if it is negated, otherwise 0."""
        negated, text = (-1, text[1:]) if text.startswith("!") else (0, text)
        if text in ("PT", "UPT"):
            return self.value(ALL_LANES), negated
        match = re.fullmatch(r"(U?P)(\d)", text)
        assert match, text
        return self.place((self.PREDICATES if match[1] == "P" else self.UNIFORM_PREDICATES) + int(match[2])), negated

    def predicate_out(self, text: str) -> int:
        return -1 if text in ("PT", "UPT") else self.predicate(text)[0]

    @staticmethod
    def is_predicate(text: str) -> bool:
        return re.fullmatch(r"!?U?P(\d|T)", text) is not None

    def split(self, values: list[str], most: int) -> tuple[str, list[str], list[str]]:
        """Returns the destination, up to `most` predicates that follow it, and the other operands."""
        rest = values[1:]
        count = 0
        while count < most and count < len(rest) and self.is_predicate(rest[count]):
            count += 1
        return values[0], rest[:count], rest[count:]

    def address(self, text: str) -> tuple[int, int, int]:
        """Returns the place of a base address, an offset, and `WIDE_ADDRESS` if the address has 8 bytes."""
        text = re.sub(r"^desc\[\w+\]", "", text.strip())
        offset, base, wide = 0, -1, 0
        for part in text[1:-1].replace("+-", "+ -").split("+"):
            part = part.strip()
            if re.fullmatch(r"-?\s*0x[0-9a-f]+", part):
                offset += int(part.replace(" ", ""), 16)
                continue
            name, *kinds = part.split(".")
            place = self.plain(name)
            assert place is not None, text
            scale = next((int(kind[1:]) for kind in kinds if re.fullmatch(r"X\d+", kind)), 1)
            if scale > 1:
                place, unscaled = self.temporary(), place
                self.help("shl_32", place, unscaled, self.value(scale.bit_length() - 1))
            if "64" in kinds or (wide and name.startswith("UR")):  # a uniform offset beside a wide address is wide too
                place, wide = self.pair(name), WIDE_ADDRESS
            elif wide:
                raise UnsupportedInstructionError(text)
            if base >= 0:
                total = self.temporary(2)
                self.help("add_64" if wide else "add_32", total, base, place)
                place = total
            base = place
        return (self.value(0) if base < 0 else base), offset, wide

    @staticmethod
    def space(name: str) -> int:
        return SPACES[name]

    # --- layout

    def final_place(self, place: int) -> int:
        return place if place < self.BASE else place - self.BASE + SLOT * len(self.constants)
