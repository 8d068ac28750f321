"""What surrounds rasterization: image losses and Adam."""

from .adam import Adam, step_all
from .image_loss import l1_and_ssim, l1_ssim_loss

__all__ = ["Adam", "l1_and_ssim", "l1_ssim_loss", "step_all"]
