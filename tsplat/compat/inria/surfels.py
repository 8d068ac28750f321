"""The rasterizer of ``diff_surfel_rasterization``, for 2D Gaussian Splatting (Huang et al., arXiv 2403.17888)."""

from typing import ClassVar

import torch
from torch import Tensor

from ... import UnsupportedError
from ...data import Cameras, Gaussians3D
from ...functional import (
    fully_fused_projection_2dgs,
    isect_offset_encode,
    isect_tiles,
    rasterize_to_pixels_2dgs,
)
from ...runtime.autograd import zeros_for
from ...stages.value_checks import raise_if_invalid
from .rasterizer import NEAR, NUMERICS, TILE_SIZE, GaussianRasterizer, Pose, Screen
from .returns import Names

FAR = 100.0
"""For distortion, depths are mapped so that the range from 0.2 to FAR becomes 0 to 1."""


class SurfelRasterizer(GaussianRasterizer):
    """Renders 2D Gaussians, with scales [N, 2]. Returns ``(color, radii, allmap)``.

    ``allmap`` [7, H, W] contains depth, the sum of weight * z; alpha; normals (3) in the camera frame; the median of z;
    and the distortion of depths. z is the depth of a center.
    """

    own_returns: ClassVar[Names | None] = ("color", "radii", "allmap")
    n_scales: ClassVar[int] = 2
    features = others = frozenset()

    def _render(
        self,
        gaussians: Gaussians3D,
        screen: Screen,
        pose: Pose | None,
        colors: Tensor,
        features: Tensor | None,
        names: Names,
    ) -> dict[str, Tensor]:
        s = self.raster_settings
        width, height = s.image_width, s.image_height
        means, quats, scales, covars, opacities, _ = gaussians
        if covars is not None:
            raise UnsupportedError(
                "cov3D_precomp: an argument of the fork 2DGS that is not implemented; pass scales and rotations"
            )
        assert quats is not None and scales is not None and opacities is not None
        scales = torch.nn.functional.pad(scales, (0, 1), value=1.0)
        cameras = Cameras(s.viewmatrix.T[None], s.intrinsics(means))
        if s.debug:
            raise_if_invalid(gaussians._replace(scales=scales), cameras, colors, None)
        radii, pixels, depths, transforms, normals = fully_fused_projection_2dgs(
            means, quats, scales, cameras.viewmats, cameras.Ks, width, height, numerics=NUMERICS
        )
        assert radii is not None and pixels is not None and depths is not None
        assert transforms is not None and normals is not None
        densify = pixels.new_zeros(pixels.shape)
        if screen.means is not None:
            densify = (zeros_for(screen.means)[:, :2] * pixels.new_tensor([0.5 * width, 0.5 * height]))[None]
        tiles = (-(-width // TILE_SIZE), -(-height // TILE_SIZE))
        _, ids, flatten_ids = isect_tiles(pixels.detach(), radii, depths.detach(), TILE_SIZE, *tiles, numerics=NUMERICS)
        visible = depths > 0
        mapped = FAR / (FAR - NEAR) * (1 - NEAR / torch.where(visible, depths, 1.0))
        # Subtract the mean, so that differences of large sums do not lose precision.
        mean = mapped.detach()[visible].mean() if visible.any() else 0.0
        mapped = torch.where(visible, mapped - mean, 0.0)
        channels = torch.cat([colors[None].to(depths), torch.stack([mapped, mapped.square(), depths], -1)], -1)
        images, alphas, normals, _, medians = rasterize_to_pixels_2dgs(
            pixels, transforms, channels, opacities[None], normals, densify, width, height, TILE_SIZE,
            isect_offset_encode(ids, 1, *tiles), flatten_ids,
            backgrounds=torch.cat([s.bg.to(depths), depths.new_zeros(3)])[None], numerics=NUMERICS,
        )  # fmt: skip
        color, first, second, depth = torch.split(images[0].movedim(-1, 0), [colors.shape[1], 1, 1, 1])
        alpha, normal, median = (image[0].movedim(-1, 0) for image in (alphas, normals, medians))
        # The sum of w_i w_j (m_i - m_j)^2 over i < j.
        distortion = alpha * second - first.square()
        values = {
            "color": color.contiguous(),
            "radii": radii[0].amax(-1),
            "allmap": torch.cat([depth, alpha, normal, median, distortion]),
        }
        return {name: values[name] for name in names}
