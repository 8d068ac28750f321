"""Executes launches on the memory of this process with all checks, and collects findings and counters."""

import ctypes
import dataclasses
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from .counters import Counts
from .program import Launch, Program
from .tracing import Recording, Tracer

ARRAYS = ("issued", "lanes", "diverged", "requests", "sectors", "first", "distinct")
KINDS = (
    "", "out of bounds", "misaligned", "uninitialized read", "race between writes", "race between read and write",
    "lanes write different values", "lanes not converged", "unknown instruction", "deadlock", "endless", "read-only",
    "stores a register never written", "trap",
)  # fmt: skip
MAX_FINDINGS = 200


class Region(ctypes.Structure):
    """Mirrors Region of core/model.h."""

    _fields_ = [
        (name, ctypes.c_uint64) for name in ("low", "high", "base", "written", "writers", "readers", "touched")
    ] + [("granule", ctypes.c_int32), ("readonly", ctypes.c_int32)]


class CoreFinding(ctypes.Structure):
    """Mirrors Finding of core/model.h."""

    _fields_ = [(name, ctypes.c_int32) for name in ("kind", "pc", "program", "warp", "lane", "other")] + [
        ("address", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
    ]


class Model(ctypes.Structure):
    """Mirrors Model of core/model.h."""

    _fields_ = [
        ("regions", ctypes.c_void_p),
        ("shared", Region),
        ("shared_bytes", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in (*ARRAYS, "findings", "order", "trace")),
        ("steps", ctypes.c_uint64),
        ("limit", ctypes.c_uint64),
        *(
            (name, ctypes.c_int32)
            for name in (
                "n_regions", "last_region", "n_findings", "max_findings", "sector_shift", "races", "uninitialized",
                "jitter", "shuffle_warps", "n_threads", "n_warps", "program", "epoch",
            )
        ),
        *((name, ctypes.c_int32 * 3) for name in ("block", "grid", "position")),
    ]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Finding:
    """A fault that a check detected at one instruction of a kernel."""

    kernel: str
    kind: str
    count: int
    instruction: str
    line: str
    program: int
    warp: int
    lane: int
    address: int
    detail: str

    def __str__(self) -> str:
        where = f"program {self.program} warp {self.warp} lane {self.lane} address {self.address:#x}{self.detail}"
        return f"{self.kernel}: {self.kind} ({self.count}x) at {self.line or '?'}: `{self.instruction}` {where}"


class EmulationError(RuntimeError):
    """A check of the emulator detected a fault, or the emulator cannot run."""


@dataclasses.dataclass(frozen=True)
class MachineOptions:
    """Options of a machine: its checks, and the order of programs and warps."""

    races: bool = True
    uninitialized: bool = True
    first_touch: bool = True
    """Whether to count sectors that a program accesses for the first time."""
    order: Literal["forward", "reverse", "random"] = "forward"
    """Order of programs."""
    shuffle_warps: bool = False
    """Whether to change the order of a program's warps after each barrier."""
    seed: int = 0
    jitter: int = 0
    """Seed of random errors of one unit in the last place in approximate instructions; 0 for none."""
    limit: int = 10**9
    """Number of branches (on AMD GPUs, of instructions) after which a launch counts as endless."""
    rewrite: Callable[[str], str] | None = None
    """Function applied to the text of the code before it is parsed, to inject faults."""


class Machine:
    """Executes launches one after the other; collects their findings and counters."""

    def __init__(self, options: MachineOptions) -> None:
        self.options = options
        self.findings: list[Finding] = []
        self.counts: dict[str, Counts] = {}
        """Counts by kernel and constants."""
        self.tracer: Tracer | None = None
        """Receives the trace of each launch."""
        self.seconds = 0.0
        """CPU time in the C core."""

    def run(self, program: Program, launch: Launch) -> None:
        """Executes a launch. Raises EmulationError if a fault aborts it."""
        keep: list[np.ndarray] = []
        model = self._model(program, launch, keep)
        n = len(program.statements)
        arrays = {name: np.zeros(n, np.uint64) for name in ARRAYS}
        for name, array in arrays.items():
            setattr(model, name, array.ctypes.data)
        found = (CoreFinding * MAX_FINDINGS)()
        model.findings, model.max_findings = ctypes.addressof(found), MAX_FINDINGS
        programs = launch.grid[0] * launch.grid[1] * launch.grid[2]
        recording = None
        if self.tracer is not None and self.tracer.traces(launch):
            recording = Recording(program, programs, model.n_warps)
            model.trace = recording.address
        began = time.process_time()
        failed = program.execute(model, launch)
        self.seconds += time.process_time() - began
        raw = recording.take() if recording is not None else None
        self.counts.setdefault(launch.key, Counts(program)).add(arrays, programs)
        self.findings += [self._finding(program, launch, f) for f in found[: model.n_findings]]
        if failed:
            raise EmulationError(f"{program.name} was aborted: {self.findings[-1]}")
        if self.tracer is not None:
            self.tracer.executed(program, launch, arrays, raw)

    def _model(self, program: Program, launch: Launch, keep: list[np.ndarray]) -> Model:
        options = self.options

        def new(count: int, dtype: Any) -> int:
            keep.append(np.zeros(count, dtype))
            return int(keep[-1].ctypes.data)

        memories = {memory.address: memory for memory in launch.memories if memory.size}
        regions = (Region * max(len(memories), 1))()
        for region, memory in zip(regions, memories.values()):
            region.low, region.high, region.readonly = memory.address, memory.address + memory.size, memory.readonly
            if self.tracer is not None:
                region.base = self.tracer.base(memory)
            region.granule = min(memory.item_bytes, 4).bit_length() - 1
            if memory.written is not None and options.uninitialized:
                region.written = memory.written.ctypes.data
            if options.races and not memory.readonly:
                tags = (memory.size >> region.granule) + 1
                region.writers, region.readers = new(tags, np.uint64), new(tags, np.uint64)
            if options.first_touch:
                region.touched = new(memory.size // program.sector_bytes + 2, np.uint32)
        keep.append(np.frombuffer(regions, np.uint8))
        size = launch.shared_bytes
        shared = Region(low=0, high=size, granule=program.shared_granule)
        if options.uninitialized:
            shared.written = new(size + 16, np.uint8)
        if options.races:
            tags = (size >> shared.granule) + 16
            shared.writers, shared.readers = new(tags, np.uint64), new(tags, np.uint64)
        model = Model(
            regions=ctypes.addressof(regions), n_regions=len(memories), shared=shared,
            shared_bytes=new(size + 64, np.uint8), limit=options.limit, races=options.races,
            uninitialized=options.uninitialized, jitter=options.jitter, shuffle_warps=options.shuffle_warps,
            sector_shift=program.sector_bytes.bit_length() - 1, n_threads=launch.threads,
            n_warps=-(-launch.threads // program.lanes),
        )  # fmt: skip
        model.block[:], model.grid[:] = launch.threads_along, launch.grid
        if options.order != "forward":
            count = launch.grid[0] * launch.grid[1] * launch.grid[2]
            forward = np.arange(count, dtype=np.uint32)
            random = np.random.default_rng(options.seed)
            keep.append(forward[::-1].copy() if options.order == "reverse" else random.permutation(forward))
            model.order = keep[-1].ctypes.data
        return model

    @staticmethod
    def _finding(program: Program, launch: Launch, found: CoreFinding) -> Finding:
        kind, detail = KINDS[found.kind], ""
        if launch.memories:

            def distance(memory: Any) -> int:
                return max(memory.address - found.address, found.address - memory.address - memory.size)

            nearest = min(launch.memories, key=distance)
            # Low addresses are offsets from a null pointer, unless a tensor is near.
            is_near = found.address >= 2**32 or distance(nearest) < 2**20
            detail = f" ({found.address - nearest.address:+d} in a tensor of {nearest.size} bytes)" if is_near else ""
        if kind.startswith("race"):
            detail += f", also accessed by program {found.other}"
        return Finding(
            program.name, kind, found.count, program.statements[found.pc], program.source_lines()[found.pc],
            found.program, found.warp, found.lane, found.address, detail,
        )  # fmt: skip


def check_layout(core: ctypes.CDLL) -> None:
    """Checks that the structures here have the same sizes as in the core."""
    for which, structure in enumerate((Region, CoreFinding, Model)):
        assert core.layout(which) == ctypes.sizeof(structure), (structure, core.layout(which), ctypes.sizeof(structure))
