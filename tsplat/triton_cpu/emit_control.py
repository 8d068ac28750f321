"""Emitters of control flow: structured loops and conditionals (scf), and branches between blocks (cf)."""

from collections.abc import Callable, Sequence

from .code import Code
from .emit_memory import wide_offsets
from .emitter import Emitter, emits
from .errors import UnsupportedFormError
from .ttir import Block, Operation
from .values import Value


def counted_loop(
    code: Code,
    bounds: tuple[str, str, str],
    counter: str,
    initial: Sequence[tuple[str, str]],
    body: Callable[[str, list[str]], list[str]],
) -> list[str]:
    """Writes `for (i = lower; i < upper; i += step)`. Returns the loop-carried values after the loop.

    Args:
        bounds: Lower bound, upper bound and step.
        counter: The LLVM type of i.
        initial: The LLVM type and the initial value of each loop-carried value.
        body: Writes the body, given i and the loop-carried values. Returns their next values.
    """
    lower, upper, step = bounds

    def iteration(carried: list[str]) -> list[str]:
        results = body(carried[0], carried[1:])
        return [code.result(f"add {counter} {carried[0]}, {step}"), *results]

    def is_inside(carried: list[str]) -> str:
        return code.result(f"icmp slt {counter} {carried[0]}, {upper}")

    return _loop(code, [(counter, lower), *initial], is_inside, iteration)[1:]


def _loop(
    code: Code,
    initial: Sequence[tuple[str, str]],
    condition: Callable[[list[str]], str],
    body: Callable[[list[str]], list[str]],
) -> list[str]:
    """Writes a loop. Returns the loop-carried values after the loop."""
    head, inside, after, before = code.label(), code.label(), code.label(), code.block
    code.branch(head)
    code.start(head)
    phis = code.placeholder()
    carried = [code.name() for _ in initial]
    code.branch_if(condition(carried), inside, after)
    code.start(inside)
    with code.scope():
        results = body(carried)
        last = code.block
        code.branch(head)
    code.fill(phis, [
        f"{name} = phi {t} [ {first}, %{before} ], [ {result}, %{last} ]"
        for name, (t, first), result in zip(carried, initial, results)
    ])  # fmt: skip
    code.start(after)
    return carried


@emits("scf.for", attributes=r"=\s*to\s*step")
def emit_for(e: Emitter, operation: Operation) -> list[Value]:
    lower, upper, step, *initial = e.operands(operation)
    (block,) = operation.regions[0]
    initial = [_carriable(e, value) for value in initial]

    def body(i: str, carried: list[str]) -> list[str]:
        e.values[block.arguments[0][0]] = Value(block.arguments[0][1], [i], [0])
        _bind(e, block, _unflatten(initial, carried), first=1)
        return _flatten(_yielded(e, e.run(block), initial))

    bounds = (lower.chunks[0], upper.chunks[0], step.chunks[0])
    return _unflatten(initial, counted_loop(e.code, bounds, lower.type.llvm, _typed(initial), body))


@emits("scf.while")
def emit_while(e: Emitter, operation: Operation) -> list[Value]:
    initial = [_carriable(e, value) for value in e.operands(operation)]
    (before,), (after,) = operation.regions
    passed: list[Value] = []

    def condition(carried: list[str]) -> str:
        _bind(e, before, _unflatten(initial, carried))
        continues, *passed[:] = (e.values[name] for name in e.run(before).operands)
        return continues.chunks[0]

    def body(_: list[str]) -> list[str]:
        _bind(e, after, passed)
        return _flatten(_yielded(e, e.run(after), initial))

    _loop(e.code, _typed(initial), condition, body)
    return passed


@emits("scf.if")
def emit_if(e: Emitter, operation: Operation) -> list[Value]:
    (condition,) = e.operands(operation)
    code = e.code
    labels, end = (code.label(), code.label()), code.label()
    code.branch_if(condition.chunks[0], labels[0], labels[1])
    branches: list[tuple[list[Value], str]] = []
    for k, label in enumerate(labels):
        code.start(label)
        with code.scope():
            results: list[Value] = []
            if k < len(operation.regions):
                (block,) = operation.regions[k]
                results = [_carriable(e, e.values[name]) for name in e.run(block).operands]
            branches.append((results, code.block))
            code.branch(end)
    code.start(end)
    (then, then_block), (otherwise, else_block) = branches
    results = []
    for a, b in zip(then, otherwise):
        if a.base != b.base:
            raise UnsupportedFormError("tensors of pointers with different bases")
        chunks = [code.result(f"phi {a.chunk_type} [ {x}, %{then_block} ], [ {y}, %{else_block} ]")
                  for x, y in zip(a.chunks, b.chunks)]  # fmt: skip
        results.append(Value(a.type, chunks, [None] * len(chunks), a.base, a.offset))
    return results


def run_blocks(e: Emitter, blocks: list[Block]) -> None:
    """Translates the body of a kernel: one block, or several that branch to each other."""
    labels = {block.label: e.code.label() for block in blocks[1:]}
    incoming: dict[str, list[tuple[str, list[Value]]]] = {block.label: [] for block in blocks}
    phi_lines: list[tuple[Block, int, list[Value]]] = []
    for k, block in enumerate(blocks):
        if k:
            e.code.start(labels[block.label])
            phi_lines.append((block, e.code.placeholder(), _block_arguments(e, block)))
        # The first block dominates all others. For the others, dominance is not known.
        if k == 0:
            terminator = e.run(block)
        else:
            with e.code.scope():
                terminator = e.run(block)
        for label, names in terminator.successors:
            incoming[label].append((e.code.block, [e.values[name] for name in names]))
        targets = [labels[label] for label, _ in terminator.successors]
        if terminator.name == "tt.return":
            e.code.effect("ret void")
        elif terminator.name == "cf.br":
            e.code.branch(targets[0])
        else:
            e.code.branch_if(e.values[terminator.operands[0]].chunks[0], targets[0], targets[1])
    for block, line, arguments in phi_lines:
        phis = []
        for i, argument in enumerate(arguments):
            for j, name in enumerate(argument.chunks):
                sources = ", ".join(f"[ {values[i].chunks[j]}, %{source} ]" for source, values in incoming[block.label])
                phis.append(f"{name} = phi {argument.chunk_type} {sources}")
        e.code.fill(line, phis)


def _block_arguments(e: Emitter, block: Block) -> list[Value]:
    arguments = []
    for name, type in block.arguments:
        if type.pointer and type.shape is not None:
            raise UnsupportedFormError("tensors of pointers as arguments of a block")
        e.values[name] = Value(type, [e.code.name() for _ in range(type.chunks)], [None] * type.chunks)
        arguments.append(e.values[name])
    return arguments


def _carriable(e: Emitter, value: Value) -> Value:
    """Returns a value in the form in which loops carry it: pointers have 64-bit offsets, as these may grow."""
    return value if value.base is None else wide_offsets(e, value)


def _typed(values: Sequence[Value]) -> list[tuple[str, str]]:
    return [(value.chunk_type, chunk) for value in values for chunk in value.chunks]


def _flatten(values: Sequence[Value]) -> list[str]:
    return [chunk for value in values for chunk in value.chunks]


def _unflatten(like: Sequence[Value], chunks: list[str]) -> list[Value]:
    """Returns values with the types of ``like`` and other chunks, whose steps are unknown."""
    remaining = iter(chunks)
    values = []
    for value in like:
        steps: list[int | None] = [0 if value.type.shape is None else None] * len(value.chunks)
        values.append(Value(value.type, [next(remaining) for _ in value.chunks], steps, value.base, value.offset))
    return values


def _yielded(e: Emitter, terminator: Operation, initial: Sequence[Value]) -> list[Value]:
    """Returns the values that an iteration passes to the next one."""
    results = [_carriable(e, e.values[name]) for name in terminator.operands]
    for first, result in zip(initial, results):
        if first.base != result.base:
            raise UnsupportedFormError("a loop that changes the base of a tensor of pointers")
    return results


def _bind(e: Emitter, block: Block, values: Sequence[Value], first: int = 0) -> None:
    for (name, _), value in zip(block.arguments[first:], values):
        e.values[name] = value
