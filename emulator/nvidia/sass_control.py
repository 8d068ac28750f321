"""SASS instructions that access memory, synchronize, exchange values and branch."""

import re

from emulator.program import UnsupportedInstructionError

from .program import SPACES
from .sass_operands import Operands

ATOMICS = {"ADD": 0, "MIN": 1, "MAX": 2, "AND": 3, "OR": 4, "XOR": 5, "EXCH": 6}
ACCESSES = {
    "LDG": ("ld", "global"), "LDS": ("ld", "shared"), "LDL": ("ld", "local"),
    "STG": ("st", "global"), "STS": ("st", "shared"), "STL": ("st", "local"),
}  # fmt: skip
WIDTHS = {
    "32": (4, 1, 0), "64": (4, 2, 0), "128": (4, 4, 0), "U8": (1, 1, 0), "S8": (1, 1, 1), "U16": (2, 1, 0),
    "S16": (2, 1, 1),
}  # fmt: skip
"""Width modifier -> bytes of an element, number of elements, whether they are signed."""


class Control(Operands):
    """Translates memory accesses, branches and barriers: has a method per opcode."""

    # --- memory

    def do_ldg(self, modifiers: list[str], values: list[str]) -> None:
        op, space = ACCESSES[modifiers[0]]
        value, address = values[:2] if op == "ld" else values[1::-1]
        size, count, sign = WIDTHS[next((x for x in modifiers if x in WIDTHS), "32")]
        base, offset, wide = self.address(address)
        value = value.replace(".reuse", "")
        places = [self.value(0) if value == "RZ" and op == "st" else self.write(value, i) for i in range(count)]
        self.emit(
            op, -1, base, size=size, count=count, sign=sign, immediate=offset, list=self.listed(*places),
            space=SPACES[space] + wide,
        )  # fmt: skip

    do_lds = do_ldl = do_stg = do_sts = do_stl = do_ldg

    def do_red(self, modifiers: list[str], values: list[str]) -> None:
        self._atomic(modifiers, -1, values[0], values[1])

    do_redg = do_red

    def do_atomg(self, modifiers: list[str], values: list[str]) -> None:
        self._atomic(modifiers, self.write(values[1]), values[2], values[3])

    def _atomic(self, modifiers: list[str], target: int, address: str, value: str) -> None:
        if {"64", "U64", "CAS", "F64"} & set(modifiers):
            raise UnsupportedInstructionError(".".join(modifiers))
        base, offset, wide = self.address(address)
        kind = 2 if "F32" in modifiers else 1 if "S32" in modifiers else 0
        flag = next(ATOMICS[x] for x in modifiers if x in ATOMICS)
        space = SPACES["global"] + wide
        self.emit("atom", target, base, self.read(value), flag=flag, size=4, count=kind, immediate=offset, space=space)

    def do_ldsm(self, modifiers: list[str], values: list[str]) -> None:
        count = int(modifiers[-1]) if modifiers[-1] in "124" else 1
        op, registers, address = ("ldmatrix", *values) if modifiers[0] == "LDSM" else ("stmatrix", *values[::-1])
        base, offset, wide = self.address(address)
        places = self.listed(*(self.write(registers, i) for i in range(count)))
        flag, space = int("MT88" in modifiers), SPACES["shared"] + wide
        self.emit(op, -1, base, immediate=offset, count=count, flag=flag, list=places, space=space)

    do_stsm = do_ldsm

    def do_hmma(self, modifiers: list[str], values: list[str]) -> None:
        if modifiers[1:] != ["1688", "F32", "TF32"]:
            raise UnsupportedInstructionError(".".join(modifiers))
        places = []
        for text, count in zip(values, (4, 4, 2, 4)):
            text = text.replace(".reuse", "")
            places += [self.value(0) if text == "RZ" else self.write(text, i) for i in range(count)]
        self.emit("mma", list=self.listed(*places), flag=0, count=4)

    def do_hgmma(self, modifiers: list[str], values: list[str]) -> None:
        shape = re.fullmatch(r"64x(\d+)x8", modifiers[1])
        if shape is None or modifiers[2:] != ["F32", "TF32"]:
            raise UnsupportedInstructionError(".".join(modifiers))
        columns, in_registers = int(shape[1]), not values[1].startswith("gdesc")
        described = re.fullmatch(r"gdesc\[UR(\d+)\]", values[2 if in_registers else 1])
        assert described is not None, values
        first = int(described[1])  # first of two register pairs: the descriptors of a (may be absent) and of b
        descriptor_a = -1 if in_registers else self.pair(f"UR{first}")
        descriptor_b = self.pair(f"UR{first + 2}")
        added = values[3 if in_registers else 2]
        places = [self.write(values[0], i) for i in range(columns // 2)]
        if in_registers:
            places += [self.write(values[1], i) for i in range(4)]
        operands = descriptor_a, descriptor_b, self.value(0) if added == "RZ" else -1
        at = self.listed(*places)
        self.emit("wgmma", -1, *operands, list=at, flag=int(in_registers), count=columns // 8)

    # --- exchange between lanes

    def do_shfl(self, modifiers: list[str], values: list[str]) -> None:
        flag = {"UP": 0, "DOWN": 1, "BFLY": 2, "IDX": 3}[modifiers[1]]
        places = self.write(values[1]), *(self.read(x) for x in values[2:5]), self.value(0)
        self.emit("shfl", *places, self.predicate_out(values[0]), flag=flag)

    def do_vote(self, modifiers: list[str], values: list[str]) -> None:
        if modifiers[1] != "ANY":
            raise UnsupportedInstructionError(".".join(modifiers))
        uniform, self.is_uniform = self.is_uniform, False
        target, (out, tested) = ("RZ", values) if len(values) == 2 else (values[0], values[1:])
        place, negated = self.predicate(tested)
        places = self.write(target), place, self.predicate_out(out)
        self.emit("ballot", *places, count=-negated, flag=int(uniform))

    def do_redux(self, modifiers: list[str], values: list[str]) -> None:
        flags = {"SUM": 0, "MIN": 1, "MAX": 2, "AND": 5, "OR": 6, "XOR": 7}
        flag = next((flags[x] for x in modifiers if x in flags), 0)
        if flag in (1, 2) and "S32" not in modifiers:
            flag += 2
        self.emit("uredux", self.write(values[0]), self.read(values[1]), flag=flag)

    # --- barriers and branches

    def do_bar(self, modifiers: list[str], values: list[str]) -> None:
        if modifiers[1] == "RED":
            place, negated = self.predicate(values[1])
            flag = {"POPC": 1, "AND": 2, "OR": 3}[modifiers[2]]
            self.emit("bar", self.place(self.HIDDEN), place, flag=flag, count=-negated)
        else:
            self.emit("bar")

    def do_b2r(self, modifiers: list[str], values: list[str]) -> None:
        if values[0] == "RZ" or len(values) > 1:
            raise UnsupportedInstructionError("predicate result")
        self.emit("mov_32", self.write(values[0]), self.place(self.HIDDEN))

    def do_bra(self, modifiers: list[str], values: list[str]) -> None:
        target = int(values[-1], 16)
        if modifiers[1:] in (["DIV"], ["CONV"]):
            self.emit("bradiv", flag=int(modifiers[1] == "DIV"), target=target)
            return
        if len(values) > 1 and self.is_predicate(values[0]):
            self.guard = (self._both(self.guard, *self.predicate(values[0])), 0)
        # With BRA.U, either all active lanes jump or none.
        self.emit("bra", target=target, flag=int("U" in modifiers))

    def _both(self, guard: tuple[int, int], place: int, negated: int) -> int:
        """Returns the place of the conjunction of a predicate and the guard of the current instruction."""
        self.guard = (-1, 0)
        first = self.temporary()
        self.help("pred", first, place, -1, flag=1 if negated else 0)
        if guard[0] < 0:
            return first
        other, both = self.temporary(), self.temporary()
        self.help("pred", other, guard[0], -1, flag=guard[1])
        self.help("pred", both, first, other, flag=2)
        return both

    def do_call(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("bra", target=int(values[-1], 16))

    def do_ret(self, modifiers: list[str], values: list[str]) -> None:
        register, base = values[0].split()
        assert int(base, 16) == 0, values
        self.emit("retreg", -1, self.read(register), list=-1)

    def do_exit(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("ret")

    def do_bssy(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("bssy", flag=int(values[0][1:]))

    def do_bsync(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("bsync", flag=int(values[0][1:]))

    def do_break(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("break_", flag=int(values[0][1:]))

    def do_warpsync(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("bsync", -1, self.read(values[0]), count=1)
