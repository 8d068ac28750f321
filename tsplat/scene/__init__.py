"""Scenes: the parameters of Gaussians, photographs with cameras, and the files that both come from."""

from ..errors import FileError, MissingExtraError
from .cameras import intrinsics, look_at, orbit
from .capture.captures import Capture, View
from .capture.colmap import read_colmap
from .capture.normalization import normalize_capture
from .capture.prepare import Prepared, prepare
from .capture.procedural import procedural_capture
from .capture.reading import read_capture
from .capture.transforms import read_transforms
from .formats.checkpoints import CheckpointError, open_model
from .formats.models import lost_in, read_model, write_model
from .formats.ply import read_ply, write_ply
from .formats.sog import read_sog
from .formats.splat import read_splat, write_splat
from .formats.spz import read_spz
from .formats.torch_checkpoints import read_torch_checkpoint
from .gaussians import ActivatedError, Gaussians
from .summary import Summary, summarize

__all__ = [
    "ActivatedError",
    "Capture",
    "CheckpointError",
    "FileError",
    "Gaussians",
    "MissingExtraError",
    "Prepared",
    "Summary",
    "View",
    "intrinsics",
    "look_at",
    "lost_in",
    "normalize_capture",
    "open_model",
    "orbit",
    "prepare",
    "procedural_capture",
    "read_capture",
    "read_colmap",
    "read_model",
    "read_ply",
    "read_sog",
    "read_splat",
    "read_spz",
    "read_torch_checkpoint",
    "read_transforms",
    "summarize",
    "write_model",
    "write_ply",
    "write_splat",
]
