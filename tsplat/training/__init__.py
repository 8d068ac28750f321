"""Training: fit Gaussians to pictures, judge them, and show what came of it."""

from .evaluation import Score, evaluate, mean_psnr, mean_ssim
from .history import History
from .losses import loss, psnr, ssim
from .rendering import render
from .runs import DemoSize, demo, pick_device, train
from .trainer import Config, DivergedError, Progress, fit, scene_extent

__all__ = [
    "Config",
    "DemoSize",
    "DivergedError",
    "History",
    "Progress",
    "Score",
    "demo",
    "evaluate",
    "fit",
    "loss",
    "mean_psnr",
    "mean_ssim",
    "pick_device",
    "psnr",
    "render",
    "scene_extent",
    "ssim",
    "train",
]
