"""The interface of footprints in vectorized PyTorch; see ``kernels/compositing/footprints/interface.py``."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from ...config import Numerics
from ...data import CompositingSettings, Splats

Pixels = tuple[Tensor, Tensor] | Tensor
"""The pixels of a tile: x [w] and y [h] of their centers, or their rays [6, P], origins and directions."""

NOT_RENDERED = -1e4
"""ln(alpha) of splats that are not rendered."""

Local = tuple[Tensor, ...]
"""Local coordinates of pixels in Gaussians, as the footprint defines them."""


class Footprint(ABC):
    """Evaluates K splats at the P = h w pixels of a tile, and computes their gradients.

    A `record` [values, K] holds columns of the result of ``pack``. `local` is the result of ``locate`` for this record.
    g [h, w, K] is alpha dL/d alpha.

    Attributes:
        SUMS: Number of sums over pixels from which ``finish`` computes the gradients.
    """

    SUMS: ClassVar[int]

    @abstractmethod
    def pack(self, splats: Splats, numerics: Numerics) -> Tensor:
        """Packs the values that compositing reads from each row. The last one is the clamped opacity. [values, nnz]"""

    @abstractmethod
    def locate(self, record: Tensor, pixels: Pixels) -> tuple[Local, Tensor]:
        """Returns the local coordinates of pixels, and ln(alpha) before alpha is clamped, [h, w, K] or [P, K]."""

    @abstractmethod
    def sums(
        self, record: Tensor, g: Tensor, local: Local, v_hits: Tensor | None, v_rays: Tensor | None
    ) -> list[Tensor]:
        """Returns the sums over pixels of g times functions of the local coordinates; [K] each.

        Args:
            v_hits: Gradients of hit distances or of depths on planes, [P, K], or None.
            v_rays: Gradients of the rays, [6, h, w], or None. They are accumulated.
        """

    @abstractmethod
    def slopes(self, record: Tensor, g: Tensor, local: Local) -> list[Tensor]:
        """Returns the sums over pixels of the absolute gradients of the mean along x and y, [K] each."""

    @abstractmethod
    def finish(self, sums: Tensor, shapes: Tensor, opacities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of means [nnz, 2], shapes and opacities [nnz] from the first SUMS columns of sums."""

    def hits(self, z: Tensor, local: Local) -> Tensor:
        """Returns the last feature z [K], or its value at the hit of the ray of each pixel [P, K]."""
        return z

    def v_centers(self, v_hits: Tensor, local: Local) -> Tensor:
        """Returns the part of the gradients of hits [P, K] that flows to the feature z of the row. [P, K]"""
        return v_hits

    def pixel_features(
        self, feature: Tensor, weight: Tensor, local: Local, pixels: Pixels, settings: CompositingSettings
    ) -> Tensor:
        """Returns the contribution [D, P] of features that depend on the pixel, in addition to features [D, K]."""
        raise NotImplementedError

    def pixel_features_vjp(
        self, feature: Tensor, v_color: Tensor, local: Local, pixels: Pixels, settings: CompositingSettings
    ) -> tuple[Tensor, Tensor]:
        """Returns the gradients of weights [P, K], and -2 where ``pixel_features`` flips normals, else 0, [P, K]."""
        raise NotImplementedError


def pack_rows(values: Tensor, opacities: Tensor, valid: Tensor, numerics: Numerics) -> Tensor:
    """Appends ln(opacity) and the clamped opacity to values [values, nnz]. Rows that are not valid become zero."""
    log_opacities = torch.where(valid, torch.where(valid, opacities, 1.0).log(), NOT_RENDERED)
    clamped = torch.where(valid, opacities.clamp_max(numerics.alpha_max), 0.0)
    return torch.cat([torch.where(valid, values, 0.0), log_opacities[None], clamped[None]])
