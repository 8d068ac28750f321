"""Parses TTIR, Triton's IR, in the textual form that MLIR prints.

Only the structure is parsed: names, operands, regions and types. The emitter of an operation interprets its attributes.
"""

import dataclasses
import re

from .errors import UnsupportedFormError
from .types import Type, parse_type

NAME = r"%[\w$.-]+(?:#\d+)?"
_NAMES = re.compile(NAME)
_TYPES = re.compile(r"tensor<(?:[^<>]|<[^<>]*>)*>|!tt\.\w+<[^<>]*(?:<[^<>]*>)?[^<>]*>|\b(?:bf\d+|[fi]\d+\w*|index)\b")
_RESULT = re.compile(r"(%[\w$.-]+)(?::(\d+))?")
_OPERATION = re.compile(r'(?:((?:%[\w$.-]+(?::\d+)?(?:, )?)+) = )?"?([a-z_]+\.[\w.]+)"?(.*)', re.DOTALL)
_BLOCK = re.compile(r"(\^\w+)(?:\((.*)\))?:(?:\s*//.*)?")
_FUNCTION = re.compile(r"tt\.func public @([\w$.]+)\((.*?)\)(?: attributes .*)? \{")


@dataclasses.dataclass
class Block:
    """A basic block: a sequence of operations. The last one is the terminator."""

    label: str
    arguments: list[tuple[str, Type]]
    operations: list["Operation"] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Operation:
    """An operation.

    Attributes:
        name, results: Names of the operation and of its results.
        operands: Names of the operands, in the order of the text.
        attributes: The text between the name and the types, without operands.
        types: The types of the signature. The last ones are usually the types of the results.
        regions: A list of blocks for each region.
        successors: The labels of the blocks that a branch jumps to, each with the names of its arguments.
    """

    name: str
    results: list[str]
    operands: list[str]
    attributes: str
    types: list[Type]
    regions: list[list[Block]] = dataclasses.field(default_factory=list)
    successors: list[tuple[str, list[str]]] = dataclasses.field(default_factory=list)

    @property
    def type(self) -> Type:
        """The last type of the signature."""
        if not self.types:
            raise UnsupportedFormError("no type")
        return self.types[-1]

    def integer(self, attribute: str) -> int:
        """Returns the value of an integer attribute written as `name = value`."""
        match = re.search(rf"\b{attribute} = (-?\d+)", self.attributes)
        if not match:
            raise UnsupportedFormError(f"no attribute {attribute}")
        return int(match[1])


@dataclasses.dataclass
class Function:
    name: str
    parameters: list[tuple[str, Type]]
    blocks: list[Block]


def parse(text: str, max_lanes: int) -> Function:
    """Parses a module and returns its kernel, the public function."""
    return _Parser(text, max_lanes).function()


class _Parser:
    def __init__(self, text: str, max_lanes: int) -> None:
        self.lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
        self.position = 0
        self.max_lanes = max_lanes

    def function(self) -> Function:
        while not self.lines[self.position].startswith("tt.func public"):
            self.position += 1
        match = _FUNCTION.fullmatch(self.next())
        if not match:
            raise UnsupportedFormError("form of the function")
        parameters = self.arguments(re.sub(r" \{[^{}]*\}", "", match[2]))
        return Function(match[1], parameters, self.region([])[0])

    def next(self) -> str:
        self.position += 1
        return self.lines[self.position - 1]

    def types(self, text: str) -> list[Type]:
        return [parse_type(type_text, self.max_lanes) for type_text in _TYPES.findall(text)]

    def arguments(self, text: str) -> list[tuple[str, Type]]:
        """Returns the names and types of `%a: f32, %b: i32`."""
        return list(zip(_NAMES.findall(text), self.types(re.sub(NAME, "", text))))

    def region(self, arguments: list[tuple[str, Type]]) -> tuple[list[Block], str]:
        """Returns the blocks of a region, and the line that ends it."""
        blocks = [Block("", arguments)]
        while not (line := self.next()).startswith("}"):
            if match := _BLOCK.fullmatch(line):
                block = Block(match[1], self.arguments(match[2] or ""))
                if blocks[0].operations or blocks[0].label:
                    blocks.append(block)
                else:  # the label of the entry block
                    block.arguments = block.arguments or arguments
                    blocks[0] = block
            else:
                blocks[-1].operations.append(self.operation(line))
        return blocks, line

    def operation(self, line: str) -> Operation:
        match = _OPERATION.fullmatch(line)
        if not match:
            raise UnsupportedFormError(f"form of {line}")
        results, name, rest = _results(match[1] or ""), match[2], match[3]
        if name in ("scf.for", "scf.while", "scf.if"):
            return self.control(name, results, rest)
        if name in ("cf.br", "cf.cond_br"):
            return self.branch(name, rest)
        if rest.endswith("({"):
            operands, attributes = _split_operands(rest.removesuffix("({"))
            blocks, end = self.region([])
            return Operation(name, results, operands, attributes, self.types(end), [blocks])
        values, signature = _split_signature(rest)
        operands, attributes = _split_operands(values)
        return Operation(name, results, operands, attributes, self.types(signature))

    def control(self, name: str, results: list[str], rest: str) -> Operation:
        """Parses a loop or a conditional. The header may declare the arguments of the first region."""
        header = rest.strip().removesuffix("{")
        arguments: list[tuple[str, Type]] = []
        if name == "scf.if":
            operands, attributes = _split_operands(header.split("->")[0])
            types = self.types(header)
        elif name == "scf.while":
            initial, types = header.split(" : ", 1)[0], self.types(header.split("->")[1])
            names = _NAMES.findall(initial)
            arguments = list(zip(names[0::2], self.types(header.split(" : ", 1)[1].split("->")[0])))
            operands, attributes = names[1::2], ""
        else:
            bounds, _, carried = header.partition("iter_args")
            induction, *operands = _NAMES.findall(bounds)
            attributes = re.sub(NAME, "", bounds).split(":")[0]
            header_types = self.types(header)
            counter = parse_type("i32", self.max_lanes)
            if re.search(r": \w+\s*$", header):
                counter = header_types.pop()
            types = header_types
            names = _NAMES.findall(carried)
            arguments = [(induction, counter), *zip(names[0::2], types)]
            operands += names[1::2]
        operation = Operation(name, results, operands, attributes.strip(), types)
        blocks, end = self.region(arguments)
        operation.regions.append(blocks)
        while end in ("} else {", "} do {"):
            blocks, end = self.region([])
            operation.regions.append(blocks)
        return operation

    def branch(self, name: str, rest: str) -> Operation:
        condition, _, targets = rest.partition("^")
        successors = [
            (match[1], _NAMES.findall(match[2] or ""))
            for match in re.finditer(r"(\^\w+)(?:\(([^)]*)\))?", "^" + targets)
        ]
        return Operation(name, [], _NAMES.findall(condition), "", [], [], successors)


def _results(text: str) -> list[str]:
    """Returns the names of results in operands: %a, %b#0 and %b#1 for `%a, %b:2`."""
    names = []
    for name, count in _RESULT.findall(text):
        names += [f"{name}#{i}" for i in range(int(count))] if count else [name]
    return names


def _split_signature(text: str) -> tuple[str, str]:
    """Splits off the types after the last colon that is not inside braces."""
    values, colon, signature = text.rpartition(" : ")
    if not colon or "}" in signature or "]" in signature:
        return text, ""
    return values, signature


def _split_operands(text: str) -> tuple[list[str], str]:
    """Returns operand names, and the rest of the text without punctuation between them."""
    operands = _NAMES.findall(text)
    attributes = re.sub(r"^[\s,()\[\]]+|[\s,()\[\]]+$", "", _NAMES.sub("", text))
    return operands, re.sub(r"\s+", " ", attributes)
