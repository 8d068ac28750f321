"""The ellipse of a projected Gaussian, in vectorized PyTorch; see ``kernels/compositing/footprints/ellipse.py``."""

from typing import ClassVar

import torch
from torch import Tensor

from ...config import ALPHA_MIN, Numerics
from ...data import Splats
from .interface import Footprint, Local, Pixels, pack_rows


class Ellipse(Footprint):
    """The ellipse, evaluated at pixel centers. `local` is the offset from the mean, dx [w, K] and dy [h, K]."""

    SUMS: ClassVar[int] = 6

    def pack(self, splats: Splats, numerics: Numerics) -> Tensor:
        """Packs the mean (x, y), (-a/2, -b, -c/2) of the conic, ln(opacity) and the clamped opacity. [7, nnz]"""
        means2d, opacities = splats.means2d, splats.opacities
        a, b, c = splats.shapes.unbind(-1)
        # Rows that are not finite are not rendered, nor conics that are not positive semidefinite up to rounding.
        valid = (a >= 0) & (c >= 0) & (b * b <= a * c * 1.0001) & (opacities >= ALPHA_MIN)
        valid &= means2d.isfinite().all(-1) & splats.shapes.isfinite().all(-1)
        return pack_rows(torch.stack([*means2d.unbind(-1), -0.5 * a, -b, -0.5 * c]), opacities, valid, numerics)

    def locate(self, record: Tensor, pixels: Pixels) -> tuple[Local, Tensor]:
        x, y = pixels
        return self.locate_offsets(record, x[:, None] - record[0], y[:, None] - record[1])

    def locate_offsets(self, record: Tensor, dx: Tensor, dy: Tensor) -> tuple[Local, Tensor]:
        """Same as ``locate``, given the offsets [w, K] and [h, K] of pixel columns and rows from the means."""
        _, _, a, b, c, log_opacity, _ = record
        # ln(alpha) = ln(o) + a dx^2 + dy (b dx + c dy), with a, b and c as packed
        slope = (b * dx)[None] + (c * dy)[:, None]
        exponent = torch.addcmul(log_opacity, a * dx, dx)[None]
        return (dx, dy), torch.addcmul(exponent, dy[:, None], slope, out=slope)

    def sums(
        self, record: Tensor, g: Tensor, local: Local, v_hits: Tensor | None, v_rays: Tensor | None
    ) -> list[Tensor]:
        """Returns the sums over pixels of g, g dx, g dy, g dx^2, g dx dy and g dy^2; [K] each."""
        dx, dy = local
        columns, columns_dy = g.sum(0), (g * dy[:, None]).sum(0)
        return [
            columns.sum(0),
            (columns * dx).sum(0),
            columns_dy.sum(0),
            (columns * dx * dx).sum(0),
            (columns_dy * dx).sum(0),
            (g.sum(1) * dy * dy).sum(0),
        ]

    def slopes(self, record: Tensor, g: Tensor, local: Local) -> list[Tensor]:
        _, _, a, b, c, _, _ = record
        dx, dy = local
        return [
            (g * ((2 * a * dx)[None] + (b * dy)[:, None])).abs_().sum((0, 1)),
            (g * ((2 * c * dy)[:, None] + (b * dx)[None])).abs_().sum((0, 1)),
        ]

    def finish(self, sums: Tensor, shapes: Tensor, opacities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        moment = sums[:, : self.SUMS].unbind(-1)
        # Rows that were not rendered have zero sums. Their conic may be invalid and is replaced.
        a, b, c = torch.where((sums[:, 1:3] == 0).all(1, keepdim=True), 1.0, shapes).unbind(-1)
        return (
            torch.stack([a * moment[1] + b * moment[2], b * moment[1] + c * moment[2]], -1),
            torch.stack([-0.5 * moment[3], -moment[4], -0.5 * moment[5]], -1),
            torch.where(opacities > 0, moment[0] / opacities, 0.0),
        )
