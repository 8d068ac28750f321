"""Splits PTX text into kernels, statements, operands and numbers."""

import re
import struct

from emulator.program import UnsupportedInstructionError, kernel_line

BYTES = {f"{kind}{bits}": bits // 8 for bits in (8, 16, 32, 64) for kind in "bsuf"}
BYTES |= {"bf16": 2, "pred": 0, "f16x2": 4, "f32x2": 8, "b128": 16}
"""Size of each type in bytes; 0 for a predicate."""


def entry(source: str, name: str) -> tuple[str, str, str]:
    """Returns the text before a kernel, its parameters, and its body."""
    source = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
    head = re.search(rf"\.entry\s+{re.escape(name)}\s*\((.*?)\)([^{{]*)\{{", source, flags=re.S)
    if head is None:
        raise UnsupportedInstructionError(f"no kernel {name}")
    depth, end = 1, head.end()
    brace = re.compile(r"//[^\n]*|[{}]")
    while depth:
        match = brace.search(source, end)
        assert match is not None
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        end = match.end()
    parameters = " ".join(re.sub(r"//[^\n]*", "", head[1]).split())
    return source[: head.start()], parameters, source[head.end() : end - 1]


def statements(body: str) -> list[tuple[str, str]]:
    """Returns the statements of a body with their source lines. Labels end in a colon."""
    found: list[tuple[str, str]] = []
    line_of_source, current = "", ""
    for line in body.split("\n"):
        code, _, comment = line.partition("//")
        if code.lstrip().startswith(".loc"):
            line_of_source = kernel_line(comment) or line_of_source
            continue
        position = 0
        for match in re.finditer(r"[;{}:]", code):
            text = (current + code[position : match.start()]).strip()
            if match[0] in "{}":
                if text:
                    continue  # braces of an operand
                current, position = "", match.end()
            elif match[0] == ";":
                found.append((" ".join(text.split()), line_of_source))
                current, position = "", match.end()
            elif re.fullmatch(r"[\w$%]+", text):
                found.append((text + ":", line_of_source))
                current, position = "", match.end()
        current += code[position:] + " "
    return [(statement, where) for statement, where in found if statement]


def operands(text: str) -> list[str]:
    """Splits text at commas outside of brackets."""
    found, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "{[(") - (char in "}])")
        if char == "," and depth == 0:
            found.append(text[start:i].strip())
            start = i + 1
    found.append(text[start:].strip())
    return [x for x in found if x]


def parameters(text: str) -> list[tuple[str, int, int]]:
    """Returns name, offset and size of each parameter of a kernel."""
    found, offset = [], 0
    for declaration in operands(text):
        kind = re.search(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)", declaration)
        array = re.search(r"([\w$]+)\s*(?:\[(\d+)\])?$", declaration)
        assert kind and array, declaration
        size = BYTES[kind[2]] * int(array[2] or 1)
        align = int(kind[1] or BYTES[kind[2]])
        offset = -(-offset // align) * align
        found.append((array[1], offset, size))
        offset += size
    return found


def number(text: str, width: int) -> int:
    """Returns the bits of an immediate operand of `width` bytes."""
    if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text):
        bits = int(match[1], 16)
        return _bits("<d", _value("<f", bits, 4)) if width == 8 else bits
    if match := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", text):
        bits = int(match[1], 16)
        return _bits("<f", _value("<d", bits, 8)) if width == 4 else bits
    value = int(text, 8) if re.fullmatch(r"-?0\d+", text) else int(text.rstrip("U"), 0)
    return value & ((1 << 8 * (width or 4)) - 1)


def _value(form: str, bits: int, size: int) -> float:
    return float(struct.unpack(form, bits.to_bytes(size, "little"))[0])


def _bits(form: str, value: float) -> int:
    return int.from_bytes(struct.pack(form, value), "little")
