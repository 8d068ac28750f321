"""The errors of the CPU compiler. All derive from `TritonCPUError`, so that callers can fall back to other code."""

import contextlib
from collections.abc import Iterator


class TritonCPUError(RuntimeError):
    """A kernel cannot be compiled for or run on this CPU."""


class MissingDependencyError(TritonCPUError, ImportError):
    """A required package is not installed, or cannot be loaded.

    Attributes:
        not_installed: Whether the package is not installed.
    """

    def __init__(self, message: str, *, not_installed: bool) -> None:
        super().__init__(message)
        self.not_installed = not_installed


class TritonCPUMemoryError(TritonCPUError, MemoryError):
    """The address space of the process is too small for the compiler."""


class UnsupportedMachineError(TritonCPUError):
    """The CPU, or the CPU that an environment variable requests, is not supported."""


class UnsupportedOperationError(TritonCPUError):
    """A kernel uses an operation, or a form of an operation, that the compiler does not support.

    Attributes:
        operation: Name of the operation in Triton's IR, such as "tt.histogram"; or the step that failed, in
            parentheses.
        kernel: Name of the kernel.
        triton_version: Version of Triton that produced the IR.
    """

    def __init__(self, operation: str, kernel: str, triton_version: str, reason: str) -> None:
        super().__init__(
            f"kernel {kernel}: cannot compile operation {operation} of Triton {triton_version} for the CPU: {reason}"
        )
        self.operation = operation
        self.kernel = kernel
        self.triton_version = triton_version


class UnsupportedFormError(Exception):
    """Raised by emitters; converted to an `UnsupportedOperationError` with the name of the operation."""


@contextlib.contextmanager
def translating(operation: str, kernel: str, triton_version: str) -> Iterator[None]:
    """Converts the errors that an unknown form of Triton's IR may cause to `UnsupportedOperationError`."""
    try:
        yield
    except (UnsupportedFormError, KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        reason = str(error) if isinstance(error, UnsupportedFormError) else f"unknown form ({error!r})"
        raise UnsupportedOperationError(operation, kernel, triton_version, reason) from error
