"""Compositing of 2D Gaussians: maps of colors, normals, distortion and median depth."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..config import DISC_EXTENT
from ..data import CompositingSettings, Intersections, Splats
from ..errors import UnsupportedError
from ..formulas.discs import Discs
from ..formulas.pixel_centers import pixel_centers
from ..runtime.autograd import take_rows, zeros_for
from .compositing import WALKED_MAX, composite


def composite_surfels(
    splats: Splats,
    backgrounds: Tensor | None,
    masks: Tensor | None,
    n_images: int,
    bands: Iterable[Intersections],
    settings: CompositingSettings,
) -> dict[str, Tensor]:
    """Composites projected surfels into maps of colors, alphas and :data:`OF_SURFELS`, by name.

    Args:
        splats: Ray transforms as ``shapes``; normals, then colors as ``colors``; and depths.
        backgrounds: [I, D] of the colors, or [I, D + 1] of the colors and the depths; or None.
        masks, n_images, bands: As in ``composite``.
        settings: Settings with :data:`OF_SURFELS` among the outputs, and a footprint of surfels.
    """
    depths = splats.depths
    assert depths is not None
    depths = depths.view_as(depths)  # with a view, the gradients of all maps are added first
    splats = splats._replace(depths=depths)
    if settings.absgrad and splats.n_features > WALKED_MAX:
        # Two compositions would be needed, and |a| + |b| is not |a + b|.
        raise UnsupportedError(
            f"absgrad: not implemented for 2D Gaussians with more than {WALKED_MAX - 3} channels of colors and depth, "
            f"found {splats.n_features - 3}; render further channels by another call"
        )
    maps = composite(splats, None, masks, n_images, bands, settings)
    colors, alphas, rows = maps["colors"], maps["alphas"], maps.pop("median_rows")
    if backgrounds is not None:
        backgrounds = torch.nn.functional.pad(backgrounds, (0, colors.shape[-1] - backgrounds.shape[-1]))
        maps["colors"] = colors + (1 - alphas) * backgrounds[:, None, None]
    if settings.planes:
        medians = _plane_depths(splats, rows)
    else:
        # A row with z = 0 is appended for pixels without a median.
        z = torch.nn.functional.pad(depths, (0, 1))
        medians = take_rows(z, torch.where(rows >= 0, rows, len(depths)).flatten().to(torch.int64))
    # Contiguous copies, so that callers can modify them in place.
    return maps | {"medians": medians.view(alphas.shape), "distortions": maps["distortions"].contiguous()}


def _plane_depths(splats: Splats, rows: Tensor) -> Tensor:
    """Returns the depths [I H W] at which the rays of pixels meet the planes of rows [I, H, W]; 0 for a row of -1.

    The formulas are those of ``kernels/compositing/footprints/surfel.py``, differentiated by autograd.
    """
    assert splats.depths is not None
    height, width = rows.shape[1:]
    values = torch.cat([splats.shapes, splats.depths[:, None]], 1)
    # A finite row is appended for pixels without a median.
    values = torch.nn.functional.pad(values, (0, 0, 0, 1), value=1.0)
    ids = torch.where(rows >= 0, rows, len(splats.depths)).flatten().to(torch.int64)
    values = take_rows(values, ids).view(*rows.shape, 10)
    discs, depths = Discs.of(values[..., :9]), values[..., 9]
    sides, area = discs.scaled()
    z, t = discs.z[..., 0], discs.tilts
    # The rays meet the planes at s = p / w.
    x, y = pixel_centers(width, height, values)
    dx, dy = x - discs.centers[..., 0], y[:, None] - discs.centers[..., 1]
    a, b, c, d = sides.unbind(-1)
    p = torch.stack([d * dx - b * dy, a * dy - c * dx], -1)
    w = area[..., 0] - (t * p).sum(-1)
    with torch.no_grad():
        s = p / w[..., None]
        is_met = ((s * s).sum(-1) <= DISC_EXTENT**2) & (1 + (t * s).sum(-1) > 0)
    s = p / torch.where(is_met, w, 1.0)[..., None]
    depths = torch.where(is_met, z * (1 + (t * s).sum(-1)), depths)
    return torch.where(rows >= 0, depths, 0.0).flatten()


def with_screen_gradient(transforms: Tensor, densify: Tensor) -> Tensor:
    """Returns ray transforms M [nnz, 9] unchanged, and routes z dL/dM_02 and z dL/dM_12 to the gradient of `densify`.

    This is the gradient of the projected centers in pixels, which densification uses. `densify` is [nnz, 2].
    """
    shift = zeros_for(densify) * transforms.detach()[:, 8:]
    zero = torch.zeros_like(shift)
    return transforms + torch.cat([zero, shift[:, :1], zero, shift[:, 1:], zero, zero[:, :1]], -1)
