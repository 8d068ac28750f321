"""Emitters of reductions and scans."""

import itertools

import numpy as np

from .emitter import Emitter, emits
from .ttir import Operation
from .values import Index, Value, rearrange


@emits("tt.reduce", attributes=r"<\{axis = \d+ : i32\}>")
def emit_reduce(e: Emitter, operation: Operation) -> list[Value]:
    """Combines the first half of the axis with the second half, until one element is left. The order is the same on all
    CPUs."""
    values = e.operands(operation)
    shape = values[0].type.shape or ()
    axis = operation.integer("axis")
    outer, length, inner = int(np.prod(shape[:axis])), shape[axis], int(np.prod(shape[axis + 1 :]))
    if values[0].type.element == "i1" and len(shape) == 1 and (bitwise := _bitwise(operation)):
        return [_reduce_booleans(e, values[0], bitwise)]
    while length > 1:
        index = np.arange(outer * length * inner).reshape(outer, 2, length // 2, inner)
        halves = [_take(e, value, index[:, k]) for k in (0, 1) for value in values]
        values = e.call_region(operation.regions[0], halves)
        length //= 2
    results = []
    for value in values:
        type = value.type.with_shape((*shape[:axis], *shape[axis + 1 :]) if len(shape) > 1 else None)
        if type.shape is None:
            results.append(Value(type, [e.code.extract(value.chunk_type, value.chunks[0], 0)], [0]))
        else:
            results.append(Value(type, value.chunks, value.steps))
    return results


def _bitwise(operation: Operation) -> str | None:
    """Returns the LLVM name of a reduction whose region is a single `and` or `or`, else None."""
    (block,) = operation.regions[0]
    names = [inner.name for inner in block.operations]
    return {"arith.ori": "or", "arith.andi": "and"}.get(names[0]) if len(names) == 2 else None


def _reduce_booleans(e: Emitter, value: Value, bitwise: str) -> Value:
    """Combines chunks of booleans (mask registers on AVX-512), and then the lanes of the result."""
    vector = value.chunk_type
    combined = value.chunks[0]
    for chunk in value.chunks[1:]:
        combined = e.code.pure(f"{bitwise} {vector} {combined}, {chunk}")
    call = e.code.call(f"llvm.vector.reduce.{bitwise}.v{value.type.lanes}i1", "i1", [(vector, combined)])
    return Value(value.type.with_shape(None), [e.code.pure(call)], [0])


@emits("tt.scan", attributes=r"<\{axis = \d+ : i32, reverse = (?:true|false)\}>")
def emit_scan(e: Emitter, operation: Operation) -> list[Value]:
    """Combines the elements along the axis sequentially."""
    values = e.operands(operation)
    shape = values[0].type.shape or ()
    axis = operation.integer("axis")
    outer, length, inner = int(np.prod(shape[:axis])), shape[axis], int(np.prod(shape[axis + 1 :]))
    index = np.arange(outer * length * inner).reshape(outer, length, inner)
    order = list(range(length))
    if "reverse = true" in operation.attributes:
        order.reverse()
    slices = {order[0]: [_take(e, value, index[:, order[0]]) for value in values]}
    for before, k in itertools.pairwise(order):
        current = [_take(e, value, index[:, k]) for value in values]
        slices[k] = e.call_region(operation.regions[0], [*slices[before], *current])
    results = []
    for i, value in enumerate(values):
        parts = [slices[k][i] for k in range(length)]
        type = parts[0].type
        joined = Value(
            type.with_shape((length * type.size,))._replace(max_lanes=type.lanes),
            [chunk for part in parts for chunk in part.chunks],
            [step for part in parts for step in part.steps],
        )
        back = np.arange(length * outer * inner).reshape(length, outer, inner).transpose(1, 0, 2)
        results.append(rearrange(e.code, joined, value.type, back.reshape(-1)))
    return results


def _take(e: Emitter, value: Value, index: Index) -> Value:
    """Returns the elements at flat indices, as a flat tensor."""
    return rearrange(e.code, value, value.type.with_shape((index.size,)), index.reshape(-1))
