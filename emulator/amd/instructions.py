"""Parses one AMD instruction into a row of the instruction array."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from emulator import build

from .names import modern
from .operands import ABSENT, SIGNED, operand, part_of, short

DUAL, CLAMP, IS_FLOAT, DPP, BOUND_CTRL, FETCH_INACTIVE, RETURNS, OFFSET_REGISTER = (1 << i for i in range(8))
"""Flags; see core/amd.h. OFFSET_REGISTER also marks LDS instructions with two addresses."""
TYPES = ("f32", "i32", "u32", "f64", "i64", "u64", "i16", "u16", "f16")
CONDITIONS = ["f", "lt", "eq", "le", "gt", "lg", "ge", "o", "u", "nge", "nlg", "ngt", "nle", "neq", "nlt", "t"]
WORDS = "offen idxen glc slc dlc clamp tfe gds row_mirror row_half_mirror sc0 sc1 nt".replace(" ", "|")
"""Modifiers without a value."""
KNOWN = set(WORDS.split("|")) - {"idxen", "tfe", "gds"} | {
    "offset", "offset0", "offset1", "row_shl", "row_shr", "row_ror", "row_share", "row_xmask", "row_bcast", "quad_perm",
    "wave_shl", "wave_shr",
    "row_mask", "bank_mask", "bound_ctrl", "fi", "op_sel", "op_sel_hi", "neg_lo", "neg_hi", "src0_sel", "src1_sel",
    "dst_sel", "dst_unused",
}  # fmt: skip
PACKED_MODIFIERS = {"op_sel", "op_sel_hi", "neg_lo", "neg_hi"}
WITHOUT_OPERANDS = (
    "s_waitcnt", "s_delay", "s_sendmsg", "s_nop", "s_clause", "s_set_inst", "s_endpgm", "s_barrier", "s_code",
    "s_sleep", "s_setprio", "buffer_gl", "buffer_wbl2", "buffer_inv",
)  # fmt: skip
DPP_CONTROLS = {
    "row_shl": 0x100, "row_shr": 0x110, "row_ror": 0x120, "row_share": 0x150, "row_xmask": 0x160,
    "wave_shl": 0x12F, "wave_shr": 0x137,
}  # fmt: skip


@dataclasses.dataclass
class Statement:
    """The parts of an instruction's text."""

    text: str
    name: str
    """Name in RDNA3, without the suffix of its encoding."""
    arguments: list[str]
    modifiers: dict[str, str]
    is_dpp: bool

    def number(self, name: str) -> int:
        return int(self.modifiers.get(name, "0"), 0)

    def bits(self, name: str, default: int) -> int:
        """Returns a modifier that is a list of bits, as a number."""
        if name not in self.modifiers:
            return default
        return sum(int(bit) << k for k, bit in enumerate(self.modifiers[name][1:-1].split(",")))


Row = dict[str, Any]


def parse(text: str, dual: bool) -> Row:
    """Returns the fields of program.INSTRUCTION. If `dual`, `text` is one half of a dual instruction."""
    statement = _split(text, dual)
    row: Row = {"flags": 0, "immediate": [0, 0, 0, 0], "source": []}
    if "clamp" in statement.modifiers:
        row["flags"] |= CLAMP
    if "glc" in statement.modifiers or ("sc0" in statement.modifiers and "atomic" in statement.name):
        row["flags"] |= RETURNS
    for pattern, parser in _PARSERS:
        if match := re.fullmatch(pattern, statement.name):
            name = parser(statement, match, row)
            break
    number = build.amd_operations().get(name)
    has_halves = any(value[3] for value in (row.get("result", ABSENT), *row["source"]))
    if number is None or (has_halves and parser not in (_plain, _vector_compare)):
        raise NotImplementedError(text)
    row["op"] = number
    for k in (0, 1):
        if (selection := statement.modifiers.get(f"src{k}_sel", "DWORD")) != "DWORD":
            row["source"][k] = part_of(row["source"][k], selection)
    return row


def _split(text: str, dual: bool) -> Statement:
    mnemonic, rest = (*re.split(r"\s+", text, maxsplit=1), "")[:2]
    name = re.sub(r"_(e32|e64|dpp|e64_dpp|sdwa)$", "", mnemonic)
    name = modern(name.replace("v_dual_", "v_") if dual else name)
    modifiers: dict[str, str] = {}

    def take(match: re.Match[str]) -> str:
        modifiers[match[1]] = match[2]
        return " "

    rest = rest.replace("swizzle(SWAP,", "swizzle(")
    rest = re.sub(r"offset:swizzle\((\d+)\)", lambda m: f"offset:{0x1F | int(m[1]) << 10}", rest)
    if not name.startswith(("s_waitcnt", "s_delay", "s_sendmsg")):
        rest = re.sub(r"(?<![\w\[])([a-z_]\w*):(\[[^\]]*\]|-?\w+)", take, rest)
        rest = re.sub(rf"(?:^|\s)({WORDS})\b()", take, rest)
    arguments = [x.strip() for x in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", rest) if x.strip()]
    packed = modifiers.keys() & PACKED_MODIFIERS and not re.search("permlane|_pk_|fma_mix", name)
    if modifiers.keys() - KNOWN or packed or modifiers.get("dst_sel", "DWORD") != "DWORD":
        raise NotImplementedError(text)
    return Statement(text, name, arguments, modifiers, mnemonic.endswith("dpp"))


def _nothing(statement: Statement, match: re.Match[str], row: Row) -> str:
    return statement.name


def _branch(statement: Statement, match: re.Match[str], row: Row) -> str:
    row["target"] = statement.arguments[0]
    return statement.name


def _scalar_load(statement: Statement, match: re.Match[str], row: Row) -> str:
    target, base, *offset = statement.arguments
    row["result"], row["source"] = operand(target), [operand(base)]
    if offset and re.match(r"-?\d", offset[0]):
        row["immediate"][0] = int(offset[0], 0)
    elif offset:
        row["source"].append(operand(offset[0]))
        row["immediate"][0] = statement.number("offset")
    row["immediate"][1] = int(match[1]) // 32
    return "s_load"


def _scalar_compare(statement: Statement, match: re.Match[str], row: Row) -> str:
    width = "integer 64" if match[3].endswith("64") else "32"
    row["source"] = [operand(x, width) for x in statement.arguments]
    if match[1] and match[3] == "i32":
        row["source"][1] = short(statement.arguments[1])
    row["immediate"][:2] = CONDITIONS.index(match[2].replace("ne", "lg")), TYPES.index(match[3])
    return "s_cmp"


def _vector_compare(statement: Statement, match: re.Match[str], row: Row) -> str:
    width = "float 64" if match[3] == "f64" else "integer 64" if match[3].endswith("64") else "32"
    arguments = statement.arguments
    if len(arguments) > 2:
        row["result"], arguments = operand(arguments[0]), arguments[1:]
    row["source"] = [operand(x, width) for x in arguments]
    row["immediate"][:2] = CONDITIONS.index("lg" if match[2] == "ne" else match[2]), TYPES.index(match[3])
    return "v_cmp" + match[1]


def _element(kind: str, bits: int) -> list[int]:
    """Returns the bytes of an element, negative if it is signed, and the number of elements."""
    return [bits // 8 * (-1 if kind == "i" else 1) if bits < 32 else 4, max(bits // 32, 1)]


def _access(statement: Statement, match: re.Match[str], row: Row) -> str:
    """Parses loads and stores of global memory, buffers and scratch memory."""
    space, access, half, upper, kind, bits = match.groups()
    part = (1 if upper else 2 if access == "load" else 0) if half else 0  # of a register: 1 upper half, 2 lower half
    row["immediate"] = [*_element(kind, int(bits)), statement.number("offset"), part]
    first, second, *rest = (operand(x) for x in statement.arguments)
    if space == "buffer":
        row["result"], row["source"] = first, [second, *rest[:2]]
        if "offen" in statement.modifiers:
            row["flags"] |= OFFSET_REGISTER
    else:
        data, address = (first, second) if access == "load" else (second, first)
        row["result"], row["source"] = data, [address, rest[0]]
    return f"{space}_{access}"


def _buffer_atomic(statement: Statement, match: re.Match[str], row: Row) -> str:
    data, address, resource, offset = (operand(x) for x in statement.arguments)
    row["result"], row["source"] = data, [address, resource, data, offset]
    row["immediate"][2:] = statement.number("offset"), 1
    if "offen" in statement.modifiers:
        row["flags"] |= OFFSET_REGISTER
    return statement.name.replace("buffer", "global")


def _global_atomic(statement: Statement, match: re.Match[str], row: Row) -> str:
    *result, address, data, base = (operand(x) for x in statement.arguments)
    row["result"] = result[0] if result and row["flags"] & RETURNS else ABSENT
    row["source"] = [address, base, data]
    row["immediate"][2] = statement.number("offset")
    return statement.name


def _shared_access(statement: Statement, match: re.Match[str], row: Row) -> str:
    access, two, stride, kind, bits, half, upper = match.groups()
    size, count = _element(kind, int(bits))
    if two:
        unit = int(bits) // 8 * (64 if stride else 1)
        row["immediate"] = [size, count, statement.number("offset0") * unit, statement.number("offset1") * unit]
        row["flags"] |= OFFSET_REGISTER
    else:
        row["immediate"] = [size, count, statement.number("offset"), (1 if upper else 2) if half else 0]
    values = [operand(x) for x in statement.arguments]
    if access == "load":
        row["result"], row["source"] = values[0], [values[1]]
    else:
        row["source"] = values
    return f"ds_{access}"


def _shared_exchange(statement: Statement, match: re.Match[str], row: Row) -> str:
    row["result"], *row["source"] = (operand(x) for x in statement.arguments)
    row["immediate"][2] = statement.number("offset")
    return statement.name


def _matrix(statement: Statement, match: re.Match[str], row: Row) -> str:
    row["result"], *row["source"] = (operand(x) for x in statement.arguments)
    row["immediate"][:3] = int(match[1]), int(match[2]), {"f32": 4, "f16": 2, "bf16": -2}[match[3]]
    return "v_mfma_f32"


def _packed(statement: Statement, match: re.Match[str], row: Row) -> str:
    row["result"], *row["source"] = (operand(x) for x in statement.arguments)
    upper = statement.bits("op_sel_hi", 7 if "_pk_" in statement.name else 0)
    if statement.name == "v_fma_mix_f32":  # a constant has the same value in either type
        upper &= ~sum(("." in argument) << k for k, argument in enumerate(statement.arguments[1:]))
    row["immediate"] = [statement.bits("op_sel", 0), upper, statement.bits("neg_lo", 0), statement.bits("neg_hi", 0)]
    return statement.name


def _plain(statement: Statement, match: re.Match[str], row: Row) -> str:
    name, arguments = statement.name, statement.arguments
    if name == "v_fmac_f64":
        name, arguments = "v_fma_f64", [*arguments, arguments[0]]
    is_wide = name.endswith(("64", "_u64_u32", "_i64_i32"))
    width = "float 64" if name.endswith("_f64") else "integer 64" if is_wide else "32"
    width = "16" if name.endswith("_b16") else width
    if not name.startswith("s_bitcmp"):
        row["result"], arguments = operand(arguments[0], width), arguments[1:]
    if re.search(r"_co_|div_scale|mad_[ui]64", name):
        row["second_result"], arguments = operand(arguments[0], width), arguments[1:]
    narrow_second = name in ("v_ldexp_f64", "v_cmp_class_f64")
    row["source"] = [operand(x, "32" if k and narrow_second else width) for k, x in enumerate(arguments)]
    if re.fullmatch(r"s_(mov|add|mul)k_i32", name):
        row["source"] = [short(arguments[0])]
    if name.startswith("v_accvgpr_"):
        name = "v_mov_b32"
    if name.endswith("f32"):
        row["flags"] |= IS_FLOAT
    # The SIGNED modifier of a part of a register is handled with the part.
    of_parts = [SIGNED if statement.modifiers.get(f"src{k}_sel", "DWORD") != "DWORD" else 0 for k in range(4)]
    has_modifiers = any(source[1] & ~sign for source, sign in zip(row["source"], of_parts))
    assert not has_modifiers or "f32" in name or "f64" in name or "cndmask" in name, statement.text
    if statement.is_dpp:
        _dpp(statement, row)
    if "permlane" in name and "op_sel" in statement.modifiers:
        selection = statement.bits("op_sel", 0)
        row["flags"] |= FETCH_INACTIVE * (selection & 1) | BOUND_CTRL * (selection >> 1 & 1)
    return name


def _dpp(statement: Statement, row: Row) -> None:
    modifiers = statement.modifiers
    control = next((base + int(modifiers[name]) for name, base in DPP_CONTROLS.items() if name in modifiers), 0xE4)
    if "row_bcast" in modifiers:
        control = {"15": 0x142, "31": 0x143}[modifiers["row_bcast"]]
    if "row_mirror" in modifiers:
        control = 0x140
    if "row_half_mirror" in modifiers:
        control = 0x141
    if "quad_perm" in modifiers:
        control = sum(int(x) << 2 * i for i, x in enumerate(modifiers["quad_perm"][1:-1].split(",")))
    masks = int(modifiers.get("row_mask", "0xf"), 0), int(modifiers.get("bank_mask", "0xf"), 0)
    row["immediate"][:3] = control, *masks
    row["flags"] |= (
        DPP | BOUND_CTRL * (modifiers.get("bound_ctrl") == "1") | FETCH_INACTIVE * (modifiers.get("fi") == "1")
    )


_PARSERS: list[tuple[str, Callable[[Statement, re.Match[str], Row], str]]] = [
    (rf"({'|'.join(WITHOUT_OPERANDS)}).*", _nothing),
    (r"s_c?branch.*", _branch),
    (r"s_load_b(\d+)", _scalar_load),
    (r"s_cmp(k?)_(\w+)_(\w+)", _scalar_compare),
    (r"v_cmp(x?)_(?!class)(\w+)_(\w+)", _vector_compare),
    (r"(global|buffer|scratch)_(load|store)_(d16_)?(hi_)?([uib])(\d+)", _access),
    (r"buffer_atomic_.*", _buffer_atomic),
    (r"global_atomic_.*", _global_atomic),
    (r"ds_(load|store)_(2addr_)?(stride64_)?([uib])(\d+)(_d16)?(_hi)?", _shared_access),
    (r"ds_(?:bpermute|permute|swizzle)_b32", _shared_exchange),
    (r"v_mfma_f32_(\d+)x\1x(\d+)_?(f32|f16|bf16)(?:_1k)?", _matrix),
    (r"v_pk_(?:add|mul|fma|mov)_[fb]32|v_fma_mix_f32", _packed),
    (r".*", _plain),
]
