"""Estimates the memory for reading a model, and compares it with the free memory before the model is read.

A small file can announce any number of Gaussians, by compression or by referring to the same data many times.
"""

from ...support.free_memory import available_bytes
from ...support.reading import check_memory

COPIES = 6
"""Ratio of the memory that readers allocate to the size of the parameters that they return."""


def bytes_of(count: int, degree: int = 0, copies: int = COPIES) -> int:
    """Returns an upper bound of the memory in bytes for reading `count` Gaussians of an SH degree."""
    return copies * 4 * (11 + 3 * (degree + 1) ** 2) * count


def check_model_memory(path: str, count: int, degree: int = 0, copies: int = COPIES) -> None:
    """Raises `FileError` if `count` Gaussians of the given or a higher SH degree do not fit into free memory."""
    check_memory(f"{path}: a model of {count:,} Gaussians", bytes_of(count, degree, copies))


def gaussians_that_fit() -> int:
    """Returns the number of Gaussians of SH degree 0 that fit into free memory."""
    free = available_bytes()
    return (1 << 62) if free is None else free // bytes_of(1)
