"""Counters are exact: each number here is worked out by hand."""

import pytest
import torch
import triton
import triton.language as tl

from emulator.counters import by_line, table, total
from emulator.emulation import emulated

from .micro import run_ptx


def summary(body, **options):
    data = torch.zeros(4096, dtype=torch.int32)
    return run_ptx(body, data, **options).counters["kernel"]


HEADER_INSTRUCTIONS = 4
"""ld.param, mov, mul.wide, add; then the body, then ret."""


def test_instructions_by_class():
    found = summary("add.s32 %r1, %r0, 1; add.f32 %f1, 0f3F800000, 0f3F800000; ex2.approx.f32 %f2, %f1;", programs=3)
    assert found["instructions"] == 3 * (HEADER_INSTRUCTIONS + 4)
    assert (found["float"], found["special"], found["integer"]) == (3, 3, 3 * 3)
    assert (found["parameter"], found["move"], found["control"]) == (3, 3, 3)
    assert found["lanes"] == 32 * found["instructions"]
    assert (found["launches"], found["programs"]) == (1, 3)


def test_threads_along_three_dimensions():
    data = torch.zeros(64, dtype=torch.int32)
    body = """
        mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mov.u32 %r3, %ntid.x; mov.u32 %r4, %ntid.y;
        mad.lo.u32 %r5, %r2, %r4, %r1; mad.lo.u32 %r5, %r5, %r3, %r0;
        mul.wide.u32 %d2, %r5, 4; add.u64 %d2, %d0, %d2;
        mad.lo.u32 %r6, %r2, 10, %r1; mad.lo.u32 %r6, %r6, 10, %r0; st.global.b32 [%d2], %r6;
    """
    assert not run_ptx(body, data, threads=64, block=(8, 4, 2)).findings
    assert data.tolist() == [100 * z + 10 * y + x for z in range(2) for y in range(4) for x in range(8)]


@pytest.mark.parametrize(
    ("stride", "sectors"), [(0, 1), (1, 4), (2, 8), (4, 16), (8, 32), (64, 32)], ids=lambda value: str(value)
)
def test_sectors_of_a_load(stride, sectors):
    body = f"mul.lo.u32 %r1, %r0, {4 * stride}; cvt.u64.u32 %d2, %r1; add.u64 %d2, %d0, %d2; ld.global.b32 %r2, [%d2];"
    found = summary(body)
    assert (found["load requests"], found["load sectors"], found["load first sectors"]) == (1, sectors, sectors)
    twice = summary(body + "ld.global.b32 %r3, [%d2];")
    assert (twice["load requests"], twice["load sectors"], twice["load first sectors"]) == (2, 2 * sectors, sectors)


@pytest.mark.parametrize(("stride", "passes"), [(0, 1), (1, 1), (2, 2), (3, 1), (4, 4), (16, 16), (32, 32), (33, 1)])
def test_bank_conflicts(stride, passes):
    if stride > 31:  # of 4096 bytes
        body = f"and.b32 %r1, %r0, 7; mul.lo.u32 %r1, %r1, {4 * stride}; st.shared.b32 [%r1], 1;"
        passes = {32: 8, 33: 1}[stride]
    else:
        body = f"mul.lo.u32 %r1, %r0, {4 * stride}; st.shared.b32 [%r1], 1;"
    found = summary(body)
    assert (found["bank passes"], found["conflict-free passes"]) == (passes, 1)


def test_wide_shared_accesses_take_several_passes():
    found = summary("shl.b32 %r1, %r0, 4; st.shared.v4.b32 [%r1], {1, 2, 3, 4};")
    assert (found["bank passes"], found["conflict-free passes"]) == (4, 4)


def test_divergence():
    body = """
        setp.lt.u32 %p1, %r0, 10;
        @%p1 bra few;
        add.s32 %r1, %r0, 1;
        add.s32 %r1, %r1, 1;
        bra.uni join;
    few:
        add.s32 %r1, %r0, 2;
    join:
        st.global.b32 [%d1], %r1;
    """
    found = summary(body)
    assert found["divergent branches"] == 1
    # The branches of 10 and of 22 lanes run one after the other, then all 32 lanes together.
    assert found["instructions"] == HEADER_INSTRUCTIONS + 2 + 3 + 1 + 2
    assert found["lanes"] == 32 * HEADER_INSTRUCTIONS + 32 + 10 + 3 * 22 + 10 + 2 * 32
    assert found["store requests"] == 1


def test_loop_that_lanes_leave_one_by_one():
    body = """
        mov.u32 %r1, %r0;
    again:
        add.s32 %r1, %r1, -1;
        setp.ge.s32 %p1, %r1, 0;
        @%p1 bra again;
        st.global.b32 [%d1], %r1;
    """
    found = summary(body)
    assert found["divergent branches"] == 31
    assert found["integer"] == 2 + 32  # two of the header
    assert found["store requests"] == 1


def test_atomics():
    body = "and.b32 %r1, %r0, 3; cvt.u64.u32 %d2, %r1; shl.b64 %d2, %d2, 2; add.u64 %d2, %d0, %d2; "
    body += "red.global.add.u32 [%d2], 1;"
    found = summary(body, programs=2)
    assert (found["atomic"], found["atomic requests"], found["atomic addresses"], found["atomic sectors"]) == (
        2,
        2,
        8,
        2,
    )


@triton.jit
def _copy(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@pytest.mark.parametrize(
    ("target", "code", "lanes", "sector"),
    [
        ("cuda:80", "ptx", 32, 32),
        ("cuda:80", "sass", 32, 32),
        ("cuda:90", "sass", 32, 32),
        ("hip:gfx942", None, 64, 128),
        ("hip:gfx1100", None, 32, 128),
    ],
)
def test_counts_of_a_triton_kernel(target, code, lanes, sector):
    n, block, warps = 1000, 128, 4
    x, y = torch.zeros(n), torch.zeros(n)
    with emulated(target, code) as gpu:
        _copy[(8,)](x, y, n, B=block, num_warps=warps)
    found = total(gpu.counts, "_copy")
    assert found["programs"] == 8
    elements = block // (warps * lanes) or 1
    requests = -(-n // (lanes * elements)) if block >= warps * lanes else 2 * 8
    assert found["store sectors"] == -(-n * 4 // sector)
    if target.startswith("cuda"):
        assert found["load requests"] == found["store requests"] == requests == 32
        assert found["load sectors"] == found["store sectors"]
    assert sum(by_line(gpu.counts[next(iter(gpu.counts))]).values()) == found["instructions"]
    assert table(gpu.counts)[0]["instructions"] == found["instructions"]


def test_counts_repeat_exactly():
    runs = []
    for order in ("forward", "random"):
        with emulated("cuda:80", order=order, shuffle_warps=order == "random") as gpu:
            _copy[(8,)](torch.zeros(1000), torch.zeros(1000), 1000, B=128)
        runs.append(total(gpu.counts))
    assert runs[0] == runs[1]
