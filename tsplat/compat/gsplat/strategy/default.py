"""The names of ``gsplat.strategy.default``."""

from ....strategies import DefaultStrategy

__all__ = ["DefaultStrategy"]
