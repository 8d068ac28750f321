"""Emulated GPUs, which execute launches, and a Triton driver, with which Triton itself launches kernels on them.

tsplat and this Triton driver load and launch kernels with `tsplat.gpu_driver`, which uses the emulator's library in
place of libcuda or libamdhip64.
"""

import itertools
import types
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.cache import get_cache_manager

from tsplat.gpu_driver import Device, DriverError, LoadedKernel
from tsplat.gpu_driver.cuda import CudaDriver
from tsplat.gpu_driver.hip import HipDriver
from tsplat.gpu_driver.kernels import flat_arguments

from .launch import KernelSource, LaunchRequest, launch_of
from .library import library
from .machine import Machine
from .shadow import Shadow
from .storages import Storages

Code = Literal["ptx", "sass", "amdgcn"]
MAX_SHARED_BYTES = {"cuda": 166_912, "hip": 65_536}
_devices: dict[GPUTarget, Device] = {}
"""Emulated GPUs by target. Each keeps its device number, by which tsplat and Triton cache compiled kernels."""
_numbers = itertools.count(1000)


def device_of(target: GPUTarget) -> Device:
    """Returns the emulated GPU of a target."""
    if target not in _devices:
        path = library().path
        driver = HipDriver(path) if target.backend == "hip" else CudaDriver(path)
        _devices[target] = Device(next(_numbers), target, driver, lambda _number: 0)
    return _devices[target]


class EmulatedGpu:
    """An emulated GPU: executes launches."""

    def __init__(self, code: Code, machine: Machine, shadow: Shadow, storages: Storages) -> None:
        self.code, self.machine, self.shadow, self.storages = code, machine, shadow, storages

    def execute(self, source: KernelSource, request: LaunchRequest) -> None:
        """Executes a launch that the driver library received."""
        program = source.program(self.code, self.machine.options.rewrite)
        self.machine.run(program, launch_of(source, program, request, self.storages, self.shadow))


class Launcher:
    """Launches one compiled kernel for Triton, as a loaded kernel of `tsplat.gpu_driver`."""

    def __init__(self, src: Any, metadata: Any) -> None:
        group = get_cache_manager(metadata.hash).get_group(f"{metadata.name}.json") or {}
        (binary,) = (Path(path) for name, path in group.items() if name.endswith((".cubin", ".hsaco")))
        compiled = types.SimpleNamespace(
            src=src, metadata=metadata, metadata_group=group, hash=metadata.hash, kernel=binary.read_bytes()
        )
        self._loaded = LoadedKernel(device_of(metadata.target), compiled)  # type: ignore[arg-type]
        self._is_constant = [parameter.is_constexpr for parameter in src.fn.params]

    def __call__(
        self, grid_x: int, grid_y: int, grid_z: int, stream: Any, function: Any, packed: Any, launch_metadata: Any,
        enter_hook: Any, exit_hook: Any, *values: Any,
    ) -> None:  # fmt: skip
        if not grid_x * grid_y * grid_z:
            return
        given = [
            leaf for value, constant in zip(values, self._is_constant) if not constant for leaf in flat_arguments(value)
        ]
        plain = [
            b"" if kind == "constexpr" else value.data_ptr() if isinstance(value, Tensor) else value
            for value, kind in zip(given, self._loaded.types)
        ]
        try:
            self._loaded(grid_x, plain, (grid_y, grid_z))
        except DriverError as error:
            failure, library().failure = library().failure, None
            raise failure or error from error


class Utils:
    """Functions of the Triton driver for binaries and devices."""

    def __init__(self, backend: str, lanes: int) -> None:
        self.properties = {
            "max_shared_mem": MAX_SHARED_BYTES[backend], "max_num_regs": 65_536, "multiprocessor_count": 108,
            "warpSize": lanes, "sm_clock_rate": 1, "mem_clock_rate": 1, "mem_bus_width": 1,
        }  # fmt: skip

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        return 1, 1, 0, 0, 1024  # module, function, registers, spills, maximum number of threads

    def get_device_properties(self, device: int) -> dict[str, int]:
        return self.properties


class EmulatedDriver(DriverBase):
    """Makes Triton compile for a target and launch on CPU tensors."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target
        self.utils = Utils(target.backend, target.warp_size)
        self.launcher_cls = Launcher

    @staticmethod
    def is_active() -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return device_of(self.target).number

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
