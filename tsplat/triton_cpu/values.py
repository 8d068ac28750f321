"""Values of the kernel that is translated, and rearrangement of their elements."""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .code import Code
from .types import BYTES, Type, llvm_type

Index = NDArray[np.int64]
First = Callable[[], str]


@dataclasses.dataclass
class Value:
    """A scalar or tensor, as LLVM operands.

    A tensor of pointers is represented by a scalar pointer and a tensor of offsets in elements. So LLVM addresses
    gathers by base and index, and pointers are never shuffled (LLVM 22.1 miscompiles some shuffles for AVX-512).

    Attributes:
        chunks: One operand per chunk, or a single one for scalars. For tensors of pointers, the offsets.
        steps: For each chunk of integers or offsets, the difference of consecutive lanes if it is known, else None.
        base: The scalar pointer that the offsets are relative to; None for all other values.
        offset: The element type of the offsets.
        firsts: For some chunks, a function that computes lane 0 by scalar instructions. Addresses are computed this
            way. It is faster, and avoids a bug of LLVM 22.1 for AVX-512 that takes the wrong lane.
    """

    type: Type
    chunks: list[str]
    steps: list[int | None]
    base: str | None = None
    offset: str = "i32"
    firsts: dict[int, First] = dataclasses.field(default_factory=dict)

    def first(self, code: Code, k: int) -> str:
        """Returns lane 0 of a chunk."""
        return self.firsts[k]() if k in self.firsts else code.extract(self.chunk_type, self.chunks[k], 0)

    @property
    def chunk_element(self) -> str:
        """The element type of the chunks."""
        return self.offset if self.base is not None else self.type.element

    @property
    def chunk_type(self) -> str:
        """The LLVM type of the chunks."""
        if self.type.pointer and self.base is None:
            return "ptr"
        return llvm_type(self.chunk_element, None if self.type.shape is None else self.type.lanes)


def value_of(code: Code, type: Type, chunks: list[str]) -> Value:
    """Returns a value with these chunks, and computes its steps."""
    return Value(type, chunks, [step_of(code, chunk) for chunk in chunks])


def step_of(code: Code, chunk: str) -> int | None:
    """Returns the difference of consecutive lanes of a constant, or None if it is not the same for all lanes."""
    known = code.known(chunk)
    if known is None:
        return None
    if len(known) == 1:
        return 0
    step = known[1] - known[0]
    return step if all(b - a == step for a, b in itertools.pairwise(known)) else None


def rearrange(code: Code, value: Value, type: Type, index: Index) -> Value:
    """Returns a tensor of a type whose flat element i is the flat element index[i] of ``value``."""
    source_lanes, lanes = value.type.lanes, type.lanes
    sources, positions = np.divmod(index.reshape(-1, lanes), source_lanes)
    result = Value(type, [], [], value.base, value.offset)
    stack: str | None = None
    for k, (chunk_sources, chunk_positions) in enumerate(zip(sources.tolist(), positions.tolist())):
        source, position = chunk_sources[0], chunk_positions[0]
        used = sorted(set(chunk_sources))
        step = None
        if len(used) == 1 and lanes == source_lanes and chunk_positions == list(range(lanes)):
            chunk, step = value.chunks[source], value.steps[source]
            if source in value.firsts:
                result.firsts[k] = value.firsts[source]
        elif len(used) > 4 and value.chunk_element != "i1":
            stack = stack or store_to_stack(code, value)
            chunk = _gather_from_stack(code, value, stack, index.reshape(-1, lanes)[k])
        else:
            chunk = _combine(code, value, used, chunk_sources, chunk_positions)
            step = _rearranged_step(code, value, source, chunk, chunk_positions if len(used) == 1 else [])
            if not value.type.is_float:
                result.firsts[k] = functools.partial(_lane, code, value, source, position)
        result.chunks.append(chunk)
        result.steps.append(step)
    return result


def _lane(code: Code, value: Value, chunk: int, lane: int) -> str:
    """Returns a lane of a chunk as a scalar."""
    if lane == 0:
        return value.first(code, chunk)
    return code.extract(value.chunk_type, value.chunks[chunk], lane)


def _combine(code: Code, value: Value, used: list[int], sources: list[int], positions: list[int]) -> str:
    """Returns a chunk whose lane i is lane `positions[i]` of chunk `sources[i]`, by shuffles of two chunks each."""
    known = [code.known(value.chunks[source]) for source in used]
    if all(values is not None for values in known):
        table = dict(zip(used, known))
        return code.integers(value.chunk_element, [table[s][p] for s, p in zip(sources, positions)])  # type: ignore[index]
    vector, width, lanes = value.chunk_type, value.type.lanes, len(sources)
    if len(set(positions)) == len(used) == 1 and not value.type.is_float:
        return code.splat(code.extract(vector, value.chunks[used[0]], positions[0]), value.chunk_element, lanes)
    first = value.chunks[used[0]]
    second = value.chunks[used[1]] if len(used) > 1 else "poison"
    mask = [p + (width if s != used[0] else 0) if s in used[:2] else 0 for s, p in zip(sources, positions)]
    result = code.shuffle(vector, first, second, mask)
    for source in used[2:]:
        # Widen or narrow the next chunk to the width of the result, then blend its lanes into the result.
        part = code.shuffle(
            vector, value.chunks[source], "poison", [p if s == source else 0 for s, p in zip(sources, positions)]
        )
        blend = [i + lanes if s == source else i for i, s in enumerate(sources)]
        result = code.shuffle(llvm_type(value.chunk_element, lanes), result, part, blend)
    return result


def _rearranged_step(code: Code, value: Value, source: int, chunk: str, positions: list[int]) -> int | None:
    """Returns the step of a chunk whose lanes are the lanes ``positions`` of one source chunk."""
    if (step := step_of(code, chunk)) is not None:
        return step
    if len(positions) < 2:
        return 0 if positions else None
    stride = positions[1] - positions[0]
    if any(b - a != stride for a, b in itertools.pairwise(positions)):
        return None
    inner = value.steps[source]
    return 0 if stride == 0 else None if inner is None else inner * stride


def store_to_stack(code: Code, value: Value) -> str:
    """Stores a tensor in an array on the stack, row-major. Returns its address."""
    element = llvm_type(value.chunk_element, None)
    stack = code.allocate(element, value.type.size)
    for k, chunk in enumerate(value.chunks):
        address = code.pure(f"getelementptr {element}, ptr {stack}, i64 {k * value.type.lanes}")
        code.effect(f"store {value.chunk_type} {chunk}, ptr {address}, align {BYTES[value.chunk_element]}")
    return stack


def _gather_from_stack(code: Code, value: Value, stack: str, index: Index) -> str:
    element, lanes = llvm_type(value.chunk_element, None), len(index)
    offsets = code.integers("i32", index.tolist())
    addresses = code.pure(f"getelementptr {element}, ptr {stack}, <{lanes} x i32> {offsets}")
    return code.result(code.masked("gather", value.chunk_element, lanes, addresses, None))
