"""Translates the operations of a kernel. Each is translated by the emitter that is registered for its name."""

import re
from collections.abc import Callable, Sequence

from .code import Code
from .errors import UnsupportedFormError, translating
from .target import Target
from .ttir import Block, Operation
from .types import Type, mangled
from .values import First, Value, value_of

Emitted = Value | Sequence[Value] | None
Handler = Callable[["Emitter", Operation], Emitted]

HANDLERS: dict[str, tuple[Handler, re.Pattern[str]]] = {}
"""By name of the operation: its emitter, and the pattern of the attributes that it accepts."""

HINTS = re.compile(r"\{(tt\.(contiguity|divisibility|constancy) = dense<[^>]*> : \w+<[^>]*>(, )?)+\}")
"""Attributes with facts about the values of a result. They are not used for CPUs."""

TERMINATORS = frozenset(
    {"scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return", "tt.return", "cf.br", "cf.cond_br"}
)


def emits(*names: str, attributes: str = "") -> Callable[[Handler], Handler]:
    """Registers an emitter for operations. Attributes that do not match the pattern raise an error."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = (handler, re.compile(attributes))
        return handler

    return register


class Emitter:
    """The state of a translation.

    Attributes:
        code: The LLVM IR so far.
        values: Values by name.
        skipped: The results of each `tt.trans` that `tt.dot` replaces by its source; see `find_skippable`.
    """

    def __init__(self, kernel: str, triton_version: str, target: Target) -> None:
        self.kernel = kernel
        self.triton_version = triton_version
        self.target = target
        self.code = Code()
        self.values: dict[str, Value] = {}
        self.skipped: dict[str, str] = {}

    def operands(self, operation: Operation) -> list[Value]:
        return [self.values[name] for name in operation.operands]

    def run(self, block: Block) -> Operation:
        """Translates a block and returns its terminator."""
        for operation in block.operations:
            if operation.name in TERMINATORS:
                return operation
            with translating(operation.name, self.kernel, self.triton_version):
                self.emit(operation)
        return Operation("scf.yield", [], [], "", [])  # MLIR does not print a terminator without operands

    def emit(self, operation: Operation) -> None:
        if operation.name not in HANDLERS:
            raise UnsupportedFormError("not implemented")
        handler, attributes = HANDLERS[operation.name]
        if not attributes.fullmatch(HINTS.sub("", operation.attributes).strip()):
            raise UnsupportedFormError(f"unknown attributes {operation.attributes!r}")
        emitted = handler(self, operation)
        results = [] if emitted is None else [emitted] if isinstance(emitted, Value) else list(emitted)
        if len(results) != len(operation.results):
            raise UnsupportedFormError(f"{len(results)} results instead of {len(operation.results)}")
        self.values.update(zip(operation.results, results))

    def call_region(self, blocks: list[Block], arguments: Sequence[Value]) -> list[Value]:
        """Translates the region of a reduction or scan, which is written for scalars, for tensors of the same shape."""
        (block,) = blocks
        for (name, _), argument in zip(block.arguments, arguments):
            self.values[name] = argument
        results = [self.values[name] for name in self.run(block).operands]
        return [self.broadcast_scalar(result, arguments[0].type) for result in results]

    def broadcast_scalar(self, value: Value, like: Type) -> Value:
        """Broadcasts a scalar to the shape of another type. Returns tensors unchanged."""
        if value.type.shape is not None or like.shape is None:
            return value
        type = value.type.with_shape(like.shape)
        scalar = value.chunks[0]
        chunk = self.code.splat(scalar, type.element, type.lanes)
        firsts: dict[int, First] = dict.fromkeys(range(type.chunks), lambda: scalar)
        return Value(type, [chunk] * type.chunks, [0] * type.chunks, firsts=firsts)

    def same_shape(self, values: Sequence[Value]) -> list[Value]:
        """Broadcasts scalars among the operands of an elementwise operation. They occur in regions of reductions."""
        shaped = next((value.type for value in values if value.type.shape is not None), values[0].type)
        return [self.broadcast_scalar(value, shaped) for value in values]

    def map(self, type: Type, function: Callable[..., str], *values: Value) -> Value:
        """Applies a function to corresponding chunks. Only constants among the results have known steps."""
        chunks = [function(*chunks) for chunks in zip(*(value.chunks for value in values))]
        return value_of(self.code, type, chunks)


def intrinsic(code: Code, name: str, type: Type, *arguments: str) -> str:
    """Calls a pure LLVM intrinsic whose arguments and result have the same type."""
    suffix = mangled(type.element, None if type.shape is None else type.lanes)
    return code.pure(code.call(f"llvm.{name}.{suffix}", type.llvm, [(type.llvm, a) for a in arguments]))
