"""Scenes: the parameters of Gaussians, photographs with cameras, and the files that both come from."""

from .cameras import intrinsics, look_at, orbit
from .captures import Capture, View
from .colmap import read_colmap
from .extras import MissingExtraError
from .files import FileError
from .foreign import read_foreign
from .framing import guess_up, look_at_all
from .gaussians import ActivatedError, Gaussians
from .models import lost_in, read_model, write_model
from .normalization import normalize_capture
from .ply import read_ply, write_ply
from .prepare import Prepared, prepare
from .procedural import procedural_capture
from .reading import read_capture
from .sog import read_sog
from .splat import read_splat, write_splat
from .spz import read_spz
from .summary import Summary, summarize
from .trajectories import Camera, orbit_around, read_cameras, spiral_at
from .transforms import read_transforms

__all__ = [
    "ActivatedError",
    "Camera",
    "Capture",
    "FileError",
    "Gaussians",
    "MissingExtraError",
    "Prepared",
    "Summary",
    "View",
    "guess_up",
    "intrinsics",
    "look_at",
    "look_at_all",
    "lost_in",
    "normalize_capture",
    "orbit",
    "orbit_around",
    "prepare",
    "procedural_capture",
    "read_cameras",
    "read_capture",
    "read_colmap",
    "read_foreign",
    "read_model",
    "read_ply",
    "read_sog",
    "read_splat",
    "read_spz",
    "read_transforms",
    "spiral_at",
    "summarize",
    "write_model",
    "write_ply",
    "write_splat",
]
