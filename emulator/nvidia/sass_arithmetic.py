"""SASS instructions that compute, convert, compare and move."""

import re
from typing import Any

import numpy as np

from emulator.program import UnsupportedInstructionError

from .program import SPECIAL
from .sass_operands import Operands

RELATIONS = {"F": 0, "LT": 1, "EQ": 2, "LE": 3, "GT": 4, "NE": 5, "GE": 6, "NUM": 7, "T": 7}
SPECIAL_REGISTERS = {
    "SR_TID.X": "tid.x", "SR_TID.Y": "tid.y", "SR_TID.Z": "tid.z", "SR_CTAID.X": "ctaid.x", "SR_CTAID.Y": "ctaid.y",
    "SR_CTAID.Z": "ctaid.z", "SR_LANEID": "laneid", "SR_EQMASK": "lanemask_eq", "SR_LTMASK": "lanemask_lt",
    "SR_LEMASK": "lanemask_le", "SR_GTMASK": "lanemask_gt", "SR_GEMASK": "lanemask_ge", "SR_CgaCtaId": "smid",
}  # fmt: skip
ROUNDING = {"RN": 0, "RZ": 1, "RM": 2, "RP": 3, "TRUNC": 1, "FLOOR": 2, "CEIL": 3}
INTEGERS = {"U8": 0, "U16": 1, "U32": 2, "U64": 3, "S8": 4, "S16": 5, "S32": 6, "S64": 7}
F16, F32, F64 = 10, 11, 12
FLOATS = {"F16": F16, "F32": F32, "F64": F64}


def _half(text: str) -> int:
    return int(np.float16(float(text)).view(np.uint16))


def _float_type(modifiers: list[str]) -> int:
    return F64 if "F64" in modifiers else F32


def _integer_type(modifiers: list[str]) -> int:
    return next((INTEGERS[x] for x in modifiers if x in INTEGERS), INTEGERS["S32"])


class Arithmetic(Operands):
    """Translates arithmetic instructions: has a method per opcode, also for opcodes of the uniform datapath (U...)."""

    # --- moves

    def do_mov(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("mov_32", self.write(values[0]), self.read(values[1]))

    def do_ldc(self, modifiers: list[str], values: list[str]) -> None:
        match = re.fullmatch(r"c\[0x0\]\[(0x[0-9a-f]+)\]", values[1])
        assert match, values
        for i in range(2 if "64" in modifiers else 1):
            add = self.help if i else self.emit
            add("mov_32", self.write(values[0], i), self.bank(int(match[1], 16) + 4 * i))

    def do_cs2r(self, modifiers: list[str], values: list[str]) -> None:
        if values[1] != "SRZ":
            raise UnsupportedInstructionError(values[1])
        for i in range(1 if "32" in modifiers else 2):
            add = self.help if i else self.emit
            add("mov_32", self.write(values[0], i), self.value(0))

    def do_s2r(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("sreg", self.write(values[0]), immediate=SPECIAL[SPECIAL_REGISTERS[values[1]]])

    def do_s2ur(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("sreg", self.write(values[0]), immediate=SPECIAL[SPECIAL_REGISTERS[values[1]]], uniform=1)

    def do_r2ur(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("r2ur", self.write(values[0]), self.read(values[-1]))

    def do_sel(self, modifiers: list[str], values: list[str]) -> None:
        kind = "f" if modifiers[0] == "FSEL" else "i"
        place, negated = self.predicate(values[3])
        chosen = self.read(values[1], kind), self.read(values[2], kind)
        self.emit("selp_32", self.write(values[0]), *(reversed(chosen) if negated else chosen), place)

    do_fsel = do_sel

    def do_prmt(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("prmt_32", self.write(values[0]), self.read(values[1]), self.read(values[3]), self.read(values[2]))

    def _predicates(self) -> int:
        """Returns the field `list` with the places of all predicates."""
        first = self.UNIFORM_PREDICATES if self.is_uniform else self.PREDICATES
        return self.listed(*(self.place(first + i) for i in range(7)))

    def do_p2r(self, modifiers: list[str], values: list[str]) -> None:
        mask = int(values[3], 0)
        self.emit("p2r", self.write(values[0]), self.read(values[2]), immediate=mask, list=self._predicates())

    do_p2ur = do_p2r

    def do_r2p(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("r2p", -1, self.read(values[1]), immediate=int(values[2], 0), list=self._predicates())

    do_r2up = do_r2p

    # --- integers

    def do_iadd3(self, modifiers: list[str], values: list[str]) -> None:
        target, outs, rest = self.split(values, 2)
        if "64" in modifiers:
            self._add_pairs(target, rest)
            return
        extended = "X" in modifiers
        flag, places = 8 * extended, []
        for i, text in enumerate(rest[:3]):
            text = text.replace(".reuse", "")
            bare = self.plain(text.lstrip("-~"))
            if text[0] in "-~" and bare is not None:
                assert (text[0] == "~") == extended, text
                flag |= 1 << i
            else:
                bare = self.read(text)
            places.append(bare)
        ins = [*(self.predicate(x) for x in rest[3:5]), (-1, 0), (-1, 0)][:2]
        carries = [*(self.predicate_out(x) for x in outs), -1, -1][:2]
        places_of_carries = self.listed(*carries, *(place for place, _ in ins), *(negated for _, negated in ins))
        self.emit("iadd3", self.write(target), *places, flag=flag, list=places_of_carries)

    def _add_pairs(self, target: str, operands: list[str]) -> None:
        total = self.temporary(2)
        self.help("mov_64", total, self.pair(operands[0]))
        for text in operands[1:]:
            self.help("sub_64" if text[0] == "-" else "add_64", total, total, self.pair(text.lstrip("-")))
        self.emit("unpack_64", self.write(target), self.write(target, 1), total)

    def do_imad(self, modifiers: list[str], values: list[str]) -> None:
        target, outs, rest = self.split(values, 1)
        if "WIDE" in modifiers or "HI" in modifiers:
            self._wide_product(modifiers, target, outs, rest)
        elif "X" in modifiers:
            product = self.temporary()
            self.help("mul_32", product, self.read(rest[0]), self.read(rest[1]))
            text = rest[2].replace(".reuse", "")
            added = self.read(text.lstrip("~"))
            carry, negated = self.predicate(rest[3])
            flag = 8 + 2 * (text[0] == "~")
            carries = self.listed(-1, -1, carry, -1, negated, 0)
            self.emit("iadd3", self.write(target), product, added, self.value(0), flag=flag, list=carries)
        elif outs:
            raise UnsupportedInstructionError("carry out")
        else:
            self.emit("mad_32", self.write(target), *(self.read(x) for x in rest))

    def _wide_product(self, modifiers: list[str], target: str, outs: list[str], rest: list[str]) -> None:
        if "X" in modifiers:
            raise UnsupportedInstructionError("X")
        wide = "WIDE" in modifiers
        high = self.write(target, 1) if wide and target not in ("RZ", "URZ") else -1
        places = self.read(rest[0]), self.read(rest[1]), self.read(rest[2]), self.read_high(rest[2])
        carry = self.listed(self.predicate_out(outs[0]) if outs else -1)
        self.emit(
            "imad64", self.write(target), high, *places, flag=("U32" not in modifiers) + 2 * (not wide), list=carry
        )

    def do_lea(self, modifiers: list[str], values: list[str]) -> None:
        target, outs, rest = self.split(values, 1)
        hi, sign, carry = "HI" in modifiers, "SX32" in modifiers, "X" in modifiers
        negative = rest[1][0] == "-" and self.plain(rest[1][1:]) is not None
        added = self.read(rest[1][1:] if negative else rest[1])
        three = hi and not sign
        upper = self.read(rest[2]) if three else self.value(0)
        carry_in, negated = self.predicate(rest[4 if three else 3]) if carry else (-1, 0)
        self.emit(
            "lea", self.write(target), self.read(rest[0]), added, upper, flag=hi + 2 * sign + 4 * negative,
            immediate=int(rest[3 if three else 2], 0),
            list=self.listed(self.predicate_out(outs[0]) if outs else -1, carry_in, negated),
        )  # fmt: skip

    def do_shf(self, modifiers: list[str], values: list[str]) -> None:
        right, hi = modifiers[1] == "R", "HI" in modifiers
        kind = next(x for x in modifiers if x in INTEGERS)
        funnel = not right and kind == "U32" and not hi and values[3] not in ("RZ", "URZ")
        if funnel:
            raise UnsupportedInstructionError(".".join(modifiers))
        flag = right + 2 * (kind[0] == "S") + 4 * hi + 8 * (kind[1:] == "32") + 16 * ("W" in modifiers)
        self.emit("shf64", self.write(values[0]), *(self.read(x) for x in values[1:4]), flag=flag)

    def do_lop3(self, modifiers: list[str], values: list[str]) -> None:
        if self.is_predicate(values[0]):
            target, outs, rest = values[1], [values[0]], values[2:]
        else:
            target, outs, rest = self.split(values, 1)
        out = self.write(target)
        self.emit("lop3_32", out, *(self.read(x) for x in rest[:3]), immediate=int(rest[3], 0))
        if outs and outs[0] not in ("PT", "UPT"):
            self.help("ne_32", self.predicate_out(outs[0]), out, self.value(0), -1, -1)

    @staticmethod
    def _minimum_or_maximum(modifiers: list[str], which: str) -> str:
        if which not in ("PT", "!PT"):
            raise UnsupportedInstructionError(which)
        return f"{'min' if which == 'PT' else 'max'}_{'u32' if 'U32' in modifiers else 's32'}"

    def do_imnmx(self, modifiers: list[str], values: list[str]) -> None:
        name = self._minimum_or_maximum(modifiers, values[3])
        self.emit(name, self.write(values[0]), self.read(values[1]), self.read(values[2]))

    do_vimnmx = do_imnmx

    def do_vimnmx3(self, modifiers: list[str], values: list[str]) -> None:
        between = self.temporary()
        name = self._minimum_or_maximum(modifiers, values[4])
        self.help(name, between, self.read(values[1]), self.read(values[2]))
        self.emit(name, self.write(values[0]), between, self.read(values[3]))

    def do_viaddmnmx(self, modifiers: list[str], values: list[str]) -> None:
        total = self.temporary()
        self.help("add_32", total, self.read(values[1]), self.read(values[2]))
        self.emit(self._minimum_or_maximum(modifiers, values[4]), self.write(values[0]), total, self.read(values[3]))

    def do_viadd(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("add_32", self.write(values[0]), *(self.read(x) for x in values[1:]))

    def do_iabs(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("abs_32", self.write(values[0]), self.read(values[1]))

    def do_sgxt(self, modifiers: list[str], values: list[str]) -> None:
        name = "bfe_u32" if "U32" in modifiers else "bfe_s32"
        self.emit(name, self.write(values[0]), self.read(values[1]), self.value(0), self.read(values[2]))

    def do_popc(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("popc_32", self.write(values[0]), self.read(values[1]))

    def do_flo(self, modifiers: list[str], values: list[str]) -> None:
        if modifiers[1:] != ["U32"]:
            raise UnsupportedInstructionError(".".join(modifiers))
        zeros = self.temporary()
        self.help("clz_32", zeros, self.read(values[1]))
        self.emit("sub_32", self.write(values[0]), self.value(31), zeros)

    def do_brev(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("brev_32", self.write(values[0]), self.read(values[1]))

    # --- predicates

    def do_plop3(self, modifiers: list[str], values: list[str]) -> None:
        ins = [self.predicate(x) for x in values[2:5]]
        outs = [self.predicate_out(x) for x in values[:2]]
        places = self.listed(*outs, *(place for place, _ in ins), *(negated for _, negated in ins))
        self.emit("plop3", immediate=int(values[5], 0) | int(values[6], 0) << 8, list=places)

    def do_isetp(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("setp", **self.comparison(modifiers, values, "i"))

    def do_fsetp(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("setp", **self.comparison(modifiers, values, "f"))

    def do_fset(self, modifiers: list[str], values: list[str]) -> None:
        if modifiers[1] != "BF":
            raise UnsupportedInstructionError(".".join(modifiers))
        fields = self.comparison(["FSETP", *modifiers[2:]], ["PT", "PT", *values[1:]], "f")
        self.help("setp", **fields)
        places = self.value(0x3F800000), self.value(0), self.lists[fields["list"]]
        self.emit("selp_32", self.write(values[0]), *places)

    def comparison(self, modifiers: list[str], values: list[str], kind: str) -> dict[str, Any]:
        """Returns the fields of a `setp` instruction. `kind` is "i" for integers, "f" for floats, "d" for doubles."""
        relation = modifiers[1]
        unordered = kind != "i" and (relation in ("NAN", "T") or (relation[-1] == "U" and relation[:-1] in RELATIONS))
        flag = 0 if relation == "NAN" else RELATIONS[relation if relation in RELATIONS else relation[:-1]]
        logic = next({"AND": 0, "OR": 1, "XOR": 2}[x] for x in modifiers if x in ("AND", "OR", "XOR"))
        combined, negated = self.predicate(values[4])
        lower = self.predicate(values[5]) if "EX" in modifiers else (-1, 0)
        first = self.predicate_out(values[0])
        places = self.listed(
            first if first >= 0 else self.temporary(), self.predicate_out(values[1]), combined, negated, *lower
        )
        operands = [self.double(x) if kind == "d" else self.read(x, kind) for x in values[2:4]]
        count = {"i": int("U32" not in modifiers), "f": 3 if "FTZ" in modifiers else 2, "d": 4}[kind]
        return {
            "place": [-1, *operands, -1, -1, -1],
            "flag": flag,
            "count": count,
            "size": logic,
            "sign": int(unordered),
            "list": places,
        }

    # --- floats

    def _float(self, name: str, modifiers: list[str], target: str, operands: list[str]) -> None:
        if {"RZ", "RM", "RP", "SAT"} & set(modifiers):
            raise UnsupportedInstructionError(".".join(modifiers))
        name = f"{name}_f32{'z' if 'FTZ' in modifiers else ''}"
        self.emit(name, self.write(target), *(self.read(x, "f") for x in operands))

    def do_fadd(self, modifiers: list[str], values: list[str]) -> None:
        self._float("add", modifiers, values[0], values[1:])

    def do_fmul(self, modifiers: list[str], values: list[str]) -> None:
        self._float("mul", modifiers, values[0], values[1:])

    def do_ffma(self, modifiers: list[str], values: list[str]) -> None:
        if rounding := next((ROUNDING[x] for x in modifiers if x in ("RZ", "RM", "RP")), 0):
            self.emit("fma_rounded", self.write(values[0]), *(self.read(x, "f") for x in values[1:]), flag=rounding)
            return
        self._float("fma", modifiers, values[0], values[1:])

    def do_fmnmx(self, modifiers: list[str], values: list[str]) -> None:
        if values[3] not in ("PT", "!PT"):
            raise UnsupportedInstructionError(values[3])
        self._float("min" if values[3] == "PT" else "max", modifiers, values[0], values[1:3])

    def do_mufu(self, modifiers: list[str], values: list[str]) -> None:
        name = {"EX2": "ex2", "RCP": "rcp", "SQRT": "sqrt", "RSQ": "rsqrt", "LG2": "lg2"}[modifiers[1]]
        self.emit(f"{name}_f32z", self.write(values[0]), self.read(values[1], "f"))

    def do_fchk(self, modifiers: list[str], values: list[str]) -> None:
        self.emit("fchk", self.predicate_out(values[0]), self.read(values[1], "f"), self.read(values[2], "f"))

    # --- half precision: only the forms into which ptxas translates moves and conversions to fp32

    def do_hfma2(self, modifiers: list[str], values: list[str]) -> None:
        target, *factors, last = values
        zero = {factor.split(".")[0] for factor in factors[:2]} <= {"-RZ", "RZ"}
        if zero and len(values) == 5:
            halves = _half(values[3]) << 16 | _half(last)
            self.emit("mov_32", self.write(target), self.value(halves))
        elif zero and (absolute := re.fullmatch(r"\|(R\d+)\|", last.replace(".reuse", ""))):
            self.emit("and_32", self.write(target), self.read(absolute[1]), self.value(0x7FFF7FFF))
        else:
            raise UnsupportedInstructionError("half precision")

    def do_hadd2(self, modifiers: list[str], values: list[str]) -> None:
        match = re.fullmatch(r"(-?)(\|?)(R\d+)\|?\.H([01])_H\4", values[2].replace(".reuse", ""))
        if modifiers[1:] != ["F32"] or values[1] != "-RZ" or match is None:
            raise UnsupportedInstructionError("half precision")
        out, half = self.write(values[0]), self.read(match[3])
        if match[4] == "1":
            upper = self.temporary()
            self.help("shr_u32", upper, half, self.value(16))
            half = upper
        self.emit("cvt", out, half, size=F32, count=F16)
        for name in ["abs_f32"] * bool(match[2]) + ["neg_f32"] * bool(match[1]):
            self.help(name, out, out)

    def _convert(self, modifiers: list[str], values: list[str], to: int, source: int, extra: int = 0) -> None:
        rounding = next((ROUNDING[x] for x in modifiers if x in ROUNDING), 0) + extra
        wide_in, wide_out = source in (3, 7, 12), to in (3, 7, 12)
        if source == F64:
            value = self.double(values[1])
        else:
            value = self.pair(values[1]) if wide_in else self.read(values[1], "f" if source == F32 else "i")
        out = self.temporary(2) if wide_out else self.write(values[0])
        flush = int("FTZ" in modifiers)
        wide = wide_in + 2 * wide_out
        self.emit("cvt", out, value, size=to, count=source, sign=rounding, flag=flush, wide=wide)
        if wide_out:
            self.help("unpack_64", self.write(values[0]), self.write(values[0], 1), out)

    def do_i2f(self, modifiers: list[str], values: list[str]) -> None:
        self._convert(modifiers, values, _float_type(modifiers), _integer_type(modifiers))

    do_i2fp = do_i2f

    def do_f2i(self, modifiers: list[str], values: list[str]) -> None:
        self._convert(modifiers, values, _integer_type(modifiers), _float_type(modifiers))

    def do_frnd(self, modifiers: list[str], values: list[str]) -> None:
        kind = _float_type(modifiers)
        self._convert(modifiers, values, kind, kind, 4)

    def do_f2f(self, modifiers: list[str], values: list[str]) -> None:
        kinds = [FLOATS[x] for x in modifiers if x in FLOATS]
        if sorted(kinds) != [F32, F64]:
            raise UnsupportedInstructionError(".".join(modifiers))
        self._convert(modifiers, values, *kinds)
