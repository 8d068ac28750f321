"""The CPU to compile for."""

import functools
import os
import platform
from typing import Any, NamedTuple

from .errors import MissingDependencyError, UnsupportedMachineError

VARIABLE = "TSPLAT_CPU"
"""Environment variable that selects the CPU by its name in LLVM, such as x86-64-v3."""

LEVELS = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "fma", "f16c"},
    "x86-64-v3": {"avx2", "fma", "f16c", "bmi2"},
}
"""CPU names for x86-64, best first, and their required features."""


class Target(NamedTuple):
    """A CPU to compile for.

    Attributes:
        cpu, features: The CPU and additional features, as LLVM names them.
        lanes: Maximum number of lanes of vectors. LLVM splits vectors that are wider than registers.
        avx512, avx2: Whether the CPU has these instructions.
    """

    cpu: str
    features: str
    lanes: int
    avx512: bool
    avx2: bool


def host_target() -> Target:
    """Returns the best target that this machine supports, or the target that `TSPLAT_CPU` names.

    Raises:
        MissingDependencyError: llvmlite is not installed, or cannot be loaded.
        UnsupportedMachineError: The CPU lacks AVX2, FMA, F16C or BMI2, or features that `TSPLAT_CPU` requires.
    """
    return _target(os.environ.get(VARIABLE, ""))


def check_machine() -> None:
    """Raises the errors of :func:`host_target` if kernels cannot be compiled for this machine."""
    host_target()


def target_name() -> str:
    """Returns the name of the CPU that kernels are compiled for, such as "x86-64-v4"."""
    return host_target().cpu


@functools.cache
def _target(requested: str) -> Target:
    features = host_features()
    machine = platform.machine()
    if machine == "aarch64":
        return Target(requested or import_llvm().get_host_cpu_name(), "", lanes=8, avx512=False, avx2=False)
    if machine not in ("x86_64", "AMD64"):
        raise UnsupportedMachineError(f"Triton kernels are compiled for x86-64 and aarch64 only, found {machine}")
    if requested and requested not in LEVELS:
        raise UnsupportedMachineError(f"{VARIABLE}: expected one of {', '.join(LEVELS)}, found {requested!r}")
    for cpu in (requested,) if requested else LEVELS:
        if features >= LEVELS[cpu]:
            avx512 = "avx512f" in LEVELS[cpu]
            # Without "fast-gather", LLVM replaces masked gathers by one branch per lane.
            return Target(cpu, "+fast-gather", lanes=16 if avx512 else 8, avx512=avx512, avx2=True)
    missing = LEVELS[requested or "x86-64-v3"] - features
    raise UnsupportedMachineError(f"{requested or 'the CPU'} needs {', '.join(sorted(missing))}, which this CPU lacks")


def host_features() -> frozenset[str]:
    """Returns the names of the CPU features of this machine."""
    return frozenset(name for name, present in import_llvm().get_host_cpu_features().items() if present)


def import_llvm() -> Any:
    """Returns the module `llvmlite.binding`.

    Raises:
        MissingDependencyError: llvmlite is not installed, or cannot be loaded.
    """
    try:
        import llvmlite.binding
    except Exception as error:  # OSError or AttributeError if its library is for another system or version
        if isinstance(error, ModuleNotFoundError) and error.name == "llvmlite":
            raise MissingDependencyError(
                "Triton kernels on the CPU need llvmlite, which is not installed: pip install 'tsplat[cpu]'",
                not_installed=True,
            ) from error
        raise MissingDependencyError(
            f"llvmlite is installed, but cannot be loaded ({type(error).__name__}: {error}); install it again: "
            "pip install --force-reinstall llvmlite",
            not_installed=False,
        ) from error
    return llvmlite.binding
