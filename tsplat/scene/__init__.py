"""Scenes: the parameters of Gaussians, photographs with cameras, and the files that both come from."""

from .cameras import intrinsics, look_at, orbit
from .captures import Capture, View
from .colmap import read_colmap
from .extras import MissingExtraError
from .files import FileError
from .framing import guess_up, look_at_all
from .gaussians import Gaussians
from .ply import read_ply, write_ply
from .procedural import procedural_capture

__all__ = [
    "Capture",
    "FileError",
    "Gaussians",
    "MissingExtraError",
    "View",
    "guess_up",
    "intrinsics",
    "look_at",
    "look_at_all",
    "orbit",
    "procedural_capture",
    "read_colmap",
    "read_ply",
    "write_ply",
]
