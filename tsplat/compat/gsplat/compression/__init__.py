"""The names of ``gsplat.compression``."""

from .png_compression import PngCompression

__all__ = ["PngCompression"]
