"""tsplat on the emulator: its Triton backend treats CPU tensors as if they were on a GPU."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from torch import Tensor

from tsplat import gpu_driver
from tsplat.kernels import launch
from tsplat.runtime import backend

from .driver import Code, device_of
from .emulation import Emulator, emulated, target_of

VENDORS = {"cuda": "nvidia", "hip": "amd"}


@contextlib.contextmanager
def tsplat_emulated(target: str = "cuda:80", code: Code | None = None, **options: Any) -> Iterator[Emulator]:
    """Runs `backend="triton"` on an emulated GPU inside of the block. Arguments are those of :func:`emulated`."""
    name, device = VENDORS[target_of(target).backend], device_of(target_of(target))

    def triton_is_interpreted() -> bool:
        return True

    def vendor(tensor: Tensor) -> str:
        return name

    def current_gpu(tensor: Tensor) -> int:
        return device.number

    def find(number: int) -> gpu_driver.Device:
        return device

    # Plain functions, as mocks are slow and benchmarks measure host time.
    with (
        mock.patch.object(backend, "triton_is_interpreted", triton_is_interpreted),
        mock.patch.dict(backend._chosen, clear=True),
        mock.patch.object(launch, "vendor", vendor),
        mock.patch.object(launch, "current_gpu", current_gpu),
        mock.patch.object(gpu_driver, "find", find),
        emulated(target, code, **options) as gpu,
    ):
        yield gpu
