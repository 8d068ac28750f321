"""Translates the operations of a kernel, one after the other, by the emitter registered for each name."""

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
"""By operation: its emitter, and the attributes that it understands or may ignore."""

HINTS = re.compile(r"\{(tt\.(contiguity|divisibility|constancy) = dense<[^>]*> : \w+<[^>]*>(, )?)+\}")
"""Attributes that tell what is known of the values of a result: code for CPUs does not need them."""

TERMINATORS = frozenset(
    {"scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return", "tt.return", "cf.br", "cf.cond_br"}
)


def emits(*names: str, attributes: str = "") -> Callable[[Handler], Handler]:
    """Registers an emitter for operations whose attributes match a pattern; any other attribute is an error."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = (handler, re.compile(attributes))
        return handler

    return register


class Emitter:
    """State of a translation: code, values by name, and operands that `tt.dot` reads in place of a `tt.trans`."""

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
        return Operation("scf.yield", [], [], "", [])  # MLIR does not print one without operands

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
        """Translates the region of a reduction or scan, written for scalars, on tensors of one shape."""
        (block,) = blocks
        for (name, _), argument in zip(block.arguments, arguments):
            self.values[name] = argument
        results = [self.values[name] for name in self.run(block).operands]
        return [self.broadcast_scalar(result, arguments[0].type) for result in results]

    def broadcast_scalar(self, value: Value, like: Type) -> Value:
        """Returns a scalar as a tensor of another type's shape; tensors as they are."""
        if value.type.shape is not None or like.shape is None:
            return value
        type = value.type.with_shape(like.shape)
        scalar = value.chunks[0]
        chunk = self.code.splat(scalar, type.element, type.lanes)
        firsts: dict[int, First] = dict.fromkeys(range(type.chunks), lambda: scalar)
        return Value(type, [chunk] * type.chunks, [0] * type.chunks, firsts=firsts)

    def same_shape(self, values: Sequence[Value]) -> list[Value]:
        """Broadcasts scalars among the operands of an elementwise operation, as in the region of a reduction."""
        shaped = next((value.type for value in values if value.type.shape is not None), values[0].type)
        return [self.broadcast_scalar(value, shaped) for value in values]

    def map(self, type: Type, function: Callable[..., str], *values: Value) -> Value:
        """Applies a function of chunks; steps of integer results are those of constants only."""
        chunks = [function(*chunks) for chunks in zip(*(value.chunks for value in values))]
        return value_of(self.code, type, chunks)


def intrinsic(code: Code, name: str, type: Type, *arguments: str) -> str:
    """Calls a pure LLVM intrinsic whose arguments and result have one type."""
    suffix = mangled(type.element, None if type.shape is None else type.lanes)
    return code.pure(code.call(f"llvm.{name}.{suffix}", type.llvm, [(type.llvm, a) for a in arguments]))
