"""When Gaussians are added, moved and removed while training; usable with any loop, under gsplat's names."""

from .default import DefaultStrategy
from .mcmc import MCMCStrategy

__all__ = ["DefaultStrategy", "MCMCStrategy"]
