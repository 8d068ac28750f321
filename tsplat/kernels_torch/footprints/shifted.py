"""The ellipse at subpixel positions, in vectorized PyTorch; see ``kernels/compositing/footprints/shifted.py``."""

from torch import Tensor

from .ellipse import Ellipse
from .interface import Local, Pixels


class Shifted(Ellipse):
    """The ellipse, evaluated at positions. They are stored as the directions of rays. `local` is the offset from the
    mean, dx and dy [P, K]."""

    def locate(self, record: Tensor, pixels: Pixels) -> tuple[Local, Tensor]:
        assert isinstance(pixels, Tensor)
        mean_x, mean_y, a, b, c, log_opacity, _ = record
        dx, dy = pixels[3][:, None] - mean_x, pixels[4][:, None] - mean_y
        return (dx, dy), log_opacity + a * dx * dx + dy * (b * dx + c * dy)

    def sums(
        self, record: Tensor, g: Tensor, local: Local, v_hits: Tensor | None, v_rays: Tensor | None
    ) -> list[Tensor]:
        dx, dy = local
        g = g.flatten(0, 1)
        g_dx, g_dy = g * dx, g * dy
        return [value.sum(0) for value in (g, g_dx, g_dy, g_dx * dx, g_dx * dy, g_dy * dy)]

    def slopes(self, record: Tensor, g: Tensor, local: Local) -> list[Tensor]:
        _, _, a, b, c, _, _ = record
        dx, dy = local
        g = g.flatten(0, 1)
        return [(g * (2 * a * dx + b * dy)).abs().sum(0), (g * (2 * c * dy + b * dx)).abs().sum(0)]
