"""Names of strategies in files."""

from .base import Strategy
from .compact import CompactStrategy
from .default import DefaultStrategy
from .long_axis import LongAxisStrategy
from .mcmc import MCMCStrategy

STRATEGIES: dict[str, type[Strategy]] = {
    "default": DefaultStrategy,
    "mcmc": MCMCStrategy,
    "long-axis": LongAxisStrategy,
    "compact": CompactStrategy,
}
"""Strategies by the `kind` that configuration files have for them."""
