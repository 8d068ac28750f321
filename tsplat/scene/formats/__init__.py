"""Models of Gaussians on disk: one module per format, and :mod:`~tsplat.scene.formats.models`, which picks the format.

Every reader returns :class:`~tsplat.scene.Gaussians` in float32 on the CPU, and raises
:class:`~tsplat.errors.FileError` for a damaged file.
"""

from .checkpoints import CheckpointError, open_model
from .interchange.gltf import read_gltf
from .interchange.gltf_writer import write_gltf
from .interchange.usd import read_usd, write_usd
from .models import read_model, write_model
from .ply import read_ply, write_compressed_ply, write_ply
from .sog import read_sog
from .sog_writer import write_sog
from .splat import read_splat, write_splat
from .spz import read_orbit_limits, read_spz
from .spz_extensions import OrbitLimits
from .spz_writer import write_spz
from .streaming.streamed_sog import read_streamed_sog
from .streaming.streamed_sog_writer import write_streamed_sog
from .torch_checkpoints import read_torch_checkpoint

__all__ = [
    "CheckpointError",
    "OrbitLimits",
    "open_model",
    "read_gltf",
    "read_model",
    "read_orbit_limits",
    "read_ply",
    "read_sog",
    "read_splat",
    "read_spz",
    "read_streamed_sog",
    "read_torch_checkpoint",
    "read_usd",
    "write_compressed_ply",
    "write_gltf",
    "write_model",
    "write_ply",
    "write_sog",
    "write_splat",
    "write_spz",
    "write_streamed_sog",
    "write_usd",
]
