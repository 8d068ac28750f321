"""Training: fit Gaussians to pictures, judge them, and show what came of it."""

from ..scene.formats.checkpoints import CheckpointError, open_model
from ..viewing.devices import pick_device
from ..viewing.rendering import render
from .checkpoints import Checkpoint, read_checkpoint, read_newest, write_checkpoint
from .config import Config, RunConfig, preset, read_config
from .demo import DemoSize, demo
from .evaluation import Score, evaluate, mean_psnr, mean_ssim
from .history import History
from .losses import loss, psnr, ssim
from .progress import DivergedError, Progress
from .runs import evaluate_run, resume, train
from .trainer import Trainer, fit, scene_extent

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Config",
    "DemoSize",
    "DivergedError",
    "History",
    "Progress",
    "RunConfig",
    "Score",
    "Trainer",
    "demo",
    "evaluate",
    "evaluate_run",
    "fit",
    "loss",
    "mean_psnr",
    "mean_ssim",
    "open_model",
    "pick_device",
    "preset",
    "psnr",
    "read_checkpoint",
    "read_config",
    "read_newest",
    "render",
    "resume",
    "scene_extent",
    "ssim",
    "train",
    "write_checkpoint",
]
