from .base import Strategy
from .default import DefaultStrategy
from .long_axis import LongAxisStrategy
from .mcmc import MCMCStrategy

__all__ = ["DefaultStrategy", "LongAxisStrategy", "MCMCStrategy", "Strategy"]
