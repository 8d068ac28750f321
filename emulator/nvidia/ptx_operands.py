"""Operands of PTX instructions: places of registers, immediate values and addresses."""

import re
from typing import Any

from . import ptx_text
from .emitter import Emitter
from .program import SLOT, WIDE_ADDRESS
from .ptx_text import BYTES


class Operands(Emitter):
    """Assigns a place to each register and each immediate value."""

    REGISTERS = 1 << 28
    """Offset added to places of registers until the size of the constants before them is known."""

    def __init__(self) -> None:
        super().__init__()
        self.types: dict[str, str] = {}
        """Types of registers, by name."""
        self.symbols: dict[str, int] = {}
        """Addresses of variables in shared or local memory, by name."""
        self.space_bytes = {"shared": 0, "local": 0}
        self.parameters: list[tuple[int, int]] = []
        self.parameter_at: dict[str, int] = {}
        self.slots: dict[Any, int] = {}
        self.slot_bytes = {"constant": 0, "register": 0}
        self.constant_values: list[tuple[int, int, int]] = []
        """Place, width in bytes (0 for a predicate) and value of each immediate value."""

    def _slot(self, kind: str, key: Any, width: int) -> int:
        if key not in self.slots:
            self.slots[key] = self.slot_bytes[kind]
            self.slot_bytes[kind] += 2 * SLOT if width == 8 else SLOT
            if kind == "constant":
                self.constant_values.append((self.slots[key], width, key[1]))
        return self.slots[key]

    def constant(self, value: int, width: int) -> int:
        """Returns the place of an immediate value. `width` is in bytes, 0 for a predicate."""
        return self._slot("constant", (width, value), width)

    def use(self, text: str, width: int) -> int:
        """Returns the place of an operand. `width`, in bytes or 0 for a predicate, is used for immediate values."""
        if text in self.types:
            return self._slot("register", text, BYTES[self.types[text]]) + self.REGISTERS
        if text == "_":
            return -1
        if text in self.symbols:
            return self.constant(self.symbols[text], max(width, 4))
        if text == "WARP_SZ":
            return self.constant(32, 4)
        return self.constant(ptx_text.number(text, width), 8 if width == 8 else 0 if width == 0 else 4)

    def is_wide(self, text: str) -> bool:
        """Returns whether a register has 8 bytes."""
        return text in self.types and BYTES[self.types[text]] == 8

    def address(self, text: str) -> tuple[int, int, int]:
        """Returns the place of a base register (-1: none), an offset, and `WIDE_ADDRESS` if the address has 8 bytes."""
        match = re.fullmatch(r"([%\w$]+)\s*(?:\+\s*(-?\w+))?", text.strip()[1:-1].strip())
        assert match, text
        offset = int(match[2], 0) if match[2] else 0
        if match[1] in self.types:
            return self.use(match[1], 8), offset, WIDE_ADDRESS * self.is_wide(match[1])
        base = self.symbols[match[1]] if match[1] in self.symbols else int(match[1], 0)
        return -1, base + offset, WIDE_ADDRESS
