"""Emitters of operations that create tensors or rearrange their elements.

Operations on constants are evaluated now. Rearrangements with constant indices cost shuffles at most, or stores to the
stack and gathers if they read many chunks.
"""

import re

import numpy as np

from .emitter import Emitter, emits
from .errors import UnsupportedFormError
from .halves import float_text
from .ttir import Operation
from .types import Type, llvm_type
from .values import Index, Value, rearrange, store_to_stack, value_of


@emits("tt.get_program_id", "tt.get_num_programs", attributes="[xyz]")
def emit_program_id(e: Emitter, operation: Operation) -> Value:
    name = "program" if operation.name == "tt.get_program_id" else "programs"
    return Value(operation.type, [f"%{name}_{operation.attributes}"], [0])


@emits("arith.constant", attributes=r"dense<[^<>,]*>|[^<>,]+")
def emit_constant(e: Emitter, operation: Operation) -> Value:
    text = operation.attributes.removeprefix("dense<").removesuffix(">")
    type = operation.type if operation.types else Type("i1", None, e.target.lanes)
    if type.is_float:
        scalar = float_text(e.code, text, type.element)
    elif text in ("true", "false"):
        scalar = text
    else:
        scalar = e.code.integers(type.element, [int(text)], scalar=True)
    return e.broadcast_scalar(Value(type.with_shape(None), [scalar], [0]), type)


@emits("tt.make_range", attributes=r"\{end = \d+ : i32, start = \d+ : i32\}")
def emit_make_range(e: Emitter, operation: Operation) -> Value:
    type = operation.type
    start, lanes = operation.integer("start"), type.lanes
    chunks = [e.code.integers("i32", range(start + k * lanes, start + (k + 1) * lanes)) for k in range(type.chunks)]
    return value_of(e.code, type, chunks)


@emits("tt.splat")
def emit_splat(e: Emitter, operation: Operation) -> Value:
    (a,) = e.operands(operation)
    type = a.type.with_shape(operation.type.shape)
    if type.pointer:
        offsets = e.code.integers("i32", [0] * type.lanes)
        return Value(type, [offsets] * type.chunks, [0] * type.chunks, a.chunks[0])
    return e.broadcast_scalar(a, type)


@emits("tt.unsplat")
def emit_unsplat(e: Emitter, operation: Operation) -> Value:
    (a,) = e.operands(operation)
    return Value(operation.type, [e.code.extract(a.type.llvm, a.chunks[0], 0)], [0])


@emits(
    "tt.expand_dims",
    "tt.reshape",
    "tt.broadcast",
    "tt.trans",
    attributes=r"(?:allow_reorder ?)?(?:efficient_layout ?)?(?:\{axis = \d+ : i32\}|\{order = array<i32: [\d, ]+>\})?",
)
def emit_rearrangement(e: Emitter, operation: Operation) -> Value | None:
    if operation.results[0] in e.skipped:
        return e.values[operation.operands[0]]  # `emit_dot` reads it in the order of the source
    (a,) = e.operands(operation)
    type = a.type.with_shape(operation.type.shape)
    index: Index = np.arange(a.type.size).reshape(a.type.shape or ())
    if operation.name == "tt.broadcast":
        index = np.broadcast_to(index, type.shape or ())
    elif operation.name == "tt.trans":
        index = index.transpose(axes_of(operation))
    return rearrange(e.code, a, type, index.reshape(-1))


def axes_of(operation: Operation) -> list[int]:
    """Returns the order of the dimensions of a `tt.trans`."""
    match = re.search(r"array<i32: ([\d, ]+)>", operation.attributes)
    if not match:
        raise UnsupportedFormError("no order")
    return [int(axis) for axis in match[1].split(",")]


@emits("tt.join")
def emit_join(e: Emitter, operation: Operation) -> Value:
    """Stacks two tensors along a new last dimension."""
    a, b = e.operands(operation)
    type = a.type.with_shape(operation.type.shape)
    return rearrange(e.code, _concatenate(a, b), type, np.arange(2 * a.type.size).reshape(2, -1).T.reshape(-1))


@emits("tt.cat")
def emit_cat(e: Emitter, operation: Operation) -> Value:
    a, b = e.operands(operation)
    return rearrange(e.code, _concatenate(a, b), a.type.with_shape(operation.type.shape), np.arange(2 * a.type.size))


def _concatenate(a: Value, b: Value) -> Value:
    """Concatenates the chunks of two tensors. The number of lanes per chunk does not change."""
    if a.base is not None:
        raise UnsupportedFormError("tensors of pointers")
    type = a.type.with_shape((2 * a.type.size,))._replace(max_lanes=a.type.lanes)
    return Value(type, a.chunks + b.chunks, a.steps + b.steps)


@emits("tt.split")
def emit_split(e: Emitter, operation: Operation) -> list[Value]:
    """Returns the two halves of a tensor along its last dimension."""
    (a,) = e.operands(operation)
    type = a.type.with_shape(operation.type.shape)
    return [rearrange(e.code, a, type, np.arange(k, a.type.size, 2)) for k in (0, 1)]


@emits("tt.gather", attributes=r"\{axis = \d+ : i32(?:, efficient_layout)?\}")
def emit_gather(e: Emitter, operation: Operation) -> Value:
    """Gathers elements along an axis: by shuffles if the indices are constant, else from the stack."""
    source, indices = e.operands(operation)
    type = source.type.with_shape(indices.type.shape)
    shape, axis = source.type.shape or (), operation.integer("axis")
    strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    grid = np.indices(type.shape or ())
    origin = np.asarray(sum(grid[i] * strides[i] for i in range(len(shape)) if i != axis)) + np.zeros(
        type.shape or (), int
    )
    known = [e.code.known(chunk) for chunk in indices.chunks]
    if all(values is not None for values in known):
        index = np.concatenate([np.array(values) for values in known]) * strides[axis] + origin.reshape(-1)
        return rearrange(e.code, source, type, index)
    code, lanes, index_type = e.code, type.lanes, indices.type.llvm
    stack, element = store_to_stack(code, source), llvm_type(type.element, None)
    stride = code.integers(indices.type.element, [strides[axis]] * lanes)
    chunks = []
    for k, chunk in enumerate(indices.chunks):
        start = code.integers(indices.type.element, origin.reshape(-1)[k * lanes : (k + 1) * lanes].tolist())
        offset = code.pure(f"add {index_type} {code.pure(f'mul {index_type} {chunk}, {stride}')}, {start}")
        addresses = code.pure(f"getelementptr {element}, ptr {stack}, {index_type} {offset}")
        chunks.append(code.result(code.masked("gather", type.element, lanes, addresses, None)))
    return value_of(code, type, chunks)
