"""PTX instructions that access memory, and matrix products."""

import re
from typing import Any

from emulator.program import UnsupportedInstructionError

from .program import SPACES, WIDE_ADDRESS
from .ptx_operands import Operands
from .ptx_text import BYTES, operands

ATOMICS = {"add": 0, "min": 1, "max": 2, "and": 3, "or": 4, "xor": 5, "exch": 6, "cas": 7, "inc": 8, "dec": 9}


def _space(modifiers: list[str]) -> int:
    return SPACES[next((x.split("::")[0] for x in modifiers if x.split("::")[0] in SPACES), "generic")]


class MemoryAccess(Operands):
    """Translates memory accesses: has a method per opcode."""

    def _access(self, modifiers: list[str], registers: str, address: str) -> dict[str, Any]:
        count = int(next((x[1] for x in modifiers if re.fullmatch(r"v[248]", x)), 1))
        names = operands(registers[1:-1]) if registers.startswith("{") else [registers]
        assert count in (1, len(names)), names
        kind = modifiers[-1]
        size = BYTES[kind]
        fields: dict[str, Any] = {
            "list": self.listed(*(self.use(x, size) for x in names)),
            "count": count,
            "size": size,
        }
        immediate = not any(x in self.types for x in names)
        fields["wide"] = any(self.is_wide(x) for x in names) or (size == 8 and immediate)
        into_16 = not fields["wide"] and self.types.get(names[0], "").endswith("16")
        fields["sign"] = (2 if into_16 else 1) if kind[0] == "s" else 0
        space = _space(modifiers)
        if space == SPACES["param"]:
            match = re.fullmatch(r"([\w$]+)\s*(?:\+\s*(-?\w+))?", address[1:-1].strip())
            assert match, address
            return fields | {"immediate": self.parameter_at[match[1]] + int(match[2] or "0", 0), "space": space}
        register, offset, wide = self.address(address)
        places = [-1, register, -1, -1, -1, -1]
        return fields | {"immediate": offset, "place": places, "space": space + wide}

    def do_ld(self, modifiers: list[str], values: list[str]) -> None:
        fields = self._access(modifiers, values[0], values[1])
        self.row("ld_param" if fields["space"] == SPACES["param"] else "ld", **fields)

    do_ldu = do_ld

    def do_st(self, modifiers: list[str], values: list[str]) -> None:
        self.row("st", **self._access(modifiers, values[1], values[0]))

    def do_atom(self, modifiers: list[str], values: list[str]) -> None:
        kind = modifiers[-1]
        size = BYTES[kind]
        returns = modifiers[0] == "atom"
        target, (address, *data) = (self.use(values[0], size), values[1:]) if returns else (-1, values)
        register, offset, wide = self.address(address)
        self.row(
            "atom", target, register, *(self.use(x, size) for x in data),
            flag=next(ATOMICS[x] for x in modifiers if x in ATOMICS), size=size,
            count={"f": 2, "s": 1}.get(kind[0], 0), immediate=offset, space=_space(modifiers) + wide,
        )  # fmt: skip

    do_red = do_atom

    def do_cp(self, modifiers: list[str], values: list[str]) -> None:
        if {"commit_group", "wait_group", "wait_all"} & set(modifiers):
            self.row("nop")  # copies complete at once
            return
        (to, offset, wide), (source, source_offset, _) = self.address(values[0]), self.address(values[1])
        if offset or source_offset:
            raise UnsupportedInstructionError("offset")
        reading = self.use(values[3], 4) if len(values) > 3 else -1
        self.row("cp_async", to, source, reading, size=int(values[2], 0), count=wide // WIDE_ADDRESS)

    def do_ldmatrix(self, modifiers: list[str], values: list[str]) -> None:
        registers, address = values if modifiers[0] == "ldmatrix" else reversed(values)
        names = operands(registers[1:-1])
        register, offset, wide = self.address(address)
        self.row(
            modifiers[0], -1, register, immediate=offset, count=len(names), flag=int("trans" in modifiers),
            list=self.listed(*(self.use(x, 4) for x in names)), space=SPACES["shared"] + wide,
        )  # fmt: skip

    do_stmatrix = do_ldmatrix

    def do_mma(self, modifiers: list[str], values: list[str]) -> None:
        parts = [operands(x[1:-1]) for x in values[:4]]
        if "m8n8k4" in modifiers:
            self.row("mma_f64", list=self.listed(*(self.use(x, 8) for part in parts for x in part)))
            return
        if not any(x.startswith("m16n8") for x in modifiers) or modifiers[-1] != "f32":
            raise UnsupportedInstructionError(".".join(modifiers))
        places = self.listed(*(self.use(x, 4) for part in parts for x in part))
        self.row("mma", list=places, flag={"tf32": 0, "f16": 1, "bf16": 2}[modifiers[-2]], count=len(parts[1]))

    def do_wgmma(self, modifiers: list[str], values: list[str]) -> None:
        if modifiers[1] != "mma_async":
            self.row("nop")  # products complete at once
            return
        shape = next(re.fullmatch(r"m64n(\d+)k8", x) for x in modifiers if x.startswith("m64"))
        if shape is None or modifiers[-1] != "tf32":
            raise UnsupportedInstructionError(".".join(modifiers))
        names, in_registers, scale = operands(values[0][1:-1]), values[1].startswith("{"), values[3]
        if in_registers:
            names += operands(values[1][1:-1])
        self.row(
            "wgmma", -1, -1 if in_registers else self.use(values[1], 8), self.use(values[2], 8),
            -1 if scale == "1" else self.use(scale, 0), list=self.listed(*(self.use(x, 4) for x in names)),
            flag=int(in_registers), count=int(shape[1]) // 8,
        )  # fmt: skip
