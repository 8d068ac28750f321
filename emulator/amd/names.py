"""Names of AMD instructions. Names of CDNA are translated to names of RDNA3."""

import functools
import re

WIDTHS = {
    "dword": "b32", "dwordx2": "b64", "dwordx3": "b96", "dwordx4": "b128", "dwordx8": "b256", "dwordx16": "b512",
    "ubyte": "u8", "sbyte": "i8", "ushort": "u16", "sshort": "i16", "byte": "b8", "short": "b16",
}  # fmt: skip
RENAMED = {
    "v_add_u32": "v_add_nc_u32", "v_sub_u32": "v_sub_nc_u32", "v_subrev_u32": "v_subrev_nc_u32",
    "v_addc_co_u32": "v_add_co_ci_u32", "v_subb_co_u32": "v_sub_co_ci_u32", "v_subbrev_co_u32": "v_subrev_co_ci_u32",
    "v_add_u16": "v_add_nc_u16", "v_sub_u16": "v_sub_nc_u16", "v_subrev_u16": "v_subrev_nc_u16",
    "v_ffbh_i32": "v_cls_i32", "v_ffbh_u32": "v_clz_i32_u32", "v_ffbl_b32": "v_ctz_i32_b32",
}  # fmt: skip


ATOMICS = {
    "add": "add_u32", "sub": "sub_u32", "smin": "min_i32", "umin": "min_u32", "smax": "max_i32", "umax": "max_u32",
    "and": "and_b32", "or": "or_b32", "xor": "xor_b32", "swap": "swap_b32", "cmpswap": "cmpswap_b32",
}  # fmt: skip


@functools.cache
def modern(name: str) -> str:
    """Returns the RDNA3 name of an instruction."""
    if name in RENAMED:
        return RENAMED[name]
    if match := re.fullmatch(r"((?:global|buffer|scratch)_(?:load|store)|s_load)_(\w+)", name):
        return f"{match[1]}_{WIDTHS[match[2]]}" if match[2] in WIDTHS else name
    if match := re.fullmatch(r"((?:global|buffer)_atomic)_(\w+)", name):
        return f"{match[1]}_{ATOMICS.get(match[2], match[2])}"
    if match := re.fullmatch(r"ds_(read|write)(2?)(st64)?_(\w+)", name):
        kind = "load" if match[1] == "read" else "store"
        return f"ds_{kind}_{'2addr_' if match[2] else ''}{'stride64_' if match[3] else ''}{match[4]}"
    return name.replace("s_andn2_", "s_and_not1_").replace("s_orn2_", "s_or_not1_")
