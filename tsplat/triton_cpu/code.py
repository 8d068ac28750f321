"""Writes LLVM IR text: instructions, blocks and constants."""

import contextlib
import struct
from collections.abc import Iterator, Sequence
from typing import Literal

from .types import BITS, BYTES, LLVM_NAMES, llvm_type, mangled

Known = tuple[int, ...]


class Code:
    """The body of an LLVM function.

    A pure instruction is not written again if an equal one dominates: the result of the first one is returned. The
    values of integer constants are stored, so that emitters can fold operations on them.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.allocations: list[str] = []
        self.declarations: dict[str, None] = {}
        self.block = "entry"
        self._available: list[dict[str, str]] = [{}]
        self._known: dict[str, Known] = {"true": (1,), "false": (0,)}
        self._unused: str | None = None
        self._names = 0
        self._stacks = 0

    # Instructions

    def name(self) -> str:
        self._names += 1
        return f"%t{self._names}"

    def pure(self, instruction: str) -> str:
        """Writes an instruction without side effects, unless an equal one is available. Returns its result."""
        for scope in self._available:
            if instruction in scope:
                return scope[instruction]
        result = self._available[-1][instruction] = self.result(instruction)
        return result

    def result(self, instruction: str) -> str:
        """Writes an instruction that must not be merged with equal ones. Returns its result."""
        name = self.name()
        self.lines.append(f"  {name} = {instruction}")
        return name

    def effect(self, instruction: str) -> None:
        self.lines.append(f"  {instruction}")

    def call(self, function: str, result: str, arguments: Sequence[tuple[str, str]]) -> str:
        """Returns the text of a call, and declares the function. Arguments are pairs of type and value."""
        self.declarations[f"declare {result} @{function}({', '.join(t for t, _ in arguments)})"] = None
        return f"call {result} @{function}({', '.join(f'{t} {value}' for t, value in arguments)})"

    def allocate(self, llvm_element: str, count: int) -> str:
        """Allocates an array on the stack, aligned for vectors. Returns its address."""
        name = f"%stack{self._stacks}"
        self._stacks += 1
        self.allocations.append(f"  {name} = alloca [{count} x {llvm_element}], align 64")
        return name

    def unused_word(self) -> str:
        """Returns the address of 64 bits on the stack. Lanes whose mask is false load from and store to it."""
        if self._unused is None:
            self._unused = self.allocate("i64", 1)
            self.allocations.append(f"  store i64 0, ptr {self._unused}, align 8")
        return self._unused

    def masked(
        self,
        operation: Literal["load", "store", "gather", "scatter"],
        element: str,
        lanes: int,
        pointer: str,
        mask: str | None,
        value: str | None = None,
    ) -> str:
        """Returns the text of a masked memory operation, or of an unmasked gather or scatter.

        Args:
            pointer: Address of lane 0 for load and store, a vector of addresses for gather and scatter.
            value: The value to store; or the result of a load where the mask is false, by default zero.
        """
        vector = llvm_type(element, lanes)
        scattered = operation in ("gather", "scatter")
        name = f"llvm.masked.{operation}.{mangled(element, lanes)}." + (f"v{lanes}p0" if scattered else "p0")
        address = (f"<{lanes} x ptr>" if scattered else "ptr", pointer)
        alignment = ("i32", str(BYTES[element]))
        lanes_on = (f"<{lanes} x i1>", mask or self.integers("i1", [1] * lanes))
        if operation in ("load", "gather"):
            return self.call(name, vector, [address, alignment, lanes_on, (vector, value or "zeroinitializer")])
        assert value is not None
        return self.call(name, "void", [(vector, value), address, alignment, lanes_on])

    # Control flow

    def label(self) -> str:
        self._names += 1
        return f"block{self._names}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def branch(self, target: str) -> None:
        self.effect(f"br label %{target}")

    def branch_if(self, condition: str, then: str, otherwise: str) -> None:
        self.effect(f"br i1 {condition}, label %{then}, label %{otherwise}")

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Delimits a region whose instructions do not dominate the code after it."""
        self._available.append({})
        yield
        self._available.pop()

    def placeholder(self) -> int:
        """Reserves a line in the text, to be filled in by `fill`."""
        self.lines.append("")
        return len(self.lines) - 1

    def fill(self, line: int, instructions: Sequence[str]) -> None:
        self.lines[line] = "\n".join(f"  {instruction}" for instruction in instructions)

    # Constants

    def integers(self, element: str, values: Sequence[int], scalar: bool = False) -> str:
        """Returns the text of an integer constant, a vector or a scalar. Values wrap around on overflow."""
        values = tuple(wrap(element, int(value)) for value in values)
        texts = [("true" if v else "false") for v in values] if element == "i1" else [str(v) for v in values]
        vector = "<" + ", ".join(f"{LLVM_NAMES[element]} {t}" for t in texts) + ">"
        text = texts[0] if scalar else vector
        self._known[text] = values
        return text

    def known(self, operand: str) -> Known | None:
        """Returns the values of an integer constant, one per lane; None for other operands."""
        return self._known.get(operand)

    def splat(self, scalar: str, element: str, lanes: int) -> str:
        """Returns a vector with a scalar in every lane."""
        if (value := self.known(scalar)) is not None:
            return self.integers(element, value * lanes)
        name, vector = LLVM_NAMES[element], llvm_type(element, lanes)
        if scalar.startswith("0x"):
            return "<" + ", ".join([f"{name} {scalar}"] * lanes) + ">"
        first = self.pure(f"insertelement {vector} poison, {name} {scalar}, i32 0")
        return first if lanes == 1 else self.shuffle(vector, first, "poison", [0] * lanes)

    def shuffle(self, vector: str, a: str, b: str, lanes: Sequence[int]) -> str:
        mask = "zeroinitializer" if not any(lanes) else "<" + ", ".join(f"i32 {lane}" for lane in lanes) + ">"
        return self.pure(f"shufflevector {vector} {a}, {vector} {b}, <{len(lanes)} x i32> {mask}")

    def extract(self, vector: str, chunk: str, lane: int) -> str:
        if (values := self.known(chunk)) is not None:
            element = vector.split(" x ")[1].rstrip(">")
            return self.integers(element, [values[lane]], scalar=True)
        return self.pure(f"extractelement {vector} {chunk}, i32 {lane}")


def wrap(element: str, value: int) -> int:
    """Wraps a value around to the range of an integer type: 0 and 1 for i1, else signed."""
    bits = BITS[element]
    value &= (1 << bits) - 1
    return value - (1 << bits) if bits > 1 and value >> (bits - 1) else value


def float_constant(value: float, element: str) -> str:
    """Returns the bit-exact text of an f32 or f64 scalar."""
    if element == "f32":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
