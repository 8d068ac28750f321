from ..errors import FileError, MissingExtraError
from .cameras import Camera, intrinsics, look_at, orbit, rasterization_arguments
from .capture.block_plans import Block, BlockPlan, plan_blocks, read_plan, write_plan
from .capture.captures import read_capture
from .capture.colmap import read_colmap
from .capture.initial_points import replace_points
from .capture.normalization import normalize_capture
from .capture.procedural import procedural_capture
from .capture.structure_from_motion import Prepared, prepare
from .capture.transforms import read_transforms
from .capture.views import Capture, View
from .cropping import crop_gaussians, crop_sphere
from .editing.decimation import decimate_gaussians
from .editing.pruning import prune_gaussians
from .formats.checkpoints import CheckpointError, open_model, read_georeference
from .formats.interchange.gltf import read_gltf
from .formats.interchange.gltf_writer import write_gltf
from .formats.interchange.usd import read_usd, write_usd
from .formats.ksplat import read_ksplat
from .formats.lcc import read_lcc
from .formats.lcc2 import read_lcc2
from .formats.models import read_model, write_model
from .formats.ply import read_ply, write_compressed_ply, write_ply
from .formats.rad import read_rad
from .formats.sog import read_sog
from .formats.sog_writer import write_sog
from .formats.splat import read_splat, write_splat
from .formats.spz import read_spz
from .formats.spz_writer import write_spz
from .formats.streaming.streamed_sog import read_streamed_sog
from .formats.streaming.streamed_sog_writer import write_streamed_sog
from .formats.torch_checkpoints import read_torch_checkpoint
from .gaussians import AlreadyActivatedError, Gaussians
from .georeference import Georeference
from .joining import merge_models, set_sh_degree
from .morton import morton_order
from .option_types import Color
from .rotation import rotate_gaussians, transform_gaussians
from .summary import Summary, summarize

__all__ = [
    "AlreadyActivatedError",
    "Block",
    "BlockPlan",
    "Camera",
    "Capture",
    "CheckpointError",
    "Color",
    "FileError",
    "Gaussians",
    "Georeference",
    "MissingExtraError",
    "Prepared",
    "Summary",
    "View",
    "crop_gaussians",
    "crop_sphere",
    "decimate_gaussians",
    "intrinsics",
    "look_at",
    "merge_models",
    "morton_order",
    "normalize_capture",
    "open_model",
    "orbit",
    "plan_blocks",
    "prepare",
    "procedural_capture",
    "prune_gaussians",
    "rasterization_arguments",
    "read_capture",
    "read_colmap",
    "read_georeference",
    "read_gltf",
    "read_ksplat",
    "read_lcc",
    "read_lcc2",
    "read_model",
    "read_plan",
    "read_ply",
    "read_rad",
    "read_sog",
    "read_splat",
    "read_spz",
    "read_streamed_sog",
    "read_torch_checkpoint",
    "read_transforms",
    "read_usd",
    "replace_points",
    "rotate_gaussians",
    "set_sh_degree",
    "summarize",
    "transform_gaussians",
    "write_compressed_ply",
    "write_gltf",
    "write_model",
    "write_plan",
    "write_ply",
    "write_sog",
    "write_splat",
    "write_spz",
    "write_streamed_sog",
    "write_usd",
]
