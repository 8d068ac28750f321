"""tsplat: 3D Gaussian Splatting in Triton. See :func:`rasterization`."""

from .support.lazy_names import lazy_names

__version__ = "0.2.0"
__all__, __getattr__, __dir__ = lazy_names(__name__)
