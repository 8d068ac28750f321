"""SASS instructions for fp64, whose values are pairs of registers."""

import struct

from emulator.program import UnsupportedInstructionError

from .sass_arithmetic import ROUNDING, Arithmetic


class Doubles(Arithmetic):
    """Translates fp64 arithmetic: has a method per opcode."""

    def _double(self, name: str, modifiers: list[str], target: str, operands: list[str]) -> None:
        out, places = self.temporary(2), [self.double(x) for x in operands]
        rounding = next((ROUNDING[x] for x in modifiers if x in ROUNDING), 0)
        if rounding and name == "mul_f64":
            places.append(self.double("-0.0"))
        if rounding and name == "add_f64":
            raise UnsupportedInstructionError(".".join(modifiers))
        self.emit("fma_rounded_f64" if rounding else name, out, *places, flag=rounding)
        self.help("unpack_64", self.write(target), self.write(target, 1), out)

    def do_dadd(self, modifiers: list[str], values: list[str]) -> None:
        self._double("add_f64", modifiers, values[0], values[1:])

    def do_dmul(self, modifiers: list[str], values: list[str]) -> None:
        self._double("mul_f64", modifiers, values[0], values[1:])

    def do_dfma(self, modifiers: list[str], values: list[str]) -> None:
        self._double("fma_f64", modifiers, values[0], values[1:])

    def do_dsetp(self, modifiers: list[str], values: list[str]) -> None:
        if modifiers[1] in ("MIN", "MAX"):
            self._which(modifiers[1] == "MAX", values)
            return
        self.emit("setp", **self.comparison(modifiers, values, "d"))

    def _which(self, largest: bool, values: list[str]) -> None:
        """Sets a predicate if the first operand is the minimum (or maximum), and another one if both are NaN."""
        if values[4] != "PT":
            raise UnsupportedInstructionError(values[4])
        outs = [self.predicate_out(x) for x in values[:2]]
        outs = [self.temporary() if place < 0 else place for place in outs]
        self.emit("which_f64", outs[0], self.double(values[2]), self.double(values[3]), outs[1], flag=int(largest))

    def do_mufu(self, modifiers: list[str], values: list[str]) -> None:
        name = {"RCP64H": "rcp64h", "RSQ64H": "rsqrt64h"}.get(modifiers[1])
        if name is None:
            super().do_mufu(modifiers, values)
            return
        value = values[1].replace(".reuse", "")
        is_number = self.plain(value.strip("-|")) is None
        upper = self.value(struct.unpack("<II", struct.pack("<d", float(value)))[1]) if is_number else self.read(value)
        self.emit(name, self.write(values[0]), upper)
