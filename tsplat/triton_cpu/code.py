"""Writer of LLVM IR text: instructions in blocks, constants, and what is known about both."""

import contextlib
import struct
from collections.abc import Iterator, Sequence
from typing import Literal

from .types import BITS, BYTES, LLVM_NAMES, llvm_type, mangled

Known = tuple[int, ...]


class Code:
    """The body of one LLVM function.

    Pure instructions are written once: the same one again, where the first dominates, returns the first's result.
    Integer constants are remembered, so that emitters can fold operations on them.
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
        """Writes an instruction without side effects, unless it is available already; returns its result."""
        for scope in self._available:
            if instruction in scope:
                return scope[instruction]
        result = self._available[-1][instruction] = self.result(instruction)
        return result

    def result(self, instruction: str) -> str:
        """Writes an instruction that must not be merged with equal ones; returns its result."""
        name = self.name()
        self.lines.append(f"  {name} = {instruction}")
        return name

    def effect(self, instruction: str) -> None:
        self.lines.append(f"  {instruction}")

    def call(self, function: str, result: str, arguments: Sequence[tuple[str, str]]) -> str:
        """Returns the text of a call, and declares the function; arguments are types and values."""
        self.declarations[f"declare {result} @{function}({', '.join(kind for kind, _ in arguments)})"] = None
        return f"call {result} @{function}({', '.join(f'{kind} {value}' for kind, value in arguments)})"

    def allocate(self, llvm_element: str, count: int) -> str:
        """Allocates a stack array, aligned for vectors; returns its address."""
        name = f"%stack{self._stacks}"
        self._stacks += 1
        self.allocations.append(f"  {name} = alloca [{count} x {llvm_element}], align 64")
        return name

    def unused_word(self) -> str:
        """Returns the address of 64 bits on the stack, which lanes whose mask is false load from and store to."""
        if self._unused is None:
            self._unused = self.allocate("i64", 1)
            self.allocations.append(f"  store i64 0, ptr {self._unused}, align 8")
        return self._unused

    def masked(
        self,
        kind: Literal["load", "store", "gather", "scatter"],
        element: str,
        lanes: int,
        pointer: str,
        mask: str | None,
        value: str | None = None,
    ) -> str:
        """Returns the text of a masked memory operation, or of an unmasked gather or scatter.

        Args:
            pointer: Address of lane 0 for load and store, a vector of addresses for gather and scatter.
            value: What to store, or what a load yields where the mask is false, by default zero.
        """
        vector = llvm_type(element, lanes)
        scattered = kind in ("gather", "scatter")
        name = f"llvm.masked.{kind}.{mangled(element, lanes)}." + (f"v{lanes}p0" if scattered else "p0")
        address = (f"<{lanes} x ptr>" if scattered else "ptr", pointer)
        alignment = ("i32", str(BYTES[element]))
        lanes_on = (f"<{lanes} x i1>", mask or self.integers("i1", [1] * lanes))
        if kind in ("load", "gather"):
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
        """Delimits a region whose instructions do not dominate what follows it."""
        self._available.append({})
        yield
        self._available.pop()

    def placeholder(self) -> int:
        """Reserves a place in the text, to be filled in later with `fill`."""
        self.lines.append("")
        return len(self.lines) - 1

    def fill(self, place: int, instructions: Sequence[str]) -> None:
        self.lines[place] = "\n".join(f"  {instruction}" for instruction in instructions)

    # Constants

    def integers(self, element: str, values: Sequence[int], scalar: bool = False) -> str:
        """Returns the text of an integer constant, a vector or a scalar. Values wrap around as the type does."""
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
    """Returns the value that an integer type holds after overflow: 0 or 1 for i1, else signed."""
    bits = BITS[element]
    value &= (1 << bits) - 1
    return value - (1 << bits) if bits > 1 and value >> (bits - 1) else value


def float_constant(value: float, element: str) -> str:
    """Returns the text of a scalar of type f32 or f64, exact bit for bit."""
    if element == "f32":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
