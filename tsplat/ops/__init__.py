"""Operations besides rasterization: image losses, Adam, and positions and normals from depth maps."""

from .adam import Adam, step_all
from .depth_maps import depth_to_normals, depth_to_points
from .image_loss import l1_and_ssim, l1_ssim_loss

__all__ = ["Adam", "depth_to_normals", "depth_to_points", "l1_and_ssim", "l1_ssim_loss", "step_all"]
