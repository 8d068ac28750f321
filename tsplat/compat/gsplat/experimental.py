"""The names of ``gsplat.experimental`` of gsplat 1.6 that its viewer looks up."""

from ._unsupported import unsupported_class
from .scene import GaussianInferenceScene

__all__ = ["GaussianInferenceRenderer", "GaussianInferenceScene"]

GaussianInferenceRenderer = unsupported_class(
    "GaussianInferenceRenderer", "scene", instead="use rasterization, under torch.inference_mode()"
)
