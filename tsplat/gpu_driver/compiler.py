"""Arguments to a specialization, which Triton compiles for a target."""

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
from .needs import name_of

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

KNOBS = ("instrumentation_mode", "fpsan_homomorphic_casts")
"""Settings of Triton's compiler, those that the installed version has, which it takes as options of each kernel."""


def prepare(kernel: JITFunction[Any], device: Device, arguments: Mapping[str, Any]) -> LoadedKernel:
    """Compiles a kernel for a GPU, and loads it.

    Args:
        arguments: As in ``kernel[grid](**arguments)``: the kernel's arguments, and options of the compiler.

    Raises:
        DriverError: Triton cannot compile for this GPU, or the driver cannot load what it compiled.
    """
    return LoadedKernel(device, compiled_for(kernel, device.target, arguments))


def compiled_for(kernel: JITFunction[Any], target: GPUTarget, arguments: Mapping[str, Any]) -> CompiledKernel:
    """Compiles a kernel for a target as ``kernel[grid](**arguments)`` does, or finds it in Triton's cache.

    The types, the alignment of pointers and the options are those of Triton's own launch, and so is the key in the
    cache; but that asks Triton's driver for the target, and the driver needs a C compiler.
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
            f"{kernel.__name__}: Triton {triton.__version__} specializes kernels in a way that is not known here "
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
    """Returns the types and attributes of an argument without what follows from the values of a bundle's integers.

    Triton specializes on these whatever a kernel's parameters say, for example makes a constant of 1.
    """
    kinds, attributes = specialization
    if not isinstance(kinds, tuple):
        return specialization
    fields = [_unspecialized(field) for field in zip(kinds, attributes, strict=True)]
    fields = [
        ("i32", None) if kind == "constexpr" and attribute is not None
        else (kind, attribute if isinstance(kind, tuple) or kind.startswith("*") else None)
        for kind, attribute in fields
    ]  # fmt: skip
    kinds, attributes = (tuple.__new__(type(kinds), column) for column in zip(*fields, strict=True))
    return kinds, attributes


@functools.cache
def _binder(kernel: JITFunction[Any], target: GPUTarget) -> tuple[Any, Any]:
    backend = make_backend(target)
    return backend, create_function_from_signature(kernel.signature, kernel.params, backend)
