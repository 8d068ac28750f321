from ..scene.formats.checkpoints import CheckpointError
from ..support.interruption import Interrupted
from ..viewing.view_options import ViewOptions
from .configuration import Config, RunConfig, read_config
from .evaluation import Evaluation, Score, evaluate
from .history import History
from .losses import loss, psnr, ssim
from .observers import DivergedError, Observer, Progress, RunStart
from .presets import preset
from .runs.blocks import BlockError, merge_blocks, train_blocks
from .runs.demo import demo
from .runs.fit import fit
from .runs.live_view import LiveView
from .runs.run_checkpoints import Checkpoint, read_checkpoint, read_newest, write_checkpoint
from .runs.train import evaluate_run, resume, train
from .trainer import Trainer, scene_extent

__all__ = [
    "BlockError",
    "Checkpoint",
    "CheckpointError",
    "Config",
    "DivergedError",
    "Evaluation",
    "History",
    "Interrupted",
    "LiveView",
    "Observer",
    "Progress",
    "RunConfig",
    "RunStart",
    "Score",
    "Trainer",
    "ViewOptions",
    "demo",
    "evaluate",
    "evaluate_run",
    "fit",
    "loss",
    "merge_blocks",
    "preset",
    "psnr",
    "read_checkpoint",
    "read_config",
    "read_newest",
    "resume",
    "scene_extent",
    "ssim",
    "train",
    "train_blocks",
    "write_checkpoint",
]
