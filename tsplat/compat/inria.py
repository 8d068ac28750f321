"""The names of Inria's `diff_gaussian_rasterization`: code written for it runs with this import in place of that.

Same arguments, same returned `(color, radii, invdepths)`, same gradient of `means2D` that its densification reads,
under the constants of `numerics="inria"`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..arguments import check_absent, check_tensor
from ..errors import ArgumentError
from ..stages.backend import full_precision
from ..stages.compositing import rasterize_to_pixels
from ..stages.intersection import isect_offset_encode, isect_tiles
from ..stages.projection import fully_fused_projection
from ..stages.shading import spherical_harmonics
from ..stages.validation import raise_if_invalid

NUMERICS = "inria"
NEAR = 0.2
TILE = 16


class GaussianRasterizationSettings(NamedTuple):
    """A camera and what goes with it.

    Attributes:
        image_height, image_width: Pixels.
        tanfovx, tanfovy: Tangents of half the fields of view, which give the focal lengths.
        bg: [C] background.
        scale_modifier: Factor of every scale; not of `cov3D_precomp`.
        viewmatrix: [4, 4] world to camera, transposed: points are rows.
        projmatrix: [4, 4] world to clip space, transposed; gives the principal point.
        sh_degree: Highest degree of spherical harmonics in use.
        campos: [3] camera center in the world, which `shs` are seen from.
        prefiltered: Only False is implemented.
        debug: Whether to raise for values that cannot be drawn, or are likely to be a mistake.
        antialiasing: Whether opacities are scaled by what the blur added to the screen area.
    """

    image_height: int
    image_width: int
    tanfovx: float
    tanfovy: float
    bg: Tensor
    scale_modifier: float
    viewmatrix: Tensor
    projmatrix: Tensor
    sh_degree: int
    campos: Tensor
    prefiltered: bool = False
    debug: bool = False
    antialiasing: bool = False


class GaussianRasterizer(torch.nn.Module):
    """Renders Gaussians as seen by a camera."""

    def __init__(self, raster_settings: GaussianRasterizationSettings) -> None:
        super().__init__()
        check_absent({"prefiltered": (raster_settings.prefiltered, False)})
        self.raster_settings = raster_settings

    @torch.no_grad()
    def markVisible(self, positions: Tensor) -> Tensor:  # noqa: N802 - Inria's name
        """Which positions [N, 3] lie more than 0.2 in front of the camera, [N] bool."""
        check_tensor("positions", positions, [None, 3], "[N, 3]")
        return _depths(positions, self.raster_settings.viewmatrix) > NEAR

    def forward(
        self,
        means3D: Tensor,
        means2D: Tensor,
        opacities: Tensor,
        shs: Tensor | None = None,
        colors_precomp: Tensor | None = None,
        scales: Tensor | None = None,
        rotations: Tensor | None = None,
        cov3D_precomp: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Renders.

        Args:
            means3D: [N, 3] centers, world frame.
            means2D: [N, 3] of any value; gets the gradient of the projected means, the screen going from -1 to 1.
            opacities: [N, 1] after sigmoid.
            shs: [N, K, 3] spherical harmonics coefficients; or
            colors_precomp: [N, C] colors.
            scales, rotations: [N, 3] after exp, and [N, 4] wxyz; or
            cov3D_precomp: [N, 6] upper triangles of covariances.

        Returns:
            ``color`` [C, H, W], ``radii`` [N] int32 in pixels, 0 where not seen, and ``invdepths`` [1, H, W], the sum
            of w / z. Differentiable with respect to every argument.

        Raises:
            ArgumentError: Both or neither of two alternatives, or a shape that has no meaning.
            InvalidValueError: ``debug``, and there are values that cannot be drawn.
        """
        if (shs is None) == (colors_precomp is None):
            raise ArgumentError("shs: pass either shs or colors_precomp")
        if (cov3D_precomp is None) == (scales is None or rotations is None):
            raise ArgumentError("scales: pass either scales and rotations, or cov3D_precomp")
        s = self.raster_settings
        check_tensor("means3D", means3D, [None, 3], "[N, 3]")
        n = means3D.shape[0]
        check_tensor("means2D", means2D, [n, 3], "[N, 3] as means3D")
        check_tensor("opacities", opacities, [n, 1], "[N, 1] as means3D")
        width, height = s.image_width, s.image_height
        viewmats = s.viewmatrix.T[None]
        Ks = self._intrinsics(means3D)
        if scales is not None:
            scales = scales * s.scale_modifier
        with full_precision(means3D.device):
            colors = colors_precomp
            if colors is None:
                assert shs is not None
                colors = (spherical_harmonics(s.sh_degree, means3D - s.campos, shs) + 0.5).clamp_min(0)
            if s.debug:
                raise_if_invalid(
                    means3D, rotations, scales, cov3D_precomp, opacities[:, 0], colors, viewmats, Ks,
                    per_camera=False, sh=False,
                )  # fmt: skip
            radii, pixels, depths, conics, compensations = fully_fused_projection(
                means3D, cov3D_precomp, rotations, scales, viewmats, Ks, width, height,
                calc_compensations=s.antialiasing, opacities=opacities[:, 0], numerics=NUMERICS,
            )  # fmt: skip
            assert radii is not None and pixels is not None and depths is not None and conics is not None
            alphas = opacities[None, :, 0]
            if compensations is not None:
                alphas = alphas * compensations
            # Adds nothing; what flows back to it are pixels, of which half the picture is one unit of the screen.
            half = pixels.new_tensor([0.5 * width, 0.5 * height])
            pixels = pixels + ((means2D - means2D.detach())[:, :2] * half)[None]
            tiles = (-(-width // TILE), -(-height // TILE))
            _, ids, flatten_ids = isect_tiles(
                pixels.detach(), radii, depths.detach(), TILE, *tiles,
                conics=conics.detach(), opacities=alphas.detach(), numerics=NUMERICS,
            )  # fmt: skip
            seen = depths > 0
            inverse = torch.where(seen, 1 / torch.where(seen, depths, 1.0), 0.0)[..., None]
            image, _ = rasterize_to_pixels(
                pixels, conics, torch.cat([colors[None].to(inverse), inverse], -1), alphas, width, height, TILE,
                isect_offset_encode(ids, 1, *tiles), flatten_ids,
                backgrounds=torch.cat([s.bg.to(inverse), inverse.new_zeros(1)])[None], numerics=NUMERICS,
            )  # fmt: skip
        picture = image[0].movedim(-1, 0)
        return picture[:-1], radii[0, :, 0], picture[-1:]

    def _intrinsics(self, like: Tensor) -> Tensor:
        """[1, 3, 3] in pixels: focal lengths from the fields of view, the principal point from the projection."""
        s = self.raster_settings
        # Row vectors: clip = (world viewmatrix) projection, whose third row holds what depth adds to x and y.
        projection = torch.linalg.solve(s.viewmatrix.double(), s.projmatrix.double()).to(like.dtype)
        Ks = torch.zeros(1, 3, 3, dtype=like.dtype, device=like.device)
        for axis, (size, tangent) in enumerate(((s.image_width, s.tanfovx), (s.image_height, s.tanfovy))):
            Ks[0, axis, axis] = size / (2 * tangent)
            Ks[0, axis, 2] = 0.5 * size * (1 + projection[2, axis])
        Ks[0, 2, 2] = 1
        return Ks


def _depths(positions: Tensor, viewmatrix: Tensor) -> Tensor:
    return (positions * viewmatrix[:3, 2]).sum(-1) + viewmatrix[3, 2]
