"""A Triton driver whose GPU is the emulator. Specialization, caching, grids and options remain Triton's own."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.cache import get_cache_manager

from .launch import KernelSource, launch_of
from .machine import Machine
from .program import Program
from .shadow import Shadow

Code = Literal["ptx", "sass", "amdgcn"]
MAX_SHARED_BYTES = {"cuda": 166_912, "hip": 65_536}
_devices: dict[GPUTarget, int] = {}
"""Triton keeps compiled kernels by device."""
_numbers = itertools.count(1000)


class Launcher:
    """What Triton calls to launch one compiled kernel."""

    def __init__(self, src: Any, metadata: Any) -> None:
        group = get_cache_manager(metadata.hash).get_group(f"{metadata.name}.json") or {}
        files = {Path(name).suffix[1:]: Path(path) for name, path in group.items()}
        self.source = KernelSource(metadata, files)
        self.types = list(src.signature.values())
        constants = {src.fn.arg_names[path[0]]: value for path, value in (src.constants or {}).items()}
        shown = ",".join(f"{name}={value}" for name, value in constants.items() if isinstance(value, (int, bool, str)))
        self.key = f"{metadata.name}[{shown}] #{metadata.hash[:6]}"
        self.module = str(src.fn.module)
        self.programs: dict[tuple[Code, Callable[[str], str] | None], Program] = {}

    def __call__(
        self, grid_x: int, grid_y: int, grid_z: int, stream: Any, function: Any, packed: Any, launch_metadata: Any,
        enter_hook: Any, exit_hook: Any, *values: Any,
    ) -> None:  # fmt: skip
        if not grid_x * grid_y * grid_z:
            return
        driver = triton.runtime.driver.active
        assert isinstance(driver, EmulatedDriver)
        machine = driver.machine
        version = driver.code, machine.options.rewrite
        if version not in self.programs:
            self.programs[version] = self.source.program(*version)
        given = [(kind, value) for kind, value in zip(self.types, values) if kind != "constexpr"]
        grid = grid_x, grid_y, grid_z
        launch = launch_of(self.source, self.programs[version], grid, given, driver.shadow, self.key)
        launch.module = self.module
        if enter_hook is not None:
            enter_hook(launch_metadata)
        machine.run(self.programs[version], launch)
        if exit_hook is not None:
            exit_hook(launch_metadata)


class Utils:
    """The driver's functions that concern binaries and devices."""

    def __init__(self, backend: str, lanes: int) -> None:
        self.properties = {
            "max_shared_mem": MAX_SHARED_BYTES[backend], "max_num_regs": 65_536, "multiprocessor_count": 108,
            "warpSize": lanes, "sm_clock_rate": 1, "mem_clock_rate": 1, "mem_bus_width": 1,
        }  # fmt: skip

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        return 1, 1, 0, 0, 1024  # module, function, registers, spills, most threads

    def get_device_properties(self, device: int) -> dict[str, int]:
        return self.properties


class EmulatedDriver(DriverBase):
    """Makes Triton compile for a target and launch on CPU tensors."""

    def __init__(self, target: GPUTarget, code: Code, machine: Machine, shadow: Shadow) -> None:
        self.target, self.code, self.machine, self.shadow = target, code, machine, shadow
        self.utils = Utils(target.backend, target.warp_size)
        self.launcher_cls = Launcher
        self.device = _devices.setdefault(target, next(_numbers))

    @staticmethod
    def is_active() -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.device

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("the emulator cannot measure time")

    def get_empty_cache_for_benchmark(self) -> Any:
        raise NotImplementedError("the emulator cannot measure time")

    def clear_cache(self, cache: Any) -> None:
        pass
