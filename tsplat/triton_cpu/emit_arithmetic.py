"""Emitters of elementwise arithmetic and comparisons.

Integer operations on constants are folded, and operations without effect are left out. Kernels often use masks such as
`tl.arange(...) == k`, which would otherwise cost instructions for every lane.
"""

import functools
import operator
from collections.abc import Callable

from .emitter import Emitter, emits, intrinsic
from .errors import UnsupportedFormError
from .halves import constant, narrow, widen, widened
from .ttir import Operation
from .types import BITS, HALVES, Type, mangled
from .values import Value

FLAGS = r"(?:fastmath<\w+>|overflow<[\w, ]+>|to_nearest_even|exact|nneg)?"

FLOAT_BINARY = {
    "arith.addf": "fadd",
    "arith.subf": "fsub",
    "arith.mulf": "fmul",
    "arith.divf": "fdiv",
    "tt.precise_divf": "fdiv",
    "arith.remf": "frem",
}
FLOAT_CALLS = {
    "arith.minnumf": "minnum",
    "arith.maxnumf": "maxnum",
    "arith.minimumf": "minimum",
    "arith.maximumf": "maximum",
    "math.sqrt": "sqrt",
    "tt.precise_sqrt": "sqrt",
    "math.floor": "floor",
    "math.ceil": "ceil",
    "math.absf": "fabs",
    "math.fma": "fma",
}
INTEGER_BINARY = {
    "arith.addi": "add",
    "arith.subi": "sub",
    "arith.muli": "mul",
    "arith.andi": "and",
    "arith.ori": "or",
    "arith.xori": "xor",
    "arith.shli": "shl",
    "arith.shrsi": "ashr",
    "arith.shrui": "lshr",
}
INTEGER_CALLS = {"arith.maxsi": "smax", "arith.minsi": "smin", "arith.maxui": "umax", "arith.minui": "umin"}

FOLDS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "smax": max,
    "smin": min,
}
NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "and": -1, "or": 0, "xor": 0, "shl": 0, "ashr": 0, "lshr": 0}
"""Second operands for which the result is the first operand."""
ABSORBING = {"mul": 0, "and": 0, "or": -1}
"""Second operands that are themselves the result."""
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "slt": operator.lt,
    "sle": operator.le,
    "sgt": operator.gt,
    "sge": operator.ge,
}


@emits(*FLOAT_BINARY, attributes=FLAGS)
def emit_float_binary(e: Emitter, operation: Operation) -> Value:
    instruction = FLOAT_BINARY[operation.name]
    return map_float(e, operation, lambda t, x, y: e.code.pure(f"{instruction} {t.llvm} {x}, {y}"))


@emits("arith.negf", attributes=FLAGS)
def emit_negate(e: Emitter, operation: Operation) -> Value:
    return map_float(e, operation, lambda t, x: e.code.pure(f"fneg {t.llvm} {x}"))


@emits(*FLOAT_CALLS, attributes=FLAGS)
def emit_float_call(e: Emitter, operation: Operation) -> Value:
    name = FLOAT_CALLS[operation.name]
    return map_float(e, operation, lambda t, *xs: intrinsic(e.code, name, t, *xs))


def map_float(e: Emitter, operation: Operation, function: Callable[..., str]) -> Value:
    """Applies function(type, *chunks) elementwise. Half precision is computed in fp32 and rounded afterwards."""
    operands = e.same_shape(e.operands(operation))
    type = operands[0].type
    if type.element not in HALVES:
        return e.map(type, lambda *xs: function(type, *xs), *operands)
    wide = widened(type)
    return e.map(
        type, lambda *xs: narrow(e.code, wide, type, function(wide, *(widen(e.code, type, x) for x in xs))), *operands
    )


@emits(*INTEGER_BINARY, *INTEGER_CALLS, attributes=FLAGS)
def emit_integer_binary(e: Emitter, operation: Operation) -> Value:
    a, b = e.same_shape(e.operands(operation))
    return integer_operation(e, INTEGER_BINARY.get(operation.name) or INTEGER_CALLS[operation.name], a, b)


def integer_operation(e: Emitter, name: str, a: Value, b: Value) -> Value:
    """Applies an LLVM instruction or intrinsic to integers, elementwise."""
    result = e.map(a.type, lambda x, y: integer_binary(e, a.type, name, x, y), a, b)
    result.steps = [_step(e, name, a, b, k) if step is None else step for k, step in enumerate(result.steps)]
    if name in ("add", "sub", "mul"):
        scalar = a.type.with_shape(None)

        def first(k: int) -> str:
            return integer_binary(e, scalar, name, a.first(e.code, k), b.first(e.code, k))

        for k in sorted(a.firsts.keys() | b.firsts.keys()):
            result.firsts[k] = functools.partial(first, k)
    return result


def integer_binary(e: Emitter, type: Type, name: str, x: str, y: str) -> str:
    """Applies an integer operation to a chunk, folded if possible."""
    code = e.code
    a, b = code.known(x), code.known(y)
    # True of type i1 is represented by 1, but signed instructions take it as -1.
    if a is not None and b is not None and name in FOLDS and not (type.element == "i1" and name in ("smax", "smin")):
        return code.integers(type.element, [FOLDS[name](p, q) for p, q in zip(a, b)], type.shape is None)
    if a is not None and name in ("add", "mul", "and", "or", "xor"):
        x, y, a, b = y, x, b, a
    if b is not None:
        true = 1 if type.element == "i1" else -1  # all bits set
        neutral, absorbing = (true if table.get(name) == -1 else table.get(name) for table in (NEUTRAL, ABSORBING))
        if all(value == neutral for value in b):
            return x
        if all(value == absorbing for value in b):
            return y
    if name in INTEGER_CALLS.values():
        return intrinsic(code, name, type, x, y)
    return code.pure(f"{name} {type.llvm} {x}, {y}")


def _step(e: Emitter, name: str, a: Value, b: Value, k: int) -> int | None:
    """Returns the step of chunk k of the result, for sums, differences, and products with a constant.

    Integers of 32 and 64 bits are assumed not to overflow, as in address arithmetic. Narrower ones may overflow.
    """
    p, q = a.steps[k], b.steps[k]
    if p is None or q is None:
        return None
    if BITS[a.type.element] < 32:
        return 0 if p == q == 0 else None
    if name == "add":
        return p + q
    if name == "sub":
        return p - q
    if name == "mul":
        for step, other_step, other in ((p, q, b), (q, p, a)):
            factor = e.code.known(other.chunks[k])
            if other_step == 0 and factor is not None:
                return step * factor[0]
    return 0 if p == q == 0 else None


@emits("arith.divsi", "arith.remsi", "arith.divui", "arith.remui", attributes=FLAGS)
def emit_division(e: Emitter, operation: Operation) -> Value:
    a, b = e.same_shape(e.operands(operation))
    type, signed = a.type, operation.name.endswith("si")

    def divide(x: str, y: str) -> str:
        quotient = _quotient(e, type, x, y, signed)
        if operation.name.startswith("arith.div"):
            return quotient
        return e.code.pure(f"sub {type.llvm} {x}, " + e.code.pure(f"mul {type.llvm} {quotient}, {y}"))

    result = e.map(type, divide, a, b)
    result.steps = [0 if p == q == 0 else None for p, q in zip(a.steps, b.steps)]
    return result


def _quotient(e: Emitter, type: Type, x: str, y: str, signed: bool) -> str:
    """Returns x / y, rounded toward zero.

    CPUs have no integer division of vectors. For signed 32-bit integers, a division in fp64 gives the exact result.
    """
    code, instruction = e.code, "sdiv" if signed else "udiv"
    known = code.known(y)
    if known is not None and not {0, -1} & set(known):
        return code.pure(f"{instruction} {type.llvm} {x}, {y}")
    if type.element == "i32" and type.shape is not None and signed:
        wide = type.with_element("f64").llvm
        dividend, divisor = (code.pure(f"sitofp {type.llvm} {z} to {wide}") for z in (x, y))
        return code.pure(f"fptosi {wide} {code.pure(f'fdiv {wide} {dividend}, {divisor}')} to {type.llvm}")
    # A division by zero, or of the smallest integer by -1, would end the process, even in lanes that masks leave out.
    booleans = type.with_element("i1").llvm
    traps = code.pure(f"icmp eq {type.llvm} {y}, {constant(code, type, 0)}")
    if signed:
        smallest = constant(code, type, -(1 << (BITS[type.element] - 1)))
        is_smallest = code.pure(f"icmp eq {type.llvm} {x}, {smallest}")
        by_minus_one = code.pure(f"icmp eq {type.llvm} {y}, {constant(code, type, -1)}")
        traps = code.pure(f"or {booleans} {traps}, " + code.pure(f"and {booleans} {is_smallest}, {by_minus_one}"))
    safe = code.pure(f"select {booleans} {traps}, {type.llvm} {constant(code, type, 1)}, {type.llvm} {y}")
    return code.pure(f"{instruction} {type.llvm} {x}, {safe}")


@emits("arith.cmpi", "arith.cmpf", attributes=rf"(?:{FLAGS} ?)?\w+(?: ?{FLAGS})?")
def emit_comparison(e: Emitter, operation: Operation) -> Value:
    predicate = operation.attributes.split()[0]
    a, b = e.same_shape(e.operands(operation))
    if a.type.pointer:
        raise UnsupportedFormError("comparison of pointers")
    type = a.type.with_element("i1")
    if a.type.is_float:
        wide = widened(a.type)
        return e.map(type, lambda *xs: e.code.pure(
            f"fcmp {predicate} {wide.llvm} " + ", ".join(widen(e.code, a.type, x) for x in xs)), a, b)  # fmt: skip

    def compare(x: str, y: str) -> str:
        p, q = e.code.known(x), e.code.known(y)
        foldable = ("eq", "ne") if a.type.element == "i1" else COMPARISONS
        if p is not None and q is not None and predicate in foldable:
            return e.code.integers("i1", [COMPARISONS[predicate](u, v) for u, v in zip(p, q)], a.type.shape is None)
        return e.code.pure(f"icmp {predicate} {a.type.llvm} {x}, {y}")

    return e.map(type, compare, a, b)


@emits("arith.select")
def emit_select(e: Emitter, operation: Operation) -> Value:
    condition, a, b = e.operands(operation)
    if condition.type.shape is not None or a.type.shape != b.type.shape:
        condition, a, b = e.same_shape([condition, a, b])
    if a.base is not None or b.base is not None:
        raise UnsupportedFormError("selection among tensors of pointers")
    scalar = condition.type.shape is None
    chunk_type = a.chunk_type
    chunks = []
    for k, (x, y) in enumerate(zip(a.chunks, b.chunks)):
        c = condition.chunks[0 if scalar else k]
        known = e.code.known(c)
        if x == y or (known is not None and all(known)):
            chunks.append(x)
        elif known is not None and not any(known):
            chunks.append(y)
        else:
            chunks.append(e.code.pure(f"select {condition.type.llvm} {c}, {chunk_type} {x}, {chunk_type} {y}"))
    return Value(a.type, chunks, [p if p == q == 0 and scalar else None for p, q in zip(a.steps, b.steps)])


@emits("math.absi")
def emit_integer_abs(e: Emitter, operation: Operation) -> Value:
    (a,) = e.operands(operation)
    name = f"llvm.abs.{mangled(a.type.element, None if a.type.shape is None else a.type.lanes)}"
    return e.map(a.type, lambda x: e.code.pure(e.code.call(name, a.type.llvm, [(a.type.llvm, x), ("i1", "false")])), a)
