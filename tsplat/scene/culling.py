"""Culling: removes Gaussians that a camera cannot see before they are activated and projected.

Models that do not change are culled in chunks by bounding boxes; Gaussians in training are culled one by one.
"""

import math

import torch
from torch import Tensor

from ..config import FILTER_VARIANCE, FOV_MARGIN
from ..precision import in_full_precision
from .cameras import Camera
from .gaussians import Gaussians
from .morton import morton_order

CHUNK = 128
"""Number of Gaussians per chunk, which has one bounding box."""

SAMPLE = 1 << 15
"""Number of Gaussians in the sample from which the threshold of the largest weights is estimated."""

SIGMAS = 3.5
"""Standard deviations beyond which alpha is below 1/255; with an opacity of 1, this is 3.33."""

BLOCK = 1 << 14
"""Number of Gaussians that are tested against a camera at a time, so that their values stay in the CPU's caches."""

ROUNDING = 1e-5
"""Bound of the rounding errors of sums of products, relative to the sum of their magnitudes."""


class CulledModel:
    """A model divided into chunks of neighboring Gaussians of similar size, each with a bounding box.

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
        self._masses: tuple[Tensor, Tensor] | None = None
        self._radii = SIGMAS * extents[order].view(n_chunks, CHUNK).amax(1).exp()

    @torch.no_grad()
    def seen_by(self, camera: Camera, *, near: float = 0.01, eps2d: float = 0.3, n_max: int | None = None) -> Gaussians:
        """Returns the Gaussians of all chunks that a camera may see, in the order of the model; possibly the model
        itself.

        They render the same image as the model, up to the rounding of vectorized activations, which depends on the row.
        Only pinhole cameras without distortion or rolling shutter cull Gaussians.

        Args:
            near, eps2d: ``near_plane`` and ``eps2d`` of :func:`tsplat.rasterization`.
            n_max: Maximum number of Gaussians. If more may be seen, those with the largest opacity times area in pixels
                are returned.
        """
        seen = (~self._outside_view(camera, near, eps2d))[self._chunks] if culls(camera) else None
        n_seen = len(self.gaussians) if seen is None else int(seen.sum())
        if n_max is not None and n_seen > n_max:
            rows = self._largest(camera, seen, near, eps2d, n_max)
            return self.gaussians.map(lambda tensor: tensor.index_select(0, rows))  # in half the time of tensor[rows]
        if seen is None or 2 * n_seen > len(self.gaussians):
            return self.gaussians
        return self.gaussians.select(seen.nonzero().squeeze(1))

    def _largest(self, camera: Camera, seen: Tensor | None, near: float, eps2d: float, n: int) -> Tensor:
        """Returns the ascending ids [n] of the seen Gaussians with the largest opacity times area in pixels.

        The area is the product of the two longest axes at the Gaussian's depth, widened by the low-pass filter.

        Args:
            seen: [N] bool; None if all are seen.
        """
        if self._masses is None:
            opacities = self.gaussians.opacities.detach()
            self._masses = opacities * self.gaussians.log_scales.detach().topk(2).values.sum(1).exp(), opacities
        areas, opacities = self._masses
        means, viewmat = self.gaussians.means.detach(), camera.viewmat.to(areas)
        if camera.model == "pinhole":
            depths = torch.addmv(viewmat[2, 3], means, viewmat[2, :3])
            pixels = depths.clamp_(min=max(near, 1e-12)).reciprocal_().square_()
        elif camera.model == "ortho":
            pixels = torch.ones_like(areas)
        else:
            pixels = (means - camera.position.to(means)).square().sum(1).clamp_(min=near**2 + 1e-24).reciprocal_()
        focal = float(camera.K[0, 0] * camera.K[1, 1])
        floor = 0.0 if self.gaussians.antialiased else eps2d
        weights = torch.add(floor * opacities, areas.mul(pixels), alpha=focal)
        if seen is not None:
            weights.masked_fill_(~seen, -1.0)
        # A threshold from a sample selects the largest weights, so that only these are sorted.
        sample = weights[:: max(1, len(weights) // SAMPLE)].sort(descending=True).values
        ids = (weights > sample[min(len(sample) * 21 * n // (20 * len(weights)), len(sample) - 1)]).nonzero().squeeze(1)
        if len(ids) < n:
            ids = torch.arange(len(weights), device=weights.device)
        candidates = weights[ids]
        return ids[candidates >= candidates.kthvalue(len(ids) - n + 1).values][:n]

    @in_full_precision
    def _outside_view(self, camera: Camera, near: float, eps2d: float) -> Tensor:
        """Returns a mask [chunks] bool of the chunks that are certainly in front of the near plane or outside the
        image.

        The corners p of a box in front of the camera bound the pixels that its Gaussians cover: a point within r of p
        is at most f r (1 + (x / z)²)^(1/2) / (z - r) pixels from the projection of p. The same holds for the ellipse of
        the linearized projection, whose x / z is clamped.
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


def culls(camera: Camera) -> bool:
    """Returns whether a camera can cull Gaussians: a pinhole camera without distortion or rolling shutter."""
    return camera.model == "pinhole" and camera.distortion is None and camera.viewmat_end is None


@torch.no_grad()
@in_full_precision
def rows_in_sight(
    means: Tensor, log_scales: Tensor, camera: Camera, *, near: float = 0.01, eps2d: float = 0.3
) -> Tensor:
    """Returns the ascending ids [n] int64 of the Gaussians that a camera may see, a superset of those it does see.

    A Gaussian with camera coordinates x and z and the largest standard deviation s covers at most :data:`SIGMAS` (f² s²
    (1 + t²) / z² + eps2d)^(1/2) + 1 pixels around f x / z + c, where t is the largest tangent of the Jacobian. The root
    of the sum is at most the sum of the roots. Multiplied by z, this bound is linear in the mean and in s.

    Args:
        means, log_scales: [N, 3], world frame; Gaussians with non-finite values are not seen.
        camera: A camera that :func:`culls`.
        near, eps2d: ``near_plane`` and ``eps2d`` of :func:`tsplat.rasterization`.
    """
    viewmat, K = camera.viewmat.double().cpu(), camera.K.double().cpu()
    margin, reach = SIGMAS * eps2d**0.5 + 1, 0.0
    planes = torch.zeros(5, 3, dtype=torch.float64, device="cpu")  # four sides of the image, and the depth
    planes[:, 2] = 1
    for axis, size in enumerate((camera.width, camera.height)):
        focal, center = K[axis, axis], K[axis, 2]
        planes[2 * axis, axis], planes[2 * axis, 2] = focal, center + margin
        planes[2 * axis + 1, axis], planes[2 * axis + 1, 2] = -focal, size - center + margin
        tangent = (torch.maximum(center.abs(), (size - center).abs()) + 0.5 * FOV_MARGIN * size) / focal.abs()
        reach = max(reach, float(focal.abs() * (1 + tangent.square()).sqrt()))
    scale = float(torch.linalg.matrix_norm(viewmat[:3, :3], 2))  # 1, unless the pose scales
    reach *= 1.001 * SIGMAS * scale
    offsets = planes @ viewmat[:3, 3:]
    roundings = ROUNDING * planes.abs() @ viewmat[:3].abs()  # of x, y, z, 1
    world = (planes @ viewmat[:3, :3]).to(means)
    found = []
    for begin in range(0, len(means), BLOCK):
        points, scales = means[begin : begin + BLOCK], log_scales[begin : begin + BLOCK]
        largest = float(points.abs().amax())
        if not math.isfinite(largest):
            largest = float(points.nan_to_num(0.0, 0.0, 0.0).abs().amax())
        errors = largest * roundings[:, :3].sum(1, keepdim=True) + roundings[:, 3:]
        sides = torch.addmm((offsets + errors).to(means), world, points.T)  # [5, n]
        sizes = torch.maximum(torch.maximum(scales[:, 0], scales[:, 1]), scales[:, 2]).exp_()
        nearest = torch.minimum(torch.minimum(sides[0], sides[1]), torch.minimum(sides[2], sides[3]))
        seen = (sides[4] >= near).logical_and_(nearest.add_(sizes, alpha=reach) >= 0)
        found.append(seen.nonzero().squeeze(1).add_(begin))
    return torch.cat(found)
