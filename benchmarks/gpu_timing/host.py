"""Time that Python takes for a training step on the host, measured on a tiny scene whose kernels cost next to nothing.

All times are thread CPU time, the best of several repetitions. CPU tensors stand in for a GPU's, so that the cost of
PyTorch's operators is that of their dispatch and of tiny tensors.
"""

import dataclasses
import sys
import time
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from emulator.driver import Launcher
from emulator.package import tsplat_emulated
from tsplat.kernels import launch as launching

from .counting import Step

LAUNCH_US = 3.0
"""Assumed: host time of a launch below Python, in Triton's or PyTorch's C++ and in CUDA's driver."""
N, SIZE = 20, 16
"""Number of Gaussians, and image size in pixels, of the tiny scene."""
EMULATION = dict(races=False, uninitialized=False, first_touch=False)


@dataclasses.dataclass(frozen=True)
class Host:
    """Microseconds on the host, by phase.

    `python_us` are on the emulated driver, without the kernels and what is below Python; `launch_us` of a launch that
    does nothing; `cpu_us` on the CPU target, with its kernels.
    """

    python_us: dict[str, float]
    launches: dict[str, int]
    launch_us: list[float]
    cpu_us: dict[str, float]
    function_calls: dict[str, int]


def tiny(scene: dict[str, Any]) -> dict[str, Any]:
    """Returns a scene of 20 Gaussians at 16x16 pixels with the options and the kind of colors of another."""
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


class Clock:
    """Measures phases in thread CPU time without what is excluded, and keeps the best of each."""

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
        return _measure(tiny(scene), repeats)
    finally:
        torch.set_num_threads(threads)


def _measure(scene: dict[str, Any], repeats: int) -> Host:
    cpu, clock = Clock(), Clock()
    step = Step(scene)
    for _ in range(repeats):
        step.run(cpu.enter)
    step, phase = Step(scene), ""
    called: list[str] = []
    results: list[list[Tensor]] = []
    emulated = Launcher.__call__

    def call(*arguments: Any) -> None:
        """Executes a launch on the emulator in the first step, and later copies what was computed then."""
        tensors = [value.data for value in arguments if isinstance(value, Tensor)]
        if len(results) == len(called):
            emulated(*arguments)
            results.append([tensor.clone() for tensor in tensors])
        for tensor, result in zip(tensors, results[len(called)], strict=True):
            tensor.copy_(result)
        called.append(phase)

    def enter(name: str) -> None:
        nonlocal phase
        phase = name
        clock.enter(name)

    with tsplat_emulated("sm_80", "sass", **EMULATION):
        with mock.patch.object(Launcher, "__call__", clock.without(call)):
            for _ in range(repeats):
                called.clear()
                step.run(enter)
        launches = {name: called.count(name) for name in clock.best_us}
        return Host(clock.best_us, launches, _launches(step), cpu.best_us, _function_calls(step))


def _launches(step: Step, repeats: int = 20, inner: int = 20) -> list[float]:
    """Returns the microseconds of each launch of a step with a launcher that does nothing."""
    given: list[tuple[Any, int, dict[str, Any]]] = []

    def record(kernel: Any, n_programs: int, arguments: dict[str, Any]) -> None:
        given.append((kernel, n_programs, arguments))

    with mock.patch.object(launching, "observer", record):
        step.run(lambda phase: None)
    found = []
    with mock.patch.object(Launcher, "__call__", _do_nothing):
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
    """Returns how many Python functions each phase calls, those of the emulator not counted."""
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
