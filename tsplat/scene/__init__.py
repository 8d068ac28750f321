"""Scenes: the parameters of Gaussians, photographs with cameras, and the files that both come from."""

from .cameras import intrinsics, look_at, orbit
from .captures import Capture, View
from .colmap import read_colmap
from .extras import MissingExtraError
from .files import FileError
from .framing import guess_up, look_at_all
from .gaussians import Gaussians
from .normalization import normalize_capture
from .ply import read_ply, write_ply
from .prepare import Prepared, prepare
from .procedural import procedural_capture
from .reading import read_capture
from .transforms import read_transforms

__all__ = [
    "Capture",
    "FileError",
    "Gaussians",
    "MissingExtraError",
    "Prepared",
    "View",
    "guess_up",
    "intrinsics",
    "look_at",
    "look_at_all",
    "normalize_capture",
    "orbit",
    "prepare",
    "procedural_capture",
    "read_capture",
    "read_colmap",
    "read_ply",
    "read_transforms",
    "write_ply",
]
