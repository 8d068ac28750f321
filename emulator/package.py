"""tsplat on the emulator: its Triton backend takes CPU tensors as if they were on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from tsplat.kernels import launch
from tsplat.stages import backend

from .driver import Code
from .emulation import Emulator, emulated, target_of

VENDORS = {"cuda": "nvidia", "hip": "amd"}


@contextlib.contextmanager
def tsplat_emulated(target: str = "cuda:80", code: Code | None = None, **options: Any) -> Iterator[Emulator]:
    """Inside, `backend="triton"` runs on an emulated GPU; arguments as for :func:`emulated`."""
    vendor = VENDORS[target_of(target).backend]
    with (
        mock.patch.object(backend, "triton_is_interpreted", return_value=True),
        mock.patch.object(launch, "vendor", return_value=vendor),
        emulated(target, code, **options) as gpu,
    ):
        yield gpu
