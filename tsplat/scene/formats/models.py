"""Reads and writes models in any supported format, which is detected first by content, then by file name."""

import contextlib
import functools
import os
import shlex
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import ArgumentError, FileError, UnsupportedError
from ...support.files import ZIP, output_folder
from ...support.reading import check_possible, open_file
from ..gaussians import Gaussians
from ..georeference import Georeference, check_frame, written_georeference
from ..model_rows import Rows, as_rows, gather
from ..option_types import Format, ModelFrame
from ..quantization import Floats, valid_bounds
from . import compressed_ply, sog_writer, spz_writer
from .foreign import Warn
from .image_sets import META
from .interchange.gltf import MAGIC as GLTF_MAGIC
from .interchange.gltf import read_gltf
from .interchange.gltf_writer import write_gltf
from .interchange.usd import is_usd, read_usd, write_usd
from .ksplat import read_ksplat
from .lcc import find_index, read_lcc
from .lcc2 import read_lcc2
from .ply import HOW_TO_TRAIN, read_ply, write_compressed_ply, write_ply
from .png_images import is_png_folder, read_png_model
from .point_clouds import CLOUD_SUFFIXES
from .rad import CHUNK_MAGIC, read_rad
from .rad import MAGIC as RAD_MAGIC
from .sog import read_sog
from .sog_writer import write_sog
from .splat import read_splat, write_splat
from .spz import GZIP, MAGIC, read_spz
from .spz_writer import write_spz
from .streaming.streamed_sog import LOD_META, read_streamed_sog
from .streaming.streamed_sog_writer import write_streamed_sog
from .torch_checkpoints import CHECKPOINT_SUFFIXES, read_torch_checkpoint

POINT_CLOUD = "point_cloud.ply"
"""Name of the model file in the output folders of tsplat's and Inria's trainers."""

KNOWN = (
    "PLY, .splat, .ksplat, .spz, .sog or its folder, lod-meta.json, .rad, .lcc, .lcc2, .glb, .gltf, .usda, .usdc, "
    ".usdz, gsplat's .pt or PNG images, nerfstudio's .ckpt, Inria's .pth"
)
PHOTOGRAPHS = (".jpg", ".jpeg", ".heic")
"""Suffixes of photographs; models contain images in other formats."""

POINT_CLOUDS = (".las", ".laz", ".e57", ".pcd", ".pts", ".xyz")
"""Suffixes of point clouds, which are not models."""

XGRIDS: dict[str, Callable[..., Gaussians]] = {".lcc": read_lcc, ".lcc2": read_lcc2}
READ_ONLY = (*XGRIDS, ".rad", ".ksplat", ".pt", ".pth", ".ckpt", ".json")
WRITERS: dict[Format, Callable[..., list[str]]] = {
    "ply": write_ply,
    "compressed-ply": write_compressed_ply,
    "splat": write_splat,
    "spz": write_spz,
    "spz4": functools.partial(write_spz, version=4),
    "sog": write_sog,
    "streamed-sog": write_streamed_sog,
    "glb": functools.partial(write_gltf, text=False),
    "gltf": functools.partial(write_gltf, text=True),
    "usda": functools.partial(write_usd, suffix=".usda"),
    "usdc": functools.partial(write_usd, suffix=".usdc"),
    "usdz": functools.partial(write_usd, suffix=".usdz"),
}
"""Format -> function that writes it and returns the losses."""

STREAMED: tuple[Format, ...] = ("ply", "spz", "spz4", "sog", "streamed-sog")
"""Formats that can be written from rows."""

ABSOLUTE: tuple[Format, ...] = ("ply", "glb", "gltf", "usda", "usdc", "usdz")
"""Formats that store an origin in double precision. Their writers have an argument `origin`."""

POSITION_ERRORS: dict[Format, Callable[[Floats], float]] = {
    "spz": spz_writer.position_error,
    "spz4": spz_writer.position_error,
    "sog": sog_writer.position_error,
    "streamed-sog": sog_writer.position_error,
}
"""Format -> function that returns the largest error of means with bounds [2, 3]."""

NOTED_ERROR = 1e-3
"""Errors of georeferenced positions above this value, in the unit of the scene's files, are noted."""

ENDINGS: dict[str, Format] = {
    ".compressed.ply": "compressed-ply",
    ".ply": "ply",
    ".splat": "splat",
    ".spz": "spz",
    ".sog": "sog",
    ".glb": "glb",
    ".gltf": "gltf",
    ".usda": "usda",
    ".usdc": "usdc",
    ".usdz": "usdz",
    f"/{META}": "sog",
    f"/{LOD_META}": "streamed-sog",
}
"""Ending of a path -> format; the first match is used."""

DEFLATE = b"\x08"
"""The third byte of every gzip file, the compression method."""


def read_model(path: str | os.PathLike[str], *, force: bool = False, warn: Warn = warnings.warn) -> Gaussians:
    """Reads a model: PLY (plain or compressed), ``.splat``, ``.ksplat``, SPZ, SOG, RAD, LCC, glTF, OpenUSD, or a
    checkpoint of gsplat, nerfstudio or Inria.

    Args:
        path: A file; a folder with ``meta.json`` (SOG, or gsplat's PNG images), ``lod-meta.json`` (Streamed SOG), one
            ``.lcc`` or ``.lcc2``, ``point_cloud.ply``, or checkpoints of gsplat's ranks or nerfstudio's splatfacto; or
            the output folder of a trainer of gsplat, nerfstudio (also its ``config.yml``) or Inria, whose last step is
            read. The finest level of detail is read.
        force: See :func:`read_torch_checkpoint`. Ignored for other formats.
        warn: Called with a one-line note that lists ignored data in the file.

    Returns:
        Gaussians in float32 on the CPU.

    Raises:
        FileError: The format is unknown, or the file is damaged.
        UnsupportedError: The format or its version is known but not implemented.
        MissingExtraError: An optional dependency of the format is not installed.
        OSError: The file cannot be read.
    """
    path = Path(path)
    check_possible(path)
    if path.name == "config.yml" and (path.parent / "nerfstudio_models").is_dir():
        path = path.parent
    if path.is_dir():
        if (path / META).exists():
            return read_png_model(path, warn=warn) if is_png_folder(path) else read_sog(path, warn=warn)
        for folder in (path, path / "ckpts", path / "nerfstudio_models"):
            if any(folder.glob("*.pt")) or any(folder.glob("*.ckpt")):
                return read_torch_checkpoint(folder, force=force, warn=warn)
        if (point_cloud := _find_point_cloud(path)) is not None:
            return read_ply(point_cloud, warn=warn)
        path = find_index(path) or path
    if path.name == LOD_META or (path / LOD_META).is_file():
        return read_streamed_sog(path, warn=warn)
    if path.is_dir():
        if (path / "sparse").is_dir() or (path / "transforms.json").is_file():
            raise FileError(
                f"{path}: a scene of photographs and cameras, not a model; to look at it, run: tsplat view "
                f"{shlex.quote(str(path))}; to make a model: tsplat train {shlex.quote(str(path))} --out RUN"
            )
        if any(file.suffix.lower() in PHOTOGRAPHS for file in path.iterdir()):
            raise FileError(
                f"{path}: a folder of photographs, not a model; to make a model, run: "
                f"tsplat prepare {shlex.quote(str(path))} --out SCENE, then tsplat train SCENE --out RUN"
            )
        raise FileError(
            f"{path}: the folder has neither {META} (SOG, PNG images) nor {LOD_META} (Streamed SOG) nor .pt files "
            f"(gsplat) nor .ckpt files (nerfstudio) nor {POINT_CLOUD}; expected {KNOWN}"
        )
    with open_file(path) as file:
        start = file.read(64)
    suffix = path.suffix.lower()
    if suffix in POINT_CLOUDS:
        readable = "" if suffix in CLOUD_SUFFIXES else "save it as .ply; "
        raise FileError(f"{path}: a {suffix} is a point cloud, not a model; {readable}{HOW_TO_TRAIN}")
    if suffix in CHECKPOINT_SUFFIXES:
        return read_torch_checkpoint(path, force=force, warn=warn)
    # Two bytes do not distinguish gzip from the first position of a .splat file, which has no header.
    is_gzip = start[:3] == GZIP + DEFLATE or (start[:2] == GZIP and suffix != ".splat")
    if is_gzip and suffix != ".spz" and not _is_gzipped_spz(path):
        raise FileError(f"{path}: gzip file, but only SPZ models use gzip; decompress it first: gunzip")
    if start[:3] == b"ply" or suffix == ".ply":
        return read_ply(path, warn=warn)
    if suffix in XGRIDS:
        return XGRIDS[suffix](path, warn=warn)
    # The first position of a .splat file may begin with the byte of a brace.
    is_json = start.lstrip()[:1] == b"{" and suffix not in (".json", ".splat")
    if start[:4] in (RAD_MAGIC, CHUNK_MAGIC) or suffix == ".rad":
        return read_rad(path, warn=warn)
    if start[:4] == GLTF_MAGIC or is_json or suffix in (".glb", ".gltf"):
        return read_gltf(path, warn=warn)
    if is_usd(start, suffix):
        return read_usd(path, warn=warn)
    if is_gzip or start[:4] == MAGIC or suffix == ".spz":
        return read_spz(path, warn=warn)
    if path.name == META or suffix == ".sog" or start[:4] == ZIP:
        return read_sog(path, warn=warn)
    if suffix == ".splat":
        return read_splat(path, warn=warn)
    if suffix == ".ksplat":
        return read_ksplat(path, warn=warn)
    if suffix == ".html":
        raise FileError(f"{path}: a page, which is opened in a web browser; tsplat reads the model it was made from")
    raise FileError(f"{path}: unknown model format; expected {KNOWN}")


def _is_gzipped_spz(path: Path) -> bool:
    """Returns whether the decompressed content of a gzip file begins like an SPZ file."""
    with open_file(path) as file, contextlib.suppress(zlib.error):
        return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(file.read(1 << 16), 4) == MAGIC
    return False


def _find_point_cloud(folder: Path) -> Path | None:
    """Returns the ``point_cloud.ply`` in a folder, or that of the last iteration in an output folder of Inria's
    trainer."""
    prefix = "iteration_"
    iterations = [
        path
        for path in folder.glob(f"point_cloud/{prefix}*/{POINT_CLOUD}")
        if path.parent.name.removeprefix(prefix).isdecimal()
    ]
    last = max(iterations, key=lambda path: int(path.parent.name.removeprefix(prefix)), default=None)
    return folder / POINT_CLOUD if (folder / POINT_CLOUD).is_file() else last


def write_model(
    path: str | os.PathLike[str],
    gaussians: Gaussians | Rows,
    *,
    format: Format | None = None,
    georeference: Georeference | None = None,
    frame: ModelFrame = "local",
) -> list[str]:
    """Writes a model as PLY, compressed PLY (PlayCanvas), ``.splat``, SPZ, SOG, glTF or OpenUSD.

    Args:
        path: File to write; its folder is created if it does not exist. SOG may also be a folder.
        gaussians: Gaussians on any device; or for the formats in :data:`STREAMED`, rows of a model that is larger than
            memory.
        format: ``"ply"``, ``"compressed-ply"``, ``"splat"``, ``"spz"`` (version 3), ``"spz4"``, ``"sog"``,
            ``"streamed-sog"``, ``"glb"``, ``"gltf"``, ``"usda"``, ``"usdc"`` or ``"usdz"``. None chooses by the name:
            ``.ply``, ``.compressed.ply``, ``.splat``, ``.spz``, ``.sog``, ``meta.json`` for a folder of SOG,
            ``lod-meta.json`` for one of Streamed SOG, ``.glb`` and so on.
        georeference: Georeference of the Gaussians, written beside the model to a file whose name ends in
            ``.world.json``. If it is None, such a file of an older model is removed.
        frame: ``"local"`` writes coordinates unchanged. ``"files"`` writes coordinates in the frame of the scene's
            files: as doubles in PLY, and with an origin of doubles in glTF and OpenUSD; in other formats in the axes
            and the unit of the files, relative to the origin of the georeference.

    Returns:
        Losses of the format, as phrases such as "view dependence (SH degree 3)"; empty if nothing is lost. Gaussians
        with a zero quaternion, which are never rendered, are stored only in PLY; other formats omit them.

    Raises:
        UnsupportedError: The format can only be read, or it does not support the SH degree.
        FileError: The file name has none of these endings, or the folder is not writable.
        ArgumentError: The format is unknown; `frame` is ``"files"`` without a georeference; or the format cannot
            represent the values; see :func:`write_compressed_ply`, :func:`write_splat`, :func:`write_spz`,
            :func:`write_sog`, :func:`write_gltf` and :func:`write_usd`.
        MissingExtraError: An optional dependency of the format is not installed.
        OSError: The file cannot be written.

    Example::

        import torch
        from tsplat.scene import Gaussians, read_model, write_model

        gaussians = Gaussians.from_points(torch.rand(100, 3), torch.rand(100, 3), sh_degree=3)
        assert write_model("scene.ply", gaussians) == []
        assert torch.equal(read_model("scene.ply").means, gaussians.means)
        print(write_model("scene.splat", gaussians))
    """
    file_format = format_of(path, format)
    check_frame(frame, georeference)
    if file_format is None:
        endings = ", ".join(ending.lstrip("/") for ending in ENDINGS)
        if Path(path).suffix.lower() in READ_ONLY:
            raise UnsupportedError(f"{path}: writing this format is not implemented; write {endings}")
        raise FileError(
            f"{path}: cannot tell the format from the file name; expected {endings}, a page .html of tsplat "
            "convert or export, or pass --format (in Python: format)"
        )
    is_absolute = frame == "files" and file_format in ABSOLUTE
    options: dict[str, Any] = {}
    if georeference is not None and frame == "files":
        gaussians, georeference = georeference.shift(gaussians), georeference.shifted()
        if is_absolute and any(georeference.origin):
            options["origin"] = georeference.origin
    if isinstance(gaussians, Rows) and file_format not in STREAMED:
        raise UnsupportedError(
            f"{path}: {file_format} is written from memory only, which is too small for {len(gaussians):,} Gaussians; "
            f"write {', '.join(STREAMED)}"
        )
    with output_folder(Path(path).parent) as folder, contextlib.ExitStack() as files:
        kept = gaussians if file_format == "ply" else _drop_unrotated(gaussians, folder, files)
        with written_georeference(path, georeference, absolute=is_absolute):
            lost = WRITERS[file_format](path, kept, **options)
        error = 0.0 if georeference is None else georeference.scale * _position_error(file_format, kept)
    if error > NOTED_ERROR:
        unit = "in the unit of the scene's files"
        lost = [*lost, f"positions by up to {error:.2g} {unit}; PLY, .splat, glTF and OpenUSD keep them"]
    if n_lost := len(gaussians) - len(kept):
        lost = [f"Gaussians whose rotation is a quaternion of zeros ({n_lost:,}), which are never rendered", *lost]
    return lost


def _position_error(file_format: Format, model: Gaussians | Rows) -> float:
    """Returns the largest error of the means that writing a model in a format causes."""
    if file_format == "compressed-ply" and isinstance(model, Gaussians):
        return compressed_ply.position_error(model.means.detach().float().cpu().numpy())
    return POSITION_ERRORS[file_format](valid_bounds(as_rows(model))) if file_format in POSITION_ERRORS else 0.0


def _drop_unrotated(gaussians: Gaussians | Rows, folder: Path, files: contextlib.ExitStack) -> Gaussians | Rows:
    """Returns the Gaussians with a nonzero quaternion. Temporary files are in `folder` and closed by `files`."""
    if isinstance(gaussians, Gaussians):
        has_rotation = gaussians.has_rotation
        return gaussians if bool(has_rotation.all()) else gaussians.select(has_rotation)
    if all(bool(chunk.has_rotation.all()) for chunk in gaussians.chunks()):
        return gaussians
    kept = (chunk.select(chunk.has_rotation) for chunk in gaussians.chunks())
    return files.enter_context(gather(kept, gaussians, folder))


def format_of(path: str | os.PathLike[str], format: Format | None) -> Format | None:
    """Returns the format of a file to write, by default from its name; None if the name has no known ending."""
    if format is not None and format not in WRITERS:
        raise ArgumentError(f"format: expected {', '.join(WRITERS)}, found {format!r}")
    name = f"/{Path(path).name.lower()}"
    return format or next((file_format for ending, file_format in ENDINGS.items() if name.endswith(ending)), None)
