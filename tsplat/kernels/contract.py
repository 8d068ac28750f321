"""Contracts: sets of device functions that a kernel gets as one constant, like an interface with implementations."""

import functools


class Contract:
    """Base class of frozen dataclasses of device functions and numbers.

    Triton does not find calls of these functions when it hashes the source of a kernel. A contract therefore has a
    `cache_key`, which Triton and the CPU compiler include in the keys of their caches.
    """

    @functools.cached_property
    def cache_key(self) -> str:
        """A hash of the source of all functions and of the functions that they call."""
        return "-".join(getattr(value, "cache_key", None) or repr(value) for value in vars(self).values())

    def __repr__(self) -> str:
        return self.cache_key
