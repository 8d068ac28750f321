"""Contracts: device functions that a kernel gets as one constant, and calls without knowing whose they are."""

import functools


class Contract:
    """Base of frozen dataclasses of device functions and of numbers.

    Triton does not see calls of such functions when it hashes a kernel's source, so a contract has a `cache_key` of its
    own, which Triton and the CPU's compiler put into the keys of their caches.
    """

    @functools.cached_property
    def cache_key(self) -> str:
        """Changes with the source of any function, and with that of those it calls."""
        return "-".join(getattr(value, "cache_key", None) or repr(value) for value in vars(self).values())

    def __repr__(self) -> str:
        return self.cache_key
