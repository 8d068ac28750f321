"""Emitter of matrix products."""

import numpy as np

from .emit_control import counted_loop
from .emit_shape import axes_of
from .emitter import Emitter, emits, intrinsic
from .errors import UnsupportedFormError
from .halves import widen
from .ttir import Block, Operation
from .types import HALVES, Type, llvm_type
from .values import Value, store_to_stack, value_of

ACCUMULATORS = 12
"""Number of vectors of sums in registers. AVX2 has 16 registers; the others hold the factors."""


def find_skippable(blocks: list[Block]) -> dict[str, str]:
    """Returns the results of each `tt.trans` that is only read by `tt.dot`, as first operand, with their sources."""
    transposed: dict[str, str] = {}
    used: set[str] = set()
    pending = [operation for block in blocks for operation in block.operations]
    while pending:
        operation = pending.pop()
        pending += [inner for region in operation.regions for block in region for inner in block.operations]
        if operation.name == "tt.trans" and axes_of(operation)[-2:] == [1, 0] and len(axes_of(operation)) == 2:
            transposed[operation.results[0]] = operation.operands[0]
        used.update(operation.operands[1:] if operation.name == "tt.dot" else operation.operands)
        used.update(name for _, names in operation.successors for name in names)
    return {name: source for name, source in transposed.items() if name not in used}


@emits("tt.dot", attributes=r"(?:inputPrecision = \w+ ?)?(?:\{maxNumImpreciseAcc = \d+ : i32\})?")
def emit_dot(e: Emitter, operation: Operation) -> Value:
    """Computes C + A B in the order of the inner dimension, with fused multiply-adds in the type of C.

    `inputPrecision` and `maxNumImpreciseAcc` would allow lower precision, and are ignored. Factors and result are on
    the stack. A loop processes blocks of rows whose sums fit into registers.
    """
    a, b, c = e.operands(operation)
    type, code = c.type, e.code
    if type.element in HALVES:
        raise UnsupportedFormError("accumulation in half precision")
    *batch, rows, columns = type.shape or ()
    inner = (b.type.shape or ())[-2]
    strides = (1, rows) if operation.operands[0] in e.skipped else (inner, 1)
    stacks = [store_to_stack(code, value) for value in (_as_type(e, a, type), _as_type(e, b, type), c)]
    lanes = min(type.max_lanes, columns)
    n_vectors = columns // lanes  # per row
    block = max(1, min(rows, 1 << (max(1, ACCUMULATORS // n_vectors).bit_length() - 1)))
    vector, element = llvm_type(type.element, lanes), llvm_type(type.element, None)
    row_type = type.with_shape((lanes,))

    def at(stack: str, *terms: str | int) -> str:
        """Returns the address of the element at a sum of offsets."""
        for term in terms:
            if term != 0:
                stack = code.pure(f"getelementptr {element}, ptr {stack}, i64 {term}")
        return stack

    def scaled(i: str, factor: int) -> str:
        return i if factor == 1 else code.pure(f"mul i64 {i}, {factor}")

    def product_of_block(first_row: str, batch_index: int) -> None:
        start_a = at(stacks[0], batch_index * rows * inner, scaled(first_row, strides[0]))
        start_b = at(stacks[1], batch_index * inner * columns)
        start_c = at(stacks[2], batch_index * rows * columns, scaled(first_row, columns))
        addresses = [at(start_c, r * columns + j * lanes) for r in range(block) for j in range(n_vectors)]
        sums = [(vector, code.result(f"load {vector}, ptr {address}, align 4")) for address in addresses]

        def step(k: str, carried: list[str]) -> list[str]:
            row_of_b = at(start_b, scaled(k, columns))
            right = [code.result(f"load {vector}, ptr {at(row_of_b, j * lanes)}, align 4") for j in range(n_vectors)]
            column_of_a = at(start_a, scaled(k, strides[1]))
            results = []
            for r in range(block):
                scalar = code.result(f"load {element}, ptr {at(column_of_a, r * strides[0])}, align 4")
                left = code.splat(scalar, type.element, lanes)
                for j in range(n_vectors):
                    results.append(_multiply_add(e, row_type, left, right[j], carried[r * n_vectors + j]))
            return results

        for address, result in zip(addresses, counted_loop(code, ("0", str(inner), "1"), "i64", sums, step)):
            code.effect(f"store {vector} {result}, ptr {address}, align 4")

    for batch_index in range(int(np.prod(batch))):

        def over_rows(i: str, _: list[str], batch_index: int = batch_index) -> list[str]:
            product_of_block(i, batch_index)
            return []

        counted_loop(code, ("0", str(rows), str(block)), "i64", [], over_rows)
    addresses = [at(stacks[2], k * type.lanes) for k in range(type.chunks)]
    return value_of(code, type, [code.result(f"load {type.llvm}, ptr {address}, align 4") for address in addresses])


def _multiply_add(e: Emitter, type: Type, a: str, b: str, c: str) -> str:
    if type.is_float:
        return intrinsic(e.code, "fma", type, a, b, c)
    product = e.code.pure(f"mul {type.llvm} {a}, {b}")
    return e.code.pure(f"add {type.llvm} {c}, {product}")


def _as_type(e: Emitter, value: Value, like: Type) -> Value:
    """Converts a factor to the element type of the sum."""
    source, type = value.type, value.type.with_element(like.element)
    if source.element == type.element:
        return value
    if source.element in HALVES:
        single = source.with_element("f32")
        value = e.map(single, lambda x: widen(e.code, source, x), value)
        source = single
        if type.element == "f32":
            return value
    instruction = "fpext" if type.is_float else "sext"
    return e.map(type, lambda x: e.code.pure(f"{instruction} {source.llvm} {x} to {type.llvm}"), value)
