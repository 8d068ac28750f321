"""The parser of AMD instructions."""

import pytest

from emulator.amd import instructions, operands


def test_amd_short_constants_are_extended_by_their_sign():
    assert operands.short("0xfe00") == operands.operand("-512")
    assert operands.short("0x7e00") == operands.operand("0x7e00")
    for text, source in (("s_movk_i32 s0, 0xfe00", 0), ("s_cmpk_lt_i32 s0, 0xfe00", 1), ("s_addk_i32 s0, 0xfe00", 0)):
        assert instructions.parse(text, dual=False)["source"][source] == operands.operand("-512")


def test_amd_accumulation_registers_follow_vector_registers():
    row = instructions.parse("v_accvgpr_write_b32 a2, v4", dual=False)
    assert (row["result"], row["source"][0]) == (operands.operand("v258"), operands.operand("v4"))
    assert operands.operand("a[4:7]")[2:5] == (4, 0, 260)


def test_amd_parts_of_registers_are_extended_by_their_sign():
    row = instructions.parse("v_cmp_gt_i32_sdwa s[4:5], v5, sext(v1) src0_sel:DWORD src1_sel:WORD_1", dual=False)
    assert row["source"] == [operands.operand("v5"), (operands.VECTOR, 0, 1, 12, 1, 0, 0)]
    row = instructions.parse("v_add_u32_sdwa v1, s4, sext(v1) src0_sel:DWORD src1_sel:WORD_0", dual=False)
    assert row["source"] == [operands.operand("s4"), (operands.VECTOR, 0, 1, 11, 1, 0, 0)]
    with pytest.raises(AssertionError):
        instructions.parse("v_add_u32_e32 v1, -v4, v1", dual=False)


def test_amd_halves_of_registers():
    row = instructions.parse("v_or_b16 v1.h, v2.l, v3.h", dual=False)
    assert row["result"] == (operands.VECTOR, 0, 1, 6, 1, 0, 0)
    assert row["source"] == [(operands.VECTOR, 0, 1, 5, 2, 0, 0), (operands.VECTOR, 0, 1, 6, 3, 0, 0)]
    assert instructions.parse("v_mov_b16_e32 v1.h, 1.0", dual=False)["source"][0][5] == 0x3C00
    for text in ("v_mov_b16_e32 v1.l, -v2.l", "global_load_u16 v1.h, v2, s[0:1]"):
        with pytest.raises(NotImplementedError):
            instructions.parse(text, dual=False)


def test_amd_constants_beside_halves_have_the_same_value():
    row = instructions.parse("v_fma_mix_f32 v0, v0, 1.0, v2 op_sel_hi:[1,1,0]", dual=False)
    assert row["immediate"][1] == 0b001
