"""Injected faults: each kind must be found, at the right instruction; correct kernels must pass."""

import re

import pytest
import torch
import triton
import triton.language as tl

from emulator.emulation import emulated, target_of
from emulator.machine import EmulationError
from emulator.nvidia.sass_operands import Operands
from emulator.program import UnsupportedInstructionError
from emulator.shadow import Shadow

from .micro import run_ptx
from .targets import each_target

N = 1000


@triton.jit
def _correct(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n, other=0.0) * 3, mask=i < n)


@triton.jit
def _loads_past_the_end(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i <= n, other=0.0) * 3, mask=i < n)


@triton.jit
def _loads_before_the_start(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i - 1, mask=i < n, other=0.0) * 3, mask=i < n)


@triton.jit
def _stores_past_the_end(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n, other=0.0) * 3, mask=i <= n)


@triton.jit
def _reads_unwritten(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(y + i, mask=i < n, other=0.0) + 1, mask=i < n)


@triton.jit
def _programs_write_one_place(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.load(x + i) + tl.program_id(0))


@triton.jit
def _sums_without_atomics(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x, tl.load(x) + tl.sum(tl.load(x + i, mask=(i < n) & (i > 0), other=0.0)))


@triton.jit
def _mixes_atomics_and_stores(x, y, n, B: tl.constexpr):
    program = tl.program_id(0)
    if program == 0:
        tl.store(x, 1.0)
    else:
        tl.atomic_add(x, 1.0)


@triton.jit
def _reads_what_neighbors_write(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i, tl.load(x + (i + B) % n, mask=i < n, other=0.0) + 1, mask=i < n)


@triton.jit
def _lanes_write_one_place(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i // 2, tl.load(x + i))


@triton.jit
def _misaligned(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    odd = (x.to(tl.pointer_type(tl.int8)) + 2).to(tl.pointer_type(tl.float32))
    tl.store(y + i, tl.load(odd + 3 * i))


@triton.jit
def _dereferences_an_integer(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.load((n * 4096).to(tl.int64).to(tl.pointer_type(tl.float32)) + i))


FAULTS = {
    _loads_past_the_end: "out of bounds",
    _loads_before_the_start: "out of bounds",
    _stores_past_the_end: "out of bounds",
    _reads_unwritten: "uninitialized read",
    _programs_write_one_place: "race between writes",
    _sums_without_atomics: "race between",
    _mixes_atomics_and_stores: "race between writes",
    _reads_what_neighbors_write: "race between read and write",
    _lanes_write_one_place: "lanes write different values",
    _misaligned: "misaligned",
    _dereferences_an_integer: "out of bounds",
}


def launched(kernel, target, code, **options):
    with emulated(target, code, strict=False, **options) as gpu:
        x, y = torch.rand(N), torch.empty(N)
        kernel[(8,)](x, y, N, B=128)
    return gpu, x, y


@each_target
def test_correct_kernel_has_no_findings(target, code):
    gpu, x, y = launched(_correct, target, code)
    assert not gpu.findings
    assert torch.equal(y, 3 * x)


@each_target
@pytest.mark.parametrize("kernel", FAULTS, ids=lambda kernel: kernel.__name__.strip("_"))
def test_fault_is_found(target, code, kernel):
    if kernel is _misaligned and target.startswith("hip"):
        pytest.skip("AMD GPUs load dwords from any address")
    gpu, _, _ = launched(kernel, target, code)
    found = [finding for finding in gpu.findings if finding.kind.startswith(FAULTS[kernel])]
    assert found, gpu.findings
    finding = found[0]
    assert finding.kernel == kernel.__name__
    assert re.search(r"ld|st|ST|LD|RED|ATOM|load|store|atom|red", finding.instruction)
    assert re.search(r"test_faults\.py:\d+", finding.line) or "test_faults" in finding.line


@triton.jit
def _follows_an_address(table, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(y + i, tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


@each_target
def test_addresses_in_a_table_may_be_followed_if_their_tensors_are_named(target, code):
    x, y = torch.rand(N), torch.empty(N)
    for named in (True, False):
        table = torch.tensor([x.data_ptr()])
        if named:
            table.pointees = [x]
        with emulated(target, code, strict=False) as gpu:
            _follows_an_address[(8,)](table, y, N, B=128)
        assert {finding.kind for finding in gpu.findings} == (set() if named else {"out of bounds"})
        assert torch.equal(x, y) == named


def test_strict_emulation_raises():
    with pytest.raises(EmulationError, match="out of bounds"), emulated("cuda:80"):
        _stores_past_the_end[(8,)](torch.rand(N), torch.empty(N), N, B=128)


def test_one_byte_out_of_bounds_is_found():
    @triton.jit
    def one_byte(x, n, B: tl.constexpr):
        i = tl.arange(0, B)
        tl.store(x + i, i.to(tl.int8), mask=i <= n)

    with emulated("cuda:80", strict=False) as gpu:
        one_byte[(1,)](torch.zeros(37, dtype=torch.int8), 37, B=64)
    (finding,) = gpu.findings
    assert finding.kind == "out of bounds"
    assert finding.lane == 37 % 32
    assert "+37 in a tensor of 37 bytes" in finding.detail


@triton.jit
def _sum(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y, tl.sum(tl.load(x + i, mask=i < n, other=0.0)))


def without(pattern):
    """Removes the first line of the code that matches."""
    return lambda text: re.sub(rf"^.*{pattern}.*\n", "", text, count=1, flags=re.M)


@each_target
def test_missing_barrier_is_found(target, code):
    pattern = {"ptx": r"bar\.sync", "sass": r"BAR\.SYNC", "amdgcn": r"^\s*s_barrier"}[code]
    if code == "sass":  # an instruction less would move addresses
        rewrite = lambda text: re.sub(r"BAR\.SYNC\S*\s[^;]*;", "NOP;", text, count=1)  # noqa: E731
    else:
        rewrite = without(pattern)
    gpu, _, _ = launched(_sum, target, code, rewrite=rewrite)
    kinds = {finding.kind for finding in gpu.findings}
    assert any(kind.startswith("race") or kind == "uninitialized read" for kind in kinds), kinds


def test_store_to_shared_memory_left_out_is_found():
    gpu, _, _ = launched(_sum, "cuda:80", "ptx", rewrite=without(r"st\.shared"))
    assert "uninitialized read" in {finding.kind for finding in gpu.findings}


def test_register_never_written_is_found():
    gpu, _, _ = launched(_correct, "cuda:80", "ptx", rewrite=without(r"mul\.f32"))
    assert {finding.kind for finding in gpu.findings} == {"stores a register never written"}


def test_unknown_instruction_is_named():
    with pytest.raises(UnsupportedInstructionError, match=r"_correct: frobnicate\.f32"):
        launched(_correct, "cuda:80", "ptx", rewrite=lambda text: text.replace("mul.f32", "frobnicate.f32"))


def test_constants_of_the_compiler_that_were_not_given_are_not_read():
    assert Operands(bytes(8)).read("c[0x2][0x4]") >= 0
    with pytest.raises(UnsupportedInstructionError, match="bank 2 has 4 bytes"):
        Operands(bytes(4)).read("c[0x2][0x4]")


def kinds_of(body, **options):
    return {finding.kind for finding in run_ptx(body, torch.zeros(64, dtype=torch.int32), **options).findings}


def test_misaligned_vector_load_is_found():
    assert kinds_of("ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%d0+4];") == {"misaligned"}


def test_shared_memory_out_of_bounds_is_found():
    assert kinds_of("mov.u32 %r1, 4096; st.shared.b32 [%r1], %r0;") == {"out of bounds"}


def test_race_between_warps_in_shared_memory_is_found():
    body = "and.b32 %r1, %r0, 31; shl.b32 %r1, %r1, 2; st.shared.b32 [%r1], %r0;"
    assert kinds_of(body, threads=64) == {"race between writes"}
    assert not kinds_of(body, threads=32)


def test_barrier_orders_accesses():
    store = "shl.b32 %r1, %r0, 2; st.shared.b32 [%r1], %r0;"
    load = "xor.b32 %r2, %r1, 128; ld.shared.b32 %r3, [%r2]; st.global.b32 [%d1], %r3;"
    assert kinds_of(store + load, threads=64, shuffle_warps=True) >= {"race between read and write"}
    assert not kinds_of(store + "bar.sync 0;" + load, threads=64)


def test_barrier_whose_guard_is_false_is_skipped():
    assert kinds_of("setp.gt.u32 %p1, %r0, 64; @%p1 bar.sync 0;") == set()


def test_barrier_of_some_lanes_is_found():
    assert kinds_of("setp.lt.u32 %p1, %r0, 7; @%p1 bar.sync 0;") >= {"lanes not converged"}


def test_shuffle_from_an_inactive_lane_is_found():
    body = "setp.lt.u32 %p1, %r0, 16; @%p1 shfl.sync.bfly.b32 %r1, %r0, 16, 31, -1; st.global.b32 [%d1], %r0;"
    assert kinds_of(body) == {"lanes not converged"}


def test_endless_loop_is_given_up():
    with pytest.raises(EmulationError, match="endless"):
        run_ptx("again: bra again;", torch.zeros(32), limit=1000)


def test_trap_is_found():
    with pytest.raises(EmulationError, match="trap"):
        run_ptx("trap;", torch.zeros(32))


def test_bytes_that_were_not_written_are_known_one_by_one():
    with Shadow() as shadow:
        data = torch.empty(64, dtype=torch.int32)
        data[:32] = 1
    assert shadow.of(data).sum() == 128
    assert not run_ptx("ld.global.b32 %r1, [%d1];", data, shadow=shadow).findings
    found = run_ptx("ld.global.b32 %r1, [%d1+4];", data, shadow=shadow).findings
    assert [(finding.kind, finding.lane, finding.count) for finding in found] == [("uninitialized read", 31, 1)]


def test_arrays_in_memory_of_an_earlier_tensor_are_written():
    original = torch.from_numpy
    with Shadow() as shadow:
        data = torch.empty(10)
        array = data.numpy()
        assert shadow.of(data) is not None
        assert shadow.of(torch.from_numpy(array)) is None
    assert torch.from_numpy is original


def test_targets_have_names_of_both_kinds():
    assert target_of("sm_90") == target_of("cuda:90")
    assert target_of("gfx942") == target_of("hip:gfx942")
    assert target_of("gfx942").warp_size == 64 and target_of("gfx1100").warp_size == 32
    with pytest.raises(ValueError, match="target"):
        target_of("cpu")
