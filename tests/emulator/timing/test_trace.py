"""Machine instructions as the timing model sees them."""

import pytest

from emulator.timing.trace import KINDS, PIPES, classify, instruction_table


@pytest.mark.parametrize(
    ("statement", "pipe", "kind"),
    [
        ("FFMA R0, R1, R2, R3", "fma", "alu"),
        ("@!P0 LDG.E.128 R4, [R2.64]", "mio", "load"),
        ("STG.E [R2.64], R4", "mio", "store"),
        ("RED.E.ADD.F32.FTZ.RN.STRONG.GPU [R2.64], R5", "mio", "reduction"),
        ("LDS.64 R4, [R3]", "mio", "shared load"),
        ("SHFL.BFLY PT, R7, R4, 0x10, 0x1f", "mio", "shuffle"),
        ("MUFU.EX2 R9, R8", "xu", "mufu"),
        ("@P1 BRA 0x1a0", "branch", "branch"),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", "branch", "barrier"),
        ("UIADD3 UR4, UR4, 0x1, URZ", "uniform", "alu"),
        ("HMMA.1688.F32.TF32 R4, R4, R8, RZ", "tensor", "alu"),
        ("NOP", "none", "alu"),
    ],
)
def test_classes_of_instructions(statement, pipe, kind):
    assert classify(statement) == (pipe, kind)


def test_control_bits():
    stall, yields, write, read, wait = 5, 1, 2, 7, 0b100001
    bits = stall | yields << 4 | write << 5 | read << 8 | wait << 11
    table = instruction_table(["IMAD.WIDE R2, R3, R4, R6", "DEPBAR.LE SB1, 0x2", "IMAD R2, R3, R4, R6"], [bits] * 3)
    assert [int(table[name][0]) for name in ("stall", "write", "read", "wait")] == [5, 2, 7, 33]
    assert table["slots"].tolist() == [2, 1, 1]
    assert table["left"].tolist() == [0, 1 << 4 | 2, 0]
    assert [PIPES[i] for i in table["pipe"]] == ["fma", "none", "fma"]
    assert [KINDS[i] for i in table["kind"]] == ["alu", "depbar", "alu"]
