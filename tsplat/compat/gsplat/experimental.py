"""The names of ``gsplat.experimental`` of gsplat 1.6 that its viewer looks up."""

from ... import UnsupportedError
from .scene import GaussianInferenceScene

__all__ = ["GaussianInferenceRenderer", "GaussianInferenceScene"]


class GaussianInferenceRenderer:
    """Raises `UnsupportedError` when constructed: use rasterization, under ``torch.inference_mode()``."""

    def __init__(self, scene: object) -> None:
        raise UnsupportedError(
            "GaussianInferenceRenderer: not implemented; use rasterization, under torch.inference_mode()"
        )
