"""The errors of the CPU compiler. All derive from `TritonCPUError`, so that a caller can fall back to other code."""

import contextlib
from collections.abc import Iterator


class TritonCPUError(RuntimeError):
    """A kernel cannot be compiled for or run on this CPU."""


class MissingDependencyError(TritonCPUError, ImportError):
    """A package that the compiler needs is not installed, or cannot be loaded.

    Attributes:
        not_installed: Whether it is not installed.
    """

    def __init__(self, message: str, *, not_installed: bool) -> None:
        super().__init__(message)
        self.not_installed = not_installed


class TritonCPUMemoryError(TritonCPUError, MemoryError):
    """The process may not use as much address space as the compiler needs."""


class UnsupportedMachineError(TritonCPUError):
    """The CPU, or the one requested by an environment variable, is not supported."""


class UnsupportedOperationError(TritonCPUError):
    """A kernel uses an operation, or a form of it, that the compiler does not translate.

    Attributes:
        operation: Name of the operation in Triton's IR, such as "tt.histogram"; or what failed, in parentheses.
        kernel: Name of the kernel.
        triton_version: Version of the Triton that produced the IR.
    """

    def __init__(self, operation: str, kernel: str, triton_version: str, reason: str) -> None:
        super().__init__(
            f"kernel {kernel}: cannot compile operation {operation} of Triton {triton_version} for the CPU: {reason}"
        )
        self.operation = operation
        self.kernel = kernel
        self.triton_version = triton_version


class UnsupportedFormError(Exception):
    """Raised while one operation is translated; becomes an `UnsupportedOperationError` with its name."""


@contextlib.contextmanager
def translating(operation: str, kernel: str, triton_version: str) -> Iterator[None]:
    """Turns whatever an unknown form of Triton's IR leads to into an `UnsupportedOperationError`."""
    try:
        yield
    except (UnsupportedFormError, KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        reason = str(error) if isinstance(error, UnsupportedFormError) else f"unknown form ({error!r})"
        raise UnsupportedOperationError(operation, kernel, triton_version, reason) from error
