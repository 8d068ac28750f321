"""The interface of footprints in vectorized PyTorch; see ``kernels/compositing/footprints/interface.py``."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from ...config import Numerics
from ...data import CompositingSettings, Splats

Pixels = tuple[Tensor, Tensor] | Tensor
"""Of a tile: x [w] and y [h] of centers, or rays [6, P], origins and directions."""

NOTHING = -1e4
"""Logarithm of the opacity of what is not rendered."""

Local = tuple[Tensor, ...]
"""Local coordinates of pixels in Gaussians, as the footprint defines them."""


class Footprint(ABC):
    """A kind of splat, at the P = h w pixels of a tile and for K Gaussians at a time, differentiated by hand.

    A `record` [values, K] holds columns of what ``pack`` returns; `local` is what ``locate`` returned for it. At
    pixels, g [h, w, K] is alpha dL/d alpha.

    Attributes:
        SUMS: Number of sums over pixels that gradients are made of.
    """

    SUMS: ClassVar[int]

    @abstractmethod
    def pack(self, splats: Splats, numerics: Numerics) -> Tensor:
        """Packs what compositing reads of each row; the last value is the clamped opacity. [values, nnz]"""

    @abstractmethod
    def locate(self, record: Tensor, pixels: Pixels) -> tuple[Local, Tensor]:
        """Returns local coordinates of pixels, and ln of alpha before it is clamped, [h, w, K] or [P, K]."""

    @abstractmethod
    def sums(
        self, record: Tensor, g: Tensor, local: Local, v_hits: Tensor | None, v_rays: Tensor | None
    ) -> list[Tensor]:
        """Returns the sums over pixels of g times functions of their local coordinates; [K] each.

        Args:
            v_hits: [P, K], gradients of the distances of hits, or of depths of planes, or None.
            v_rays: [6, h, w], added to, or None.
        """

    @abstractmethod
    def slopes(self, record: Tensor, g: Tensor, local: Local) -> list[Tensor]:
        """Returns the sums over pixels of absolute gradients of means along x and y, [K] each."""

    @abstractmethod
    def finish(self, sums: Tensor, shapes: Tensor, opacities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns gradients of means [nnz, 2], shapes and opacities [nnz], from sums [nnz, SUMS and more]."""

    def hits(self, z: Tensor, local: Local) -> Tensor:
        """Returns the last feature z [K] as pixels see it, [K], or [P, K] if it is where their rays hit."""
        return z

    def v_centers(self, v_hits: Tensor, local: Local) -> Tensor:
        """Returns the part of gradients of hits [P, K] that is of the feature z itself. [P, K]"""
        return v_hits

    def pixel_features(
        self, feature: Tensor, weight: Tensor, local: Local, pixels: Pixels, settings: CompositingSettings
    ) -> Tensor:
        """Returns what features [D, K] that depend on the pixel add to its colors [D, P], beyond the features."""
        raise NotImplementedError

    def pixel_features_vjp(
        self, feature: Tensor, v_color: Tensor, local: Local, pixels: Pixels, settings: CompositingSettings
    ) -> tuple[Tensor, Tensor]:
        """Returns gradients of weights [P, K], and -2 where ``pixel_features`` negates normals, else 0, [P, K]."""
        raise NotImplementedError


def pack_rows(values: Tensor, opacities: Tensor, valid: Tensor, numerics: Numerics) -> Tensor:
    """Adds ln(opacity) and the clamped opacity to values of rows [values, nnz]. Zeros those that are not valid."""
    log_opacities = torch.where(valid, torch.where(valid, opacities, 1.0).log(), NOTHING)
    clamped = torch.where(valid, opacities.clamp_max(numerics.alpha_max), 0.0)
    return torch.cat([torch.where(valid, values, 0.0), log_opacities[None], clamped[None]])
