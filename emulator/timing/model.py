"""Predicts the time that a launch takes on a GPU, from the trace of its warps; see core/model.c.

Sources of the parameters: the A100 configuration of Accel-Sim (pipes, clocks, L2 slices, memory channels); Luo et al.
2024 and Abdelkhalik et al. 2022 (latencies); NVIDIA's programming guide (throughputs). Parameters marked as assumed are
guesses. Traces are of code for sm_80: an H100 that runs code for sm_90 is not modeled.
"""

import ctypes
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from emulator import build

from .trace import INSTRUCTION, Trace

CAUSES = (
    "issue", "pipe", "fixed latency", "global memory", "short latency", "barrier", "start", "no warp", "tail",
)  # fmt: skip
"""What a sub-core does in a cycle: it issues; waits for a busy pipe, a fixed latency, global memory, a short latency
(shared memory, shuffles, special functions), a barrier, or the start of a program; has no warp; or has finished."""
SHARED_SIZES = (0, 8, 16, 32, 64, 100, 132, 164, 196, 228)
"""Sizes of shared memory that an SM can be configured for, in KiB; the rest is L1."""
KIB = 1024
SUBS = 4


@dataclasses.dataclass(frozen=True)
class Gpu:
    """Parameters of a GPU, by default of an A100.

    Times are cycles of the SM clock; parameters whose names end in 64 are in 1/64 cycles.
    """

    sms: int = 108
    max_warps: int = 64
    max_programs: int = 32
    registers: int = 65_536
    shared_bytes: int = 164 * KIB
    l1_bytes: int = 192 * KIB
    """Size of L1 and shared memory together."""
    clock_mhz: int = 1410
    fma_interval: int = 2
    """Intervals are the cycles between two warp instructions of a sub-core on one pipe."""
    alu_interval: int = 2
    xu_interval: int = 8
    mio_interval: int = 4
    uniform_interval: int = 2
    branch_interval: int = 4
    tensor_interval: int = 8
    no_interval: int = 1
    lat_shared: int = 26
    lat_shuffle: int = 24
    lat_xu: int = 22
    lat_special: int = 22
    lat_l1: int = 35
    lat_l2: int = 261
    lat_dram: int = 466
    lat_barrier: int = 18
    """Assumed."""
    lat_branch: int = 4
    """Assumed; latency of a branch that is taken, in addition to the compiler's stall."""
    xu_queue: int = 2
    """Assumed; number of instructions that can wait for the XU pipe."""
    mio_queue: int = 24
    """Assumed; cycles of work that can wait for the load-store unit."""
    scheduler: int = 0
    """0: the warp that issued last, then the oldest; 1: round robin; 2: that which issued last, then the youngest."""
    launch_rate64: int = 64
    """Assumed; time between the starts of two programs on the GPU."""
    launch_sm: int = 8
    """Assumed; time between the starts of two programs on an SM."""
    lat_launch: int = 150
    """Assumed."""
    slices: int = 80
    slice64: int = 32
    """Time that an L2 slice takes per sector."""
    atomic64: int = 64
    """Assumed; time that an L2 slice takes per sector updated by atomics."""
    same_sector64: int = 128
    """Assumed; time between two atomics on a sector."""
    channels: int = 40
    dram64: int = 82
    """Time that a memory channel takes per sector: 1,400 of 1,555 GB/s, which copies reach."""
    response64: int = 32
    """Time that an SM takes per sector that L2 returns."""
    request64: int = 64
    """Time that an SM takes per sector that it writes; a requested sector takes half of it."""
    l2_kb: int = 40 * KIB
    l2_warm: int = 1
    """1 if L2 initially contains the memory that the launch accesses."""
    slice_queue: int = 64
    """Assumed; cycles of work that can wait for an L2 slice before it stalls SMs."""
    request_queue: int = 128
    """Assumed; cycles that requests of an SM can wait before they stall its load-store unit."""
    shared_extra: int = 1024
    """Bytes of shared memory that the system reserves per program."""
    stall_percent: int = 100
    """Scale of the compiler's stall cycles, in percent."""
    l1_tag64: int = 64
    """Time that L1 takes per line that an instruction accesses."""
    all_hit_l1: int = 0
    """1 if every load hits L1."""
    fma_every_cycle: int = 0
    """1 if stalls of two cycles after FMA instructions, which are for 16 lanes, count as one cycle."""

    def replace(self, **changes: int) -> "Gpu":
        return dataclasses.replace(self, **changes)

    def scaled(self, percent: int, *names: str) -> "Gpu":
        """Returns a GPU with the parameters `names` scaled."""
        return self.replace(**{name: max(1, round(getattr(self, name) * percent / 100)) for name in names})


A100 = Gpu()
H100 = Gpu(
    sms=132, shared_bytes=227 * KIB, l1_bytes=256 * KIB, clock_mhz=1755, fma_interval=1, lat_l1=38, lat_shared=29,
    lat_l2=263, lat_dram=479, slices=96, channels=40, dram64=47, l2_kb=50 * KIB,
)  # fmt: skip
"""132 SMs at 1,755 MHz, 32 fp32 lanes per sub-core, 3.35 TB/s. It runs code that was compiled for 16 lanes."""
GPUS = {"a100": A100, "h100": H100}

VARIATIONS: dict[str, Callable[[Gpu], Gpu]] = {
    "memory latency -30 %": lambda gpu: gpu.scaled(70, "lat_l1", "lat_l2", "lat_dram"),
    "memory latency +30 %": lambda gpu: gpu.scaled(130, "lat_l1", "lat_l2", "lat_dram"),
    "warps in turn": lambda gpu: gpu.replace(scheduler=1),
    "youngest warp first": lambda gpu: gpu.replace(scheduler=2),
    "shared, shuffle, special -30 %": lambda gpu: gpu.scaled(70, "lat_shared", "lat_shuffle", "lat_xu"),
    "shared, shuffle, special +30 %": lambda gpu: gpu.scaled(130, "lat_shared", "lat_shuffle", "lat_xu"),
    "fixed latencies +30 %": lambda gpu: gpu.replace(stall_percent=130),
    "atomics four times as slow": lambda gpu: gpu.replace(atomic64=256, same_sector64=512),
    "load-store interval 2": lambda gpu: gpu.replace(mio_interval=2),
    "barrier +100 %, branch +8": lambda gpu: gpu.replace(lat_barrier=36, lat_branch=12),
    "cold L2": lambda gpu: gpu.replace(l2_warm=0),
    "all loads hit L1": lambda gpu: gpu.replace(all_hit_l1=1),
}
"""Variations of the least certain parameters."""


class Work(ctypes.Structure):
    """Mirrors Work of core/machine.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("code", "rows", "runs", "accesses", "index")),
        *((name, ctypes.c_int64) for name in ("programs", "warps", "l1_bytes", "programs_per_sm", "warps_per_sub")),
    ]


class Result(ctypes.Structure):
    """Mirrors Result of core/machine.h."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in (
                "cycles", "instructions", "l1_sectors", "l1_hits", "l2_sectors", "dram_bytes", "atomics", "stores",
                "loads", "load_latency",
            )
        ),
        ("causes", ctypes.c_int64 * len(CAUSES)),
        ("last_causes", ctypes.c_int64 * len(CAUSES)),
        ("unread", ctypes.c_int64),
    ]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Predicted time of one launch."""

    cycles: int
    predicted_us: float
    instructions: int
    causes: dict[str, float]
    """Share of each of `CAUSES` in the cycles of all sub-cores."""
    last_causes: dict[str, float]
    """The same for the sub-core that issued last, without its tail."""
    median_us: float
    """Time after which half of the sub-cores had finished."""
    programs_per_sm: int
    l1_sectors: int
    l1_hits: int
    l2_sectors: int
    dram_bytes: int
    atomics: int
    mean_load_latency: float
    """Cycles."""


@dataclasses.dataclass(frozen=True)
class Occupancy:
    """Number of programs that fit on an SM at the same time, and their resources."""

    programs_per_sm: int
    warps_per_sub: int
    l1_bytes: int
    """Size of L1 without shared memory."""


def occupancy(gpu: Gpu, trace: Trace) -> Occupancy:
    """Returns the occupancy of a launch, as limited by registers, shared memory, warps and programs.

    Raises:
        ValueError: A program does not fit on an SM.
    """
    registers_per_warp = -(-trace.registers * 32 // 256) * 256
    warps_per_sub = min(gpu.registers // SUBS // registers_per_warp, gpu.max_warps // SUBS)
    programs = min(warps_per_sub * SUBS // trace.warps, gpu.max_programs)
    per_program = trace.shared_bytes + gpu.shared_extra if trace.shared_bytes else 0
    if per_program:
        programs = min(programs, gpu.shared_bytes // per_program)
    if not programs:
        raise ValueError(f"{trace.registers} registers, {trace.warps} warps, {per_program} bytes do not fit on an SM")
    sizes = (*SHARED_SIZES, gpu.shared_bytes // KIB)
    shared = next(size * KIB for size in sizes if size * KIB >= min(programs * per_program, gpu.shared_bytes))
    return Occupancy(programs, warps_per_sub, gpu.l1_bytes - shared)


@functools.cache
def _core() -> ctypes.CDLL:
    core = build.library(Path(__file__).parent / "core" / "model.c")
    sizes = (4 * len(dataclasses.fields(Gpu)), INSTRUCTION.itemsize, ctypes.sizeof(Work), ctypes.sizeof(Result))
    assert [core.layout(which) for which in range(4)] == list(sizes)
    return core


def predict(gpu: Gpu, trace: Trace) -> Prediction:
    """Predicts the time of one launch."""
    fits = occupancy(gpu, trace)
    parameters = np.array(dataclasses.astuple(gpu), np.int32)
    arrays = (trace.table, trace.rows, trace.raw.runs, trace.raw.accesses, trace.raw.index)
    work = Work(
        *(array.ctypes.data for array in arrays), trace.programs, trace.warps, fits.l1_bytes, fits.programs_per_sm,
        fits.warps_per_sub,
    )  # fmt: skip
    result, done = Result(), np.zeros(gpu.sms * SUBS, np.int64)
    pointers = parameters.ctypes.data, done.ctypes.data
    _core().simulate(
        ctypes.c_void_p(pointers[0]), ctypes.byref(work), ctypes.byref(result), ctypes.c_void_p(pointers[1])
    )
    if result.unread:
        raise ValueError(f"{result.unread} words of the trace were not read: an instruction is classified wrongly")

    def shares(causes: ctypes.Array[ctypes.c_int64]) -> dict[str, float]:
        total = max(sum(causes), 1)
        return {name: int(value) / total for name, value in zip(CAUSES, causes)}

    return Prediction(
        cycles=result.cycles,
        predicted_us=result.cycles / gpu.clock_mhz,
        instructions=result.instructions,
        causes=shares(result.causes),
        last_causes=shares(result.last_causes),
        median_us=float(np.median(done)) / gpu.clock_mhz,
        programs_per_sm=fits.programs_per_sm,
        mean_load_latency=result.load_latency / max(result.loads, 1),
        **{name: getattr(result, name) for name in ("l1_sectors", "l1_hits", "l2_sectors", "dram_bytes", "atomics")},
    )
