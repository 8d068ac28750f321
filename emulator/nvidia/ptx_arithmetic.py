"""PTX instructions that compute, convert, compare and move."""

from emulator.program import UnsupportedInstructionError

from .program import SPECIAL
from .ptx_operands import Operands
from .ptx_text import BYTES, operands

SHARED_BASE, LOCAL_BASE = 1 << 60, 2 << 60
"""Addresses of shared and local memory in the generic address space."""
FLOATS = ("f32", "f64", "f32x2")
HALVES = ("f16", "bf16", "f16x2", "bf16x2")
TYPES = {"u8": 0, "u16": 1, "u32": 2, "u64": 3, "s8": 4, "s16": 5, "s32": 6, "s64": 7} | {
    "b16": 1, "b32": 2, "b64": 3, "f16": 10, "f32": 11, "f64": 12, "bf16": 13,
}  # fmt: skip
"""Types of cvt; see nvidia_numbers.h."""
ROUNDING = {"rn": 0, "rna": 0, "rz": 1, "rm": 2, "rp": 3, "rni": 4, "rzi": 5, "rmi": 6, "rpi": 7}
PLAIN_CONVERSIONS = {
    ("s64", "s32"): "widen_s", ("u64", "s32"): "widen_s", ("u64", "u32"): "widen_u", ("s64", "u32"): "widen_u",
    ("u32", "u64"): "narrow", ("s32", "u64"): "narrow", ("u32", "s64"): "narrow", ("s32", "s64"): "narrow",
    ("u16", "u64"): "narrow_16", ("s16", "u64"): "narrow_16", ("u16", "s64"): "narrow_16", ("s16", "s64"): "narrow_16",
}  # fmt: skip
"""Types of destination and source of a conversion -> name of its instruction."""


def _float_suffix(modifiers: list[str]) -> str:
    if modifiers[-1] != "f32":
        return modifiers[-1]
    return "f32" + ("s" if "sat" in modifiers else "z" if "ftz" in modifiers else "")


def _signed(kind: str) -> str:
    return "s" if kind[0] == "s" else "u"


class Arithmetic(Operands):
    """Translates arithmetic instructions: has a method per opcode, and `do_plain` for opcodes with regular operands."""

    def do_plain(self, modifiers: list[str], values: list[str]) -> None:
        base, kind = modifiers[0], modifiers[-1]
        width = BYTES.get(kind, 4)
        if base in ("and", "or", "xor", "not") and kind == "pred":
            flag = {"not": 1, "and": 2, "or": 3, "xor": 4}[base]
            self.row("pred", *(self.use(x, 0) for x in values), flag=flag)
            return
        if kind in HALVES:
            self._half(modifiers, values)
            return
        if kind in FLOATS:
            correct = kind == "f32" and base in ("div", "sqrt", "rcp") and modifiers[1] == "rn"
            name = f"{base}{'rn' if correct else ''}_{'f32' if correct else _float_suffix(modifiers)}"
        elif base in ("div", "rem", "min", "max", "shr"):
            name = f"{base}_{_signed(kind)}{8 * width}"
        else:
            name = f"{base}_{32 if width == 2 and base in ('and', 'or', 'xor') else 8 * width}"
        widths = [width] * len(values)
        if base in ("shl", "shr"):
            widths[2] = 4
        self.row(name, *(self.use(x, w) for x, w in zip(values, widths)))

    def do_mul(self, modifiers: list[str], values: list[str]) -> None:
        base, kind = modifiers[0], modifiers[-1]
        width = BYTES[kind]
        if kind in HALVES:
            self._half(modifiers, values)
            return
        if kind in FLOATS:
            name, widths = f"{'mul' if base == 'mul' else 'fma'}_{_float_suffix(modifiers)}", [width] * 4
        elif "wide" in modifiers:
            name, widths = f"{base}wide_{_signed(kind)}{8 * width}", [2 * width, width, width, 2 * width]
        elif "hi" in modifiers:
            name, widths = f"{base}hi_{_signed(kind)}{8 * width}", [width] * 4
        else:
            name, widths = f"{base}_{8 * width}", [width] * 4
        self.row(name, *(self.use(x, w) for x, w in zip(values, widths)))

    do_mad = do_mul

    def _half(self, modifiers: list[str], values: list[str]) -> None:
        """Translates instructions with half-precision operands: abs and neg; and add, sub and fma in fp32 (sm_100 and
        later), whose last operand is fp32."""
        base, accumulator, kind = modifiers[0], modifiers[-2], modifiers[-1]
        if base in ("abs", "neg"):
            signs = 0x80008000 if kind.endswith("x2") else 0x8000
            name, bits = ("xor_32", signs) if base == "neg" else ("and_32", signs ^ 0xFFFFFFFF)
            self.row(name, self.use(values[0], 4), self.use(values[1], 4), self.constant(bits, 4))
            return
        if accumulator != "f32" or base not in ("add", "sub", "fma") or {"rz", "rm", "rp"} & set(modifiers):
            raise UnsupportedInstructionError(".".join(modifiers))
        converted = []
        for k, text in enumerate(values[1:-1]):
            converted.append(self._slot("register", ("converted", k), 4) + self.REGISTERS)
            self.row("cvt", converted[-1], self.use(text, 2), size=TYPES["f32"], count=TYPES[kind])
        name = f"{base}_{_float_suffix([*modifiers[:-2], 'f32'])}"
        self.row(name, self.use(values[0], 4), *converted, self.use(values[-1], 4))

    def do_ex2(self, modifiers: list[str], values: list[str]) -> None:
        name = f"{modifiers[0]}_{_float_suffix(modifiers)}"
        self.row(name, *(self.use(x, BYTES[modifiers[-1]]) for x in values))

    do_lg2 = do_rsqrt = do_sin = do_cos = do_tanh = do_ex2

    def do_mov(self, modifiers: list[str], values: list[str]) -> None:
        kind, (target, value) = modifiers[-1], values
        bits = 64 if kind.endswith("64") else 32
        if value.startswith("%") and value[1:] in SPECIAL:
            self.row("sreg", self.use(target, 4), immediate=SPECIAL[value[1:]])
        elif value.startswith("{"):
            low, high = operands(value[1:-1])
            self.row(f"pack_{bits}", self.use(target, 4), self.use(low, 4), self.use(high, 4))
        elif target.startswith("{"):
            low, high = operands(target[1:-1])
            self.row(f"unpack_{bits}", self.use(low, 4), self.use(high, 4), self.use(value, bits // 8))
        elif kind == "pred":
            self.row("pred", self.use(target, 0), self.use(value, 0), flag=0)
        else:
            width = 8 if self.is_wide(target) else 4
            self.row(f"mov_{8 * width}", self.use(target, width), self.use(value, width))

    def do_cvta(self, modifiers: list[str], values: list[str]) -> None:
        wide = self.is_wide(values[0])
        base = SHARED_BASE if "shared" in modifiers else LOCAL_BASE if "local" in modifiers else 0
        places = [self.use(x, 8 if wide else 4) for x in values]
        if wide and base:
            self.row("sub_64" if "to" in modifiers else "add_64", *places, self.constant(base, 8))
        else:
            self.row("mov_64" if wide else "mov_32", *places)

    def do_cvt(self, modifiers: list[str], values: list[str]) -> None:
        to, source = modifiers[-2:]
        places = self.use(values[0], BYTES[to]), self.use(values[1], BYTES[source])
        from_wide, to_wide = self.is_wide(values[1]), self.is_wide(values[0])
        # A register may be wider than the type of the value that is read or written.
        natural = values[1] not in self.types or (from_wide, to_wide) == (BYTES[source] == 8, BYTES[to] == 8)
        if natural and len(modifiers) == 3 and (to, source) in PLAIN_CONVERSIONS:
            self.row(PLAIN_CONVERSIONS[to, source], *places)
        elif natural and modifiers[1:] == ["rn", "f32", "s32"]:
            self.row("f32_s32", *places)
        else:
            rounding = next((ROUNDING[x] for x in modifiers if x in ROUNDING), 0)
            self.row(
                "cvt", *places, size=TYPES[to], count=TYPES[source], sign=rounding & 3 if to[0] in "us" else rounding,
                flag=("ftz" in modifiers) + 2 * ("sat" in modifiers), wide=from_wide + 2 * to_wide,
            )  # fmt: skip

    def do_setp(self, modifiers: list[str], values: list[str]) -> None:
        kind = modifiers[-1]
        width = BYTES[kind]
        relation = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(modifiers[1], modifiers[1])
        if kind[0] == "f":
            name = f"{relation}_{kind}"
        elif relation in ("eq", "ne"):
            name = f"{relation}_{64 if width == 8 else 32}"
        else:
            bits = 8 * width if kind[0] == "s" or width == 8 else 32
            name = f"{relation}_{_signed(kind)}{bits}"
        results = values[0].split("|")
        combine = {"and": 1, "or": 2, "xor": 3}.get(modifiers[2], 0)
        complement = self.use(results[1], 0) if len(results) > 1 else -1
        self.row(
            name, self.use(results[0], 0), self.use(values[1], width), self.use(values[2], width),
            self.use(values[3], 0) if combine else -1, complement, flag=combine,
        )  # fmt: skip

    def do_selp(self, modifiers: list[str], values: list[str]) -> None:
        width = max(BYTES[modifiers[-1]], 4)
        self.row(f"selp_{8 * width}", *(self.use(x, width) for x in values[:3]), self.use(values[3], 0))

    def do_bfe(self, modifiers: list[str], values: list[str]) -> None:
        self.row(f"bfe_{_signed(modifiers[-1])}32", *(self.use(x, 4) for x in values))

    def do_shf(self, modifiers: list[str], values: list[str]) -> None:
        self.row(f"shf_{modifiers[1]}{modifiers[2][0]}", *(self.use(x, 4) for x in values))

    def do_lop3(self, modifiers: list[str], values: list[str]) -> None:
        self.row("lop3_32", *(self.use(x, 4) for x in values[:4]), immediate=int(values[4], 0))

    def do_prmt(self, modifiers: list[str], values: list[str]) -> None:
        self.row("prmt_32", *(self.use(x, 4) for x in values))

    def do_popc(self, modifiers: list[str], values: list[str]) -> None:
        name = f"{modifiers[0]}_{modifiers[-1][1:]}"
        self.row(name, self.use(values[0], 4), self.use(values[1], BYTES[modifiers[-1]]))

    do_clz = do_popc
