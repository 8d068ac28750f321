"""Estimates the memory that reading a model takes, and compares it with what is free before the model is read.

A small file can announce any number of Gaussians: by compression, or by naming the same data many times.
"""

from ...support.free_memory import available_bytes
from ...support.reading import check_memory

COPIES = 6
"""Bytes that readers allocate, in proportion to those of the parameters that they return."""


def bytes_of(count: int, degree: int = 0, copies: int = COPIES) -> int:
    """Returns the bytes that reading Gaussians of an SH degree takes at most."""
    return copies * 4 * (11 + 3 * (degree + 1) ** 2) * count


def check_model_memory(path: str, count: int, degree: int = 0, copies: int = COPIES) -> None:
    """Raises `FileError` if Gaussians of an SH degree, or at least of one, do not fit into the memory that is free."""
    check_memory(f"{path}: a model of {count:,} Gaussians", bytes_of(count, degree, copies))


def gaussians_that_fit() -> int:
    """Returns how many Gaussians of SH degree 0 fit into the memory that is free."""
    free = available_bytes()
    return (1 << 62) if free is None else free // bytes_of(1)
