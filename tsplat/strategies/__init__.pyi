from .base import Strategy
from .compact import CompactStrategy
from .default import DefaultStrategy
from .long_axis import LongAxisStrategy
from .mcmc import MCMCStrategy

__all__ = ["CompactStrategy", "DefaultStrategy", "LongAxisStrategy", "MCMCStrategy", "Strategy"]
