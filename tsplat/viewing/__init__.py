"""Viewing: images, videos, camera trajectories and framing of a model. Does not import `tsplat.training`."""

from ..support.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
