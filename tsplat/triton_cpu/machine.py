"""Compiles LLVM IR to machine code and loads it, by llvmlite."""

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from .errors import TritonCPUError
from .target import Target, import_llvm

EntryPoint = Callable[[Any], None]
"""The machine code of a kernel, as a ctypes function. Its argument is the address of the state of the launch."""

_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

lock = threading.RLock()
"""Held while a kernel is compiled (by Triton's frontend, which has further locks, and LLVM) or loaded."""


def triple() -> str:
    """Returns LLVM's target triple of this platform."""
    name: str = import_llvm().get_process_triple()
    return name


def version() -> str:
    """Returns the versions of llvmlite and LLVM."""
    llvm = import_llvm()
    import llvmlite

    return f"{llvmlite.__version__} {llvm.llvm_version_info}"


def compile_object(module: str, target: Target) -> bytes:
    """Compiles a module to an object file."""
    llvm = import_llvm()
    with lock:
        machine = _target_machine(target)
        try:
            parsed = llvm.parse_assembly(module)
            parsed.verify()
        except RuntimeError as error:
            raise TritonCPUError(f"LLVM {llvm.llvm_version_info} rejects the generated code: {error}") from error
        code: bytes = machine.emit_object(parsed)
        return code


def load(code: bytes, symbol: str, target: Target) -> EntryPoint:
    """Loads an object file into this process, permanently. Calls of the entry point release the GIL."""
    llvm = import_llvm()
    with lock:
        engine = _engine(target)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        address = engine.get_function_address(symbol)
    if not address:
        raise TritonCPUError(f"{symbol}: not in the object file")
    entry: EntryPoint = _PROTOTYPE(address)
    return entry


def _create_target_machine(target: Target) -> Any:
    llvm = import_llvm()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(triple()).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, jit=True
    )


_target_machine = functools.cache(_create_target_machine)


@functools.cache
def _engine(target: Target) -> Any:
    """Returns the execution engine that holds all loaded code. It takes ownership of its target machine."""
    machine = _create_target_machine(target)
    return import_llvm().create_mcjit_compiler(import_llvm().parse_assembly(""), machine)


# A fork waits until no other thread compiles. Otherwise the locks of that thread would never be released in the child,
# and the state of LLVM would be inconsistent. The compiling thread itself may fork, for example in a signal handler.
os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
