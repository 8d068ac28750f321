"""Backend selection: Triton kernels, on a GPU or compiled for the CPU, or vectorized PyTorch.

The packages ``kernels`` and ``kernels_torch`` have the same functions with the same signatures; :func:`launchers`
returns one of them. They are imported on first use, so that ``import tsplat`` neither requires Triton nor compiles.
"""

import functools
import importlib
import importlib.util
import warnings
from typing import Any, Literal

import torch

from ..config import BACKENDS, Backend
from ..errors import BackendError
from ..scalars import check_choice

NO_TRITON = "the triton package is not installed: pip install triton (Linux)"


@functools.cache
def triton_problem() -> str | None:
    """Returns why Triton cannot be imported, or None if it can. Warns if it is installed but broken."""
    try:
        if importlib.util.find_spec("triton") is None:
            return NO_TRITON
        import triton

        triton.knobs  # noqa: B018  # missing in old versions
        return None
    except Exception as error:  # for example OSError or AttributeError, if the library is for another system or version
        return _falls_back(f"triton is installed, but cannot be imported ({_describe(error)}); install it again")


def has_triton() -> bool:
    """Returns whether the triton package is installed and can be imported."""
    return triton_problem() is None


def triton_is_interpreted() -> bool:
    """Returns whether Triton interprets kernels in Python (TRITON_INTERPRET=1 when it was first imported)."""
    if not has_triton():
        return False
    import triton

    return bool(triton.knobs.runtime.interpret)


@functools.cache
def cpu_compiler_problem() -> str | None:
    """Returns why Triton kernels cannot be compiled for the CPU, or None if a small kernel could be compiled.

    Warns about the problem, as rendering is then much slower, unless Triton or llvmlite is not installed.
    """
    if problem := triton_problem():
        return problem
    try:
        from ..triton_cpu import MissingDependencyError, TritonCPUError, check_compiler, check_machine
    except Exception as error:  # this version of Triton lacks a name that the compiler imports
        return _falls_back(f"tsplat cannot compile kernels of this version of Triton for the CPU ({_describe(error)})")
    try:
        check_machine()
        check_compiler()
    except MissingDependencyError as error:
        return str(error) if error.not_installed else _falls_back(str(error))
    except Exception as error:  # including errors of a damaged llvmlite
        return _falls_back(str(error) if isinstance(error, TritonCPUError) else _describe(error))
    return None


def _falls_back(problem: str) -> str:
    """Warns that rendering is slower due to a problem, and returns the problem."""
    warnings.warn(f"backend='auto' falls back to backend='torch', which is slower: {problem}", stacklevel=3)
    return problem


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def gpu_driver() -> tuple[str | None, str | None]:
    """Returns the version of the GPU driver, such as "CUDA 13.0", and None; or None, and why it cannot be used."""
    if problem := triton_problem():
        return None, problem
    try:
        from .. import gpu_driver
    except ImportError as error:
        return None, f"tsplat cannot launch kernels of this version of Triton on GPUs ({_describe(error)})"
    return gpu_driver.version()


def choose(device: torch.device, backend: Backend = "auto") -> tuple[Literal["triton", "torch", "reference"], str]:
    """Returns the backend for tensors on a device, and the reason. Raises BackendError if `backend` cannot run."""
    check_choice("backend", backend, BACKENDS)
    if backend == "torch" or backend == "reference":
        return backend, "requested"
    problem = _triton_problem(device, backend)
    if backend == "triton":
        if problem:
            raise BackendError(f"backend: 'triton' cannot run on {device}: {problem}; or use backend='torch'")
        return "triton", "requested"
    if problem:
        return "torch", f"{problem}, so rendering is much slower"
    return "triton", "GPU and Triton found" if device.type == "cuda" else "Triton kernels are compiled for the CPU"


def _triton_problem(device: torch.device, backend: Backend) -> str | None:
    """Returns why Triton kernels do not run on a device, or None if they do."""
    if problem := triton_problem():
        return problem
    if device.type == "cuda":
        return None
    if device.type != "cpu":
        return f"Triton kernels run on CUDA, ROCm and CPU tensors, not on {device.type}"
    if triton_is_interpreted():
        return None if backend == "triton" else "TRITON_INTERPRET=1 is set, and the interpreter is slower still"
    return cpu_compiler_problem()


def set_kernel_threads() -> None:
    """Gives kernels compiled for the CPU the threads of PyTorch's operators, which keep a single thread."""
    from .. import triton_cpu

    triton_cpu.set_num_threads(triton_cpu.get_num_threads())
    torch.set_num_threads(1)


def launchers(device: torch.device, backend: Backend = "auto") -> Any:
    """Returns the package of launchers for a device, ``kernels`` or ``kernels_torch``. Chosen once per device."""
    package = _chosen.get((device, backend))
    if package is None:
        chosen, reason = choose(device, backend)
        if chosen == "torch" and device.type == "cuda" and backend == "auto":
            warnings.warn(f"tsplat runs without Triton kernels on {device}: {reason}", stacklevel=3)
        package = importlib.import_module("tsplat.kernels" if chosen == "triton" else "tsplat.kernels_torch")
        _chosen[device, backend] = package
    return package


_chosen: dict[tuple[torch.device, Backend], Any] = {}
"""(Device, backend) -> package of launchers."""
