"""Densification strategies, which add, move and remove Gaussians during training. They have gsplat's interface."""

from ..support.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
