"""Culling by boxes: Gaussians that a camera cannot see are left out before they are activated and projected."""

import torch
from torch import Tensor

from ..config import FILTER_VARIANCE, FOV_MARGIN
from ..precision import in_full_precision
from .cameras import Camera
from .gaussians import Gaussians
from .morton import morton_order

CHUNK = 128
"""Number of Gaussians with a common box."""

SIGMAS = 3.5
"""Standard deviations within which any Gaussian has an alpha of 1/255 or more; it needs 3.33 with an opacity of 1."""


class CulledModel:
    """A model in chunks of neighbors of about the same size, and the box of each.

    Attributes:
        gaussians: The model, which must not change.
    """

    def __init__(self, gaussians: Gaussians) -> None:
        self.gaussians = gaussians
        extents = gaussians.log_scales.detach().amax(-1)
        order = morton_order(gaussians.means.detach())
        order = order[(extents[order] / 0.7).floor().argsort(stable=True)]  # sizes within a factor of 2
        self._chunks = torch.empty_like(order)
        self._chunks[order] = torch.arange(len(order), device=order.device) // CHUNK
        order = torch.cat([order, order[-1:].expand(-len(order) % CHUNK)])  # the last chunk is full, too
        n_chunks = len(order) // CHUNK
        means = gaussians.means.detach()[order].view(n_chunks, CHUNK, 3)
        self._low, self._high = means.amin(1), means.amax(1)
        self._radii = SIGMAS * extents[order].view(n_chunks, CHUNK).amax(1).exp()

    @torch.no_grad()
    def seen_by(self, camera: Camera, *, near: float = 0.01, eps2d: float = 0.3) -> Gaussians:
        """Returns the Gaussians in chunks that a camera may see, in the order of the model; it may be the model itself.

        Images of them are those of the model, up to the rounding of vectorized activations, which depends on the row.
        Only pinhole cameras without distortion or rolling shutter leave any out.

        Args:
            near, eps2d: ``near_plane`` and ``eps2d`` of :func:`tsplat.rasterization`.
        """
        if camera.model != "pinhole" or camera.distortion is not None or camera.viewmat_end is not None:
            return self.gaussians
        rows = (~self._hidden(camera, near, eps2d))[self._chunks].nonzero().squeeze(1)
        return self.gaussians if 2 * len(rows) > len(self.gaussians) else self.gaussians.select(rows)

    @in_full_precision
    def _hidden(self, camera: Camera, near: float, eps2d: float) -> Tensor:
        """Returns a mask of the chunks that are certainly behind the near plane or beside the image, [chunks] bool.

        A corner p of a box that is ahead bounds what its Gaussians cover: a point within r of p is at most
        f r (1 + (x / z)²)^(1/2) / (z - r) pixels from the projection of p, and so is the ellipse of their linearized
        projection, whose x / z is clamped.
        """
        viewmat, K = camera.viewmat.to(self._low), camera.K.to(self._low)
        ends = torch.stack([self._low, self._high], 1)
        corners = torch.cartesian_prod(*torch.arange(2, device=ends.device).expand(3, 2)).T  # [3, 8]
        local = ends[:, corners, torch.arange(3, device=ends.device)[:, None]].mT @ viewmat[:3, :3].T + viewmat[:3, 3]
        depths = local[..., 2]
        hidden = depths.amax(1) < near
        nearest = depths.amin(1) - self._radii
        for axis, size in enumerate((camera.width, camera.height)):
            focal, center = K[axis, axis], K[axis, 2]
            tangents = local[..., axis] / depths
            steepest = torch.maximum(tangents.abs().amax(1), torch.maximum(center, size - center) / focal)
            steepest = steepest + 0.5 * FOV_MARGIN * size / focal  # where the tangents of the Jacobian are clamped
            spread = self._radii * focal * (1 + steepest.square()).sqrt() / nearest
            reach = (spread.square() + SIGMAS**2 * max(eps2d, FILTER_VARIANCE)).sqrt() + 1
            low, high = focal * tangents.amin(1) + center - reach, focal * tangents.amax(1) + center + reach
            hidden |= (nearest > 0) & ((high < 0) | (low > size))
        return hidden
