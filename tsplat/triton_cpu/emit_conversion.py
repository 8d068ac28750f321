"""Emitters of conversions between types."""

import functools

from .emit_arithmetic import FLAGS
from .emitter import Emitter, emits
from .errors import UnsupportedFormError
from .halves import narrow, widen, widened
from .ttir import Operation
from .types import BITS, HALVES, mangled
from .values import Value


@emits("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", attributes=FLAGS)
def emit_integer_conversion(e: Emitter, operation: Operation) -> Value:
    (a,) = e.operands(operation)
    instruction = {"arith.extsi": "sext", "arith.extui": "zext", "arith.trunci": "trunc"}.get(operation.name, "")
    element = operation.type.element
    if not instruction:
        instruction = "sext" if BITS[element] > BITS[a.type.element] else "trunc"
    return convert_integers(e, instruction, a, element)


def convert_integers(e: Emitter, instruction: str, a: Value, element: str) -> Value:
    """Extends or truncates integers.

    Sign extension preserves steps. Truncation wraps around, so it only preserves steps of 0.
    """
    source, type = a.type.element, a.type.with_element(element)
    if BITS[element] == BITS[source]:
        return Value(type, a.chunks, a.steps, firsts=a.firsts)

    def convert(x: str, shape: tuple[int, ...] | None = a.type.shape) -> str:
        values = e.code.known(x)
        if values is None:
            return e.code.pure(f"{instruction} {a.type.with_shape(shape).llvm} {x} to {type.with_shape(shape).llvm}")
        if instruction == "zext":
            values = tuple(value & ((1 << BITS[source]) - 1) for value in values)
        elif instruction == "sext" and source == "i1":
            values = tuple(-value for value in values)
        return e.code.integers(element, values, shape is None)

    result = e.map(type, convert, a)
    if source != "i1" and instruction == "sext":
        result.steps = a.steps
    elif instruction == "trunc":
        result.steps = [0 if of_a == 0 else step for of_a, step in zip(a.steps, result.steps)]

    def first(k: int) -> str:
        return convert(a.first(e.code, k), None)

    for k in a.firsts:
        result.firsts[k] = functools.partial(first, k)
    return result


@emits("arith.sitofp", "arith.uitofp", attributes=FLAGS)
def emit_integer_to_float(e: Emitter, operation: Operation) -> Value:
    (a,) = e.operands(operation)
    type = wide = a.type.with_element(operation.type.element)
    if type.element in HALVES:  # via a wider type, which is exact for up to 53 bits
        wide = type.with_element("f64" if BITS[a.type.element] > 16 else "f32")
    instruction = operation.name.removeprefix("arith.")

    def convert(x: str) -> str:
        return narrow(e.code, wide, type, e.code.pure(f"{instruction} {a.type.llvm} {x} to {wide.llvm}"))

    return e.map(type, convert, a)


@emits("arith.fptosi", "arith.fptoui", attributes=FLAGS)
def emit_float_to_integer(e: Emitter, operation: Operation) -> Value:
    """Rounds toward zero. Values out of range give the nearest integer, and NaN gives 0."""
    (a,) = e.operands(operation)
    type, wide = a.type.with_element(operation.type.element), widened(a.type)
    suffix = ".".join(mangled(t.element, None if t.shape is None else t.lanes) for t in (type, wide))
    name = f"llvm.{operation.name.removeprefix('arith.')}.sat.{suffix}"
    return e.map(type, lambda x: e.code.pure(e.code.call(name, type.llvm, [(wide.llvm, widen(e.code, a.type, x))])), a)


@emits("arith.extf", "arith.truncf", "tt.fp_to_fp", attributes=rf"{FLAGS}(?:rounding = rtne)?")
def emit_float_conversion(e: Emitter, operation: Operation) -> Value:
    (a,) = e.operands(operation)
    type, wide = a.type.with_element(operation.type.element), widened(a.type)

    def convert(x: str) -> str:
        x = widen(e.code, a.type, x)
        if type.element in HALVES:
            return narrow(e.code, wide, type, x)
        if type.element == wide.element:
            return x
        return e.code.pure(f"{'fpext' if type.element == 'f64' else 'fptrunc'} {wide.llvm} {x} to {type.llvm}")

    return e.map(type, convert, a)


@emits("arith.bitcast", "tt.bitcast")
def emit_bitcast(e: Emitter, operation: Operation) -> Value:
    (a,) = e.operands(operation)
    if a.type.pointer:
        type = operation.type
        same_size = type.element == a.type.element or {type.element, a.type.element} == {"i1", "i8"}
        if a.base is not None and not same_size:
            raise UnsupportedFormError("conversion of a tensor to pointers to another type")
        return Value(type, a.chunks, a.steps, a.base, a.offset)
    type = a.type.with_element(operation.type.element)
    if type.llvm == a.type.llvm:
        return Value(type, a.chunks, a.steps)
    return e.map(type, lambda x: e.code.pure(f"bitcast {a.type.llvm} {x} to {type.llvm}"), a)
