"""The GPUs that PyTorch sees: their target, driver and current stream."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import torch
import triton
from triton.backends.compiler import GPUTarget

from .cuda import CudaDriver
from .hip import HipDriver
from .library import DriverError


@dataclasses.dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
        number: Its index in PyTorch.
        target: The target that Triton compiles for.
        driver: Its driver.
        current_stream: Maps the index of a GPU to the handle of PyTorch's current stream on it.
    """

    number: int
    target: GPUTarget
    driver: CudaDriver | HipDriver
    current_stream: Callable[[int], int]


@functools.cache
def find(number: int) -> Device:
    """Returns the GPU with an index in PyTorch.

    Raises:
        DriverError: The driver cannot be loaded, or does not work.
    """
    return Device(number, _target(number), _driver(torch.version.hip is not None), torch._C._cuda_getCurrentRawStream)


def _target(number: int) -> GPUTarget:
    if torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability(number)
        return GPUTarget("cuda", 10 * major + minor, 32)
    properties = torch.cuda.get_device_properties(number)
    arch = triton.knobs.runtime.override_arch or properties.gcnArchName
    return GPUTarget("hip", arch.split(":")[0], properties.warp_size)


@functools.cache
def _driver(is_amd: bool) -> CudaDriver | HipDriver:
    return HipDriver() if is_amd else CudaDriver()


def version() -> tuple[str | None, str | None]:
    """Returns the name and version of the driver, such as "CUDA 13.0", and None; or None and the error."""
    try:
        driver = _driver(torch.version.hip is not None)
        return f"{driver.name} {driver.version}", None
    except DriverError as error:
        return None, str(error)
