"""Kernels that the tests of this folder compile, and a record of launches."""

import contextlib

import torch
import triton
import triton.language as tl

from emulator.driver import device_of
from emulator.emulation import emulated, target_of
from emulator.library import library
from tests.emulator.targets import selected
from tsplat import gpu_driver
from tsplat.gpu_driver.compiler import compiled_for

TARGETS = [target for target, _ in selected([("sm_80", None), ("sm_90", None), ("gfx942", None)])]


@triton.jit(do_not_specialize=["small", "large", "step"])
def types_kernel(out, nothing, small, large, step, x: tl.float64, N: tl.constexpr):
    """Stores its arguments [3] fp64 at a multiple of `step`."""
    at = out + tl.program_id(0) * step
    tl.store(at, small.to(tl.float64))
    tl.store(at + 1, large.to(tl.float64))
    tl.store(at + 2, x * N if nothing is None else x)


@triton.jit
def transpose_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i[:, None] * N + i[None, :], tl.trans(tl.load(x + i[:, None] * N + i[None, :])))


def arguments(out, small=3, large=2**40, step=3, x=0.25, N=4, **options):
    return dict(out=out, nothing=None, small=small, large=large, step=step, x=x, N=N, **options)


def values(given):
    """What a prepared kernel is called with, from arguments by name."""
    found = [value for name, value in given.items() if not name.isupper() and name != "num_warps"]
    return tuple(
        b"" if value is None else value.data_ptr() if isinstance(value, torch.Tensor) else value for value in found
    )


def loaded(target, given, kernel=types_kernel):
    """Loads a kernel on an emulated GPU, inside of `emulated`."""
    return gpu_driver.prepare(kernel, device_of(target_of(target)), given)


def altered(target, given, kernel=types_kernel, **metadata):
    """Loads a kernel with other metadata than Triton's: fields are added or replaced."""
    compiled = compiled_for(kernel, target_of(target), given)
    fields = compiled.metadata._asdict()
    if "cluster_dims" in fields and "num_ctas" in metadata:  # up to Triton 3.5
        fields["cluster_dims"] = (metadata["num_ctas"], 1, 1)
    fields |= metadata
    compiled.metadata = _Metadata(fields)
    return gpu_driver.LoadedKernel(device_of(target_of(target)), compiled)


class _Metadata:
    def __init__(self, fields):
        self._fields = fields
        self.__dict__.update(fields)

    def _asdict(self):
        return self._fields


@contextlib.contextmanager
def recorded(target):
    """An emulated GPU that keeps what launches are given in place of executing them."""
    made = []
    with emulated(target):
        library().execute = lambda source, launch: made.append(launch)
        yield made
