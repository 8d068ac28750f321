"""The ellipse in an image whose columns wrap, in PyTorch; see ``kernels/compositing/footprints/wrapped.py``."""

import torch
from torch import Tensor

from ...config import Numerics
from ...data import Splats
from .ellipse import Ellipse
from .interface import Local, Pixels


class Wrapped(Ellipse):
    """The ellipse, evaluated at pixel centers, of the closest periodic copy of each splat. Shapes are a conic and the
    period."""

    def pack(self, splats: Splats, numerics: Numerics) -> Tensor:
        """Packs the period, followed by the values of the ellipse. [8, nnz]"""
        ellipses = splats._replace(shapes=splats.shapes[:, :3])
        return torch.cat([splats.shapes[:, 3:].T, super().pack(ellipses, numerics)])

    def locate(self, record: Tensor, pixels: Pixels) -> tuple[Local, Tensor]:
        x, y = pixels
        period, mean_x, mean_y = record[:3]
        dx = x[:, None] - mean_x
        return self.locate_offsets(record[1:], dx - period * (dx / period + 0.5).floor(), y[:, None] - mean_y)

    def slopes(self, record: Tensor, g: Tensor, local: Local) -> list[Tensor]:
        return super().slopes(record[1:], g, local)

    def finish(self, sums: Tensor, shapes: Tensor, opacities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        v_means, v_shapes, v_opacities = super().finish(sums, shapes[:, :3], opacities)
        return v_means, torch.nn.functional.pad(v_shapes, (0, 1)), v_opacities
