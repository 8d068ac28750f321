"""The names of ``gsplat.strategy.base``."""

from ....strategies import Strategy

__all__ = ["Strategy"]
