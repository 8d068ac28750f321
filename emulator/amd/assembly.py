"""Translates AMD's assembly text into instructions of the AMD core."""

import re
from typing import Any

import numpy as np

from emulator.program import UnsupportedInstructionError, kernel_line

from .code_object import Descriptor
from .instructions import DUAL, parse
from .program import INSTRUCTION, SECTOR_BYTES, AmdProgram


def translate(text: str, descriptor: Descriptor, lanes: int) -> AmdProgram:
    """Returns the kernel of an assembly file. `lanes` is the number of lanes per wave, 32 or 64."""
    labels: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    statements: list[str] = []
    lines: list[str] = []
    line = ""
    name = re.search(r"^\s*\.globl\s+(\w+)", text, flags=re.M)
    assert name is not None
    body = text[text.index(f"\n{name[1]}:") :]
    for raw in body.splitlines()[1:]:
        statement = re.split(r";|//", raw, maxsplit=1)[0].strip()
        if label := re.fullmatch(r"([.\w$]+):", statement):
            labels[label[1]] = len(rows)
        elif statement.startswith(".loc"):
            line = kernel_line(raw.partition(";")[2]) or line
        elif re.match(r"\.(section|Lfunc_end|rodata|end_amdhsa)", statement):
            break
        elif re.match(r"(v|s|ds|global|buffer|scratch|flat)_", statement):
            halves = [half.strip() for half in statement.split(" :: ")]
            for i, half in enumerate(halves):
                try:
                    row = parse(half, dual=len(halves) == 2)
                except (NotImplementedError, KeyError, ValueError, IndexError, AssertionError) as error:
                    raise UnsupportedInstructionError(f"{name[1]}: {statement} ({error!r})") from error
                if len(halves) == 2 and i == 0:
                    row["flags"] |= DUAL
                rows.append(row)
                # The two halves of a dual instruction are issued and counted as one instruction.
                statements.append(statement if i == 0 else "")
                lines.append(line)
    program = AmdProgram(name[1], statements, lines, _array(rows, labels), descriptor)
    program.lanes, program.sector_bytes, program.parameters = lanes, SECTOR_BYTES, descriptor.arguments
    program.static_shared_bytes = descriptor.shared_bytes
    return program


def _array(rows: list[dict[str, Any]], labels: dict[str, int]) -> np.ndarray:
    code = np.zeros(len(rows), INSTRUCTION)
    for i, row in enumerate(rows):
        for key, value in row.items():
            if key == "source":
                for k, operand in enumerate(value):
                    code[i]["source"][k] = operand
                code[i]["n_sources"] = len(value)
            elif key == "target":
                code[i]["target"] = labels[value]
            elif key == "immediate":
                code[i]["immediate"][: len(value)] = value
            else:
                code[i][key] = value
    return code
