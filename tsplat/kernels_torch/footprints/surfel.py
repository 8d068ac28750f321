"""The 2D Gaussian at a pixel, in vectorized PyTorch; see ``kernels/compositing/footprints/surfel.py``."""

from typing import ClassVar

import torch
from torch import Tensor

from ...config import ALPHA_MIN, DISC_EXTENT, FILTER_VARIANCE, Numerics
from ...data import CompositingSettings, Splats
from ...formulas.discs import Discs
from .interface import NOT_RENDERED, Footprint, Local, Pixels, pack_rows

MAGNITUDE = 1e12
"""Maximum magnitude of the transform and the mean of splats that are rendered."""


class Surfel(Footprint):
    """The 2D Gaussian, evaluated at pixel centers.

    `local` is the position s on the disc, and the offset from the mean, [2, P, K] each. The one that does not determine
    sigma is zero.
    """

    SUMS: ClassVar[int] = 10

    def pack(self, splats: Splats, numerics: Numerics) -> Tensor:
        """Packs q; k a, k b, k c, k d; D; t; the mean; ln(opacity); and the clamped opacity. [13, nnz]

        See the docstring of the Triton footprint for the symbols.
        """
        transforms, means2d, opacities = splats.shapes, splats.means2d, splats.opacities
        valid = (transforms.abs() <= MAGNITUDE).all(-1) & (means2d.abs() <= MAGNITUDE).all(-1)
        valid &= (transforms[:, 8] != 0) & (opacities >= ALPHA_MIN)
        transforms = torch.where(valid[:, None], transforms, 1.0)
        discs = Discs.of(transforms)
        valid &= (discs.sides != 0).any(-1) & (discs.centers.abs().sum(-1) <= MAGNITUDE)
        values = torch.cat([discs.centers, *discs.scaled(), discs.tilts, means2d], -1).T
        return pack_rows(values, opacities, valid, numerics)

    def locate(self, record: Tensor, pixels: Pixels) -> tuple[Local, Tensor]:
        local, _, exponent = self._locate(record, pixels)
        return local, exponent

    def _locate(self, record: Tensor, pixels: Pixels) -> tuple[Local, Tensor, Tensor]:
        """Returns the local coordinates, s [2, P, K] where rays meet the planes of the discs, and ln(alpha)."""
        columns, lines = pixels
        x, y, a, b, c, d, area, t0, t1, mean_x, mean_y, log_opacity, _ = record
        dx, dy = (columns[:, None] - x)[None], (lines[:, None] - y)[:, None]
        p = torch.stack([d * dx - b * dy, a * dy - c * dx]).flatten(1, 2)
        w = area - t0 * p[0] - t1 * p[1]
        s = p / w
        offset_x, offset_y = (columns[:, None] - mean_x)[None], (lines[:, None] - mean_y)[:, None]
        size = (*offset_y.shape[:1], *offset_x.shape[1:])
        offsets = torch.stack([offset_x.expand(size), offset_y.expand(size)]).flatten(1, 2)
        on_disc, on_image = (s * s).sum(0), (offsets * offsets).sum(0) / FILTER_VARIANCE
        is_nearer = on_disc <= on_image
        exponent = log_opacity - 0.5 * torch.where(is_nearer, on_disc, on_image)
        exponent = torch.where(w == 0, NOT_RENDERED, exponent)
        return (torch.where(is_nearer, s, 0.0), torch.where(is_nearer, 0.0, offsets)), s, exponent

    def sums(
        self, record: Tensor, g: Tensor, local: Local, v_hits: Tensor | None, v_rays: Tensor | None
    ) -> list[Tensor]:
        """Returns the sums over pixels of g times 1, s_0, s_1, s_0^2, s_0 s_1, s_1^2, |s|^2 s_0, |s|^2 s_1, offsets."""
        (s, offsets), g = local[:2], g.flatten(0, 1)
        x, y = weighted = g * s
        square = (s * s).sum(0)
        squares = [(x * s[0]).sum(0), (x * s[1]).sum(0), (y * s[1]).sum(0)]
        return [g.sum(0), *weighted.sum(1), *squares, *(weighted * square).sum(1), *(g * offsets).sum(1)]

    def slopes(self, record: Tensor, g: Tensor, local: Local) -> list[Tensor]:
        return list((g.flatten(0, 1) * local[1] / FILTER_VARIANCE).abs().sum(1))

    def _third(self, sums: Tensor) -> Tensor:
        """Returns the sum of (g e_2 + q) (s_0, s_1, 1) [nnz, 3]; see the docstring of the Triton footprint."""
        _, _, _, xx, _, yy, x_cubed, y_cubed, *_ = sums.unbind(-1)
        return -torch.stack([x_cubed, y_cubed, xx + yy], -1)

    def finish(self, sums: Tensor, shapes: Tensor, opacities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        third = self._third(sums)
        # Rows that were not rendered have zero sums. Their transform may be invalid and is replaced.
        unseen = (sums[:, :8] == 0).all(1, keepdim=True) & (third == 0).all(1, keepdim=True)
        transforms = torch.where(unseen, 1.0, shapes)
        centers, z, tilts, sides = Discs.of(transforms)
        a, b, c, d = sides.T[..., None]
        det = a * d - b * c
        inverse = torch.where(det != 0, 1 / torch.where(det != 0, det, 1.0), 0.0)
        _, x, y, xx, xy, yy, *_ = sums.unbind(-1)
        first, second = torch.stack([xx, xy, x], -1), torch.stack([xy, yy, y], -1)
        u, v = first - tilts[:, :1] * third, second - tilts[:, 1:] * third
        row_x, row_y = (d * u - c * v) * inverse, (a * v - b * u) * inverse
        row_z = third / z - centers[:, :1] * row_x - centers[:, 1:] * row_y
        v_opacities = torch.where(opacities > 0, sums[:, 0] / opacities, 0.0)
        return sums[:, 8:10] / FILTER_VARIANCE, torch.cat([row_x, row_y, row_z], -1), v_opacities


class SurfelPlane(Surfel):
    """The 2D Gaussian. The last feature is the depth at which the ray of the pixel meets its plane.

    `local` has three more tensors: s where the ray meets the disc, else 0, [2, P, K]; the ratio of the depth there to
    the depth of the center, [P, K]; and whether the ray meets the disc, [P, K].
    """

    SUMS: ClassVar[int] = 11

    def pack(self, splats: Splats, numerics: Numerics) -> Tensor:
        """Packs the values of ``Surfel``, with the depth of the center before ln(opacity). [14, nnz]"""
        rows = super().pack(splats, numerics)
        z = torch.where(rows[-1] > 0, splats.shapes[:, 8], 0.0)
        return torch.cat([rows[:-2], z[None], rows[-2:]])

    def locate(self, record: Tensor, pixels: Pixels) -> tuple[Local, Tensor]:
        local, s, exponent = self._locate(torch.cat([record[:-3], record[-2:]]), pixels)
        ratio = 1 + (record[7:9, None] * s).sum(0)
        is_met = ((s * s).sum(0) <= DISC_EXTENT**2) & (ratio > 0)
        return (*local, torch.where(is_met, s, 0.0), torch.where(is_met, ratio, 1.0), is_met), exponent

    def hits(self, z: Tensor, local: Local) -> Tensor:
        return z * local[3]

    def v_centers(self, v_hits: Tensor, local: Local) -> Tensor:
        return torch.where(local[4], 0.0, v_hits)

    def sums(
        self, record: Tensor, g: Tensor, local: Local, v_hits: Tensor | None, v_rays: Tensor | None
    ) -> list[Tensor]:
        """Returns the sums of ``Surfel``, and the sum of q. The sums of q s_0 and q s_1 are subtracted from the sums of
        g |s|^2 s_0 and g |s|^2 s_1."""
        assert v_hits is not None
        _, _, s, ratio, is_met = local
        sums = super().sums(record, g, local, v_hits, v_rays)
        q = torch.where(is_met, v_hits * ratio * record[-3], 0.0)
        x, y = (q * s).sum(1)
        return [*sums[:6], sums[6] - x, sums[7] - y, *sums[8:], q.sum(0)]

    def _third(self, sums: Tensor) -> Tensor:
        return super()._third(sums) + torch.nn.functional.pad(sums[:, 10:11], (2, 0))

    def pixel_features(
        self, feature: Tensor, weight: Tensor, local: Local, pixels: Pixels, settings: CompositingSettings
    ) -> Tensor:
        """Returns the contribution of depths [D, P], and sets the last feature to zero."""
        added = feature.new_zeros(len(feature), len(weight))
        added[-1] = (weight * self.hits(feature[-1], local)).sum(1)
        feature[-1] = 0.0
        return added

    def pixel_features_vjp(
        self, feature: Tensor, v_color: Tensor, local: Local, pixels: Pixels, settings: CompositingSettings
    ) -> tuple[Tensor, Tensor]:
        v_weight = v_color[:, :-1] @ feature[:-1] + v_color[:, -1:] * self.hits(feature[-1], local)
        return v_weight, torch.zeros_like(local[3])
