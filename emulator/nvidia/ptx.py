"""Translates PTX into instructions of the NVIDIA core."""

import re
from typing import Any

import numpy as np

from emulator import build
from emulator.program import UnsupportedInstructionError

from . import ptx_text
from .flow import loops_together
from .program import INSTRUCTION, LANES, SLOT, NvidiaProgram
from .ptx_arithmetic import Arithmetic
from .ptx_memory import MemoryAccess
from .ptx_text import BYTES, operands
from .ptx_warps import Warps

ERRORS = (UnsupportedInstructionError, KeyError, ValueError, IndexError, AttributeError, TypeError, StopIteration)
"""Errors that the translation of an unsupported statement may raise."""


def translate(source: str, name: str) -> NvidiaProgram:
    """Returns the kernel `name` of a PTX module."""
    return _Translator(source, name).finish()


class _Translator(Arithmetic, MemoryAccess, Warps):
    def __init__(self, source: str, name: str) -> None:
        super().__init__()
        self.name = name
        self.statements: list[str] = []
        self.lines: list[str] = []
        self.labels: dict[str, int] = {}
        before, parameters, body = ptx_text.entry(source, name)
        for parameter, offset, size in ptx_text.parameters(parameters):
            self.parameters.append((offset, size))
            self.parameter_at[parameter] = offset
        for text in re.sub(r"//[^\n]*", "", before).split(";"):
            if shared := re.search(r"\.shared\s.*", " ".join(text.split())):
                self._declare(shared[0])
        for statement, line in ptx_text.statements(body):
            self._statement(statement, line)
        if not self.rows or self.statements[-1] != "ret":
            self.guard = (-1, 0)
            self.row("ret")
            self.statements.append("ret")
            self.lines.append("")

    def _declare(self, text: str) -> None:
        if match := re.match(r"\.reg\s+\.(\w+)\s+(.*)$", text):
            for item in operands(match[2]):
                many = re.match(r"(%?[\w$]+)<(\d+)>", item)
                for key in [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [item]:
                    self.types[key] = match[1]
            return
        pattern = (
            r"(?:\.(?:extern|visible|weak)\s+)?\.(shared|local)\s+(?:\.attribute\S*\s+)?(?:\.align\s+(\d+)\s+)?\.(\w+)"
            r"\s+([\w$]+)\s*(?:\[(\d*)\])?"
        )
        if match := re.match(pattern, text):
            space, align, count = match[1], int(match[2] or 4), 1 if match[5] is None else int(match[5] or 0)
            at = -(-self.space_bytes[space] // align) * align
            self.symbols[match[4]] = at
            self.space_bytes[space] = at + BYTES[match[3]] * count

    def _statement(self, text: str, line: str) -> None:
        if text.endswith(":"):
            self.labels[text[:-1]] = len(self.rows)
            return
        if text.startswith("."):
            self._declare(text)
            return
        self.guard, body = (-1, 0), text
        if match := re.match(r"@(!?)([%\w$]+)\s+(.*)$", text):
            self.guard = (self.use(match[2], 0), int(match[1] == "!"))
            body = match[3]
        opcode, _, rest = body.partition(" ")
        before = len(self.rows)
        try:
            self._instruction(opcode.split("."), operands(rest))
        except ERRORS as error:
            raise UnsupportedInstructionError(f"{self.name}: {text} ({error!r})") from error
        added = len(self.rows) - before
        self.statements += [""] * (added - 1) + [text] * (added > 0)  # helpers are not counted
        self.lines += [line] * added

    def _instruction(self, modifiers: list[str], values: list[str]) -> None:
        method = getattr(self, "do_" + modifiers[0], self.do_plain)
        method(modifiers, values)

    def do_bra(self, modifiers: list[str], values: list[str]) -> None:
        self.row("bra", target=values[0])

    # --- layout

    def final_place(self, place: int) -> int:
        return place if place < self.REGISTERS else place - self.REGISTERS + self.slot_bytes["constant"]

    def jump_target(self, target: Any) -> int:
        return self.labels[target]

    def finish(self) -> NvidiaProgram:
        code, statements, lines = self._reorder_blocks(self.assemble())
        constant_bytes = self.slot_bytes["constant"]
        constants = bytearray(constant_bytes)
        for at, width, value in self.constant_values:
            size = 8 if width == 8 else 4
            bits = -(value & 1) if width == 0 else value
            constants[at : at + size * LANES] = (bits & (1 << 8 * size) - 1).to_bytes(size, "little") * LANES
        program = NvidiaProgram(
            name=self.name, statements=statements, lines=lines, code=code,
            lists=np.array([self.final_place(x) for x in self.lists] or [0], np.int32),
            register_bytes=constant_bytes + self.slot_bytes["register"] + SLOT, constants=bytes(constants),
            local_bytes=self.space_bytes["local"],
        )  # fmt: skip
        program.parameters, program.static_shared_bytes = self.parameters, self.space_bytes["shared"]
        return program

    def _reorder_blocks(self, code: np.ndarray) -> tuple[np.ndarray, list[str], list[str]]:
        """Sorts basic blocks such that diverged lanes reconverge early; returns code, statements and source lines."""
        n = len(code)
        jumps, returns = build.nvidia_operations()["bra"], build.nvidia_operations()["ret"]
        leaders = {0}
        for i in range(n):
            if code["op"][i] == jumps:
                leaders |= {int(code["target"][i]), i + 1}
            elif code["op"][i] == returns:
                leaders.add(i + 1)
        starts = sorted(x for x in leaders if x < n)
        ends = [*starts[1:], n]
        block_of = np.searchsorted(starts, np.arange(n), side="right") - 1
        count = len(starts)
        successors: list[list[int]] = []
        for b in range(count):
            last = code[ends[b] - 1]
            following = [b + 1]  # `count` stands for the end
            if last["op"] == jumps:
                target = [int(block_of[last["target"]])]
                following = target + following if last["guard"] >= 0 else target
            elif last["op"] == returns:
                following = [count, *following] if last["guard"] >= 0 else [count]
            successors.append(following)
        order = loops_together(successors, count)
        parts, statements, lines, place = [], [], [], {}
        for b, following_block in zip(order, [*order[1:], None]):
            place[b] = sum(map(len, parts))
            parts.append(code[starts[b] : ends[b]])
            statements += self.statements[starts[b] : ends[b]]
            lines += self.lines[starts[b] : ends[b]]
            last = parts[-1][-1]
            falls = not (last["op"] in (jumps, returns) and last["guard"] < 0) and b + 1 < count
            if falls and following_block != b + 1:  # a jump that is not counted replaces the fall-through
                jump = np.zeros(1, INSTRUCTION)
                jump["op"], jump["guard"], jump["target"] = jumps, -1, starts[b + 1]
                parts.append(jump)
                statements.append("")
                lines.append("")
        code = np.concatenate(parts)
        is_jump = code["op"] == jumps
        code["target"][is_jump] = [place[int(block_of[t])] for t in code["target"][is_jump]]
        return code, statements, lines
