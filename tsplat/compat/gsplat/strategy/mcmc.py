"""The names of ``gsplat.strategy.mcmc``."""

from ....strategies import MCMCStrategy

__all__ = ["MCMCStrategy"]
