"""The parser of AMD instructions."""

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
