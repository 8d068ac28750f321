"""The 3D Gaussian along the ray of a pixel, in vectorized PyTorch; see ``kernels/compositing/footprints/ray.py``."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from ...config import ALPHA_MIN, Numerics
from ...data import CompositingSettings, Splats
from ...formulas.rotations import rotation_rows
from .interface import NOT_RENDERED, Footprint, Local, Pixels, pack_rows

INVERSE_MAX = 1e12
"""Maximum of 1 / scale and of the coordinates of the mean of Gaussians that are rendered."""

UPPER = [(i, j) for i in range(3) for j in range(i, 3)]


def _rotations(quats: Tensor) -> Tensor:
    """Returns rotation matrices of quaternions of any norm, [3, 3, nnz]."""
    return torch.stack([torch.stack(row) for row in rotation_rows(torch.nn.functional.normalize(quats, dim=-1))])


@dataclasses.dataclass(frozen=True)
class Ray(Footprint):
    """The 3D Gaussian, evaluated along rays.

    `local` is (c, t, u): the point c [3, P, K] of the ray that is closest to the mean, its parameter t [P, K], and the
    direction u [3, P, K]. c and u are in the frame in which the Gaussian is a unit sphere.

    Attributes:
        in_front: Whether to skip Gaussians whose closest point is behind the origin of the ray.
    """

    in_front: bool

    SUMS: ClassVar[int] = 10

    def pack(self, splats: Splats, numerics: Numerics) -> Tensor:
        """Packs the mean, M = diag(1 / s) R^T row by row, ln(opacity) and the clamped opacity. [14, nnz]"""
        shapes, opacities = splats.shapes, splats.opacities
        whitening = _rotations(shapes[:, 3:7]).transpose(0, 1) / shapes[:, 7:].T[:, None]
        values = torch.cat([shapes[:, :3].T, whitening.flatten(0, 1)])
        valid = (values.abs() <= INVERSE_MAX).all(0) & (opacities >= ALPHA_MIN)
        return pack_rows(values, opacities, valid, numerics)

    def locate(self, record: Tensor, pixels: Pixels) -> tuple[Local, Tensor]:
        assert isinstance(pixels, Tensor)
        whitening = record[3:12].view(3, 3, -1)
        # u = M d, w = M (o - m), t = -(u . w) / |u|^2, c = w + t u; ln(alpha) = ln(o) - |c|^2 / 2
        u = torch.einsum("ijk,jp->ipk", whitening, pixels[3:])
        w = torch.einsum("ijk,jpk->ipk", whitening, pixels[:3, :, None] - record[:3, None])
        t = -(u * w).sum(0) / (u * u).sum(0).clamp_min(1e-30)
        c = torch.addcmul(w, t, u)
        seen = pixels[3:].abs().sum(0)[:, None] > 0
        if self.in_front:
            seen = seen & (t >= 0)
        return (c, t, u), torch.where(seen, record[12] - 0.5 * (c * c).sum(0), NOT_RENDERED)

    def sums(
        self, record: Tensor, g: Tensor, local: Local, v_hits: Tensor | None, v_rays: Tensor | None
    ) -> list[Tensor]:
        """Returns the sums over pixels of g, g c, and the upper triangle of g c c^T; [K] each. Hits add to them."""
        g = g.flatten(0, 1)
        c, _, u = local = _orthogonal(local)
        q = None if v_hits is None else _hit_gradients(v_hits, local)
        if v_rays is not None:
            v_rays += _ray_gradients(record, g, local, q).view(v_rays.shape)
        weighted = g * c
        if q is None:
            return [g.sum(0), *weighted.sum(1), *((weighted[i] * c[j]).sum(0) for i, j in UPPER)]
        weighted, along = weighted + q * u, q * c
        return [g.sum(0), *weighted.sum(1), *((weighted[i] * c[j] + along[i] * u[j]).sum(0) for i, j in UPPER)]

    def slopes(self, record: Tensor, g: Tensor, local: Local) -> list[Tensor]:
        raise NotImplementedError

    def finish(self, sums: Tensor, shapes: Tensor, opacities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sums = sums[:, : self.SUMS]
        # Rows that were not rendered have zero sums. Their shape may be invalid and is replaced.
        shapes = torch.where((sums == 0).all(1, keepdim=True), 1.0, shapes)
        quats, scales = shapes[:, 3:7], shapes[:, 7:]
        products = sums.new_empty(len(sums), 3, 3)
        for column, (i, j) in enumerate(UPPER, start=4):
            products[:, i, j] = products[:, j, i] = sums[:, column]
        with torch.enable_grad():
            leaf = quats.detach().requires_grad_()
            rotation = _rotations(leaf).permute(2, 0, 1)
            v_rotation = -rotation.detach() @ (scales[:, :, None] * products / scales[:, None, :])
            (v_quats,) = torch.autograd.grad(rotation, leaf, v_rotation)
        v_means = (rotation.detach() @ (sums[:, 1:4] / scales)[..., None])[..., 0]
        v_scales = products.diagonal(dim1=1, dim2=2) / scales
        v_opacities = torch.where(opacities > 0, sums[:, 0] / opacities, 0.0)
        return sums.new_zeros(len(sums), 2), torch.cat([v_means, v_quats, v_scales], -1), v_opacities

    def pixel_features(
        self, feature: Tensor, weight: Tensor, local: Local, pixels: Pixels, settings: CompositingSettings
    ) -> Tensor:
        """Returns the contribution of hits and flipped normals [D, P]. Sets the last feature to zero for hits."""
        added = feature.new_zeros(len(feature), len(weight))
        if settings.hits:
            feature[-1] = 0.0
            added[-1] = (weight * local[1].abs()).sum(1)
        if settings.normals:
            added[:3] = feature[:3] @ (weight * _flips(feature[:3], pixels)).T
        return added

    def pixel_features_vjp(
        self, feature: Tensor, v_color: Tensor, local: Local, pixels: Pixels, settings: CompositingSettings
    ) -> tuple[Tensor, Tensor]:
        flips = torch.zeros_like(local[1])
        if settings.hits:
            feature[-1] = 0.0
        v_weight = v_color @ feature
        if settings.hits:
            v_weight += v_color[:, -1:] * local[1].abs()
        if settings.normals:
            flips = _flips(feature[:3], pixels)
            v_weight += flips * (v_color[:, :3] @ feature[:3])
        return v_weight, flips


def _flips(normals: Tensor, rays: Pixels) -> Tensor:
    """Returns -2 where normals [3, K] point along rays [6, P] and are flipped, else 0. [P, K]"""
    assert isinstance(rays, Tensor)
    return torch.where(rays[3:].T @ normals > 0, -2.0, 0.0).to(normals.dtype)


def _orthogonal(local: Local) -> Local:
    """Removes the component of c along u, which is due to rounding."""
    c, t, u = local
    return torch.addcmul(c, (u * c).sum(0) / (u * u).sum(0).clamp_min(1e-30), u, value=-1), t, u


def _hit_gradients(v: Tensor, local: Local) -> Tensor:
    """Returns the gradient of t divided by |u|^2 [P, K], from the gradient of the hit distance |t|."""
    _, t, u = local
    return torch.where(t < 0, -v, v) / (u * u).sum(0).clamp_min(1e-30)


def _ray_gradients(record: Tensor, g: Tensor, local: Local, q: Tensor | None = None) -> Tensor:
    """Returns the gradients of ray origins and directions, [6, P]. They include the gradients of hits if ``q``."""
    (c, t, u), whitening = local, record[3:12].view(3, 3, -1)
    v = -torch.einsum("ijk,ipk->jpk", whitening, g * c if q is None else g * c + q * u)
    v_directions = (t * v).sum(-1)
    if q is not None:
        v_directions -= torch.einsum("ijk,ipk->jp", whitening, q * c)
    return torch.cat([v.sum(-1), v_directions])
