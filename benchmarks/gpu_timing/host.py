"""Python's time for a training step on the host, measured on a tiny scene whose kernels take almost no time.

All times are thread CPU time, the minimum of several repetitions. CPU tensors replace GPU tensors, so PyTorch's
operators cost their dispatch and the work on tiny tensors.
"""

import contextlib
import ctypes
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch

from emulator.driver import Launcher
from emulator.emulation import Emulator
from emulator.launch import KernelSource, LaunchRequest, pointers
from emulator.library import library
from emulator.package import tsplat_emulated
from emulator.storages import Storages
from tsplat.kernels import launch as launching
from tsplat.stages import listing, overflow_checks

from .counting import Step

try:
    from tsplat.passes import arenas, replay_cache
except ImportError:  # an earlier commit, whose calls always run the stages
    arenas = replay_cache = None  # type: ignore[assignment]
try:
    from tsplat.kernels import small_sorts
except ImportError:  # an earlier commit
    small_sorts = None  # type: ignore[assignment]

REPLAYS = replay_cache is not None
"""Whether calls are replayed."""
LAUNCH_US = 3.0
"""Assumed host time of a launch below Python, in PyTorch's C++ code and CUDA's driver."""
N, SIZE = 20, 16
"""Number of Gaussians, and image size in pixels, of the tiny scene."""
EMULATION = dict(races=False, uninitialized=False, first_touch=False)


def forget() -> None:
    """Clears traced calls, as they belong to another emulated GPU, and their arena, which would enlarge each answer."""
    if replay_cache is not None:
        replay_cache.clear_caches()
        arenas._cached_scratch.clear()
        getattr(arenas, "_shared_zeros", {}).clear()


def replaying() -> contextlib.AbstractContextManager[Any]:
    """Context manager in which calls are replayed although a mode counts operators."""
    return (
        mock.patch.object(replay_cache, "is_plain_call", return_value=True)
        if replay_cache
        else contextlib.nullcontext()
    )


def sorting(n: int) -> contextlib.AbstractContextManager[Any]:
    """Context manager in which a tiny scene is sorted as n Gaussians: few by own kernels, many by PyTorch."""
    if small_sorts is None or n <= small_sorts.ORDERED_MAX:
        return contextlib.nullcontext()
    return mock.patch.multiple(small_sorts, ORDERED_MAX=0, GATHERED_MAX=0)


@dataclasses.dataclass(frozen=True)
class Host:
    """Time on the host in microseconds, by phase.

    `python_us` is measured on the emulated driver, with its functions, but with recorded results instead of kernels;
    `launch_us` is the time of each launch with a driver that does nothing; `cpu_us` is measured on the CPU target,
    including its kernels.
    """

    python_us: dict[str, float]
    launches: dict[str, int]
    launch_us: list[float]
    cpu_us: dict[str, float]
    function_calls: dict[str, int]


def tiny(scene: dict[str, Any]) -> dict[str, Any]:
    """Returns a scene of 20 Gaussians at 16x16 pixels, with the options and the shape of colors of another scene."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator)

    viewmats, half = torch.eye(4)[None].clone(), SIZE / 2
    viewmats[0, 2, 3] = 5
    return scene | {
        "means": random(N, 3) - 0.5,
        "quats": random(N, 4),
        "scales": torch.full((N, 3), 0.1),
        "opacities": torch.full((N,), 0.7),
        "colors": random(N, *scene["colors"].shape[1:]),
        "viewmats": viewmats,
        "Ks": torch.tensor([[[20.0, 0, half], [0, 20, half], [0, 0, 1]]]),
        "width": SIZE,
        "height": SIZE,
    }


@contextlib.contextmanager
def emulated_gpu(target: str = "sm_80") -> Iterator[Emulator]:
    """Context manager that runs `backend="triton"` on an emulated GPU.

    As on a GPU, PyTorch sorts, and the needed capacities are read after the GPU has finished.
    """
    with (
        tsplat_emulated(target, "sass", **EMULATION) as gpu,
        mock.patch.object(overflow_checks, "_finish_checks"),
        mock.patch.object(listing, "stable_sort", _sort),
        mock.patch.object(listing, "stable_argsort", lambda values: _sort(values)[1]),
    ):
        yield gpu


def _sort(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return values.sort(stable=True)


class Clock:
    """Measures the thread CPU time of phases, without excluded functions, and keeps the minimum of each."""

    def __init__(self) -> None:
        self.best_us: dict[str, float] = {}
        self.excluded = 0.0
        self._phase, self._start = "", 0.0

    def enter(self, phase: str) -> None:
        now = time.thread_time() - self.excluded
        if self._phase:
            us = (now - self._start) * 1e6
            self.best_us[self._phase] = min(us, self.best_us.get(self._phase, us))
        self._phase, self._start = phase, time.thread_time() - self.excluded

    def without(self, function: Any) -> Any:
        """Wraps a function, whose time does not count."""

        def wrapped(*arguments: Any, **named: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                self.excluded += time.thread_time() - start

        return wrapped


def measure(scene: dict[str, Any], repeats: int = 100) -> Host:
    """Measures a training step on a tiny scene like a given one; see `Host`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with sorting(len(scene["means"])):
            return _measure(tiny(scene), repeats)
    finally:
        torch.set_num_threads(threads)


def _measure(scene: dict[str, Any], repeats: int) -> Host:
    cpu, clock = Clock(), Clock()
    forget()
    step = Step(scene)
    for _ in range(repeats):
        step.run(cpu.enter)
    step, phase = Step(scene), ""

    def enter(name: str) -> None:
        nonlocal phase
        phase = name
        clock.enter(name)

    with emulated_gpu():
        for _ in range(3):  # counts, traces, replays; later steps use the capacities of the first one
            step.run(enter)
        given = _given(step)
        called, answers = _recorded(step, lambda: phase, enter)
        # From now on, the emulator does not record the addresses of tensors, which would take time.
        with mock.patch.object(torch.Tensor, "data_ptr", torch._C.TensorBase.data_ptr):
            with library().answering(answers) as begin:
                # Earlier commits launch with Triton's driver, whose emulated launcher is in Python instead of C.
                with mock.patch.object(Launcher, "__call__", clock.without(Launcher.__call__)):
                    for _ in range(repeats):
                        begin()
                        step.run(enter)
                begin()
                function_calls = _function_calls(step)
            with library().answering([]), mock.patch.object(Launcher, "__call__", _do_nothing):
                launch_us = _launches(given)
        launches = {name: called.count(name) for name in clock.best_us}
        return Host(clock.best_us, launches, launch_us, cpu.best_us, function_calls)


def _recorded(
    step: Step, phase: Callable[[], str], enter: Callable[[str], None]
) -> tuple[list[str], list[tuple[int, int, int, bytes]]]:
    """Runs a step on the emulator. Returns the phase of each launch, and the memory that launches changed."""
    called: list[str] = []
    answers: list[tuple[int, int, int, bytes]] = []
    drivers = library()
    execute = drivers.execute
    assert execute is not None
    storages: Storages = execute.__self__.storages  # type: ignore[attr-defined]
    left: dict[Any, bytes] = {}  # in each storage, by the launches so far

    def record(source: KernelSource, request: LaunchRequest) -> None:
        execute(source, request)
        for number, address in pointers(source, source.program("sass", None), request).items():
            storage = storages.at(address)
            if storage is not None:
                data = ctypes.string_at(storage.address, storage.size)
                begin, end = _changed(left.get(storage), data)
                left[storage] = data
                if begin < end:
                    answers.append((len(called), number, storage.address - address + begin, data[begin:end]))
        called.append(phase())

    with mock.patch.object(drivers, "execute", record):
        step.run(enter)
    return called, answers


def _changed(before: bytes | None, after: bytes) -> tuple[int, int]:
    """Returns the first and the last (exclusive) byte that has changed."""
    if before is None:
        return 0, len(after)
    changed = np.flatnonzero(np.frombuffer(before, np.uint8) != np.frombuffer(after, np.uint8))
    return (int(changed[0]), int(changed[-1]) + 1) if len(changed) else (0, 0)


def _given(step: Step) -> list[tuple[Any, int, dict[str, Any]]]:
    """Returns the kernel, the number of programs and the arguments of each launch in a step."""
    given: list[tuple[Any, int, dict[str, Any]]] = []

    def keep(kernel: Any, n_programs: int, arguments: dict[str, Any]) -> None:
        given.append((kernel, n_programs, arguments))

    with mock.patch.object(launching, "observer", keep):
        step.run(lambda phase: None)
    return given


def _launches(given: list[tuple[Any, int, dict[str, Any]]], repeats: int = 20, inner: int = 20) -> list[float]:
    """Returns the microseconds of each launch with a driver that does nothing."""
    found = []
    for kernel, n_programs, arguments in given:
        times = []
        for _ in range(repeats):
            start = time.thread_time()
            for _ in range(inner):
                kernel.launch(n_programs, **arguments)
            times.append((time.thread_time() - start) / inner)
        found.append(min(times) * 1e6)
    return found


def _do_nothing(*arguments: Any) -> None:
    pass


def _function_calls(step: Step) -> dict[str, int]:
    """Returns the number of Python functions that each phase calls, without those of the emulator."""
    calls: dict[str, int] = {}
    phase, inside = "", 0
    code = Launcher.__call__.__code__

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal inside
        if event == "call":
            calls[phase] = calls.get(phase, 0) + (not inside)
        if frame.f_code is code:
            inside += {"call": 1, "return": -1}.get(event, 0)

    def enter(name: str) -> None:
        nonlocal phase
        phase = name

    sys.setprofile(profile)
    try:
        step.run(enter)
    finally:
        sys.setprofile(None)
    calls.pop("", None)
    return calls
