"""Specializes a kernel for its arguments, and compiles it with Triton for a target."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime.errors import PTXASError
from triton.runtime.jit import JITFunction, create_function_from_signature

from .gpus import Device
from .kernels import LoadedKernel
from .library import DriverError
from .metadata import name_of

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

KNOBS = ("instrumentation_mode", "fpsan_homomorphic_casts")
"""Settings of Triton's compiler that it passes as options of each kernel. Not every version has all of them."""


def prepare(kernel: JITFunction[Any], device: Device, arguments: Mapping[str, Any]) -> LoadedKernel:
    """Compiles a kernel for a GPU, and loads it.

    Args:
        arguments: As in ``kernel[grid](**arguments)``: the arguments of the kernel, and compiler options.

    Raises:
        DriverError: Triton cannot compile for this GPU, or the driver cannot load the binary.
    """
    return LoadedKernel(device, compiled_for(kernel, device.target, arguments))


def compiled_for(kernel: JITFunction[Any], target: GPUTarget, arguments: Mapping[str, Any]) -> CompiledKernel:
    """Compiles a kernel for a target like ``kernel[grid](**arguments)``, or loads it from Triton's cache.

    Types, alignment of pointers, options and cache key are the same as for a launch by Triton. Unlike this function,
    Triton takes the target from its driver module, which requires a C compiler.
    """
    given = dict(arguments)
    given["debug"] = given.get("debug", kernel.debug) or triton.knobs.runtime.debug
    given |= {
        name: getattr(triton.knobs.compilation, name) for name in KNOBS if hasattr(triton.knobs.compilation, name)
    }
    try:
        backend, bind = _binder(kernel, target)
        bound, specialization, options = bind(**given)
        specialization = [_unspecialized(argument) for argument in specialization]
        options, signature, constants, attributes = kernel._pack_args(backend, given, bound, specialization, options)
        source = ASTSource(kernel, signature, constants, attributes)
    except (AttributeError, TypeError, ValueError) as error:
        raise DriverError(
            f"{kernel.__name__}: tsplat does not know how Triton {triton.__version__} specializes kernels "
            f"({type(error).__name__}: {error}); install a Triton from 3.5 to 3.9"
        ) from error
    try:
        return triton.compile(source, target=target, options=options.__dict__)
    except (PTXASError, RuntimeError, OSError, subprocess.CalledProcessError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise DriverError(
            f"{kernel.__name__}: Triton {triton.__version__} cannot compile it for {name_of(target)} ({reason}); if "
            "the GPU is newer than this Triton, install a newer PyTorch and Triton"
        ) from error


def _unspecialized(specialization: tuple[Any, Any]) -> tuple[Any, Any]:
    """Returns the types and attributes of an argument. For a tuple, removes specialization on the values of integers.

    Triton always specializes on integers in tuples, even if the parameter asks not to: 1 becomes a constant.
    """
    types, attributes = specialization
    if not isinstance(types, tuple):
        return specialization
    fields = [_unspecialized(field) for field in zip(types, attributes, strict=True)]
    fields = [
        ("i32", None) if t == "constexpr" and attribute is not None
        else (t, attribute if isinstance(t, tuple) or t.startswith("*") else None)
        for t, attribute in fields
    ]  # fmt: skip
    types, attributes = (tuple.__new__(type(types), column) for column in zip(*fields, strict=True))
    return types, attributes


@functools.cache
def _binder(kernel: JITFunction[Any], target: GPUTarget) -> tuple[Any, Any]:
    backend = make_backend(target)
    return backend, create_function_from_signature(kernel.signature, kernel.params, backend)
