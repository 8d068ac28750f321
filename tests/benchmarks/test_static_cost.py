"""Static cost of kernels."""

import pytest

static_cost = pytest.importorskip("benchmarks.static_cost", reason="needs Triton")

if static_cost.kernels_are_interpreted():
    pytest.skip("kernels are interpreted in this process", allow_module_level=True)

LISTING = """
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;   /* 0x00000a00ff017624 */
                                                                             /* 0x000fe200078e00ff */
        /*0010*/                   S2R R0, SR_TID.X ;                        /* 0x0000000000007919 */
                                                                             /* 0x000e2a0000002100 */
        /*0020*/                   EXIT ;                                    /* 0x000000000000794d */
                                                                             /* 0x000fea0003800000 */
"""


def test_stall_cycles_are_read_from_a_listing():
    """IMAD.MOV waits 1 cycle, S2R and EXIT 5: bits 41 to 44 of the upper words."""
    assert static_cost.stall_cycles(LISTING) == {0x00: 1, 0x10: 5, 0x20: 5}
    assert [text.split()[0] for _, text in static_cost.parse_listing(LISTING)] == ["IMAD.MOV.U32", "S2R", "EXIT"]


@pytest.mark.parametrize(("leave", "loops"), [("@P0 EXIT", [(1, 4)]), ("EXIT", [])])
def test_a_loop_may_end_behind_the_last_exit_if_that_is_conditional(leave, loops):
    texts = ["MOV R1, RZ", "MUFU.EX2 R0, R1", leave, "UMOV UR4, UR5", "BRA 0x10", "BRA 0x50", "NOP"]
    listing = "\n".join(f"/*{16 * i:04x}*/ {text} ;" for i, text in enumerate(texts))
    instructions = static_cost.parse_listing(listing)
    assert [text for _, text in instructions] == texts[:5], "padding counted, or a branch taken for padding"
    assert static_cost.loops(instructions) == loops


@pytest.mark.slow
def test_record_has_stall_cycles():
    launches = static_cost.shipped_launches("nvidia", (3,), (16,))
    label, call = next((label, call) for label, call in launches if call.kernel.__name__ == "_slot_counts_kernel")
    record = static_cost.cost(label, call, "cuda:80")
    assert record["per_32"] <= record["stalls_per_32"] <= 15 * record["per_32"]


@pytest.mark.slow
def test_size_of_code_bounds_instructions():
    launches = static_cost.shipped_launches("nvidia", (3,), (16,))
    label, call = next((label, call) for label, call in launches if "pack" in call.kernel.__name__)
    exact = static_cost.cost(label, call, "cuda:80")["per_32"]
    bound = static_cost.cost(label, call, "cuda:80", counted=False, budget=1e9)
    assert exact <= bound["per_32_at_most"] <= exact + 16
    assert "per_32" not in bound
    for budget in (exact, exact - 1):
        assert static_cost.cost(label, call, "cuda:80", counted=False, budget=budget)["per_32_at_most"] == exact
