"""The names of ``gsplat.relocation``."""

from ...strategies.relocation import compute_relocation

__all__ = ["compute_relocation"]
