"""Types of values: scalars, pointers, and tensors of them."""

import functools
import math
import re
from typing import NamedTuple

from .errors import UnsupportedFormError

LLVM_NAMES = {
    "f64": "double",
    "f32": "float",
    "f16": "half",
    "bf16": "i16",  # LLVM's conversions of bfloat call library functions or flush subnormals
    "i64": "i64",
    "i32": "i32",
    "i16": "i16",
    "i8": "i8",
    "i1": "i1",
    "index": "i64",
}
BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "i1": 1, "index": 8}
BITS = {"i64": 64, "i32": 32, "i16": 16, "i8": 8, "i1": 1, "index": 64, "bf16": 16}
"""Bits of the types that are integers in LLVM."""

FLOATS = frozenset({"f64", "f32", "f16", "bf16"})
HALVES = frozenset({"f16", "bf16"})
"""Types that are computed in fp32 and rounded after each operation."""


class Type(NamedTuple):
    """The type of a value.

    A tensor is stored in chunks, LLVM vectors of `lanes` lanes each, in row-major order: flat element i is lane
    i % lanes of chunk i // lanes. Dimensions are powers of two in Triton, so chunks are always full.

    Attributes:
        element: Element type, a key of `LLVM_NAMES`. For pointers, the type that they point to.
        shape: Dimensions, or None for a scalar.
        max_lanes: Maximum number of lanes of a chunk.
        pointer: Whether elements are pointers.
    """

    element: str
    shape: tuple[int, ...] | None
    max_lanes: int
    pointer: bool = False

    @property
    def size(self) -> int:
        """The number of elements."""
        return 1 if self.shape is None else math.prod(self.shape)

    @property
    def lanes(self) -> int:
        """The number of lanes of a chunk."""
        return min(self.max_lanes, self.size)

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return self.size // self.lanes

    @property
    def is_float(self) -> bool:
        return self.element in FLOATS and not self.pointer

    @property
    def llvm(self) -> str:
        """The LLVM type of a chunk. For tensors of pointers, see `Value.chunk_type` instead."""
        return llvm_type(self.element, None if self.shape is None else self.lanes)

    def with_element(self, element: str) -> "Type":
        return Type(element, self.shape, self.max_lanes)

    def with_shape(self, shape: tuple[int, ...] | None) -> "Type":
        return Type(self.element, shape, self.max_lanes, self.pointer)


@functools.cache
def llvm_type(element: str, lanes: int | None) -> str:
    """Returns the LLVM type of a scalar (`lanes` None) or a vector."""
    name = LLVM_NAMES[element]
    return name if lanes is None else f"<{lanes} x {name}>"


@functools.cache
def mangled(element: str, lanes: int | None) -> str:
    """Returns the suffix of overloaded LLVM intrinsics for a type, such as "v16f32"."""
    name = {"bf16": "i16", "index": "i64"}.get(element, element)
    return name if lanes is None else f"v{lanes}{name}"


@functools.cache
def parse_type(text: str, max_lanes: int) -> Type:
    """Parses `f32`, `!tt.ptr<f32>`, `tensor<16x4xf32>` or `tensor<16x!tt.ptr<f32>>`."""
    if match := re.fullmatch(r"tensor<((?:\d+x)*)([^,]+)>", text):
        element = parse_type(match[2], max_lanes)
        return element.with_shape(tuple(int(size) for size in match[1].split("x")[:-1]))
    if match := re.fullmatch(r"!tt\.ptr<(\w+)(?:, 1)?>", text):
        return Type(parse_type(match[1], max_lanes).element, None, max_lanes, True)
    if text not in LLVM_NAMES:
        raise UnsupportedFormError(f"type {text}")
    return Type(text, None, max_lanes)
