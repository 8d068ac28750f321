"""The names of ``gsplat.optimizers``."""

from .selective_adam import SelectiveAdam

__all__ = ["SelectiveAdam"]
